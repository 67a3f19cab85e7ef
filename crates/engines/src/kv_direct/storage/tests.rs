//! The properties of all sequences of operations, and the operations' costs.

use std::collections::HashMap;

use loch_fabric::lanes::{block_on, run};
use proptest::prelude::*;

use super::{Options, Plan, Storage};
use crate::error::EngineError;
use crate::kv_direct::item::Item;
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::slab::SlabDaemon;
use crate::lines::{Counts, HostMemory, LINE_BYTES, Line, Near, Purpose};
use crate::operation::{Outcome, Version};

const SEED: u64 = 11;

/// The expected content of an entry: value, version, time of expiry.
type Known = (Vec<u8>, u64, Option<u64>);

/// The time of GETs in stages: some values have expired by then.
const NOW_MS: u64 = 1 << 62;

/// Smaller tables are checked after every step.
const CHECKED_LINES_MAX: u32 = 40;

/// A table, and its expected content.
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

    /// The table's entry of a key.
    fn get(&mut self, key: &[u8]) -> Option<Known> {
        let hash = KeyHash::of(SEED, key);
        let found = block_on(self.storage.lookup(hash, key, &mut self.item)).unwrap().found();
        found.then(|| {
            (self.item.value().to_vec(), self.item.version.as_u64(), self.item.expires_at_ms)
        })
    }

    /// Does `step`, and checks that the result is the model's, and that a second look gives the
    /// same.
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
                    let put = storage.store(
                        &mut lookup,
                        key,
                        value,
                        Version::from_u64(*version),
                        *expires,
                    );
                    match block_on(put) {
                        Ok(()) => {
                            let version = version * u64::from(self.versions);
                            self.model.insert(key.clone(), (value.clone(), version, *expires));
                        }
                        Err(EngineError::OutOfMemory { .. }) => assert!(!stays, "{step:?} failed"),
                        Err(failure) => panic!("{step:?}: {failure:?}"),
                    }
                }
                Change::Flip { version, expires } => {
                    // Only the entry in `item` can be rewritten: the one that the last lookup
                    // found.
                    let Some(known) = self.model.get_mut(key) else { continue };
                    let is_read = item.key() == key && item.value() == known.0;
                    if !is_read {
                        continue;
                    }
                    item.value_mut().iter_mut().for_each(|byte| *byte = !*byte);
                    let value = item.value().to_vec();
                    match block_on(storage.rewrite(
                        &mut lookup,
                        item,
                        Version::from_u64(*version),
                        *expires,
                    )) {
                        Ok(()) => *known = (value, version * u64::from(self.versions), *expires),
                        Err(EngineError::OutOfMemory { .. }) => {
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
        let reads = |counts: Counts| counts.index.reads + counts.data.reads;
        assert_eq!(reads(storage.memory().counts()), reads(before), "a change reads nothing");
        assert_eq!(self.get(key), self.model.get(key).cloned(), "after {step:?}");
        self.gets_all_in_stages();
        if self.storage.memory().lines() < CHECKED_LINES_MAX {
            self.check();
        }
    }
}

impl Checked {
    /// Checks that GETs of all keys in stages give what the model has, except for values that have
    /// expired, and stop at no value that is alone in its bucket with others that are inline.
    fn gets_all_in_stages(&mut self) {
        let known: Vec<_> = self.model.iter().collect();
        let (mut from, mut replies) = (0, Vec::new());
        while let Some((key, (_, _, expires))) = known.get(from) {
            replies.clear();
            let nth = |number: usize| known.get(from + number);
            let key_of =
                |number: usize| nth(number).map(|(key, _)| (KeyHash::of(SEED, key), &key[..]));
            let answered = self.storage.get_each(key_of, NOW_MS, |reply| match reply {
                Outcome::Found { version, expires_at_ms, value } => {
                    replies.push((value.to_vec(), version.as_u64(), expires_at_ms));
                }
                reply => panic!("{reply:?} for a key that is there"),
            });
            assert_eq!(answered, replies.len());
            for (reply, (_, known)) in replies.iter().zip(&known[from..]) {
                assert_eq!(reply, *known);
                assert!(known.2.is_none_or(|at| at > NOW_MS), "an expired value is shown");
            }
            if answered == 0 {
                let hash = KeyHash::of(SEED, key);
                let lookup = block_on(self.storage.lookup(hash, key, &mut self.item)).unwrap();
                let has_expired = expires.is_some_and(|at| at <= NOW_MS);
                let is_in_head = lookup.here.line == self.storage.group(hash);
                let is_usual = is_in_head && lookup.here.bucket.pointers() == 0;
                assert!(has_expired || !is_usual, "{key:?} is inline and not answered");
            }
            from += answered.max(1);
        }
    }

    /// Checks that the memory is in order, and has the model's content.
    fn check(&self) {
        let report = self.storage.check(SEED);
        assert_eq!(report.broken, Vec::<String>::new());
        let bytes = self.model.iter().map(|(key, known)| (key.len() + known.0.len()) as u64);
        let expected = (self.model.len() as u64, bytes.sum());
        assert_eq!((report.entries, report.item_bytes), expected);
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let (hash, item) = (KeyHash::of(SEED, key), &mut self.item);
        block_on(async {
            let mut lookup = self.storage.lookup(hash, key, item).await?;
            self.storage.store(&mut lookup, key, value, Version::from_u64(0), None).await
        })?;
        self.model.insert(key.to_vec(), (value.to_vec(), 0, None));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) {
        let (hash, item) = (KeyHash::of(SEED, key), &mut self.item);
        block_on(async {
            let mut lookup = self.storage.lookup(hash, key, item).await?;
            self.storage.remove(&mut lookup).await
        })
        .unwrap();
        self.model.remove(key);
    }

    /// The accesses to the index and to slabs during `work`.
    fn accesses(&mut self, work: impl FnOnce(&mut Self)) -> (u64, u64) {
        let of = |counts: Counts| (counts.index.all(), counts.data.all());
        let before = of(self.storage.memory().counts());
        work(self);
        let after = of(self.storage.memory().counts());
        (after.0 - before.0, after.1 - before.1)
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
    // Mostly sizes around the limits between forms, sometimes any size.
    let len = prop_oneof![
        8 => 0usize..52,
        4 => 50usize..140,
        2 => 240usize..520,
        1 => 2030usize..4200,
        1 => 0usize..20_000
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
    #![proptest_config(ProptestConfig::with_cases(1000))]

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
        table.check();
        let known = table.model.clone();
        for (key, known) in known {
            prop_assert_eq!(table.get(&key), Some(known));
        }
    }
}

fn options(lines: u64) -> Options {
    Options {
        bytes: lines * LINE_BYTES as u64,
        index_ratio: 0.25,
        inline_bytes_max: 50,
        versions: false,
        value_bytes_max: 1 << 20,
        key_bytes: Some(8),
    }
}

/// kv-direct §3.3: the costs of an operation if no other key is in the way.
#[test]
fn an_operation_has_the_accesses_that_it_needs_and_no_more() {
    for (value_len, get, put, new, delete) in [
        (42, (1, 0), (2, 0), (2, 0), (2, 0)),
        (54, (1, 1), (1, 2), (2, 1), (2, 1)),
        (4086, (1, 1), (1, 2), (2, 1), (2, 1)),
        // Longer than the first read: the rest takes one more read.
        (100_000, (1, 2), (1, 3), (2, 1), (2, 2)),
    ] {
        let mut table = Checked::new(&options(1 << 14));
        let (key, value) = (*b"some key", vec![1; value_len]);
        assert_eq!(table.accesses(|table| table.put(&key, &value).unwrap()), new, "{value_len}");
        assert_eq!(table.accesses(|table| drop(table.get(&key))), get, "GET {value_len}");
        assert_eq!(table.accesses(|table| table.put(&key, &value).unwrap()), put, "{value_len}");
        assert_eq!(table.accesses(|table| table.delete(&key)), delete, "{value_len}");
        table.check();
    }
}

/// One bucket, so that all keys are in one chain. Its buckets fill up, and each is given back when
/// it is empty, wherever it is.
#[test]
fn a_chain_grows_and_shrinks() {
    let one_bucket = Options { index_ratio: f64::MIN_POSITIVE, ..options(1 << 10) };
    let mut table = Checked::new(&one_bucket);
    let free = table.storage.check(SEED).free_bytes;
    let keys: Vec<[u8; 8]> = (0..500u64).map(u64::to_le_bytes).collect();
    for key in &keys {
        table.put(key, &[3; 2]).unwrap();
    }
    assert_eq!(table.storage.check(SEED).chained, 99, "five entries a bucket, none has room left");
    for (at, key) in keys.iter().enumerate() {
        table.delete(key);
        table.check();
        assert_eq!(table.get(key), None);
        let next = keys.get(at + 1).map(|next| table.get(next).is_some());
        assert_ne!(next, Some(false));
    }
    let report = table.storage.check(SEED);
    assert_eq!((report.chained, report.free_bytes), (0, free));
}

/// A value that cannot be stored changes nothing, and a value that fits is stored although memory
/// ran out before.
#[test]
fn a_full_table_keeps_what_it_has() {
    for value_len in [2, 54, 3000, 70_000] {
        let mut table = Checked::new(&options(1 << 12));
        let value = vec![9; value_len];
        let mut keys = (0..100_000u64).map(u64::to_le_bytes);
        let refused = keys.find(|key| table.put(key, &value).is_err()).expect("it is full");
        table.check();
        let known: Vec<_> = table.model.keys().cloned().collect();
        // A shorter value has room where the longer one was.
        table.put(&known[0], &value[..value_len / 2]).unwrap();
        table.check();
        known.iter().skip(1).take(8).for_each(|key| table.delete(key));
        // Room for an inline entry in one bucket is not room in another.
        if value_len > 50 {
            let mut daemon = SlabDaemon::new(table.storage.slabs().pools().clone());
            table.put(&refused, &value).ok();
            assert!((0..10_000).any(|_| !daemon.turn()), "the daemon is done at some time");
            table.put(&refused, &value).unwrap();
        }
        table.check();
    }
}

#[test]
fn what_a_table_does_not_take_is_refused() {
    let mut table = Checked::new(&Options { value_bytes_max: 100, ..options(64) });
    let too_long = EngineError::ValueTooLong { len: 101, max: 100 };
    assert_eq!(table.put(b"some key", &[0; 101]), Err(too_long));
    assert_eq!(table.put(b"key", &[0; 1]), Err(EngineError::Unsupported));
    table.put(b"some key", &[0; 100]).unwrap();
    let mut table = Checked::new(&Options { key_bytes: None, ..options(64) });
    assert_eq!(table.put(b"", &[0; 1]), Err(EngineError::Unsupported));
    let too_much = EngineError::OutOfMemory { bytes: 16384, capacity: 4096 };
    assert_eq!(table.put(b"key", &[0; 10_000]), Err(too_much));
    table.check();
}

/// Two slabs of 32 bytes are in one line, and their keys in two chains: operations on both are
/// under way at the same time, and none may write back the other's half as it read it.
#[test]
fn halves_of_a_line_are_written_each_for_itself() {
    let plan = Plan::new(&Options { inline_bytes_max: 0, ..options(1 << 12) }).unwrap();
    let memory = Near::new(vec![Line::ZERO; plan.lines() as usize]);
    let storage = &Storage::new(memory, &plan, plan.pools());
    let hash = |key: &[u8; 8]| KeyHash::of(SEED, key);
    let mut groups = std::collections::HashSet::new();
    let all = (0..u64::MAX).map(u64::to_le_bytes);
    let keys: Vec<_> = all.filter(|key| groups.insert(storage.group(hash(key)))).take(64).collect();
    let write = |key: [u8; 8], byte: u8| async move {
        let mut item = Item::new();
        let mut lookup = storage.lookup(hash(&key), &key, &mut item).await.unwrap();
        if lookup.found() && byte.is_multiple_of(2) {
            item.value_mut().fill(byte);
            storage.rewrite(&mut lookup, &mut item, Version::from_u64(0), None).await.unwrap();
        } else {
            storage
                .store(&mut lookup, &key, &[byte; 20], Version::from_u64(0), None)
                .await
                .unwrap();
        }
    };
    for byte in 1..=20 {
        block_on(run(keys.len(), keys.iter().map(|key| write(*key, byte ^ key[0])), |()| ()));
        for key in &keys {
            let mut item = Item::new();
            block_on(storage.lookup(hash(key), key, &mut item)).unwrap();
            assert_eq!(item.value(), [byte ^ key[0]; 20]);
        }
    }
    assert_eq!(storage.check(SEED).broken, Vec::<String>::new());
}

proptest! {
    /// The check finds flipped bits, or they make no difference to it. A lookup in damaged memory
    /// ends, stays inside, and finds nothing under another key.
    #[test]
    fn damage_is_reported_and_never_followed(
        flips in proptest::collection::vec((0u32..24, 0usize..LINE_BYTES, 0u8..8), 1..12),
        fixed: bool,
    ) {
        let key_bytes = fixed.then_some(8);
        let options = Options { key_bytes, index_ratio: 0.1, ..options(64) };
        let mut table = Checked::new(&options);
        for key in 0..30u64 {
            table.put(&key.to_le_bytes(), &vec![5; [2, 30, 60, 200][key as usize % 4]]).ok();
        }
        let memory = table.storage.memory();
        for (at, byte, bit) in flips {
            let mut line = memory.peek(at);
            line.0[byte] ^= 1 << bit;
            block_on(memory.write_line(Purpose::Index, at, &line));
        }
        for key in 0..30u64 {
            let (key, mut item) = (key.to_le_bytes(), Item::new());
            let lookup = block_on(table.storage.lookup(KeyHash::of(SEED, &key), &key, &mut item));
            match lookup {
                Ok(lookup) if lookup.found() => prop_assert_eq!(item.key(), &key[..]),
                Ok(_) => (),
                Err(failure) => prop_assert_eq!(failure, crate::kv_direct::damaged()),
            }
        }
        table.storage.check(SEED);
    }
}

/// The purpose of `check`: each kind of damage has its own words.
#[test]
fn a_check_finds_what_is_broken() {
    let key = |n: u64| n.to_le_bytes();
    let damage = |what: &dyn Fn(&mut Line, usize), expected: &str| {
        let mut table = Checked::new(&Options { inline_bytes_max: 10, ..options(64) });
        (0..6).for_each(|n| table.put(&key(n), &[5; 2]).unwrap());
        (6..12).for_each(|n| table.put(&key(n), &[5; 60]).unwrap());
        let memory = table.storage.memory();
        for at in 0..memory.lines() {
            let mut line = memory.peek(at);
            what(&mut line, at as usize);
            block_on(memory.write_line(Purpose::Index, at, &line));
        }
        let broken = table.storage.check(SEED).broken;
        assert!(broken.iter().any(|words| words.contains(expected)), "{expected}: {broken:?}");
    };
    let index = 0..16;
    damage(&|line, at| line.0[49] |= u8::from(at == 0), "a free slot is not zero");
    damage(&|line, at| line.0[56] ^= u8::from(index.contains(&at)), "do not alternate");
    damage(
        &|line, at| {
            if index.contains(&at) {
                *line = Line::ZERO
            }
        },
        "nobody's",
    );
    damage(
        &|line, at| {
            if index.contains(&at) {
                line.0[0] ^= 1
            }
        },
        "not of this chain",
    );
    damage(
        &|line, at| {
            if at == 0 {
                line.0[60] = 1
            }
        },
        "is no bucket of its own",
    );
    damage(
        &|line, at| {
            if !index.contains(&at) {
                line.0[1] = 0x7f
            }
        },
        "begin with a header",
    );
}

/// Entries are shorter than a bucket, of which there is only one.
#[test]
fn there_are_slabs_for_chained_buckets_whatever_the_entries() {
    let mut table = Checked::new(&Options {
        bytes: 64 * LINE_BYTES as u64,
        index_ratio: 0.01,
        inline_bytes_max: 10,
        versions: false,
        value_bytes_max: 2,
        key_bytes: Some(8),
    });
    for key in 0..20u64 {
        let put = Change::Put { value: vec![7; 2], version: 0, expires: None };
        table.does(&Step { key: key.to_le_bytes().to_vec(), change: vec![put] });
    }
    assert_eq!(table.storage.check(SEED).entries, 20);
}
