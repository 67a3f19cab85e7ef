//! Chained associative hopscotch hashing as in FaRM (Dragojević and others, NSDI 2014, §5).
//!
//! A key is in its home bucket, in the bucket after it (the *neighbourhood*: two buckets of four
//! slots, read at once), or in a chain of overflow blocks of the home bucket. An insert into a full
//! neighbourhood looks for a free slot in the buckets that follow, and moves it towards the
//! neighbourhood by moving entries away from it, each within its own neighbourhood. If that fails,
//! the entry goes to the chain. A delete of an entry in the neighbourhood refills its slot from the
//! chain.
//!
//! Buckets are read two at a time and written one at a time, the farthest first, so that a reader
//! always finds each entry. FaRM names no limit of the search: here it is the 256 slots of
//! hopscotch hashing's authors (Herlihy, Shavit, Tzafrir, DISC 2008).

use loch_engines::kv_direct::key::KeyHash;
use loch_engines::lines::{Counts, HostMemory, LINE_BYTES, Line, Purpose};
use loch_fabric::lanes::block_on;

use super::slots::{Entry, SLOTS, Slots};
use super::values::{Sizes, Values};
use super::{Design, share_of};

/// Buckets in which an insert looks for a free slot.
const REACH: usize = 256 / SLOTS;

/// The table.
pub struct Hopscotch {
    values: Values,
    /// Home buckets; the last one's neighbourhood ends with one more.
    buckets: u32,
    seed: u64,
}

/// The buckets that an operation has read, consecutive from the key's home on, and its chain.
struct Seen {
    home: u32,
    near: Vec<Slots>,
    chain: Vec<(u32, Slots)>,
}

/// Where an entry was found.
#[derive(Clone, Copy)]
enum Place {
    Near { at: usize, slot: usize },
    Chain { at: usize, slot: usize },
}

impl Hopscotch {
    /// An empty table.
    pub fn new(sizes: &Sizes, seed: u64) -> Self {
        let lines = share_of(sizes.lines, sizes.index_ratio).max(2);
        Self { values: Values::new(sizes, lines), buckets: lines - 1, seed }
    }

    fn home(&self, key: &[u8]) -> u32 {
        KeyHash::of(self.seed, key).bucket(self.buckets)
    }

    /// Reads the next two buckets of `seen`, or the one that is left; false at the end of the
    /// table.
    fn read_on(&self, seen: &mut Seen) -> bool {
        let from = seen.home + seen.near.len() as u32;
        let mut lines = [Line::ZERO; 2];
        let lines = &mut lines[..(self.buckets + 1 - from).min(2) as usize];
        if lines.is_empty() {
            return false;
        }
        block_on(self.values.memory().read(Purpose::Index, from, lines));
        seen.near.extend(lines.iter().copied().map(Slots));
        true
    }

    /// Reads the neighbourhood of `key`, and its chain until the key is found.
    fn find(&self, key: &[u8]) -> (Seen, Option<(Place, Entry)>) {
        let mut seen = Seen { home: self.home(key), near: Vec::new(), chain: Vec::new() };
        self.read_on(&mut seen);
        for at in 0..2 {
            if let Some((slot, entry)) = seen.near[at].find(key) {
                return (seen, Some((Place::Near { at, slot }, entry)));
            }
        }
        let mut next = seen.near[0].next();
        while let Some(line) = next {
            let block = self.values.read_bucket(line);
            seen.chain.push((line, block));
            if let Some((slot, entry)) = block.find(key) {
                let at = seen.chain.len() - 1;
                return (seen, Some((Place::Chain { at, slot }, entry)));
            }
            next = block.next();
        }
        (seen, None)
    }

    /// A free slot of the neighbourhood, made if need be: the bucket and the slot, and which
    /// buckets have changed for it, in the order in which they are to be written.
    fn make_room(&self, seen: &mut Seen) -> Option<(usize, usize, Vec<usize>)> {
        let free = |seen: &Seen, at: usize| seen.near[at].free().map(|slot| (at, slot));
        if let Some((at, slot)) = (0..2).find_map(|at| free(seen, at)) {
            return Some((at, slot, Vec::new()));
        }
        let (mut at, mut slot) = loop {
            let from = seen.near.len();
            if from >= REACH || !self.read_on(seen) {
                return None;
            }
            if let Some(found) = (from..seen.near.len()).find_map(|at| free(seen, at)) {
                break found;
            }
        };
        let mut moves = Vec::new();
        while at > 1 {
            // An entry of the bucket before can be here too; one of an
            // earlier bucket cannot.
            let home = seen.home + at as u32 - 1;
            let mut entries = seen.near[at - 1].entries();
            let (from, _) = entries.find(|(_, entry)| self.home(&entry.key) == home)?;
            moves.push((at - 1, from, at, slot));
            (at, slot) = (at - 1, from);
        }
        let mut changed = Vec::new();
        for (from, from_slot, to, to_slot) in moves {
            let moved = seen.near[from].entry(from_slot);
            seen.near[to].set(to_slot, moved);
            seen.near[from].set(from_slot, None);
            changed.push(to);
        }
        Some((at, slot, changed))
    }

    fn write_near(&self, seen: &Seen, at: usize) {
        self.values.write_bucket(seen.home + at as u32, &seen.near[at]);
    }

    /// Adds an entry to the chain of the home bucket, all of which was read. False if there is no
    /// memory for a block.
    fn add_to_chain(&mut self, seen: &mut Seen, entry: Entry) -> bool {
        let with_room = seen.chain.iter_mut().find_map(|(line, block)| {
            let slot = block.free()?;
            block.set(slot, Some(entry));
            Some((*line, *block))
        });
        if let Some((line, block)) = with_room {
            self.values.write_bucket(line, &block);
            return true;
        }
        let Some(line) = self.values.allocate_line() else { return false };
        let mut block = Slots(Line::ZERO);
        block.set(0, Some(entry));
        self.values.write_bucket(line, &block);
        let last = seen.chain.len().checked_sub(1);
        self.link(seen, last, Some(line));
        true
    }

    /// Lets block `at` of the chain, or the home bucket, be followed by `next`.
    fn link(&self, seen: &mut Seen, at: Option<usize>, next: Option<u32>) {
        match at {
            Some(at) => {
                let (line, block) = &mut seen.chain[at];
                block.set_next(next);
                self.values.write_bucket(*line, block);
            }
            None => {
                seen.near[0].set_next(next);
                self.write_near(seen, 0);
            }
        }
    }

    /// Frees a slot of block `at` of the chain, and the block with its last one.
    fn take_from_chain(&mut self, seen: &mut Seen, at: usize, slot: usize) {
        let (line, block) = &mut seen.chain[at];
        block.set(slot, None);
        let (line, block) = (*line, *block);
        if block.entries().next().is_some() {
            self.values.write_bucket(line, &block);
        } else {
            self.link(seen, at.checked_sub(1), block.next());
            self.values.free_line(line);
        }
    }

    /// Fills a free slot of the neighbourhood from the chain, or writes that it is free.
    fn refill(&mut self, seen: &mut Seen, at: usize, slot: usize) {
        let Some(line) = seen.near[0].next() else {
            seen.near[at].set(slot, None);
            self.write_near(seen, at);
            return;
        };
        let block = self.values.read_bucket(line);
        seen.chain.push((line, block));
        let (from, entry) = block.entries().next().expect("a block has an entry");
        seen.near[at].set(slot, Some(entry));
        self.write_near(seen, at);
        self.take_from_chain(seen, 0, from);
    }
}

impl Design for Hopscotch {
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let (mut seen, found) = self.find(key);
        if let Some((_, entry)) = found {
            self.values.write(entry.value, value);
            return true;
        }
        let Some(slab) = self.values.allocate() else { return false };
        let key = *key.first_chunk().expect("keys have 8 bytes");
        let entry = Entry { key, value: slab };
        self.values.write(slab, value);
        if let Some((at, slot, changed)) = self.make_room(&mut seen) {
            changed.into_iter().for_each(|at| self.write_near(&seen, at));
            seen.near[at].set(slot, Some(entry));
            self.write_near(&seen, at);
        } else if !self.add_to_chain(&mut seen, entry) {
            self.values.free(slab);
            return false;
        }
        true
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let (_, Some((_, entry))) = self.find(key) else { return false };
        self.values.read(entry.value, value);
        true
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let (mut seen, Some((place, entry))) = self.find(key) else { return false };
        match place {
            Place::Near { at, slot } => self.refill(&mut seen, at, slot),
            Place::Chain { at, slot } => self.take_from_chain(&mut seen, at, slot),
        }
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
