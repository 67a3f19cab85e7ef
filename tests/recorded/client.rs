//! The process of one client: every operation there is, most of them on a few keys that all clients
//! want, until its standard input ends. It judges nothing but that a value is whole; it records.

use std::cell::Cell;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loch::lanes::{block_on, run};
use loch::{
    AsyncTable, Cluster, Conditional, ConnectOptions, EngineError, Error, ErrorKind, Expect,
    Expiry, Pinned, PutOptions, Value, ValueRef, Version,
};
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
/// How much is asked as a batch.
const IN_BATCHES: f64 = 0.1;
/// The most keys of a batch.
const BATCH_KEYS: usize = 8;
/// The time to live that a TOUCH gives: longer than any run.
const FAR_OFF: Duration = Duration::from_secs(24 * 60 * 60);
/// How many GETs pin the value, which then has to stay as it is during the lane's next operation.
const PINNED: f64 = 0.2;

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
/// Before the next operation after one that needs a node out of reach, which fails at once. Of a
/// batch that fails, each write is of unknown outcome, and thousands of them have no verdict.
const REST: Duration = Duration::from_millis(4);

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
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut pinned: Option<(usize, u64, Pinned<'_>)> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let before = pinned.take();
            if random.random_bool(IN_BATCHES) {
                self.batch(self.choose_batch(&mut random)).await;
            } else {
                let (key, ask) = self.choose(&mut random);
                let number = self.recorder.called(key as u64, ask);
                let done = match ask {
                    Ask::Get if random.random_bool(PINNED) => {
                        let done = self.table.pin(&name_of(self.task.round, key)).await;
                        done.map(|value| {
                            pinned = value.map(|value| (key, self.tag(key, &value), value));
                            let found = pinned.as_ref().map(|(_, tag, v)| (*tag, v.version()));
                            Answer::Found(found.map(|(tag, version)| (tag, version.as_u64())))
                        })
                    }
                    _ => self.operate(key, ask).await,
                };
                let is_away = done.as_ref().is_err_and(is_away);
                self.note(number, key, self.outcome(key, ask, done));
                rest_if(is_away);
            }
            if let Some((key, tag, value)) = before {
                assert_eq!(self.tag(key, &value), tag, "key {key} changed under a pin");
            }
        }
    }

    /// Records the answer to an operation, or that nobody knows whether it was done.
    fn note(&self, number: u64, key: usize, answer: Option<Answer>) {
        match answer {
            Some(answer) => {
                self.recorder.returned(number, answer);
                self.versions[key].set(told(answer).unwrap_or(self.versions[key].get()));
            }
            None => self.recorder.lost(number),
        }
    }

    /// Unique in the run: whose it is, and which.
    fn next_tag(&self) -> u64 {
        (self.task.client as u64 + 1) << 32 | self.tags.replace(self.tags.get() + 1)
    }

    /// Operations of one kind. A key may be among theirs more than once.
    fn choose_batch(&self, random: &mut ChaCha8Rng) -> Vec<(usize, Ask)> {
        let (kind, count) = (random.random_range(0..20), random.random_range(2..=BATCH_KEYS));
        let operation = |_| {
            let key = random.random_range(0..HOT_KEYS + self.task.crowd);
            let ask = match kind {
                0..9 => Ask::Get,
                9..17 => Ask::Put(self.next_tag()),
                _ => Ask::Delete,
            };
            (key, ask)
        };
        (0..count).map(operation).collect()
    }

    async fn batch(&self, batch: Vec<(usize, Ask)>) {
        let call = |(key, ask): &(usize, Ask)| self.recorder.called(*key as u64, *ask);
        let numbers: Vec<_> = batch.iter().map(call).collect();
        let names: Vec<_> = batch.iter().map(|(key, _)| name_of(self.task.round, *key)).collect();
        let mut answers = vec![None; batch.len()];
        let pair = |at: usize| match batch[at] {
            (key, Ask::Put(tag)) => (&names[at], value_of(key, tag, self.task.value_max)),
            (_, ask) => unreachable!("{ask:?} among PUTs"),
        };
        let done = match batch[0].1 {
            Ask::Get => {
                let found = |at: usize, value: Option<ValueRef<'_>>| {
                    let key = batch[at].0;
                    let found = value.map(|v| (self.tag(key, &v), v.version().as_u64()));
                    answers[at] = Some(Answer::Found(found));
                };
                self.table.get_each(&names, found).await
            }
            Ask::Delete => self.table.delete_many(&names).await.map(|deleted| {
                answers = deleted.into_iter().map(|had| Some(Answer::Deleted(had))).collect();
            }),
            _ => {
                let pairs: Vec<_> = (0..batch.len()).map(pair).collect();
                self.table.put_many(&pairs).await.map(|versions| {
                    let stored = |version: Version| Some(Answer::Stored(version.as_u64()));
                    answers = versions.into_iter().map(stored).collect();
                })
            }
        };
        let error = done.err();
        for (at, (key, ask)) in batch.into_iter().enumerate() {
            let answer = answers[at].or_else(|| {
                let error = error.as_ref().expect("a batch that is done answers for each key");
                // Of a batch with an error some writes may have been done.
                self.without_answer(key, ask, error).filter(|_| ask == Ask::Get)
            });
            self.note(numbers[at], key, answer);
        }
        rest_if(error.as_ref().is_some_and(is_away));
    }

    /// The tag of a value that was found.
    fn tag(&self, key: usize, value: &[u8]) -> u64 {
        let tag = tag_of(key, value, self.task.value_max);
        tag.unwrap_or_else(|| panic!("key {key}: nobody wrote {value:?}"))
    }

    fn choose(&self, random: &mut ChaCha8Rng) -> (usize, Ask) {
        let tag = self.next_tag();
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
            15 if tag.is_multiple_of(2) => Ask::DeleteIfVersion(self.versions[key].get()),
            13..16 => Ask::PutIfVersion { version: self.versions[key].get(), value: tag },
            // Sums of random numbers tell what was added.
            16..18 if is_counter(key) => Ask::Add(random.random()),
            16..18 => Ask::Append(tag),
            // Where any value may be forgotten, the search for an explanation is long without them.
            18 if self.task.table != "evicting" => Ask::Touch(tag),
            _ => Ask::Delete,
        };
        (key, ask)
    }

    async fn operate(&self, key: usize, ask: Ask) -> Result<Answer, Error> {
        let (table, plain) = (self.table, PutOptions::default());
        let value_of = |tag| value_of(key, tag, self.task.value_max);
        let name = name_of(self.task.round, key);
        match ask {
            Ask::Get => table.get(&name).await.map(|found| {
                let tag = |value: Value| (self.tag(key, &value), value.version().as_u64());
                Answer::Found(found.map(tag))
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
            Ask::Touch(tag) if tag & 1 == 0 => {
                let touched = table.touch(&name, Expiry::In(FAR_OFF)).await;
                let stored = |version: Version| Answer::Stored(version.as_u64());
                touched.map(|version| version.map_or(Answer::Refused(None), stored))
            }
            Ask::Touch(_) => table.get_and_touch(&name, Expiry::Never).await.map(|found| {
                let tag = |value: Value| (self.tag(key, &value), value.version().as_u64());
                Answer::Found(found.map(tag))
            }),
            Ask::Delete => table.delete(&name).await.map(Answer::Deleted),
            Ask::DeleteIfVersion(version) => {
                let version = Version::from_u64(version);
                table.delete_if_version(&name, version).await.map(Answer::Deleted)
            }
            Ask::Add(add) => table.fetch_add(&name, add).await.map(Answer::Before),
            Ask::Update(_) | Ask::Expire(_) | Ask::Forget => unreachable!("none is chosen"),
        }
    }

    /// `None` if it may or may not have been done.
    fn outcome(&self, key: usize, ask: Ask, done: Result<Answer, Error>) -> Option<Answer> {
        done.map_or_else(|error| self.without_answer(key, ask, &error), Some)
    }

    /// What an error tells of its operation.
    fn without_answer(&self, key: usize, ask: Ask, error: &Error) -> Option<Answer> {
        match error {
            error if self.is_expected(error) => Some(Answer::NoEffect),
            error if error.kind() == ErrorKind::OutcomeUnknown => None,
            Error::Table { source: EngineError::ValueTooLong { .. }, .. }
                if matches!(ask, Ask::Append(_)) =>
            {
                Some(Answer::NoEffect)
            }
            error => panic!("client {}: {ask:?} of key {key}: {error}", self.task.client),
        }
    }

    /// Whether an error may come about in a run. After any but [`EngineError::Ambiguous`] the key
    /// has the value it had.
    fn is_expected(&self, error: &Error) -> bool {
        match error.engine() {
            Some(error) => matches!(error.kind(), ErrorKind::NoRoom | ErrorKind::TryAgain),
            None => self.task.over_network && is_away(error),
        }
    }
}

/// Whether a node was out of reach.
fn is_away(error: &Error) -> bool {
    // A port that is down is no way to a node either; the device says so in its words.
    matches!(error, Error::NodeUnreachable { .. } | Error::Refused { .. } | Error::Device { .. })
}

/// Lets a node come back that was out of reach; all lanes rest.
fn rest_if(is_away: bool) {
    if is_away {
        std::thread::sleep(REST);
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
