//! What holds for any sequence of operations, and what they cost.

use std::collections::HashMap;

use loch_fabric::lanes::block_on;
use proptest::prelude::*;

use super::{Options, Plan, Storage};
use crate::kv_direct::item::Item;
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::memory::{HostMemory, LINE_BYTES, Line, Near};
use crate::kv_direct::operation::Failure;

const SEED: u64 = 11;

/// What an entry is supposed to be: value, version, time of expiry.
type Known = (Vec<u8>, u64, Option<u64>);

/// A table, and what it should hold.
struct Checked {
    storage: Storage<Near<Vec<Line>>>,
    model: HashMap<Vec<u8>, Known>,
    versions: bool,
    item: Item,
}

impl Checked {
    fn new(options: &Options) -> Self {
        let plan = Plan::new(options).unwrap();
        let memory = Near::new(vec![Line::ZERO; plan.lines() as usize]);
        let storage = Storage::new(memory, &plan, plan.pools());
        let versions = options.versions;
        Self { storage, model: HashMap::new(), versions, item: Item::new() }
    }

    /// What the table says of a key.
    fn get(&mut self, key: &[u8]) -> Option<Known> {
        let hash = KeyHash::of(SEED, key);
        let found = block_on(self.storage.lookup(hash, key, &mut self.item)).unwrap().found();
        found.then(|| (self.item.value().to_vec(), self.item.version, self.item.expires_at_ms))
    }

    /// Does `step`, looks whether it is as the model says, and whether a second look says the same.
    fn does(&mut self, step: &Step) {
        let Step { key, change } = step;
        let hash = KeyHash::of(SEED, key);
        let known = self.model.get(key).cloned();
        assert_eq!(self.get(key), known, "before {step:?}");
        let (storage, item) = (&self.storage, &mut self.item);
        let mut lookup = block_on(storage.lookup(hash, key, item)).unwrap();
        let before = storage.memory().counts();
        for change in change {
            let known = self.model.get(key).cloned();
            assert_eq!(lookup.found(), known.is_some(), "during {step:?}");
            match change {
                Change::Put { value, version, expires } => {
                    let stays = storage.stays(&lookup, key, value.len(), expires.is_some());
                    let put = storage.store(&mut lookup, key, value, *version, *expires);
                    match block_on(put) {
                        Ok(()) => {
                            let version = version * u64::from(self.versions);
                            self.model.insert(key.clone(), (value.clone(), version, *expires));
                        }
                        Err(Failure::OutOfMemory { .. }) => assert!(!stays, "{step:?} failed"),
                        Err(failure) => panic!("{step:?}: {failure:?}"),
                    }
                }
                Change::Flip { version, expires } => {
                    // Only what `item` says can be rewritten: what the last lookup found.
                    let Some(known) = self.model.get_mut(key) else { continue };
                    let is_read = item.key() == key && item.value() == known.0;
                    if !is_read {
                        continue;
                    }
                    item.value_mut().iter_mut().for_each(|byte| *byte = !*byte);
                    let value = item.value().to_vec();
                    match block_on(storage.rewrite(&mut lookup, item, *version, *expires)) {
                        Ok(()) => *known = (value, version * u64::from(self.versions), *expires),
                        Err(Failure::OutOfMemory { .. }) => {
                            item.value_mut().iter_mut().for_each(|byte| *byte = !*byte);
                        }
                        Err(failure) => panic!("{step:?}: {failure:?}"),
                    }
                }
                Change::Remove => {
                    block_on(storage.remove(&mut lookup)).unwrap();
                    self.model.remove(key);
                }
            }
        }
        let reads =
            |counts: crate::kv_direct::memory::Counts| counts.index.reads + counts.data.reads;
        assert_eq!(reads(storage.memory().counts()), reads(before), "a change reads nothing");
        assert_eq!(self.get(key), self.model.get(key).cloned(), "after {step:?}");
    }
}

/// Changes of one key, one after the other, with one lookup.
#[derive(Clone, Debug)]
struct Step {
    key: Vec<u8>,
    change: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Put { value: Vec<u8>, version: u64, expires: Option<u64> },
    Flip { version: u64, expires: Option<u64> },
    Remove,
}

fn change() -> impl Strategy<Value = Change> {
    let stamp = || (any::<u64>(), proptest::option::of(any::<u64>()));
    // Mostly of sizes around those where something else begins, sometimes of any.
    let len = prop_oneof![
        8 => 0usize..52, 4 => 50usize..140, 2 => 240usize..520, 1 => 2030usize..4200, 1 => 0usize..20_000
    ];
    let put = (len, any::<u8>(), stamp()).prop_map(|(len, first, (version, expires))| {
        let value = (0..len).map(|i| first.wrapping_add((i % 251) as u8)).collect();
        Change::Put { value, version, expires }
    });
    let flip = stamp().prop_map(|(version, expires)| Change::Flip { version, expires });
    prop_oneof![6 => put, 2 => flip, 3 => Just(Change::Remove)]
}

fn steps(fixed: bool) -> impl Strategy<Value = Vec<Step>> {
    let key = (0u32..40).prop_map(move |n| {
        let mut key = n.to_le_bytes().repeat(2);
        // Lengths from one byte to more than fit a bucket, or a byte.
        if !fixed {
            key.truncate([1, 3, 8][n as usize % 3]);
            key[0] = n as u8;
            key.resize(key.len() + [0, 0, 0, 0, 45, 300][n as usize % 6], 7);
        }
        key
    });
    let step = (key, proptest::collection::vec(change(), 0..4));
    proptest::collection::vec(step.prop_map(|(key, change)| Step { key, change }), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Few buckets, so that chains are long, and little memory, so that it runs out.
    #[test]
    fn a_table_does_as_a_map(
        fixed: bool,
        versions: bool,
        inline_bytes_max in prop_oneof![Just(0u16), 1u16..=50, Just(50)],
        lines in prop_oneof![8u64..40, 300u64..2000],
        index_ratio in 0.01..0.6f64,
        seed_steps in any::<bool>().prop_flat_map(|fixed| (Just(fixed), steps(fixed))),
    ) {
        let (fixed_steps, steps) = seed_steps;
        let key_bytes = (fixed && fixed_steps).then_some(8);
        let options = Options {
            bytes: lines * LINE_BYTES as u64,
            index_ratio,
            inline_bytes_max,
            versions,
            value_bytes_max: 20_000,
            key_bytes,
        };
        let mut table = Checked::new(&options);
        steps.iter().for_each(|step| table.does(step));
        let report = table.storage.check(SEED);
        prop_assert_eq!(&report.broken, &Vec::<String>::new());
        prop_assert_eq!(report.entries, table.model.len() as u64);
        let bytes = table.model.iter().map(|(key, known)| key.len() + known.0.len()).sum::<usize>();
        prop_assert_eq!(report.item_bytes, bytes as u64);
        let known = table.model.clone();
        for (key, known) in known {
            prop_assert_eq!(table.get(&key), Some(known));
        }
    }
}
