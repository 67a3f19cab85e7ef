//! A partition against a model that knows which misses are allowed.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::limits::HERD_ITEM_BYTES_MAX;
use crate::operation::{Expect, Operation, Outcome, PutOptions, Version};

const SEED: u64 = 7;

/// The value of a key in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: Option<u64>,
}

/// A partition and its expected content. In a cache, a miss also removes the key from the model: a
/// value that went away does not come back.
struct Pair {
    partition: Partition,
    model: HashMap<Vec<u8>, Held>,
    version: u64,
    now_ms: u64,
    /// Misses of keys that had a value.
    evicted: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Contains(u8),
    Put(u8, usize, Option<u64>),
    PutIfAbsent(u8, usize),
    /// With the version in the model, plus this number.
    PutIfVersion(u8, usize, u64),
    Delete(u8),
    Add(u8, u64),
    Append(u8, usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, len) = (0u8..60, prop_oneof![0usize..64, 0usize..700]);
    let step = prop_oneof![
        4 => key.clone().prop_map(Step::Get),
        1 => key.clone().prop_map(Step::Contains),
        4 => (key.clone(), len.clone(), prop::option::of(0u64..40))
            .prop_map(|(key, len, expires)| Step::Put(key, len, expires)),
        1 => (key.clone(), len.clone()).prop_map(|(key, len)| Step::PutIfAbsent(key, len)),
        1 => (key.clone(), 0usize..300).prop_map(|(key, len)| Step::Append(key, len)),
        1 => (key.clone(), len, 0u64..2)
            .prop_map(|(key, len, off)| Step::PutIfVersion(key, len, off)),
        2 => key.clone().prop_map(Step::Delete),
        1 => (key, any::<u64>()).prop_map(|(key, add)| Step::Add(key, add)),
        1 => (0u64..20).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..600)
}

/// Keys of different lengths.
fn key_of(key: u8) -> Vec<u8> {
    let mut bytes = vec![key; 1 + key as usize % 30];
    bytes[0] = key;
    bytes
}

impl Pair {
    fn new(mode: Mode, bytes: u64, slots: u64) -> Self {
        let plan = Plan::new(mode, bytes, slots).unwrap();
        let partition = Partition::new(vec![0; plan.words()], &plan);
        Self { partition, model: HashMap::new(), version: 0, now_ms: 1000, evicted: 0 }
    }

    /// Asks the partition, after the model has forgotten the key if its value has expired.
    fn ask<T>(
        &mut self,
        key: &[u8],
        operation: Operation<'_>,
        judge: impl FnOnce(Result<Outcome<'_>, EngineError>, Option<&Held>) -> T,
    ) -> T {
        self.version += 1;
        let over = |held: &Held| held.expires_at_ms.is_some_and(|at| at <= self.now_ms);
        if self.model.get(key).is_some_and(over) {
            self.model.remove(key);
        }
        let hash = KeyHash::of(SEED, key);
        let outcome = self.partition.execute(
            hash,
            key,
            operation,
            Version::from_u64(self.version),
            self.now_ms,
        );
        judge(outcome, self.model.get(key))
    }

    /// The partition has reported that the key has no value.
    fn missed(&mut self, key: &[u8]) {
        if self.model.remove(key).is_some() {
            assert!(self.partition.loses(), "a store lost {key:?}");
            self.evicted += 1;
        }
    }

    fn stored(&mut self, key: Vec<u8>, value: Vec<u8>, expires_at_ms: Option<u64>) {
        self.model.insert(key, Held { value, version: self.version, expires_at_ms });
    }

    /// A refusal for lack of room, which changes nothing.
    fn refused(&self, error: EngineError) {
        let of_room =
            matches!(error, EngineError::OutOfMemory { .. } | EngineError::IndexFull { .. });
        assert!(of_room && !self.partition.loses(), "{error}");
    }

    fn get(&mut self, key: Vec<u8>) {
        let miss = self.ask(&key, Operation::Get, |outcome, held| match outcome.unwrap() {
            Outcome::Absent => true,
            Outcome::Found { version, expires_at_ms, value } => {
                let found =
                    Held { value: value.to_vec(), version: version.as_u64(), expires_at_ms };
                assert_eq!(Some(&found), held);
                false
            }
            other => panic!("{other:?}"),
        });
        if miss {
            self.missed(&key);
        }
    }

    fn put(&mut self, key: Vec<u8>, len: usize, expires_at_ms: Option<u64>) {
        let value = vec![self.version as u8; len];
        let options = PutOptions { expires_at_ms };
        let operation = Operation::Put { value: &value, options };
        match self.ask(&key, operation, |outcome, _| outcome.map(|_| ())) {
            Ok(()) => self.stored(key, value, expires_at_ms),
            Err(error) => self.refused(error),
        }
    }

    fn put_if(&mut self, key: Vec<u8>, len: usize, expect: Expect) {
        let value = vec![self.version as u8; len];
        let operation = Operation::PutIf { value: &value, expect, options: PutOptions::default() };
        let answer = self.ask(&key, operation, |outcome, held| {
            let outcome = outcome?;
            let there = held.map(|held| held.version);
            Ok(match outcome {
                Outcome::Refused(Some(version)) => {
                    assert_eq!(Some(version), there.map(Version::from_u64));
                    assert_ne!(expect, Expect::Version(version));
                    None
                }
                Outcome::Refused(None) => Some(false),
                Outcome::Stored(_) => {
                    assert!(
                        expect == Expect::Absent
                            || there.map(Version::from_u64).map(Expect::Version) == Some(expect)
                    );
                    Some(true)
                }
                other => panic!("{other:?}"),
            })
        });
        match answer {
            Ok(None) => (),
            Ok(Some(false)) => self.missed(&key),
            Ok(Some(true)) => {
                if expect == Expect::Absent {
                    self.missed(&key);
                }
                self.stored(key, value, None);
            }
            Err(error) => self.refused(error),
        }
    }

    fn delete(&mut self, key: Vec<u8>) {
        let operation = Operation::Delete { of: None };
        let was_there = self.ask(&key, operation, |outcome, held| match outcome.unwrap() {
            Outcome::Deleted(was_there) => {
                assert!(!was_there || held.is_some());
                was_there
            }
            other => panic!("{other:?}"),
        });
        if was_there {
            self.model.remove(&key);
        } else {
            self.missed(&key);
        }
    }

    fn add(&mut self, key: Vec<u8>, add: u64) {
        let answer = self.ask(&key, Operation::FetchAdd(add), |outcome, held| match outcome? {
            Outcome::Scalar(before) => {
                if let Some(held) = held
                    && before.to_le_bytes()[..] != held.value
                {
                    assert_eq!(before, 0, "the key was evicted, or the sum is wrong");
                    return Ok((before, true));
                }
                assert!(held.is_some() || before == 0);
                Ok((before, false))
            }
            other => panic!("{other:?}"),
        });
        match answer {
            Ok((before, evicted)) => {
                if evicted {
                    self.missed(&key);
                }
                self.stored(key, before.wrapping_add(add).to_le_bytes().to_vec(), None);
            }
            Err(EngineError::NotACounter { len }) => {
                assert_eq!(self.model[&key].value.len() as u64, len);
                assert_ne!(len, 8);
            }
            Err(error) => self.refused(error),
        }
    }

    fn append(&mut self, key: Vec<u8>, len: usize) {
        let bytes = vec![self.version as u8; len];
        let held_bytes = |held: Option<&Held>| held.map_or(0, |held| held.value.len());
        let done = self.ask(&key, Operation::Append(&bytes), |outcome, held| match outcome {
            Err(EngineError::ValueTooLong { len: whole, .. }) => {
                assert_eq!(whole, (held_bytes(held) + len) as u64);
                assert!(key.len() as u64 + whole > HERD_ITEM_BYTES_MAX as u64);
                Ok(false)
            }
            outcome => outcome.map(|_| true),
        });
        match done {
            Ok(true) => {
                let hash = KeyHash::of(SEED, &key);
                let there = self.partition.execute(
                    hash,
                    &key,
                    Operation::Get,
                    Version::from_u64(0),
                    self.now_ms,
                );
                let Ok(Outcome::Found { expires_at_ms, value, .. }) = there else {
                    panic!("{there:?}")
                };
                let there = (value.to_vec(), expires_at_ms);
                // The value to append to was evicted.
                let behind = |held: &Held| ([&held.value[..], &bytes].concat(), held.expires_at_ms);
                if self.model.get(&key).map(behind).as_ref() != Some(&there) {
                    assert_eq!(there, (bytes, None));
                    self.missed(&key);
                }
                let (value, expires_at_ms) = there;
                self.stored(key.clone(), value, expires_at_ms);
                self.get(key);
            }
            Ok(false) => (),
            Err(error) => self.refused(error),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Get(key) => self.get(key_of(key)),
            Step::Contains(key) => {
                let key = key_of(key);
                let there = self.ask(&key, Operation::Contains, |outcome, held| {
                    let there = outcome == Ok(Outcome::Contained(true));
                    assert!(!there || held.is_some());
                    there
                });
                if !there {
                    self.missed(&key);
                }
            }
            Step::Put(key, len, after) => {
                self.put(key_of(key), len, after.map(|ms| self.now_ms + ms));
            }
            Step::PutIfAbsent(key, len) => self.put_if(key_of(key), len, Expect::Absent),
            Step::PutIfVersion(key, len, off) => {
                let key = key_of(key);
                let version = self.model.get(&key).map_or(0, |held| held.version) + off;
                self.put_if(key, len, Expect::Version(Version::from_u64(version)));
            }
            Step::Delete(key) => self.delete(key_of(key)),
            Step::Add(key, add) => self.add(key_of(key), add),
            Step::Append(key, len) => self.append(key_of(key), len),
            Step::Wait(ms) => self.now_ms += ms,
        }
    }

    fn run(&mut self, steps: Vec<Step>) {
        for (n, step) in steps.into_iter().enumerate() {
            self.step(step);
            if n % 64 == 0 {
                self.check();
            }
        }
        (0..60).for_each(|key| self.get(key_of(key)));
        self.check();
    }

    fn check(&self) {
        let report = self.partition.check(SEED);
        assert_eq!(report.broken, Vec::<String>::new());
        assert!(self.partition.loses() || report.entries >= self.model.len() as u64);
        assert_eq!(counted(&self.partition).0, report);
    }
}

/// What a count finds, and in how many steps.
fn counted(partition: &Partition) -> (Report, usize) {
    let mut count = Count::default();
    let mut steps = (1..).map(|steps| (partition.count(&mut count), steps));
    steps.find_map(|(report, steps)| Some((report?, steps))).expect("a count ends")
}

/// The worker serves others between two steps.
#[test]
fn a_count_of_many_entries_takes_many_steps_or_looks_at_none() {
    for (mode, several) in [(Mode::Cache, true), (Mode::Store, false)] {
        let mut pair = Pair::new(mode, 4 << 20, 20_000);
        for key in 0..10_000u32 {
            pair.put(key.to_le_bytes().to_vec(), 50, None);
        }
        let (report, steps) = counted(&pair.partition);
        assert_eq!(report, pair.partition.check(SEED));
        assert_eq!(steps > 10, several, "{mode:?}: {steps} steps");
    }
}

proptest! {
    /// There is so little room that laps, evictions and refusals happen all the time.
    #[test]
    fn a_hit_is_never_wrong(
        steps in steps(),
        slots in prop_oneof![Just(1u64), Just(30), Just(200)],
        bytes in 6_000u64..30_000,
        lap: u16,
    ) {
        let mut pair = Pair::new(Mode::Cache, bytes, slots);
        if let Keeper::Cache { log, .. } = &mut pair.partition.keeper {
            log.set_lap(lap);
        }
        pair.run(steps);
    }

    #[test]
    fn a_store_never_misses(
        steps in steps(),
        slots in prop_oneof![Just(1u64), Just(30), Just(200)],
        bytes in 8_000u64..60_000,
    ) {
        let mut pair = Pair::new(Mode::Store, bytes, slots);
        pair.run(steps);
        prop_assert_eq!(pair.evicted, 0);
    }
}

/// A key that nobody touches stays in the index while the numbers of laps start over, so that its
/// word's lap is the log's again, and the word names the middle of another's entry. Nothing but the
/// sweep keeps it from being believed, which has just finished here: in an index of as many
/// buckets, one is swept in a lap.
#[test]
fn laps_may_start_over() {
    let mut pair = Pair::new(Mode::Cache, (1 << 20) + 14_000, 1 << 17);
    let lap = |pair: &Pair| match &pair.partition.keeper {
        Keeper::Cache { log, .. } => log.lap(),
        Keeper::Store { .. } => unreachable!("it is a cache"),
    };
    let fill = |pair: &mut Pair| pair.put(b"busy".to_vec(), HERD_ITEM_BYTES_MAX - 4, None);
    for round in 0..3 {
        fill(&mut pair);
        let old: Vec<_> = (0..20).map(|n| format!("{round} {n}").into_bytes()).collect();
        old.iter().for_each(|key| pair.put(key.clone(), 1, None));
        let began = lap(&pair);
        while lap(&pair) == began {
            fill(&mut pair);
        }
        while lap(&pair) != began {
            fill(&mut pair);
        }
        // In that lap and the next one their words would be believed.
        for _ in 0..25 {
            fill(&mut pair);
            pair.check();
        }
        old.into_iter().for_each(|key| pair.get(key));
        assert_eq!(pair.evicted, 20 * (round + 1));
    }
}

/// Without a look at the lap, an old word would name a new entry here.
#[test]
fn an_entry_in_the_place_of_another_is_not_taken_for_it() {
    let mut pair = Pair::new(Mode::Cache, 6_000, 100);
    for round in 0..1000 {
        pair.put(key_of(round as u8 % 60), 40, None);
        pair.get(key_of((round * 7) as u8 % 60));
    }
    assert!(pair.evicted > 0);
}

#[test]
fn a_full_store_refuses_and_goes_on() {
    let mut pair = Pair::new(Mode::Store, 64 << 10, 800);
    let value = [1; 100];
    let put = |partition: &mut Partition, n: u32, len| {
        let (key, options) = (n.to_le_bytes(), PutOptions::default());
        let operation = Operation::Put { value: &value[..len], options };
        partition
            .execute(KeyHash::of(SEED, &key), &key, operation, Version::from_u64(1), 0)
            .map(|_| ())
    };
    let full = (0..10_000).find_map(|n| put(&mut pair.partition, n, 100).err().map(|e| (n, e)));
    let (keys, error) = full.expect("it has 64 KiB");
    assert!(matches!(error, EngineError::OutOfMemory { bytes: 128, .. }), "{error}");
    // The entries can be changed and made shorter; the freed grains are used.
    for n in 0..keys {
        assert_eq!(put(&mut pair.partition, n, 20), Ok(()));
    }
    for n in keys..keys + 50 {
        assert_eq!(put(&mut pair.partition, n, 40), Ok(()));
    }
    assert_eq!(pair.partition.check(SEED).broken, Vec::<String>::new());
}

#[test]
fn a_full_index_names_its_slots() {
    let mut pair = Pair::new(Mode::Store, 1 << 20, 10);
    let error = (0..1000u32).find_map(|n| {
        let (value, options) = (&[][..], PutOptions::default());
        let (key, operation) = (n.to_le_bytes(), Operation::Put { value, options });
        pair.partition
            .execute(KeyHash::of(SEED, &key), &key, operation, Version::from_u64(1), 0)
            .err()
    });
    assert_eq!(error, Some(EngineError::IndexFull { slots: 21, moves: 0 }));
    assert_eq!(pair.partition.check(SEED).broken, Vec::<String>::new());
}

#[test]
fn what_is_too_long_is_refused() {
    for mode in [Mode::Cache, Mode::Store] {
        let mut pair = Pair::new(mode, 1 << 20, 10);
        let value = [0; HERD_ITEM_BYTES_MAX];
        let operation = Operation::Put { value: &value, options: PutOptions::default() };
        let (len, max) = (HERD_ITEM_BYTES_MAX as u64, HERD_ITEM_BYTES_MAX as u64 - 3);
        let refused = pair.ask(b"key", operation, |outcome, _| outcome.map(|_| ()));
        assert_eq!(refused, Err(EngineError::ValueTooLong { len, max }));
        pair.partition = pair.partition.with_value_max(5);
        for (len, is_refused) in [(5, false), (6, true)] {
            let operation = Operation::Put { value: &value[..len], options: PutOptions::default() };
            let done = pair.ask(b"key", operation, |outcome, _| outcome.map(|_| ()));
            let too_long = EngineError::ValueTooLong { len: len as u64, max: 5 };
            assert_eq!(done, if is_refused { Err(too_long) } else { Ok(()) });
        }
    }
}
