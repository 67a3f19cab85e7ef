//! Counters of an endpoint: verbs, doorbells and bytes, by kind and by local or remote.

use std::cell::Cell;

/// The kinds of verbs that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One-sided READ.
    Read,
    /// One-sided WRITE.
    Write,
    /// Compare-and-swap of a word.
    CompareSwap,
    /// Fetch-and-add of a word.
    FetchAdd,
}

const KINDS: usize = 4;

/// Counts of one endpoint. Single writer: plain cells, no atomics.
///
/// CPU stores into a mapped region are not verbs and are not counted: the paper counts them as
/// direct memory writes (nessie §4.2.5).
#[derive(Debug, Default)]
pub struct Counters {
    verbs: [[Cell<u64>; KINDS]; 2],
    bytes: [[Cell<u64>; KINDS]; 2],
    doorbells: Cell<u64>,
}

/// A copy of [`Counters`] at one moment; the difference of two copies is the cost of the operations
/// in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbCount {
    /// Verbs posted.
    pub verbs: u64,
    /// Verbs among them whose region is another node's.
    pub remote_verbs: u64,
    /// Doorbells that were waited for: round trips.
    pub round_trips: u64,
    /// READs posted.
    pub reads: u64,
    /// WRITEs posted.
    pub writes: u64,
    /// CAS and FAA posted.
    pub atomics: u64,
    /// Payload bytes moved, both ways.
    pub bytes: u64,
    /// Payload bytes moved to or from other nodes.
    pub remote_bytes: u64,
}

impl Counters {
    #[inline(always)]
    pub(crate) fn count(&self, verb: Verb, remote: bool, bytes: u64) {
        self.count_many(verb, remote, 1, bytes);
    }

    /// Counts so many verbs of `bytes` bytes each.
    #[inline(always)]
    pub(crate) fn count_many(&self, verb: Verb, remote: bool, verbs: u64, bytes: u64) {
        let (v, b) = (
            &self.verbs[remote as usize][verb as usize],
            &self.bytes[remote as usize][verb as usize],
        );
        v.set(v.get() + verbs);
        b.set(b.get() + verbs * bytes);
    }

    /// Counts a doorbell whose completion the caller waits for.
    #[inline(always)]
    pub(crate) fn count_round_trip(&self) {
        self.doorbells.set(self.doorbells.get() + 1);
    }

    /// The counts so far.
    pub fn snapshot(&self) -> VerbCount {
        let verbs = |remote: usize, kind: Verb| self.verbs[remote][kind as usize].get();
        let both = |kind| verbs(0, kind) + verbs(1, kind);
        let sum = |cells: &[Cell<u64>; KINDS]| cells.iter().map(Cell::get).sum::<u64>();
        VerbCount {
            verbs: sum(&self.verbs[0]) + sum(&self.verbs[1]),
            remote_verbs: sum(&self.verbs[1]),
            round_trips: self.doorbells.get(),
            reads: both(Verb::Read),
            writes: both(Verb::Write),
            atomics: both(Verb::CompareSwap) + both(Verb::FetchAdd),
            bytes: sum(&self.bytes[0]) + sum(&self.bytes[1]),
            remote_bytes: sum(&self.bytes[1]),
        }
    }
}

impl VerbCount {
    /// The counts of both, put together one by one.
    fn zip(self, other: Self, put: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            verbs: put(self.verbs, other.verbs),
            remote_verbs: put(self.remote_verbs, other.remote_verbs),
            round_trips: put(self.round_trips, other.round_trips),
            reads: put(self.reads, other.reads),
            writes: put(self.writes, other.writes),
            atomics: put(self.atomics, other.atomics),
            bytes: put(self.bytes, other.bytes),
            remote_bytes: put(self.remote_bytes, other.remote_bytes),
        }
    }
}

impl std::ops::Sub for VerbCount {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, |now, earlier| now - earlier)
    }
}

impl std::ops::Add for VerbCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, |one, other| one + other)
    }
}
