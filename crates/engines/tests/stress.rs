//! Sessions of sixteen lanes that come and go on real threads where memory is short, long ones
//! beside many short ones: nothing that was acknowledged may be lost, and nothing leak.
//!
//! Each test takes about `LOCH_STRESS_SECONDS`, 3 unless it is set; `make stress` sets more.
//! With the feature `planted`, `LOCH_PLANT` names a rule to be left out, to see whether they
//! notice.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "threads and their clock are what this is about"
)]

mod cluster;

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::{Client, PutOptions, release_dead};
use loch_fabric::Buf;
use loch_fabric::lanes::{self, block_on};
use loch_fabric::shm::ShmEndpoint;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const THREADS: u64 = 4;
const LANES: usize = 16;
/// Keys that are written at a time.
const BATCH: u64 = 40;
/// Batches of a long session, and of a short one at most.
const LONG: u32 = 2000;
const SHORT_MAX: u32 = 3;
const VALUE_BYTES: usize = 2000;
/// Values of one class that a chunk holds.
const VALUES_OF_CHUNK: u64 = 31;
/// The share of operations that are PUTs; the others are DELETEs. So it is the share of the keys
/// that have a value.
const PUTS_PERCENT: u32 = 75;
/// One in so many sessions ends in the middle of its operations.
const DIES: u32 = 3;

/// The values that a key may have: one, or, after an operation that was dropped, one of two.
type Model = Vec<Vec<Option<Vec<u8>>>>;

struct Stress {
    cluster: TestCluster,
    /// Of each thread.
    keys: u64,
    until: Instant,
    stop: AtomicBool,
    done: AtomicU64,
    refused: AtomicU64,
    sessions: AtomicU64,
    freed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// The tests of this file take turns: each has as many threads as the machine should have
/// processors.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

fn plant() {
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var("LOCH_PLANT") {
        use loch_engines::planted::{self, Bug};
        let bug = Bug::all().find(|bug| format!("{bug:?}") == name);
        planted::plant(Some(bug.unwrap_or_else(|| panic!("there is no bug {name}"))));
    }
}

fn stress(percent: u64) {
    let _turn = turn();
    let seconds = std::env::var("LOCH_STRESS_SECONDS").map_or(3, |s| s.parse().unwrap());
    let cluster =
        TestCluster::new(Plan { table_bytes: 2 << 20, index_slots: 8192, ..Plan::default() });
    let room = cluster.map.shape.geometry.data_bytes() / CHUNK_BYTES * VALUES_OF_CHUNK;
    let stress = Stress {
        keys: room * percent / u64::from(PUTS_PERCENT) / THREADS,
        cluster,
        until: Instant::now() + Duration::from_secs(seconds),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        sessions: AtomicU64::new(0),
        freed: AtomicU64::new(0),
        wrong: Mutex::default(),
    };
    let values: usize = std::thread::scope(|scope| {
        let stress = &stress;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || stress.work(thread))).collect();
        let scrubber = scope.spawn(|| stress.scrub());
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stress.stop.store(true, Relaxed);
        scrubber.join().unwrap();
        ended.into_iter().map(|values| values.unwrap()).sum()
    });
    let wrong = stress.wrong.lock().unwrap();
    let (done, refused) = (stress.done.load(Relaxed), stress.refused.load(Relaxed));
    println!(
        "{percent} %: {done} operations done, {refused} refused, {} sessions, {} leaks freed; {} wrong",
        stress.sessions.load(Relaxed),
        stress.freed.load(Relaxed),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(10)]);
    assert!(percent < 100 || refused > 0, "memory was not short");
    let admin = stress.cluster.client(0);
    block_on(admin.scrub(0, 1_000_000)).unwrap();
    let report = block_on(admin.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new());
    assert_eq!((report.unshown, report.tentative, report.moving), (0, 0, 0), "{report:?}");
    assert_eq!(report.values, values as u64, "{report:?}");
}

impl Stress {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until || !self.wrong.lock().unwrap().is_empty()
    }

    /// One thread: its keys are its own, so it knows what they have. How many have a value at the
    /// end.
    fn work(&self, thread: u64) -> usize {
        plant();
        let mut random = ChaCha8Rng::seed_from_u64(thread);
        let model: RefCell<Model> = RefCell::new(vec![vec![None]; self.keys as usize]);
        while !self.is_over() {
            let client = self.cluster.client(0);
            self.sessions.fetch_add(1, Relaxed);
            // Two threads have long sessions, the others short ones.
            let batches =
                if thread.is_multiple_of(2) { LONG } else { random.random_range(1..=SHORT_MAX) };
            let dies_at = random.random_range(0..batches * DIES);
            for batch in 0..batches {
                if self.is_over() {
                    break;
                }
                let dies = (batch == dies_at).then(|| random.random_range(1..400));
                self.batch(thread, &client, &model, &mut random, dies);
                if dies.is_some() {
                    break;
                }
                self.look(thread, &client, &mut model.borrow_mut());
            }
            if dies_at < batches {
                // As a node does when a client has died.
                let incarnation = client.incarnation();
                self.cluster.kill(incarnation);
                let admin = self.cluster.client(0);
                let map = &self.cluster.map;
                block_on(release_dead(admin.fabric(), map, 0, incarnation as u32)).unwrap();
                self.cluster.kill(admin.incarnation());
            } else {
                block_on(client.detach()).unwrap();
                self.cluster.kill(client.incarnation());
            }
        }
        let client = self.cluster.client(0);
        let mut model = model.into_inner();
        self.look(thread, &client, &mut model);
        self.cluster.kill(client.incarnation());
        model.iter().filter(|may| may[0].is_some()).count()
    }

    /// Puts and deletes some keys, in many lanes; all of it is dropped after so many polls.
    fn batch(
        &self,
        thread: u64,
        client: &Client<ShmEndpoint>,
        model: &RefCell<Model>,
        random: &mut ChaCha8Rng,
        polls: Option<u32>,
    ) {
        let first = random.random_range(0..self.keys);
        let asked: Vec<(u64, Option<Vec<u8>>)> = (0..BATCH.min(self.keys))
            .map(|n| {
                let key = (first + n) % self.keys;
                let mut value = format!("{thread} {key} {}", random.random::<u64>()).into_bytes();
                value.resize(VALUE_BYTES, b'.');
                (key, random.random_ratio(PUTS_PERCENT, 100).then_some(value))
            })
            .collect();
        let work = asked.into_iter().map(|(key, value)| async move {
            let name = name_of(thread, key);
            // Until it is known to be done or refused, it may be either.
            model.borrow_mut()[key as usize].push(value.clone());
            let done = match &value {
                Some(value) => client.put(&name, value, PutOptions::default()).await.map(|_| true),
                None => client.delete(&name).await,
            };
            (key, value, done)
        });
        let lanes = lanes::run(LANES, work, |(key, value, done)| {
            let may = &mut model.borrow_mut()[key as usize];
            match done {
                Ok(_) => {
                    self.done.fetch_add(1, Relaxed);
                    *may = vec![value];
                }
                Err(EngineError::OutOfMemory { .. } | EngineError::Timeout { .. }) => {
                    self.refused.fetch_add(1, Relaxed);
                    may.pop();
                }
                Err(error) => self.tell(format!("{}: {error}", shown(thread, key))),
            }
        });
        let mut lanes = pin!(lanes);
        let mut cx = Context::from_waker(Waker::noop());
        let mut polled = 0;
        while polls.is_none_or(|most| polled < most) && lanes.as_mut().poll(&mut cx).is_pending() {
            polled += 1;
        }
    }

    /// Reads all keys of a thread: each must have what it may have, and has nothing else from then
    /// on.
    fn look(&self, thread: u64, client: &Client<ShmEndpoint>, model: &mut Model) {
        let keys = 0..self.keys;
        let gets = keys
            .map(|key| async move { (key, client.get(&name_of(thread, key), Buf::new()).await) });
        block_on(lanes::run(LANES, gets, |(key, found)| {
            let may = &mut model[key as usize];
            match found {
                Err(error) => self.tell(format!("GET of {}: {error}", shown(thread, key))),
                Ok(found) => {
                    let found = found.map(|value| value.to_vec());
                    if may.contains(&found) {
                        *may = vec![found];
                    } else {
                        let show = |value: &Option<Vec<u8>>| {
                            let value = value.as_ref()?;
                            Some(
                                String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned(),
                            )
                        };
                        let may: Vec<_> = may.iter().map(show).collect();
                        let key = shown(thread, key);
                        self.tell(format!("{key} has {:?}, may have {may:?}", show(&found)));
                    }
                }
            }
        }));
    }

    /// The scrubber of the node.
    fn scrub(&self) {
        plant();
        let client = self.cluster.client(0);
        while !self.stop.load(Relaxed) {
            match block_on(client.scrub(0, 100_000)) {
                Ok(scrubbed) => {
                    self.freed.fetch_add(scrubbed.freed, Relaxed);
                }
                Err(EngineError::Timeout { .. }) => (),
                Err(error) => self.tell(format!("scrub: {error}")),
            }
            std::thread::yield_now();
        }
        block_on(client.detach()).unwrap();
        self.cluster.kill(client.incarnation());
    }

    fn tell(&self, wrong: String) {
        self.wrong.lock().unwrap().push(wrong);
    }
}

fn name_of(thread: u64, key: u64) -> Vec<u8> {
    shown(thread, key).into_bytes()
}

fn shown(thread: u64, key: u64) -> String {
    format!("{thread}/{key}")
}

#[test]
fn nothing_acknowledged_is_lost_in_memory_that_is_70_percent_full() {
    stress(70);
}

#[test]
fn nothing_acknowledged_is_lost_in_memory_that_is_90_percent_full() {
    stress(90);
}

#[test]
fn nothing_acknowledged_is_lost_in_memory_for_which_there_are_105_percent() {
    stress(105);
}
