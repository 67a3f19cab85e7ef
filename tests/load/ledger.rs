//! Each writer's intended and acknowledged operations, in files that survive it.
//!
//! Every key has one writer, with one operation on it at a time, and a writer numbers its
//! operations on a key. Before an operation it notes what it means to do, afterwards that it was
//! done: two words for each key. So whoever reads the key knows what it may find: nothing older
//! than what was acknowledged before it began to read, nothing newer than what was meant when it
//! had read.
//!
//! # Invariants
//! 1. `acknowledged <= meant`, and if they differ an operation is under way, or its writer died in
//!    it.
//! 2. A word is written at once: it lies in one page of the kernel's cache. So it is there for the
//!    others, and stays, as soon as the system call is made.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An operation on a key: its number, and whether the key has a value after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Op(u64);

impl Op {
    pub fn put(number: u64) -> Self {
        Self(number << 1 | 1)
    }

    pub fn delete(number: u64) -> Self {
        Self(number << 1)
    }

    /// Counted from 1; 0 is before all operations.
    pub fn number(self) -> u64 {
        self.0 >> 1
    }

    pub fn leaves_value(self) -> bool {
        self.0 & 1 == 1
    }
}

/// One writer's ledger.
pub struct Ledger(File);

/// Bytes for each key: the two words.
const BYTES: u64 = 16;

impl Ledger {
    /// Opens the ledger of a writer, and makes it if it is not there yet.
    pub fn open(dir: &Path, writer: usize, keys: usize) -> Self {
        let path = dir.join(format!("ledger-{writer}"));
        let mut options = File::options();
        options.read(true).write(true).create(true);
        let file = options.open(path).expect("a file");
        file.set_len(keys as u64 * BYTES).expect("room for it");
        Self(file)
    }

    pub fn meant(&self, key: usize) -> Op {
        self.word(key as u64 * BYTES)
    }

    pub fn acknowledged(&self, key: usize) -> Op {
        self.word(key as u64 * BYTES + 8)
    }

    pub fn note_meant(&self, key: usize, op: Op) {
        self.note(key as u64 * BYTES, op);
    }

    pub fn note_acknowledged(&self, key: usize, op: Op) {
        self.note(key as u64 * BYTES + 8, op);
    }

    fn word(&self, at: u64) -> Op {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, at).expect("as long as it was made");
        Op(u64::from_le_bytes(word))
    }

    fn note(&self, at: u64, op: Op) {
        self.0.write_all_at(&op.0.to_le_bytes(), at).expect("room was made");
    }
}

/// Whether a key may be found with the value of operation `found`, or without one, if `oldest` was
/// done before the reading began and nothing after `newest` was begun before it ended.
pub fn judge(oldest: Op, newest: Op, found: Option<u64>) -> Result<(), String> {
    let allowed = match found {
        Some(number) => {
            let is_put = |op: Op| op.number() != number || op.leaves_value();
            (oldest.number()..=newest.number()).contains(&number)
                && is_put(oldest)
                && is_put(newest)
        }
        None => {
            !oldest.leaves_value()
                || !newest.leaves_value()
                // Whatever was in between may have been a DELETE.
                || newest.number() > oldest.number() + 1
        }
    };
    if allowed {
        return Ok(());
    }
    Err(format!("found {found:?}, may be {oldest:?} to {newest:?}"))
}

#[test]
fn the_judge_knows_the_law() {
    let (put, delete) = (Op::put, Op::delete);
    for (oldest, newest, found, allowed) in [
        (put(3), put(3), Some(3), true),
        (put(3), put(3), Some(2), false),
        (put(3), put(3), Some(4), false),
        (put(3), put(3), None, false),
        (put(3), put(4), Some(3), true),
        (put(3), put(4), Some(4), true),
        (put(3), put(4), None, false),
        (put(3), delete(4), None, true),
        (put(3), delete(4), Some(4), false),
        (put(3), put(5), None, true),
        (delete(3), put(4), None, true),
        (delete(3), put(4), Some(3), false),
        (delete(3), delete(3), Some(2), false),
        (Op::default(), Op::default(), None, true),
    ] {
        let case = format!("{oldest:?} {newest:?} {found:?}");
        assert_eq!(judge(oldest, newest, found).is_ok(), allowed, "{case}");
    }
}
