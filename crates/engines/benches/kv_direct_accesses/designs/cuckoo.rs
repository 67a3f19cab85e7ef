//! Bucketised cuckoo hashing as in MemC3 (Fan, Andersen, Kaminsky, NSDI 2013).
//!
//! A key is in one of two buckets of four slots. Where both are full, entries are *displaced*, each
//! to its other bucket: two paths are searched at the same time, of random entries, until one comes
//! to a free slot or 500 entries were looked at. Then the entries of that path are moved, the last
//! one first, so that a reader always finds each. The other bucket of an entry follows from the one
//! and an 8-bit tag (*partial-key* cuckoo hashing); not by XOR as in MemC3, but by a difference, so
//! that the number of buckets need not be a power of two.
//!
//! Buckets that an operation has read it does not read again.

use loch_engines::kv_direct::key::KeyHash;
use loch_engines::lines::{Counts, HostMemory, LINE_BYTES};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::slots::{Entry, SLOTS, Slots};
use super::values::{Sizes, Values};
use super::{Design, share_of};

/// Paths that are searched at the same time: MemC3 found two to be best.
const PATHS: usize = 2;

/// Entries that are looked at before an insert gives up, as in MemC3.
const DISPLACEMENTS_MAX: usize = 500;

/// The table.
pub struct Cuckoo {
    values: Values,
    buckets: u32,
    seed: u64,
    random: ChaCha8Rng,
}

/// A bucket that an operation has read.
struct Seen {
    at: u32,
    slots: Slots,
}

/// An entry that a path displaces.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    bucket: u32,
    slot: usize,
}

/// A way to a free slot: what has to move, and where the last one goes.
struct Path {
    steps: Vec<Step>,
    free: Step,
}

impl Cuckoo {
    /// An empty table.
    pub fn new(sizes: &Sizes, seed: u64) -> Self {
        let buckets = share_of(sizes.lines, sizes.index_ratio).max(1);
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { values: Values::new(sizes, buckets), buckets, seed, random }
    }

    /// The two buckets of a key; they may be the same.
    fn homes(&self, key: &[u8]) -> [u32; 2] {
        let first = KeyHash::of(self.seed, key).bucket(self.buckets);
        [first, self.other(key, first)]
    }

    /// The other bucket of a key which has this one.
    fn other(&self, key: &[u8], bucket: u32) -> u32 {
        let tag = KeyHash::of(self.seed, key).secondary() as u8;
        let sum = KeyHash::of(self.seed, &[tag]).bucket(self.buckets);
        (sum + self.buckets - bucket) % self.buckets
    }

    /// Reads a bucket that the operation has not read: which of `seen` it is.
    fn see(&self, at: u32, seen: &mut Vec<Seen>) -> usize {
        if let Some(known) = seen.iter().position(|bucket| bucket.at == at) {
            return known;
        }
        seen.push(Seen { at, slots: self.values.read_bucket(at) });
        seen.len() - 1
    }

    /// Reads the buckets of `key` until one has it: which of `seen`, and the slot.
    fn find(&self, key: &[u8], seen: &mut Vec<Seen>) -> Option<(usize, usize, Entry)> {
        self.homes(key).into_iter().find_map(|home| {
            let known = self.see(home, seen);
            let (slot, entry) = seen[known].slots.find(key)?;
            Some((known, slot, entry))
        })
    }

    /// Searches for a free slot from the buckets of `key` on.
    fn search(&mut self, key: &[u8], seen: &mut Vec<Seen>) -> Option<Path> {
        let homes = self.homes(key);
        let mut paths: [(Vec<Step>, u32); PATHS] = homes.map(|home| (Vec::new(), home));
        for (_, home) in &paths {
            let known = self.see(*home, seen);
            if let Some(slot) = seen[known].slots.free() {
                return Some(Path { steps: Vec::new(), free: Step { bucket: *home, slot } });
            }
        }
        for displaced in 0..DISPLACEMENTS_MAX {
            let (steps, bucket) = &mut paths[displaced % PATHS];
            // A slot that the path has emptied before is no longer what it was.
            let is_new = |slot: &usize| !steps.contains(&Step { bucket: *bucket, slot: *slot });
            let slots: Vec<usize> = (0..SLOTS).filter(is_new).collect();
            if slots.is_empty() {
                continue;
            }
            let slot = slots[self.random.random_range(0..slots.len())];
            steps.push(Step { bucket: *bucket, slot });
            let known = self.see(*bucket, seen);
            let victim = seen[known].slots.entry(slot).expect("a path goes through full buckets");
            *bucket = self.other(&victim.key, *bucket);
            let known = self.see(*bucket, seen);
            if let Some(slot) = seen[known].slots.free() {
                let steps = std::mem::take(steps);
                return Some(Path { steps, free: Step { bucket: *bucket, slot } });
            }
        }
        None
    }

    /// Writes an entry into a bucket that was read.
    fn write(&self, to: Step, entry: Option<Entry>, seen: &mut Vec<Seen>) {
        let known = self.see(to.bucket, seen);
        seen[known].slots.set(to.slot, entry);
        self.values.write_bucket(to.bucket, &seen[known].slots);
    }
}

impl Design for Cuckoo {
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let mut seen = Vec::new();
        if let Some((_, _, entry)) = self.find(key, &mut seen) {
            self.values.write(entry.value, value);
            return true;
        }
        let Some(path) = self.search(key, &mut seen) else { return false };
        let Some(slab) = self.values.allocate() else { return false };
        self.values.write(slab, value);
        let mut free = path.free;
        for step in path.steps.into_iter().rev() {
            let known = self.see(step.bucket, &mut seen);
            let moved = seen[known].slots.entry(step.slot);
            self.write(free, moved, &mut seen);
            free = step;
        }
        let key = *key.first_chunk().expect("keys have 8 bytes");
        self.write(free, Some(Entry { key, value: slab }), &mut seen);
        true
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let Some((_, _, entry)) = self.find(key, &mut Vec::new()) else { return false };
        self.values.read(entry.value, value);
        true
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let mut seen = Vec::new();
        let Some((known, slot, entry)) = self.find(key, &mut seen) else { return false };
        self.write(Step { bucket: seen[known].at, slot }, None, &mut seen);
        self.values.free(entry.value);
        true
    }

    fn bytes(&self) -> u64 {
        u64::from(self.values.memory().lines()) * LINE_BYTES as u64
    }

    fn counts(&self) -> Counts {
        self.values.memory().counts()
    }
}
