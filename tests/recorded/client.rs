//! The process of one client: every operation there is, most of them on a few keys that all clients
//! want, until its standard input ends. It judges nothing but that a value is whole; it records.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loch::lanes::{block_on, run};
use loch::{AsyncTable, Cluster, Conditional, ConnectOptions, Error, Expect, PutOptions, Version};
use loch_history::{Answer, Ask};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::record::Recorder;
use super::value::{is_counter, name_of, tag_of, value_of};
use super::{HOT_KEYS, PATIENCE_TO_CONNECT, Task};

/// A version that no value has.
const NO_VERSION: u64 = 1 << 63;

/// How much is asked of the crowd.
const OF_THE_CROWD: f64 = 0.25;

struct Client<'a> {
    task: &'a Task,
    table: AsyncTable<'a>,
    recorder: Recorder,
    /// The version of each key that this process was told last.
    versions: Vec<Cell<u64>>,
    tags: Cell<u64>,
    stop: Arc<AtomicBool>,
}

/// Does the task; panics, which the parent sees, if an answer cannot be recorded.
pub fn work(task: &Task) {
    let stop = stop_at_end_of_input();
    let (_cluster, table) = connect(task);
    let client = Client {
        task,
        table: table.asynch(),
        recorder: Recorder::create(&task.record()),
        versions: vec![Cell::new(NO_VERSION); HOT_KEYS + task.crowd],
        tags: Cell::new(0),
        stop,
    };
    block_on(run(task.lanes, (0..task.lanes).map(|lane| client.lane(lane)), |()| ()));
}

/// A node that was killed is started again within seconds, and then takes its time on a host with
/// little of it.
const PATIENCE_WITH_NODE: Duration = Duration::from_secs(60);
/// Before a device that cannot be used is tried again, or a node that is unreachable. A node that
/// goes down says so at once, so tries alone are no measure of time.
const PAUSE: Duration = Duration::from_secs(1);

/// The home node may be down at the moment, and come back; so may the port of this host.
fn connect(task: &Task) -> (Cluster, loch::Table) {
    let options = ConnectOptions {
        operation_timeout: task.operation_timeout(),
        connect_timeout: PATIENCE_TO_CONNECT,
        ..ConnectOptions::default()
    };
    let began = Instant::now();
    while began.elapsed() < PATIENCE_WITH_NODE {
        let cluster = Cluster::connect_with(&task.socket, options.clone());
        let table = cluster.and_then(|cluster| Ok((cluster.clone(), cluster.table(&task.table)?)));
        match table {
            Ok(attached) => return attached,
            // It went down between the two.
            Err(Error::NodeUnreachable { .. }) => std::thread::sleep(PAUSE),
            Err(Error::Device { .. }) if task.over_network => std::thread::sleep(PAUSE),
            Err(error) => panic!("client {}: {error}", task.client),
        }
    }
    panic!("client {}: no node after {PATIENCE_WITH_NODE:?}", task.client)
}

fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    std::thread::spawn(move || {
        // Ends too when the parent does, however it does.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::Relaxed);
    });
    stop
}

impl Client<'_> {
    async fn lane(&self, lane: usize) {
        let seed = self.task.seed ^ (self.task.client as u64) << 32 ^ (lane as u64) << 56;
        let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
        while !self.stop.load(Ordering::Relaxed) {
            let (key, ask) = self.choose(&mut random.borrow_mut());
            let number = self.recorder.called(key as u64, ask);
            match self.answer(key, ask).await {
                Some(answer) => {
                    self.recorder.returned(number, answer);
                    self.versions[key].set(told(answer).unwrap_or(self.versions[key].get()));
                }
                None => self.recorder.lost(number),
            }
        }
    }

    fn choose(&self, random: &mut ChaCha8Rng) -> (usize, Ask) {
        // Unique in the run: whose it is, and which.
        let tag = (self.task.client as u64 + 1) << 32 | self.tags.replace(self.tags.get() + 1);
        if random.random_bool(OF_THE_CROWD) {
            // Most of them are there, so that whoever comes back has to move somebody.
            let ask = match random.random_range(0..20) {
                0..10 => Ask::Get,
                10..18 => Ask::Put(tag),
                _ => Ask::Delete,
            };
            return (HOT_KEYS + random.random_range(0..self.task.crowd), ask);
        }
        let key = random.random_range(0..HOT_KEYS);
        let ask = match random.random_range(0..20) {
            0..7 => Ask::Get,
            7..11 => Ask::Put(tag),
            11..13 => Ask::PutIfAbsent(tag),
            13..16 => Ask::PutIfVersion { version: self.versions[key].get(), value: tag },
            // Sums of random numbers tell what was added.
            16..18 if is_counter(key) => Ask::Add(random.random()),
            16..18 => Ask::Append(tag),
            _ => Ask::Delete,
        };
        (key, ask)
    }

    /// `None` if it may or may not have been done.
    async fn answer(&self, key: usize, ask: Ask) -> Option<Answer> {
        let (table, plain) = (self.table, PutOptions::default());
        let value_of = |tag| value_of(key, tag, self.task.value_max);
        let name = name_of(self.task.round, key);
        let done = match ask {
            Ask::Get => table.get(&name).await.map(|found| {
                Answer::Found(found.map(|value| {
                    let tag = tag_of(key, &value, self.task.value_max);
                    let tag = tag.unwrap_or_else(|| panic!("key {key}: nobody wrote {value:?}"));
                    (tag, value.version().as_u64())
                }))
            }),
            Ask::Put(tag) => {
                let version = table.put(&name, &value_of(tag)).await;
                version.map(|version| Answer::Stored(version.as_u64()))
            }
            Ask::PutIfAbsent(tag) => {
                let done = table.put_if(&name, &value_of(tag), Expect::Absent, plain).await;
                done.map(of_condition)
            }
            Ask::PutIfVersion { version, value } => {
                let expect = Expect::Version(Version::from_u64(version));
                let done = table.put_if(&name, &value_of(value), expect, plain).await;
                done.map(of_condition)
            }
            Ask::Append(tag) => {
                let version = table.append(&name, &value_of(tag)).await;
                version.map(|version| Answer::Stored(version.as_u64()))
            }
            Ask::Delete => table.delete(&name).await.map(Answer::Deleted),
            Ask::Add(add) => table.fetch_add(&name, add).await.map(Answer::Before),
            Ask::Update(_) | Ask::Expire(_) => unreachable!("none is chosen"),
        };
        match done {
            Ok(answer) => Some(answer),
            Err(error) if self.is_expected(&error) => Some(Answer::NoEffect),
            Err(Error::ValueTooLong { .. }) if matches!(ask, Ask::Append(_)) => {
                Some(Answer::NoEffect)
            }
            Err(Error::Ambiguous { .. }) => None,
            Err(error) => panic!("client {}: {ask:?} of key {key}: {error}", self.task.client),
        }
    }

    /// Whether an error may come about in a run. After any but [`Error::Ambiguous`] the key has the
    /// value it had.
    fn is_expected(&self, error: &Error) -> bool {
        match error {
            Error::Timeout { .. } | Error::IndexFull { .. } | Error::OutOfMemory { .. } => true,
            // A port that is down is no way to a node either; the device says so in its words.
            Error::NodeUnreachable { .. } | Error::Refused { .. } | Error::Device { .. } => {
                self.task.over_network
            }
            _ => false,
        }
    }
}

fn of_condition(done: Conditional) -> Answer {
    match done {
        Conditional::Done(version) => Answer::Stored(version.as_u64()),
        Conditional::Refused(version) => Answer::Refused(version.map(|v| v.as_u64())),
    }
}

/// The version that an answer tells.
fn told(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Found(found) => found.map(|(_, version)| version),
        Answer::Stored(version) => Some(version),
        Answer::Refused(version) => version,
        _ => None,
    }
}
