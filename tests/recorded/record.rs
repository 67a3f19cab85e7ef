//! The operations of a client, in a file that survives it.
//!
//! Before an operation its call is appended, after it its return: one record each, by one system
//! call, into the kernel's cache. A client that is killed leaves the call of what it was about.
//!
//! # Invariants
//! 1. A record is 64 bytes and lies in one page: the kernel copies it whole or not at all, whenever
//!    the process is killed.
//! 2. The time of a call is taken before the call and that of a return after it, by the clock that
//!    all processes of the host share.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use loch_history::{Answer, Ask, Operation, Outcome, Update};
use rustix::time::{ClockId, clock_gettime};

const WORDS: usize = 8;
const BYTES: usize = WORDS * 8;

const CALL: u64 = 1;
const RETURN: u64 = 2;
/// Stands in a return in place of an answer if there was none.
const LOST: u64 = u64::MAX;
/// No version, and no value.
const NONE: u64 = u64::MAX;

/// Nanoseconds of the host's monotonic clock.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Appends to the record of one process.
pub struct Recorder {
    file: File,
    next: Cell<u64>,
}

impl Recorder {
    pub fn create(path: &Path) -> Self {
        let file = File::options().append(true).create_new(true).open(path);
        Self { file: file.expect("a new file"), next: Cell::new(0) }
    }

    /// Before a call; its number.
    pub fn called(&self, key: u64, ask: Ask) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        let [kind, a, b] = words_of_ask(ask);
        self.append([CALL, number, now(), key, kind, a, b, 0]);
        number
    }

    /// After the call of this number.
    pub fn returned(&self, number: u64, answer: Answer) {
        let time = now();
        let [kind, a, b] = words_of_answer(answer);
        self.append([RETURN, number, time, kind, a, b, 0, 0]);
    }

    /// After the call of this number, which may or may not have been done.
    pub fn lost(&self, number: u64) {
        self.append([RETURN, number, now(), LOST, 0, 0, 0, 0]);
    }

    fn append(&self, words: [u64; WORDS]) {
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let written = (&self.file).write(&bytes).expect("there is room");
        assert_eq!(written, BYTES, "a record is written at once");
    }
}

/// Operations that a process has recorded the return of.
pub fn returns(path: &Path) -> u64 {
    // Nearly half of the records: a lane's last call may have no return yet.
    fs::metadata(path).map_or(0, |file| file.len() / BYTES as u64 / 2)
}

/// The operations of a process that ended at `ended`. One of unknown outcome that returned has
/// the time of that.
pub fn read(path: &Path, client: u32, ended: u64) -> Vec<Operation> {
    let bytes = fs::read(path).expect("the record");
    assert_eq!(bytes.len() % BYTES, 0, "records are whole");
    let mut operations = Vec::with_capacity(bytes.len() / BYTES / 2 + 1);
    let mut open = HashMap::new();
    for record in bytes.chunks_exact(BYTES) {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(record.chunks_exact(8)) {
            *word = u64::from_le_bytes(from.try_into().expect("eight bytes"));
        }
        match words {
            [CALL, number, called, key, kind, a, b, _] => {
                open.insert(number, operations.len());
                let ask = ask_of_words([kind, a, b]);
                let (returned, outcome) = (u64::MAX, Outcome::UnknownUntil(ended));
                operations.push(Operation { client, key, ask, called, returned, outcome });
            }
            [RETURN, number, returned, kind, a, b, _, _] => {
                let operation = &mut operations[open.remove(&number).expect("it was called")];
                operation.returned = returned;
                if kind != LOST {
                    operation.outcome = Outcome::Known(answer_of_words([kind, a, b]));
                }
            }
            _ => panic!("no record: {words:?}"),
        }
    }
    operations
}

fn words_of_ask(ask: Ask) -> [u64; 3] {
    match ask {
        Ask::Get => [0, 0, 0],
        Ask::Put(value) => [1, value, 0],
        Ask::PutIfAbsent(value) => [2, value, 0],
        Ask::PutIfVersion { version, value } => [3, value, version],
        Ask::Delete => [4, 0, 0],
        Ask::DeleteIfVersion(version) => [14, version, 0],
        Ask::Add(add) => [5, add, 0],
        Ask::Update(Update::AddSaturating(add)) => [6, add, 0],
        Ask::Update(Update::Exchange(value)) => [7, value, 0],
        Ask::Update(Update::CompareSwap { expected, value }) => [8, value, expected],
        Ask::Update(Update::AddIfPresent(add)) => [9, add, 0],
        Ask::Expire(value) => [10, value, 0],
        Ask::Forget => [13, 0, 0],
        Ask::Append(piece) => [11, piece, 0],
        Ask::Touch(tag) => [12, tag, 0],
    }
}

fn ask_of_words(words: [u64; 3]) -> Ask {
    match words {
        [0, ..] => Ask::Get,
        [1, value, _] => Ask::Put(value),
        [2, value, _] => Ask::PutIfAbsent(value),
        [3, value, version] => Ask::PutIfVersion { version, value },
        [4, ..] => Ask::Delete,
        [14, version, _] => Ask::DeleteIfVersion(version),
        [5, add, _] => Ask::Add(add),
        [6, add, _] => Ask::Update(Update::AddSaturating(add)),
        [7, value, _] => Ask::Update(Update::Exchange(value)),
        [8, value, expected] => Ask::Update(Update::CompareSwap { expected, value }),
        [9, add, _] => Ask::Update(Update::AddIfPresent(add)),
        [10, value, _] => Ask::Expire(value),
        [13, ..] => Ask::Forget,
        [11, piece, _] => Ask::Append(piece),
        [12, tag, _] => Ask::Touch(tag),
        _ => panic!("nothing that is asked: {words:?}"),
    }
}

fn words_of_answer(answer: Answer) -> [u64; 3] {
    match answer {
        Answer::Found(None) => [0, NONE, NONE],
        Answer::Found(Some((value, version))) => [0, value, version],
        Answer::Stored(version) => [1, version, 0],
        Answer::Refused(version) => [2, version.unwrap_or(NONE), 0],
        Answer::Deleted(had) => [3, had as u64, 0],
        Answer::Before(before) => [4, before, 0],
        Answer::NoEffect => [5, 0, 0],
        Answer::Value(value) => [6, value, 0],
        Answer::Present => [7, 0, 0],
        Answer::Done => [8, 0, 0],
        Answer::Held => [9, 0, 0],
    }
}

fn answer_of_words(words: [u64; 3]) -> Answer {
    match words {
        [0, _, NONE] => Answer::Found(None),
        [0, value, version] => Answer::Found(Some((value, version))),
        [1, version, _] => Answer::Stored(version),
        [2, NONE, _] => Answer::Refused(None),
        [2, version, _] => Answer::Refused(Some(version)),
        [3, had, _] => Answer::Deleted(had != 0),
        [4, before, _] => Answer::Before(before),
        [5, ..] => Answer::NoEffect,
        [6, value, _] => Answer::Value(value),
        [7, ..] => Answer::Present,
        [8, ..] => Answer::Done,
        [9, ..] => Answer::Held,
        _ => panic!("nothing that is answered: {words:?}"),
    }
}

#[test]
fn what_is_recorded_can_be_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("record");
    let all = [
        (Ask::Get, Answer::Found(None)),
        (Ask::Get, Answer::Found(Some((7, 8)))),
        (Ask::Put(7), Answer::Stored(8)),
        (Ask::PutIfAbsent(9), Answer::Refused(Some(8))),
        (Ask::PutIfVersion { version: 8, value: 9 }, Answer::Refused(None)),
        (Ask::Delete, Answer::Deleted(true)),
        (Ask::Delete, Answer::Deleted(false)),
        (Ask::DeleteIfVersion(8), Answer::Deleted(true)),
        (Ask::Add(5), Answer::Before(u64::MAX)),
        (Ask::Update(Update::CompareSwap { expected: 3, value: 4 }), Answer::Before(3)),
        (Ask::Update(Update::AddIfPresent(2)), Answer::Done),
        (Ask::Get, Answer::Value(6)),
        (Ask::Put(7), Answer::NoEffect),
        (Ask::Touch(7), Answer::Stored(10)),
    ];
    let recorder = Recorder::create(&path);
    let numbers = all.map(|(ask, _)| recorder.called(3, ask));
    let lost = recorder.called(4, Ask::Put(2));
    recorder.lost(lost);
    let died = recorder.called(4, Ask::Put(1));
    // Lanes return in any order.
    for (number, (_, answer)) in numbers.into_iter().zip(all).rev() {
        recorder.returned(number, answer);
    }
    assert_eq!(died, all.len() as u64 + 1);
    let operations = read(&path, 2, 99);
    assert_eq!(operations.len(), all.len() + 2);
    for (operation, (ask, answer)) in operations.iter().zip(all) {
        assert_eq!((operation.ask, operation.outcome), (ask, Outcome::Known(answer)));
        assert_eq!((operation.client, operation.key), (2, 3));
        assert!(operation.called < operation.returned && operation.returned < u64::MAX);
    }
    let [lost, died] = operations[all.len()..] else { panic!("two without an answer") };
    assert_eq!([lost.outcome, died.outcome], [Outcome::UnknownUntil(99); 2]);
    assert!(lost.called < lost.returned && lost.returned < u64::MAX);
    assert_eq!(died.returned, u64::MAX);
    assert_eq!(returns(&path), all.len() as u64 + 1);
}
