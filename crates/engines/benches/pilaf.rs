//! Micro-benchmarks of the pilaf engine's storage and log on lines that are near; and, printed
//! before them, what the paper counts: probes per GET over the fill (§3.4, Figure 6) and races over
//! the number of keys (§5.3, Figure 9), one JSON object a line, as a file of results has them.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use loch_engines::log::{Change, LogError, MemoryStorage, Op, Policy, Storage, recover};
use loch_engines::operation::{Operation, Outcome, PutOptions, Version};
use loch_engines::pilaf::{Prepared, Reader, Shape, Store};
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Buf, RegionId, RemoteAddr, lanes::block_on};

const NODE: RegionId = RegionId(0);
const SEED: u64 = 1;

struct Rig {
    region: Arc<Region>,
    fabric: ShmEndpoint,
    store: Store,
}

impl Rig {
    fn new(index_slots: u64, arena_bytes: u64) -> Self {
        let root = RemoteAddr::new(NODE, 4096);
        let shape =
            Shape { root, arena_bytes, index_slots, value_bytes_max: 1 << 20, seed: SEED, node: 0 };
        let dir = tempfile::tempdir().expect("a directory can be made");
        let region = Region::create(&dir.path().join("region"), root.offset() + shape.bytes());
        let region = Arc::new(region.expect("there is memory"));
        let fabric = attach(&region);
        let mut store = Store::create(&fabric, shape).expect("it has room");
        store.lease_versions(&fabric).expect("there are versions");
        store.open(&fabric).expect("shm does not fail");
        Self { region, fabric, store }
    }

    fn reader(&self) -> Reader {
        Reader::new(vec![self.store.shape().root], SEED, 1_000_000)
    }

    fn execute(&mut self, key: &[u8], operation: &Operation<'_>) -> Outcome<'static> {
        match self.store.prepare(&self.fabric, key, operation).expect("it fits") {
            Prepared::Answer(outcome) => outcome,
            Prepared::Staged(staged) => {
                let outcome = staged.outcome;
                self.store.commit(&self.fabric, staged).expect("shm does not fail");
                outcome
            }
            other => panic!("nothing else is prepared: {other:?}"),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.execute(key, &Operation::Put { value, options: PutOptions::default() });
    }
}

fn attach(region: &Arc<Region>) -> ShmEndpoint {
    let mut fabric = ShmEndpoint::new(NODE);
    fabric.attach(NODE, region.clone());
    fabric
}

fn key_of(number: u64) -> [u8; 16] {
    let mut key = *b"key.............";
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

/// Prints a number of one series among those that belong together.
fn point(group: &str, series: &str, parameter: &str, unit: &str, value: f64) {
    println!(
        r#"{{"group":"{group}","series":"{series}","parameter":"{parameter}","unit":"{unit}","value":{value}}}"#
    );
}

/// Probes per GET of keys that are there, over the share of slots that are filled.
fn probes() {
    const SLOTS: u64 = 1 << 18;
    let mut rig = Rig::new(SLOTS, 1 << 27);
    let mut keys = 0;
    for percent in [40, 50, 60, 65, 70, 75, 80, 85] {
        while keys < SLOTS * percent / 100 {
            rig.put(&key_of(keys), &[1; 32]);
            keys += 1;
        }
        assert_eq!(rig.store.slots(), SLOTS, "the index did not grow");
        let reader = rig.reader();
        for key in 0..keys {
            let found = block_on(reader.get(&rig.fabric, &key_of(key), Buf::new()));
            assert!(found.is_ok_and(|found| found.is_some()), "it is there");
        }
        let per_get = reader.counts().probes.get() as f64 / keys as f64;
        let fill = format!("{percent} % of the slots filled");
        point("Pilaf's probes (pilaf §3.4)", "probes/GET", &fill, "", per_get);
    }
}

/// GETs that meet a change, over the number of keys: one thread changes them, this one reads as
/// fast as it can. `gets_a_put` holds the writer back; without, it is as fast as it can be (Figure
/// 9).
#[allow(clippy::disallowed_methods, reason = "a race needs another thread")]
fn races(group: &str, gets_a_put: Option<u64>) {
    const GETS: u64 = 300_000;
    for keys in [1, 10, 100, 1_000, 10_000] {
        let mut rig = Rig::new(1 << 15, 1 << 25);
        (0..keys).for_each(|key| rig.put(&key_of(key), &[0; 1024]));
        let (region, reader) = (rig.region.clone(), rig.reader());
        let gets_done = AtomicU64::new(0);
        let mut puts = 0u64;
        std::thread::scope(|scope| {
            let gets_done = &gets_done;
            let gets = scope.spawn(move || {
                let fabric = attach(&region);
                let (mut buf, mut word) = (Buf::new(), 1u64);
                for get in 1..=GETS {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let found = block_on(reader.get(&fabric, &key_of((word >> 33) % keys), buf));
                    buf = found.expect("shm does not fail").expect("it is there").into_buf();
                    gets_done.store(get, Ordering::Relaxed);
                }
                let counts = reader.counts();
                (counts.torn_entries.get(), counts.torn_extents.get())
            });
            let mut word = 7u64;
            loop {
                let done = gets_done.load(Ordering::Relaxed);
                if done == GETS {
                    break;
                }
                if gets_a_put.is_some_and(|gets| puts * gets > done) {
                    std::hint::spin_loop();
                    continue;
                }
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                rig.put(&key_of((word >> 33) % keys), &[puts as u8; 1024]);
                puts += 1;
            }
            let (entries, extents) = gets.join().expect("it does not panic");
            let named = format!("{keys} keys");
            let race = |series, value| point(group, series, &named, "%", value);
            race("PUTs, of all operations", puts as f64 * 100.0 / (puts + GETS) as f64);
            race("GETs that met a torn entry", entries as f64 * 100.0 / GETS as f64);
            race("GETs that met a torn extent", extents as f64 * 100.0 / GETS as f64);
        });
    }
}

fn storage(c: &mut Criterion) {
    probes();
    races("Pilaf's races, 1 KiB values, reader and writer as fast as they can (pilaf §5.3)", None);
    races("Pilaf's races, 1 KiB values, 90 % GETs", Some(9));
    let mut rig = Rig::new(1 << 10, 1 << 20);
    let (key, value) = (key_of(7), [7; 64]);
    rig.put(&key, &value);
    let reader = rig.reader();
    c.bench_function("get", |b| {
        let mut buf = Some(Buf::with_capacity(256));
        b.iter(|| {
            let found =
                block_on(reader.get(&rig.fabric, black_box(&key), buf.take().unwrap_or_default()));
            buf = found.expect("shm does not fail").map(|value| value.into_buf());
        });
    });
    c.bench_function("get, absent", |b| {
        b.iter(|| block_on(reader.get(&rig.fabric, black_box(b"absent"), Buf::new())))
    });
    c.bench_function("contains", |b| {
        b.iter(|| block_on(reader.contains(&rig.fabric, black_box(&key))))
    });
    c.bench_function("put, update", |b| b.iter(|| rig.put(black_box(&key), &value)));
    c.bench_function("delete and put, insert", |b| {
        b.iter(|| {
            rig.execute(&key, &Operation::Delete { of: None });
            rig.put(black_box(&key), &value);
        })
    });
    c.bench_function("fetch_add", |b| {
        b.iter(|| rig.execute(b"counter", &Operation::FetchAdd(1)));
    });
}

fn log(c: &mut Criterion) {
    let mut disk = MemoryStorage::default();
    // The measurement is of a record, not of the disk.
    let policy = Policy { loss_us_max: u64::MAX, sync_us: u64::MAX, ..Policy::default() };
    let opened = recover(disk.clone(), 1, policy, |_| Ok::<(), LogError>(()));
    let (mut log, _) = opened.expect("an empty disk has an empty log");
    let key = key_of(7);
    for value_bytes in [64, 1024] {
        let value = vec![7; value_bytes];
        let change =
            Change::Put { value: &value, version: Version::from_u64(9), expires_at_ms: None };
        let mut records = 0u64;
        c.bench_function(&format!("log a record of {value_bytes} bytes"), |b| {
            b.iter(|| {
                log.append(Op::Change { key: &key, change }, 0).expect("it is sound");
                records += 1;
                if records.is_multiple_of(512) {
                    log.turn(0).expect("memory does not fail");
                }
                if records.is_multiple_of(1 << 18) {
                    // The test double keeps everything: a snapshot of nothing empties it.
                    let snapshot = log.begin_snapshot(0).expect("memory does not fail");
                    log.finish_snapshot(snapshot, 0).expect("memory does not fail");
                }
            });
        });
    }
    assert!(disk.segments().is_ok());
}

criterion_group!(benches, storage, log);
criterion_main!(benches);
