//! The storage of the pilaf engine: a server's store and its clients' reads, over shared memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::limits::{PILAF_MOVES_KEPT, SCAN_PAGE_KEYS};
use loch_engines::log::Change;
use loch_engines::operation::{Expect, Operation, Outcome, PutOptions, Version};
use loch_engines::pilaf::{Prepared, Reader, Shape, Store};
use loch_engines::scan::{Cursor, Step};
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr, lanes::block_on};
use proptest::prelude::*;

const NODE: RegionId = RegionId(0);
const SEED: u64 = 9;

struct Rig {
    fabric: ShmEndpoint,
    store: Store,
    reader: Reader,
}

fn shape(arena_bytes: u64, index_slots: u64) -> Shape {
    let root = RemoteAddr::new(NODE, 64 << 10);
    Shape { root, arena_bytes, index_slots, value_bytes_max: 1 << 20, seed: SEED, node: 3 }
}

impl Rig {
    fn new(shape: Shape) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bytes = shape.root.offset() + shape.bytes();
        let region = Arc::new(Region::create(&dir.path().join("region"), bytes).unwrap());
        let mut fabric = ShmEndpoint::new(NODE);
        fabric.attach(NODE, region);
        let mut store = Store::create(&fabric, shape).unwrap();
        store.lease_versions(&fabric).unwrap();
        store.open(&fabric).unwrap();
        let reader = Reader::new(vec![shape.root], SEED, 1_000);
        Self { fabric, store, reader }
    }

    fn execute(
        &mut self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        match self.store.prepare(&self.fabric, key, &operation)? {
            Prepared::Answer(outcome) => Ok(outcome),
            Prepared::Staged(staged) => {
                let outcome = staged.outcome;
                self.store.commit(&self.fabric, staged)?;
                Ok(outcome)
            }
            other => panic!("nothing else is prepared: {other:?}"),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, EngineError> {
        match self.execute(key, Operation::Put { value, options: PutOptions::default() })? {
            Outcome::Stored(version) => Ok(version.as_u64()),
            other => panic!("{other:?}"),
        }
    }

    fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        let found = block_on(self.reader.get(&self.fabric, key, Buf::new())).unwrap();
        assert_eq!(block_on(self.reader.contains(&self.fabric, key)), Ok(found.is_some()));
        found.map(|value| (value.to_vec(), value.version().as_u64()))
    }

    fn sound(&self) {
        assert_eq!(self.store.check(&self.fabric).unwrap().broken, Vec::<String>::new());
    }
}

#[test]
fn what_is_put_is_read() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    assert_eq!(rig.get(b"key"), None);
    let first = rig.put(b"key", b"value").unwrap();
    assert_eq!(rig.get(b"key"), Some((b"value".to_vec(), first)));
    let second = rig.put(b"key", &[7; 5000]).unwrap();
    assert!(second > first && second & 0xff == 3, "a version carries its node");
    assert_eq!(rig.get(b"key"), Some((vec![7; 5000], second)));
    assert_eq!(rig.execute(b"key", Operation::Delete { of: None }), Ok(Outcome::Deleted(true)));
    assert_eq!(rig.execute(b"key", Operation::Delete { of: None }), Ok(Outcome::Deleted(false)));
    assert_eq!(rig.get(b"key"), None);
    assert_eq!(rig.put(b"", b""), Err(EngineError::KeyEmpty));
    assert_eq!(block_on(rig.reader.contains(&rig.fabric, b"")), Err(EngineError::KeyEmpty));
    rig.sound();
}

#[test]
fn conditions_and_counters() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    let put_if = |expect| Operation::PutIf { value: b"v", expect, options: PutOptions::default() };
    let version = |outcome| match outcome {
        Ok(Outcome::Stored(version)) => version,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        rig.execute(b"k", put_if(Expect::Version(Version::from_u64(5)))),
        Ok(Outcome::Refused(None))
    );
    let first = version(rig.execute(b"k", put_if(Expect::Absent)));
    assert_eq!(rig.execute(b"k", put_if(Expect::Absent)), Ok(Outcome::Refused(Some(first))));
    let second = version(rig.execute(b"k", put_if(Expect::Version(first))));
    assert_eq!(
        rig.execute(b"k", put_if(Expect::Version(first))),
        Ok(Outcome::Refused(Some(second)))
    );
    assert_eq!(rig.execute(b"k", Operation::FetchAdd(1)), Err(EngineError::NotACounter { len: 1 }));
    assert_eq!(rig.execute(b"n", Operation::FetchAdd(5)), Ok(Outcome::Scalar(0)));
    assert_eq!(rig.execute(b"n", Operation::FetchAdd(u64::MAX)), Ok(Outcome::Scalar(5)));
    assert_eq!(rig.get(b"n").unwrap().0, 4u64.to_le_bytes());
    let third = version(rig.execute(b"k", Operation::Append(b"w")));
    assert_eq!(rig.get(b"k"), Some((b"vw".to_vec(), third.as_u64())));
    rig.sound();
}

#[test]
fn a_touch_is_a_change_that_a_log_can_repeat() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    let touch = |of, expires_at_ms| Operation::Touch { of, options: PutOptions { expires_at_ms } };
    assert_eq!(rig.execute(b"k", touch(None, None)), Ok(Outcome::Refused(None)));
    let first = rig.put(b"k", b"value").unwrap();
    let later = rig.fabric.wall_ms() + 60_000;
    let Ok(Outcome::Stored(second)) = rig.execute(b"k", touch(None, Some(later))) else {
        panic!("it has a value");
    };
    assert_eq!(rig.get(b"k"), Some((b"value".to_vec(), second.as_u64())));
    let refused = rig.execute(b"k", touch(Some(Version::from_u64(first)), None));
    assert_eq!(refused, Ok(Outcome::Refused(Some(second))));
    let operation = touch(Some(second), Some(later + 1));
    let prepared = rig.store.prepare(&rig.fabric, b"k", &operation);
    let Ok(Prepared::Staged(staged)) = prepared else { panic!("{prepared:?}") };
    let change = staged.change(&operation);
    let Change::Put { value, version, expires_at_ms } = change else { panic!("{staged:?}") };
    assert_eq!((value, expires_at_ms), (&b"value"[..], Some(later + 1)));
    // A log holds the value anew, so it needs no record of its own for this.
    let mut recovered = Rig::new(shape(1 << 20, 64));
    recovered.store.replay(&recovered.fabric, b"k", change).unwrap();
    let found = block_on(recovered.reader.get(&recovered.fabric, b"k", Buf::new()));
    let found = found.unwrap().expect("it was replayed");
    assert_eq!((&found[..], found.version(), found.expires_at_ms()), {
        (&b"value"[..], version, Some(later + 1))
    });
    rig.store.abort(staged);
    assert_eq!(rig.get(b"k"), Some((b"value".to_vec(), second.as_u64())));
    rig.sound();
}

#[test]
fn what_has_expired_is_absent() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    let options = |ms: u64| PutOptions { expires_at_ms: Some(ms) };
    let now = rig.fabric.wall_ms();
    for (key, at) in [(b"past", now - 1), (b"soon", now + 60_000)] {
        rig.execute(key, Operation::Put { value: b"v", options: options(at) }).unwrap();
    }
    assert_eq!(rig.get(b"past"), None);
    let found = block_on(rig.reader.get(&rig.fabric, b"soon", Buf::new())).unwrap().unwrap();
    assert_eq!((&found[..], found.expires_at_ms()), (&b"v"[..], Some(now + 60_000)));
    assert_eq!(rig.execute(b"past", Operation::FetchAdd(2)), Ok(Outcome::Scalar(0)));
    assert_eq!(rig.get(b"past").unwrap().0, 2u64.to_le_bytes());
    rig.execute(b"past", Operation::Put { value: b"v", options: options(now - 1) }).unwrap();
    assert_eq!(rig.execute(b"past", Operation::Delete { of: None }), Ok(Outcome::Deleted(false)));
    rig.sound();
}

#[test]
fn a_full_index_is_replaced_by_a_larger_one_and_readers_come_along() {
    let mut rig = Rig::new(shape(1 << 20, 8));
    let slots = rig.store.slots();
    for number in 0..1_000u32 {
        rig.put(&number.to_le_bytes(), b"some value").unwrap();
        assert!(rig.get(&(number / 2).to_le_bytes()).is_some());
    }
    assert!(rig.store.slots() >= 1024 && slots == 8, "it has {} slots", rig.store.slots());
    assert!(rig.store.counts().moves > 0 && rig.store.counts().resizes >= 7);
    for number in 0..1_000u32 {
        assert!(rig.get(&number.to_le_bytes()).is_some(), "{number}");
    }
    rig.sound();
}

#[test]
fn when_no_memory_is_left_a_put_is_refused_and_nothing_is_lost() {
    let mut rig = Rig::new(shape(64 << 10, 256));
    let mut kept = 0u32;
    let error = loop {
        match rig.put(&kept.to_le_bytes(), &[1; 200]) {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, EngineError::OutOfMemory { bytes: 204, .. }), "{error}");
    assert!(kept > 150, "{kept}");
    assert!((0..kept).all(|key| rig.get(&key.to_le_bytes()).is_some()));
    rig.sound();
    assert_eq!(rig.put(&0u32.to_le_bytes(), b"short").ok(), None, "that needs a block too");
    rig.execute(&0u32.to_le_bytes(), Operation::Delete { of: None }).unwrap();
    rig.put(b"another", &[1; 200]).unwrap();
    // An index that cannot grow says so.
    let mut rig = Rig::new(shape(4 << 10, 4));
    let full = (0..100u32).find_map(|key| rig.put(&key.to_le_bytes(), b"v").err());
    assert!(full.is_some());
    rig.sound();
}

#[test]
fn a_restart_is_another_table_with_newer_versions() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    let before = rig.put(b"key", b"value").unwrap();
    // A client that knows the old root; the server dies and another starts.
    assert!(rig.get(b"key").is_some());
    rig.store = Store::create(&rig.fabric, *rig.store.shape()).unwrap();
    let closed = block_on(rig.reader.get(&rig.fabric, b"key", Buf::new()));
    assert_eq!(closed.unwrap_err(), EngineError::Timeout { timeout_us: 1_000 });
    rig.store.lease_versions(&rig.fabric).unwrap();
    rig.store.open(&rig.fabric).unwrap();
    assert_eq!(rig.get(b"key"), None);
    assert!(rig.put(b"key", b"value").unwrap() > before);
    rig.sound();
}

#[test]
fn staged_changes_of_one_key_do_not_meet() {
    let mut rig = Rig::new(shape(1 << 20, 64));
    let put = Operation::Put { value: b"v", options: PutOptions::default() };
    for key in [b"new", b"old"] {
        let Prepared::Staged(first) = rig.store.prepare(&rig.fabric, key, &put).unwrap() else {
            panic!("it is staged");
        };
        // Nobody sees it, and nobody else may change the key.
        assert_eq!(rig.get(key), None);
        for operation in [put, Operation::Delete { of: None }, Operation::FetchAdd(1)] {
            let second = rig.store.prepare(&rig.fabric, key, &operation).unwrap();
            assert!(matches!(second, Prepared::Later));
        }
        if key == b"new" {
            rig.store.commit(&rig.fabric, first).unwrap();
            assert!(rig.get(key).is_some());
        } else {
            rig.store.abort(first);
            assert_eq!(rig.get(key), None);
        }
        rig.sound();
    }
}

/// pilaf §3.4, Figure 6: at 75 % the paper's clients make 1.6 probes on average and 3 at most.
#[test]
fn a_get_makes_few_probes_at_three_quarters() {
    let slots = 1u64 << 16;
    let mut rig = Rig::new(shape(32 << 20, slots));
    let keys = slots as u32 * 3 / 4;
    for key in 0..keys {
        rig.put(&key.to_le_bytes(), b"value").unwrap();
    }
    assert_eq!(rig.store.slots(), slots);
    for key in 0..keys {
        let found = block_on(rig.reader.get(&rig.fabric, &key.to_le_bytes(), Buf::new()));
        assert!(found.unwrap().is_some());
    }
    let counts = rig.reader.counts();
    assert_eq!(counts.reads.get(), u64::from(keys));
    let probes = counts.probes.get() as f64 / f64::from(keys);
    println!("{probes:.3} probes per GET at 75 % of {slots} slots");
    assert!((1.2..=1.6).contains(&probes), "{probes}");
}

proptest! {
    /// Against a map: whatever is done, readers see what is there, and nothing is lost or leaked.
    #[test]
    fn it_is_a_map(
        slots in 2u32..6, arena_bytes in (8u64 << 10)..(200 << 10),
        steps in prop::collection::vec((0u8..6, 0u8..60, 0usize..300), 0..300),
    ) {
        let mut rig = Rig::new(shape(arena_bytes / 64 * 64, 1 << slots));
        let mut model: HashMap<u8, (Vec<u8>, u64)> = HashMap::new();
        for (what, key, len) in steps {
            let name = [b"key", &[key][..]].concat();
            match what {
                0 => {
                    let was = model.remove(&key).is_some();
                    let deleted = rig.execute(&name, Operation::Delete { of: None });
                    prop_assert_eq!(deleted, Ok(Outcome::Deleted(was)));
                }
                1 => prop_assert_eq!(rig.get(&name), model.get(&key).cloned()),
                2 => {
                    let options = PutOptions::default();
                    let expect = Expect::Absent;
                    let operation = Operation::PutIf { value: &[2], expect, options };
                    match rig.execute(&name, operation) {
                        Ok(Outcome::Stored(version)) => {
                            prop_assert!(model.insert(key, (vec![2], version.as_u64())).is_none());
                        }
                        Ok(Outcome::Refused(version)) => {
                            let there = model.get(&key).map(|value| value.1);
                            prop_assert_eq!(version.map(Version::as_u64), there);
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(EngineError::OutOfMemory { .. } | EngineError::IndexFull { .. }) => (),
                        Err(other) => panic!("{other:?}"),
                    }
                }
                _ => match rig.put(&name, &vec![key; len]) {
                    Ok(version) => { model.insert(key, (vec![key; len], version)); }
                    Err(EngineError::OutOfMemory { .. } | EngineError::IndexFull { .. }) => (),
                    Err(other) => panic!("{other:?}"),
                },
            }
        }
        rig.sound();
        prop_assert_eq!(rig.store.counts().keys, model.len() as u64);
        for key in 0..60 {
            prop_assert_eq!(rig.get(&[b"key", &[key][..]].concat()), model.get(&key).cloned());
        }
    }
}

/// A scan of a store in which `between` is done after each step: the keys that it has found, and
/// the number of its steps.
fn scan(rig: &mut Rig, mut between: impl FnMut(&mut Rig)) -> (HashSet<Vec<u8>>, u32) {
    let (mut from, mut found) = (Cursor::default(), HashSet::new());
    for steps in 1..1_000 {
        let page = rig.store.scan(&rig.fabric, &Step { from, prefix: Vec::new() }).unwrap();
        found.extend(page.keys.into_iter().map(|key| key.key));
        let Some(next) = page.next else { return (found, steps) };
        from = next;
        between(rig);
    }
    panic!("the scan does not end");
}

/// A store whose index is so full that inserts move keys, and the names of `keys` keys in it.
fn full_store(keys: u32) -> (Rig, HashSet<Vec<u8>>) {
    let mut rig = Rig::new(shape(4 << 20, 4096));
    let names: HashSet<Vec<u8>> = (0..keys).map(|key| format!("stays-{key}").into()).collect();
    for name in &names {
        rig.put(name, b"value").unwrap();
    }
    (rig, names)
}

#[test]
fn a_scan_finds_all_keys_while_others_make_them_move() {
    let (mut rig, names) = full_store(3400);
    let before = rig.store.counts().moves;
    let mut next = 0u32;
    let (found, steps) = scan(&mut rig, |rig| {
        for _ in 0..50 {
            rig.put(&next.to_le_bytes(), b"comes and goes").unwrap();
            if let Some(old) = next.checked_sub(200) {
                rig.execute(&old.to_le_bytes(), Operation::Delete { of: None }).unwrap();
            }
            next += 1;
        }
    });
    assert!(rig.store.counts().moves > before + 100, "the test moves no keys");
    assert!(steps as usize >= names.len() / SCAN_PAGE_KEYS);
    let missed = names.difference(&found).count();
    assert_eq!(missed, 0, "of {} keys", names.len());
}

#[test]
fn a_scan_begins_again_when_too_much_was_moved_or_the_index_was_replaced() {
    let (mut rig, names) = full_store(3400);
    let mut once = false;
    let (found, steps) = scan(&mut rig, |rig| {
        let before = rig.store.counts().moves;
        let mut next = 0u32;
        while !std::mem::replace(&mut once, true) {
            while rig.store.counts().moves <= before + PILAF_MOVES_KEPT as u64 {
                rig.put(&next.to_le_bytes(), b"comes and goes").unwrap();
                if let Some(old) = next.checked_sub(300) {
                    rig.execute(&old.to_le_bytes(), Operation::Delete { of: None }).unwrap();
                }
                next += 1;
            }
        }
    });
    assert!(names.is_subset(&found));
    assert!(steps as usize > names.len() / SCAN_PAGE_KEYS + 1);

    let (mut rig, names) = full_store(3400);
    let mut next = 0u32;
    let (found, _) = scan(&mut rig, |rig| {
        while rig.store.counts().resizes == 0 {
            rig.put(&next.to_le_bytes(), b"is in the way").unwrap();
            next += 1;
        }
    });
    assert!(names.is_subset(&found));
}
