//! Pilaf's reads against a server that is killed in the middle of anything: of writing an entry, of
//! a chain of moves, of replacing the index, of recovering.
//!
//! The server's program makes changes by itself, so that its process can be killed (where requests
//! come by message it is only dropped between two turns, see `tests/simulation`): stores that were
//! not in memory by then never are. Readers go on all the time, through the times when nobody
//! serves and when the table is made again from the log. With `sync`, all of it together is
//! linearizable.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_engines::EngineError;
use loch_engines::log::{Change, LogError, MemoryStorage, Op, Policy, recover};
use loch_engines::operation::{Expect, Operation, Outcome, PutOptions, Version};
use loch_engines::pilaf::hash::{KeyHash, candidates};
use loch_engines::pilaf::layout::{Entry, Root, SlotName, slot_addr};
use loch_engines::pilaf::{Prepared, Reader, Shape, Store, StoreCounts};
use loch_fabric::sim::{Faults, ProcessId, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};
use loch_history::{Answer, Ask, History, Operation as Asked, Outcome as Became, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const NODE: RegionId = RegionId(0);
const READERS: u32 = 3;
const KEYS: u64 = 3;
const READS: usize = 60;
const SEED: u64 = 3;

/// The table that a seed draws.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// An index of eight slots that has no room to grow, and nearly as many keys: many moves. Else
    /// one of four, that is replaced by larger ones.
    tight: bool,
    /// Keys that are only in the way.
    crowd: u64,
}

impl Setting {
    fn shape(&self) -> Shape {
        let root = RemoteAddr::new(NODE, 4096);
        let (index_slots, arena_bytes) = if self.tight { (8, 1024 + 64) } else { (4, 16 << 10) };
        Shape { root, arena_bytes, index_slots, value_bytes_max: 400, seed: SEED, node: 0 }
    }

    /// The bytes of a value: its tag, and as many more as the tag says.
    fn value_of(&self, tag: u64) -> Vec<u8> {
        let mut value = tag.to_le_bytes().to_vec();
        value.resize(8 + tag as usize * 37 % if self.tight { 40 } else { 300 }, tag as u8);
        value
    }
}

struct Notes {
    world: World,
    setting: Setting,
    disk: MemoryStorage,
    operations: RefCell<Vec<Asked>>,
    next_value: Cell<u64>,
    writes_left: Cell<u32>,
    absurd: RefCell<Vec<String>>,
    moves: Cell<u64>,
    resizes: Cell<u64>,
    races: Cell<u64>,
}

fn key_name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

impl Notes {
    fn called(&self, client: u32, key: u64, ask: Ask) -> usize {
        let (called, returned, outcome) = (self.world.now_ns(), u64::MAX, Became::Unknown);
        let mut operations = self.operations.borrow_mut();
        operations.push(Asked { client, key, ask, called, returned, outcome });
        operations.len() - 1
    }

    fn returned(&self, at: usize, answer: Answer) {
        let operation = &mut self.operations.borrow_mut()[at];
        (operation.returned, operation.outcome) = (self.world.now_ns(), Became::Known(answer));
    }
}

/// A server's life: recovers, then changes keys until it is killed or there is nothing left to do.
#[expect(clippy::too_many_lines, reason = "a scenario, in order")]
async fn serve(fabric: SimEndpoint, notes: Rc<Notes>, seed: u64) {
    let setting = notes.setting;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut store = Store::create(&fabric, setting.shape()).unwrap();
    let policy = Policy { sync: true, segment_bytes: 4_000, ..Policy::default() };
    let recovered = recover(notes.disk.clone(), 1, policy, |told| {
        store.replay(&fabric, told.key, told.change).unwrap();
        Ok::<(), LogError>(())
    });
    let (mut log, found) = recovered.unwrap();
    store.versions_were_leased(found.leased);
    let end = store.lease_versions(&fabric).unwrap();
    log.append(Op::Lease { end }, 0).unwrap();
    log.sync(0).unwrap();
    fabric.pause(random.random_range(0..50)).await;
    store.open(&fabric).unwrap();
    let mut counted = StoreCounts::default();
    while notes.writes_left.get() > 0 {
        notes.writes_left.set(notes.writes_left.get() - 1);
        let key = random.random_range(0..KEYS + setting.crowd);
        let tag = notes.next_value.get() + 1;
        notes.next_value.set(tag);
        let (ask, value) = match random.random_range(0..8u32) {
            0..3 => (Ask::Delete, Vec::new()),
            3 => (Ask::PutIfAbsent(tag), setting.value_of(tag)),
            _ => (Ask::Put(tag), setting.value_of(tag)),
        };
        let (value, options) = (&value[..], PutOptions::default());
        let operation = match ask {
            Ask::Delete => Operation::Delete { of: None },
            Ask::Put(_) => Operation::Put { value, options },
            _ => Operation::PutIf { value, expect: Expect::Absent, options },
        };
        let at = (key < KEYS).then(|| notes.called(0, key, ask));
        let name = key_name(key);
        let outcome = match store.prepare(&fabric, &name, &operation) {
            Err(EngineError::IndexFull { .. } | EngineError::OutOfMemory { .. }) => {
                at.into_iter().for_each(|at| notes.returned(at, Answer::NoEffect));
                continue;
            }
            Ok(Prepared::Answer(outcome)) => outcome,
            Ok(Prepared::Staged(staged)) => {
                let change = staged.change(&operation);
                assert!(matches!(change, Change::Put { .. }) || ask == Ask::Delete);
                log.append(Op::Change { key: &name, change }, 0).unwrap();
                fabric.pause(random.random_range(0..3)).await;
                log.sync(0).unwrap();
                fabric.pause(random.random_range(0..3)).await;
                let outcome = staged.outcome;
                store.commit(&fabric, staged).unwrap();
                outcome
            }
            other => panic!("one change at a time: {other:?}"),
        };
        // As a reply does, this verb leaves when all stores before it are in memory.
        fabric.read_words(&[setting.shape().root], &mut [0]).await.unwrap();
        let now = store.counts();
        notes.moves.set(notes.moves.get() + now.moves - counted.moves);
        notes.resizes.set(notes.resizes.get() + now.resizes - counted.resizes);
        counted = now;
        if let Some(at) = at {
            notes.returned(
                at,
                match outcome {
                    Outcome::Stored(version) => Answer::Stored(version.as_u64()),
                    Outcome::Deleted(was) => Answer::Deleted(was),
                    Outcome::Refused(version) => Answer::Refused(version.map(Version::as_u64)),
                    other => panic!("{other:?}"),
                },
            );
        }
        let report = store.check(&fabric).unwrap();
        assert_eq!(report.broken, Vec::<String>::new());
    }
}

async fn read(fabric: SimEndpoint, client: u32, notes: Rc<Notes>, seed: u64) {
    let setting = notes.setting;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let reader = Reader::new(vec![setting.shape().root], SEED, 2_000);
    for _ in 0..READS {
        let key = random.random_range(0..KEYS);
        let at = notes.called(client, key, Ask::Get);
        match reader.get(&fabric, &key_name(key), Buf::new()).await {
            Ok(None) => notes.returned(at, Answer::Found(None)),
            Ok(Some(value)) => {
                let tag = value.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag));
                if value[..] != setting.value_of(tag) {
                    notes.absurd.borrow_mut().push(format!("{key} has a torn value: {tag}"));
                }
                notes.returned(at, Answer::Found(Some((tag, value.version().as_u64()))));
            }
            Err(EngineError::Timeout { .. }) => notes.returned(at, Answer::NoEffect),
            Err(error) => notes.absurd.borrow_mut().push(format!("GET of {key}: {error}")),
        }
        fabric.pause(random.random_range(0..8)).await;
    }
    let races = reader.counts().torn_entries.get() + reader.counts().torn_extents.get();
    notes.races.set(notes.races.get() + races);
}

#[derive(Debug, Default)]
struct Report {
    operations: usize,
    kills: u32,
    moves: u64,
    resizes: u64,
    races: u64,
}

#[expect(clippy::too_many_lines, reason = "a scenario, in order")]
fn run(seed: u64) -> Result<Report, String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let one_host = random.random_bool(0.3);
    let profile = if one_host { Profile::ONE_HOST } else { Profile::CONNECTX_3_56 };
    let mut rate =
        |most: f64| if random.random_bool(0.6) { random.random_range(0.0..most) } else { 0.0 };
    let faults = Faults {
        torn: rate(1.0),
        tear_ns: 6_000,
        delays: rate(0.5),
        delay_ns: 5_000,
        slow_stores: rate(1.0),
        store_ns: [3_000, 20_000, 80_000][random.random_range(0..3usize)],
        ..Faults::default()
    };
    let tight = random.random_bool(0.5);
    let crowd = if tight { 8 - KEYS } else { 3 };
    let setting = Setting { tight, crowd };
    let world = World::new(random.random(), profile, Faults::default());
    assert_eq!(world.add_node(4096 + setting.shape().bytes()), NODE);
    world.set_faults(faults);
    let notes = Rc::new(Notes {
        world: world.clone(),
        setting,
        disk: MemoryStorage::default(),
        operations: RefCell::default(),
        next_value: Cell::new(0),
        writes_left: Cell::new(150),
        absurd: RefCell::default(),
        moves: Cell::new(0),
        resizes: Cell::new(0),
        races: Cell::new(0),
    });
    let start_server = |random: &mut ChaCha8Rng| {
        let process = world.add_process(NODE);
        world.start(process, serve(world.endpoint(process), notes.clone(), random.random()));
        process
    };
    let mut server = start_server(&mut random);
    let readers: Vec<ProcessId> = (1..=READERS)
        .map(|client| {
            let process = world.add_process(NODE);
            let seed = random.random();
            world.start(process, read(world.endpoint(process), client, notes.clone(), seed));
            process
        })
        .collect();
    let mut report = Report::default();
    let mut kill_at = random.random_range(0..400_000);
    let mut next_life: Option<u64> = None;
    while !readers.iter().all(|reader| world.has_ended(*reader)) {
        if !world.step() || world.events() > 5_000_000 {
            return Err("it is stuck".into());
        }
        let now = world.now_ns();
        if next_life.is_some_and(|at| now >= at) {
            next_life = None;
            server = start_server(&mut random);
            kill_at = now + random.random_range(0..400_000);
        } else if next_life.is_none() && now >= kill_at && report.kills < 12 {
            report.kills += 1;
            world.kill(server);
            world.fence(server);
            match random.random() {
                true => notes.disk.kill(),
                false => notes.disk.lose_power(|| random.random()),
            }
            next_life = Some(now + random.random_range(0..100_000));
        }
        if let Some(absurd) = notes.absurd.borrow().first() {
            return Err(absurd.clone());
        }
    }
    world.clone().end();
    let operations = notes.operations.take();
    report.operations = operations.len();
    (report.moves, report.resizes, report.races) =
        (notes.moves.get(), notes.resizes.get(), notes.races.get());
    let verdict = check(&History::from(operations), 2_000_000);
    if verdict.is_linearizable() { Ok(report) } else { Err(verdict.to_string()) }
}

/// The seeds of a test: `LOCH_SEEDS=n` chooses how many, `LOCH_SEED=n` runs only that one.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse().expect("it is a number"));
    match number("LOCH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCH_SEEDS").unwrap_or(300),
    }
}

#[test]
fn reads_are_linearizable_whenever_the_server_is_killed() {
    let mut all = Report::default();
    for seed in seeds() {
        let report = run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        all.operations += report.operations;
        all.kills += report.kills;
        all.moves += report.moves;
        all.resizes += report.resizes;
        all.races += report.races;
    }
    println!("{all:?}");
    let least = (seeds().end - seeds().start) / 3;
    let found = [u64::from(all.kills), all.moves, all.resizes, all.races];
    assert!(found.iter().all(|count| *count >= least), "{all:?}");
}

/// Whether a key is whole in one of its slots, as memory is at this moment; `None` while the root
/// is being written.
fn is_in_memory(world: &World, shape: &Shape, key: &[u8]) -> Option<bool> {
    let line = |at: RemoteAddr| std::array::from_fn(|i| world.load(at.add(i as u64 * 8)));
    let root = Root::verified(&line(shape.root))?;
    let name = KeyHash::of(SEED, key).name;
    let is_in = |slot: &u64| {
        let at = slot_addr(shape.root, root.index, *slot);
        let slot = SlotName { generation: root.generation(), slot: *slot };
        Entry::verified(&line(at), slot).is_some_and(|entry| entry.hash == name)
    };
    Some(candidates(name, root.slots).iter().any(is_in))
}

/// While other keys come and go, and their slots are made by moving these.
#[test]
fn a_key_is_in_zero_places_at_no_moment() {
    let setting = Setting { tight: true, crowd: 8 };
    let (shape, moves) = (setting.shape(), Rc::new(Cell::new(0)));
    let mut looks = 0u64;
    for seed in 0..200 {
        let faults = Faults { slow_stores: 1.0, store_ns: 5_000, ..Faults::default() };
        let world = World::new(seed, Profile::CONNECTX_3_56, Faults::default());
        world.add_node(4096 + shape.bytes());
        let process = world.add_process(NODE);
        let (fabric, counted) = (world.endpoint(process), moves.clone());
        let are_there = Rc::new(Cell::new(false));
        let tell = are_there.clone();
        world.start(process, async move {
            let mut store = Store::create(&fabric, shape).unwrap();
            store.lease_versions(&fabric).unwrap();
            store.open(&fabric).unwrap();
            for number in 0..80u64 {
                let key = key_name(if number < KEYS { number } else { KEYS + fabric.random() % 5 });
                let value = setting.value_of(number);
                let options = PutOptions::default();
                let put = Operation::Put { value: &value, options };
                let operation = if number >= KEYS && fabric.random() % 2 == 0 {
                    Operation::Delete { of: None }
                } else {
                    put
                };
                if let Ok(Prepared::Staged(staged)) = store.prepare(&fabric, &key, &operation) {
                    store.commit(&fabric, staged).unwrap();
                }
                if number + 1 >= KEYS {
                    // Everything before is in memory when this leaves.
                    fabric.read_words(&[shape.root], &mut [0]).await.unwrap();
                    tell.set(true);
                }
            }
            counted.set(counted.get() + store.counts().moves);
        });
        world.set_faults(faults);
        while world.step() {
            for key in (0..KEYS).filter(|_| are_there.get()) {
                looks += 1;
                assert_ne!(
                    is_in_memory(&world, &shape, &key_name(key)),
                    Some(false),
                    "seed {seed}"
                );
            }
        }
        world.end();
    }
    assert!(moves.get() > 100 && looks > 100_000, "{moves:?} {looks}");
}
