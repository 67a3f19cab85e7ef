//! Filling a store and counting what its operations cost.

use std::ops::RangeInclusive;

use loch_engines::lines::Counts;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::designs::Design;

/// How large keys and values are: every size of the range is as likely as every other.
#[derive(Clone, Debug)]
pub struct Kvs {
    /// Bytes of every key.
    pub key_bytes: usize,
    /// Bytes of key and value together.
    pub bytes: RangeInclusive<usize>,
    /// Up to so many bytes they are inline in kv-direct's index.
    pub inline_bytes_max: usize,
}

impl Kvs {
    /// Bytes of key `number` and its value.
    fn bytes_of(&self, number: u64) -> usize {
        let sizes = (self.bytes.end() - self.bytes.start() + 1) as u64;
        self.bytes.start() + (mixed(number) % sizes) as usize
    }

    /// Whether key `number` and its value are in a slab of kv-direct's.
    fn has_slab(&self, number: u64) -> bool {
        self.bytes_of(number) > self.inline_bytes_max
    }
}

/// The accesses of many operations of one kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many operations had so many accesses.
    with: Vec<u64>,
}

impl Tally {
    fn add(&mut self, accesses: u64) {
        let accesses = accesses as usize;
        if self.with.len() <= accesses {
            self.with.resize(accesses + 1, 0);
        }
        self.with[accesses] += 1;
    }

    fn operations(&self) -> u64 {
        self.with.iter().sum()
    }

    /// Accesses of an operation on average.
    pub fn mean(&self) -> f64 {
        let total: u64 = self.with.iter().zip(0..).map(|(count, accesses)| count * accesses).sum();
        total as f64 / self.operations() as f64
    }

    /// How many accesses all but one operation of `one_in` have at most.
    pub fn all_but(&self, one_in: u64) -> usize {
        let total = self.operations();
        let mut above = total;
        let enough = |count: &u64| {
            above -= count;
            above <= total / one_in
        };
        self.with.iter().position(enough).expect("no operation has more than the most")
    }
}

/// The costs of operations while the memory stays as full as it is.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// GET of a key that is there.
    pub get: Tally,
    /// PUT of a key that is not there.
    pub insert: Tally,
    /// PUT of a key that is there; its value keeps its length.
    pub replace: Tally,
    /// Accesses to free slabs.
    pub slabs: u64,
    /// Slabs for keys and values that were allocated or freed.
    pub slab_operations: u64,
    /// Lines read by the GETs.
    pub get_lines: u64,
    /// PUTs of new keys that had no room.
    refused: u64,
}

impl Measured {
    /// Accesses of a PUT: half of them are of new keys.
    pub fn put(&self) -> f64 {
        (self.insert.mean() + self.replace.mean()) / 2.0
    }

    /// Accesses of an operation: half of them are GETs.
    pub fn mean(&self) -> f64 {
        (self.get.mean() + self.put()) / 2.0
    }

    /// Whether 99 of 100 new keys had room where others had gone.
    pub fn is_steady(&self) -> bool {
        self.refused <= self.get.operations() / 100
    }

    /// Accesses to free slabs for each that was allocated or freed.
    pub fn slabs_each(&self) -> f64 {
        self.slabs as f64 / self.slab_operations as f64
    }
}

/// A key that is there.
#[derive(Clone, Copy)]
struct Live {
    number: u64,
    /// How often its value was written.
    version: u64,
}

/// A store with what it holds.
pub struct Run<D> {
    design: D,
    kvs: Kvs,
    live: Vec<Live>,
    next: u64,
    kv_bytes: u64,
    slab_operations: u64,
    random: ChaCha8Rng,
    written: Vec<u8>,
    read: Vec<u8>,
}

impl<D: Design> Run<D> {
    /// Nothing in it yet.
    pub fn new(design: D, kvs: &Kvs, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self {
            design,
            kvs: kvs.clone(),
            live: Vec::new(),
            next: 0,
            kv_bytes: 0,
            slab_operations: 0,
            random,
            written: Vec::new(),
            read: Vec::new(),
        }
    }

    /// The bytes of keys and values that are in it, of all bytes of memory.
    pub fn utilisation(&self) -> f64 {
        self.kv_bytes as f64 / self.design.bytes() as f64
    }

    /// Adds keys until one has no room.
    pub fn fill(&mut self) {
        while self.add() {}
    }

    /// Takes keys out, random ones, until the memory is no fuller than that.
    pub fn drain_to(&mut self, utilisation: f64) {
        while self.utilisation() > utilisation {
            let at = self.random.random_range(0..self.live.len());
            self.remove(at);
        }
    }

    /// Accesses to free slabs for each that was allocated or freed since the table was empty.
    pub fn slabs_each(&self) -> f64 {
        self.design.counts().slabs.all() as f64 / self.slab_operations as f64
    }

    /// Adds keys until the memory is so full; false if one had no room before.
    pub fn fill_to(&mut self, utilisation: f64) -> bool {
        while self.utilisation() < utilisation {
            if !self.add() {
                return false;
            }
        }
        true
    }

    /// Fills the memory so far, and measures what the last hundredth of the new keys and then
    /// `rounds` GETs and PUTs of keys that are there cost; none if a key had no room.
    pub fn measure_filling(&mut self, utilisation: f64, rounds: u64) -> Option<Measured> {
        let mut measured = Measured::default();
        if !self.fill_to(0.99 * utilisation) {
            return None;
        }
        while self.utilisation() < utilisation {
            let (true, accesses) = self.counted(Self::add) else { return None };
            measured.insert.add(accesses);
        }
        (0..rounds).for_each(|_| self.measure_present(&mut measured));
        Some(measured)
    }

    /// Does `rounds` times: a GET, a PUT of the same value length, and a DELETE, each of a random
    /// key, and a PUT of a new one; so that the memory stays as full as it is.
    pub fn measure(&mut self, rounds: u64) -> Measured {
        let mut measured = Measured::default();
        let (before, slab_operations) = (self.design.counts().slabs, self.slab_operations);
        for _ in 0..rounds {
            self.measure_present(&mut measured);
            let at = self.random.random_range(0..self.live.len());
            self.remove(at);
            match self.counted(Self::add) {
                (true, accesses) => measured.insert.add(accesses),
                (false, _) => measured.refused += 1,
            }
        }
        measured.slabs = self.design.counts().slabs.all() - before.all();
        measured.slab_operations = self.slab_operations - slab_operations;
        measured
    }

    /// A GET and a PUT, each of a random key that is there.
    fn measure_present(&mut self, measured: &mut Measured) {
        let lines = |counts: &Counts| counts.index.lines_read + counts.data.lines_read;
        let at = self.random.random_range(0..self.live.len());
        let before = lines(&self.design.counts());
        measured.get.add(self.counted(|run| run.check(at)).1);
        measured.get_lines += lines(&self.design.counts()) - before;
        let at = self.random.random_range(0..self.live.len());
        measured.replace.add(self.counted(|run| run.replace(at)).1);
    }

    /// The accesses of `operation`, beside what it returns.
    fn counted<R>(&mut self, operation: impl FnOnce(&mut Self) -> R) -> (R, u64) {
        let before = self.design.counts().all();
        let result = operation(self);
        (result, self.design.counts().all() - before)
    }

    /// The key, and its value in `written`.
    fn write_down(&mut self, live: Live) -> [u8; 8] {
        let len = self.kvs.bytes_of(live.number) - self.kvs.key_bytes;
        let word = mixed(live.number ^ live.version << 48).to_le_bytes();
        self.written.clear();
        self.written.extend(word.into_iter().cycle().take(len));
        live.number.to_le_bytes()
    }

    fn add(&mut self) -> bool {
        let live = Live { number: self.next, version: 0 };
        let key = self.write_down(live);
        let has_room = self.design.put(&key[..self.kvs.key_bytes], &self.written);
        if has_room {
            self.kv_bytes += self.kvs.bytes_of(live.number) as u64;
            self.slab_operations += u64::from(self.kvs.has_slab(live.number));
            self.live.push(live);
        }
        self.next += 1;
        has_room
    }

    fn replace(&mut self, at: usize) {
        self.live[at].version += 1;
        let key = self.write_down(self.live[at]);
        let has_room = self.design.put(&key[..self.kvs.key_bytes], &self.written);
        assert!(has_room, "a value of the same length has room");
    }

    fn check(&mut self, at: usize) {
        let key = self.write_down(self.live[at]);
        assert!(self.design.get(&key[..self.kvs.key_bytes], &mut self.read), "a key is lost");
        assert_eq!(self.read, self.written, "a value is another");
    }

    fn remove(&mut self, at: usize) {
        let live = self.live.swap_remove(at);
        let key = live.number.to_le_bytes();
        assert!(self.design.delete(&key[..self.kvs.key_bytes]), "a key is lost");
        self.kv_bytes -= self.kvs.bytes_of(live.number) as u64;
        self.slab_operations += u64::from(self.kvs.has_slab(live.number));
    }
}

/// A word whose bits all depend on those of `number`.
fn mixed(number: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())
}
