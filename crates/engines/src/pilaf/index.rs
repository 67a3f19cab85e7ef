//! The server's side of the hash table: finding a key, and making room for one (pilaf §3.4).
//!
//! # Invariants
//! 1. At any moment a key that has a value is in one slot or, while it is moved, whole in two. A
//!    move writes the destination first, and that write is ordered before the next one
//!    ([`Fabric::store_before`]). The moves of a chain are made from the last victim backwards.
//! 2. Between two operations a key is in at most one slot: the copy that a chain leaves in its
//!    first slot is overwritten by EMPTY before anything else is done.

use std::collections::VecDeque;

use loch_fabric::{Fabric, RemoteAddr};

use super::hash::candidates;
use super::layout::{Entry, GRAIN_BYTES, LINE_BYTES, LINE_WORDS, SlotName, extent_addr, slot_addr};
use crate::error::EngineError;
use crate::limits::{PILAF_MOVES_KEPT, PILAF_SEARCH_SLOTS_MAX};

/// An index: an array of slots in the arena.
#[derive(Clone, Debug)]
pub struct Index {
    /// The table's root.
    pub root: RemoteAddr,
    /// Offset of the array's first byte in the arena.
    pub at: u64,
    /// Slots, a power of two.
    pub slots: u64,
    /// The number of this index, among all that the table had.
    pub generation: u64,
    /// The last stamp that was used.
    stamp: u64,
    /// A scan that goes through all slots has looked at the slots below this one.
    pub watched: u64,
    /// The slots below it to which a key was moved from a slot that is not below it.
    pub moved: Vec<u64>,
    /// The slots to which keys were moved last, for scans.
    lately: VecDeque<u64>,
    /// Moves so far.
    moves: u64,
}

/// A slot that was looked at in search of a chain, and the slot whose key would move here.
struct Link {
    slot: u64,
    parent: Option<usize>,
}

impl Index {
    /// An index whose array begins at a grain of the arena; nothing is written yet.
    pub fn new(root: RemoteAddr, grain: u64, slots: u64, generation: u64) -> Self {
        let at = grain * GRAIN_BYTES;
        Self {
            root,
            at,
            slots,
            generation,
            stamp: 0,
            watched: 0,
            moved: Vec::new(),
            lately: VecDeque::new(),
            moves: 0,
        }
    }

    /// Writes EMPTY into every slot.
    ///
    /// # Errors
    /// The fabric's.
    pub fn clear<F: Fabric>(&mut self, fabric: &F) -> Result<(), EngineError> {
        (0..self.slots).try_for_each(|slot| self.write(fabric, slot, Entry::EMPTY))
    }

    /// The bytes of an index with this many slots.
    pub fn bytes(slots: u64) -> u64 {
        slots * LINE_BYTES
    }

    /// The first grain of the array.
    pub fn grain(&self) -> u64 {
        self.at / GRAIN_BYTES
    }

    fn name(&self, slot: u64) -> SlotName {
        SlotName { generation: self.generation, slot }
    }

    /// The entry in a slot, unverified.
    ///
    /// # Errors
    /// The fabric's.
    #[inline]
    pub fn entry<F: Fabric>(&self, fabric: &F, slot: u64) -> Result<Entry, EngineError> {
        let at = slot_addr(self.root, self.at, slot);
        let mut words = [0; LINE_WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = fabric.load(at.add(i as u64 * 8))?;
        }
        Ok(Entry::from_words(words))
    }

    /// The entry in a slot; `None` if it does not verify.
    ///
    /// # Errors
    /// The fabric's.
    pub fn verified<F: Fabric>(&self, fabric: &F, slot: u64) -> Result<Option<Entry>, EngineError> {
        Ok(Entry::verified(&self.entry(fabric, slot)?.words(), self.name(slot)))
    }

    /// Writes a slot. No later store and no later answer is seen before it.
    ///
    /// # Errors
    /// The fabric's.
    pub fn write<F: Fabric>(
        &mut self,
        fabric: &F,
        slot: u64,
        entry: Entry,
    ) -> Result<(), EngineError> {
        self.stamp += 1;
        let words = entry.sealed(self.stamp, self.name(slot)).words();
        let at = slot_addr(self.root, self.at, slot);
        let (last, first) = words.split_last().expect("an entry has words");
        // The words may be seen in any order: the checksum does not verify before all are there.
        fabric.store(at, &[zerocopy::IntoBytes::as_bytes(first)])?;
        fabric.store_before(at.add(LINE_BYTES - 8), *last)?;
        Ok(())
    }

    /// The slot of `key`, whose hash has this name, and its entry.
    ///
    /// # Errors
    /// The fabric's.
    #[inline]
    pub fn find<F: Fabric>(
        &self,
        fabric: &F,
        name: u64,
        key: &[u8],
    ) -> Result<Option<(u64, Entry)>, EngineError> {
        for slot in candidates(name, self.slots) {
            // The hash is the second word: for most other keys a look at it is enough.
            if fabric.load(slot_addr(self.root, self.at, slot).add(8))? != name {
                continue;
            }
            let entry = self.entry(fabric, slot)?;
            if entry.key_len as usize == key.len() {
                let at = extent_addr(self.root, entry.grain);
                if holds(fabric, at, entry.key_at(), key)? {
                    return Ok(Some((slot, entry)));
                }
            }
        }
        Ok(None)
    }

    /// An EMPTY candidate slot of the key whose hash has this name, and the number of moves that
    /// freed it; `None` if no chain of moves was found. `pinned` slots are neither taken nor moved.
    ///
    /// # Errors
    /// The fabric's.
    pub fn make_room<F: Fabric>(
        &mut self,
        fabric: &F,
        name: u64,
        pinned: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, u64)>, EngineError> {
        let starts = candidates(name, self.slots).into_iter().filter(|slot| !pinned(*slot));
        let mut links: Vec<Link> = starts.map(|slot| Link { slot, parent: None }).collect();
        for link in &links {
            if self.is_empty(fabric, link.slot)? {
                return Ok(Some((link.slot, 0)));
            }
        }
        // Breadth first: the shortest chain moves the fewest keys.
        let mut next = 0;
        while next < links.len() && links.len() < PILAF_SEARCH_SLOTS_MAX {
            let resident = self.entry(fabric, links[next].slot)?;
            for slot in candidates(resident.hash, self.slots) {
                if pinned(slot) || links.iter().any(|link| link.slot == slot) {
                    continue;
                }
                links.push(Link { slot, parent: Some(next) });
                if self.is_empty(fabric, slot)? {
                    return self.move_along(fabric, &links).map(Some);
                }
            }
            next += 1;
        }
        Ok(None)
    }

    /// Moves the keys of a chain, the last one first, into the slot that the last link found EMPTY.
    /// Returns the slot where the chain starts, and the number of moves.
    fn move_along<F: Fabric>(
        &mut self,
        fabric: &F,
        links: &[Link],
    ) -> Result<(u64, u64), EngineError> {
        let (mut link, mut moves) = (links.last().expect("a chain has an end"), 0);
        while let Some(parent) = link.parent {
            let victim = self.entry(fabric, links[parent].slot)?;
            self.write(fabric, link.slot, victim)?;
            if link.slot < self.watched && links[parent].slot >= self.watched {
                self.moved.push(link.slot);
            }
            self.note_move(link.slot);
            link = &links[parent];
            moves += 1;
        }
        // The new key is not written at once: a change that has to be logged first is not shown
        // yet.
        self.write(fabric, link.slot, Entry::EMPTY)?;
        Ok((link.slot, moves))
    }

    /// Notes that a key was moved to a slot.
    fn note_move(&mut self, slot: u64) {
        if self.lately.len() == PILAF_MOVES_KEPT {
            self.lately.pop_front();
        }
        self.lately.push_back(slot);
        self.moves += 1;
    }

    /// Moves so far.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// The slot to which move `number` brought a key; `None` if that is no longer known.
    pub fn moved_to(&self, number: u64) -> Option<u64> {
        let first = self.moves - self.lately.len() as u64;
        self.lately.get(number.checked_sub(first)? as usize).copied()
    }

    fn is_empty<F: Fabric>(&self, fabric: &F, slot: u64) -> Result<bool, EngineError> {
        // The word with the grain and the key's length.
        let word = fabric.load(slot_addr(self.root, self.at, slot).add(16))?;
        Ok(word >> 32 == 0)
    }
}

/// Whether the extent at `at`, from byte `skip` on, is `key`.
fn holds<F: Fabric>(
    fabric: &F,
    at: RemoteAddr,
    skip: usize,
    key: &[u8],
) -> Result<bool, EngineError> {
    debug_assert!(skip.is_multiple_of(8), "an expiry is a word");
    for (i, part) in key.chunks(8).enumerate() {
        let word = fabric.load(at.add(skip as u64 + i as u64 * 8))?.to_le_bytes();
        if &word[..part.len()] != part {
            return Ok(false);
        }
    }
    Ok(true)
}
