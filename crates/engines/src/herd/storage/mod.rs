//! A worker's partition: an index, and a log or a heap of entries (herd §4.1, after MICA).
//!
//! The partition is plain memory of the server's process. One worker owns it, and no other thread
//! ever touches it (MICA's EREW mode: exclusive reads, exclusive writes), so it needs no
//! synchronisation.
//!
//! | mode | index | data | when it is full |
//! | --- | --- | --- | --- |
//! | [`Mode::Cache`] | `lossy.rs` | `log.rs` | the oldest entries go |
//! | [`Mode::Store`] | `chained.rs` | `heap.rs` | refuses, and loses nothing |
//!
//! In a cache a GET takes two random accesses (bucket, entry), a PUT one (bucket; the log's end is
//! near), a DELETE or a PUT with a condition two. In a store a PUT also looks at the entry, and a
//! chained bucket costs one more access. [`Partition::bucket_line`] and [`Partition::entry_line`]
//! name the lines beforehand, so that they can be prefetched.
//!
//! # Invariants
//! 1. At most one word of the index names a live entry of a key: a replaced or deleted entry does
//!    not come back.
//! 2. An entry that is found has the wanted key, byte by byte.
//! 3. An expired entry is removed before any client is told that it is gone: setting the clock back
//!    does not bring it back.
//!
//! In a cache a value can disappear at any moment, but it does not return: after a miss there is no
//! value until the next PUT.

mod chained;
mod check;
mod count;
mod entry;
mod execute;
mod heap;
mod log;
mod lossy;
mod plan;
mod scan;

use std::ops::{DerefMut, Range};

use self::chained::{Chained, Slot};
pub use self::check::Report;
pub use self::count::Count;
use self::entry::{Draft, GRAIN_WORDS, Head, flags, present};
use self::heap::Heap;
use self::log::Log;
use self::lossy::{BUCKET_WORDS, Lossy};
pub use self::plan::{ENTRIES_MAX, Mode, Plan};
use super::key::KeyHash;
use crate::error::EngineError;
use crate::limits::HERD_ITEM_BYTES_MAX;
use crate::planted::{self, Bug};

/// One worker's share of a table.
/// `M` is the memory: words that the owner allocated as it likes, for example on huge pages. They
/// have to be zero.
#[derive(Debug)]
pub struct Partition<M = Vec<u64>> {
    memory: M,
    index: Range<usize>,
    data: Range<usize>,
    keeper: Keeper,
    value_bytes_max: usize,
}

/// The parts that differ between the modes.
#[derive(Debug)]
enum Keeper {
    Cache { index: Lossy, log: Log },
    Store { index: Chained, heap: Box<Heap>, entries: u64 },
}

impl<M: DerefMut<Target = [u64]>> Partition<M> {
    /// An empty partition.
    ///
    /// # Panics
    /// If `memory` has fewer than [`Plan::words`] words.
    pub fn new(mut memory: M, plan: &Plan) -> Self {
        assert!(memory.len() >= plan.words(), "{} words of {}", memory.len(), plan.words());
        // A bucket is one cache line only if it starts at one.
        let line_bytes = BUCKET_WORDS * size_of::<u64>();
        let skip = (memory.as_ptr() as usize).wrapping_neg() % line_bytes / size_of::<u64>();
        let index = skip..skip + plan.index_words();
        let data = index.end..index.end + plan.data_grains as usize * GRAIN_WORDS;
        let (head, tail) = memory.split_at_mut(index.end);
        let keeper = match plan.mode {
            Mode::Cache => {
                Keeper::Cache { index: Lossy::new(index.len()), log: Log::new(plan.data_grains) }
            }
            Mode::Store => Keeper::Store {
                index: Chained::new(&mut head[index.clone()], plan.buckets),
                heap: Box::new(Heap::new(&mut tail[..data.len()], plan.data_grains)),
                entries: 0,
            },
        };
        Self { memory, index, data, keeper, value_bytes_max: HERD_ITEM_BYTES_MAX }
    }

    /// The same partition, which refuses values that are longer than `value_bytes_max`.
    #[must_use]
    pub fn with_value_max(self, bytes: u64) -> Self {
        Self { value_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX), ..self }
    }

    fn index(&self) -> &[u64] {
        &self.memory[self.index.clone()]
    }

    fn data(&self) -> &[u64] {
        &self.memory[self.data.clone()]
    }

    /// The index, the data, and the keeper that manages them.
    fn parts(&mut self) -> (&mut [u64], &mut [u64], &mut Keeper) {
        let (head, tail) = self.memory.split_at_mut(self.index.end);
        (&mut head[self.index.clone()], &mut tail[..self.data.len()], &mut self.keeper)
    }

    /// The words that the first step of an operation on a key will read: a cache line.
    #[inline(always)]
    pub fn bucket_line(&self, hash: KeyHash) -> &[u64] {
        let first = match &self.keeper {
            Keeper::Cache { index, .. } => index.bucket(hash),
            Keeper::Store { index, .. } => index.bucket(hash),
        };
        &self.index()[first..first + BUCKET_WORDS]
    }

    /// The words that the second step will probably read first, if there is a second step: the
    /// words of the entry that the key's bucket names. Reads the bucket.
    #[inline(always)]
    pub fn entry_line(&self, hash: KeyHash) -> Option<&[u64]> {
        let place = match &self.keeper {
            Keeper::Cache { index, log } => index.find(self.index(), log, hash)?.1.place,
            Keeper::Store { index, .. } => index.guess(self.index(), hash)?,
        };
        self.data().get(place as usize * GRAIN_WORDS..)
    }

    /// The word that names the key's entry, and that entry's place.
    #[inline(always)]
    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<Slot> {
        let data = self.data();
        match &self.keeper {
            Keeper::Cache { index, log } => {
                let (at, position) = index.find(self.index(), log, hash)?;
                let place = position.place;
                let same = Head::at(data, place).is_of(data, place, key);
                (same || planted::is(Bug::TagComparedOnly)).then_some(Slot { at, place })
            }
            Keeper::Store { index, .. } => index.find(self.index(), data, hash, key),
        }
    }

    /// As [`Partition::find`], but removes an expired entry (invariant 3).
    #[inline(always)]
    fn find_live(&mut self, hash: KeyHash, key: &[u8], now_ms: u64) -> Option<Slot> {
        let slot = self.find(hash, key)?;
        if !present(self.data(), slot.place).is_expired(now_ms) {
            return Some(slot);
        }
        self.remove(hash, slot);
        None
    }

    /// Removes the entry of a key.
    fn remove(&mut self, hash: KeyHash, slot: Slot) {
        let (words, data, keeper) = self.parts();
        match keeper {
            Keeper::Cache { .. } => words[slot.at] = 0,
            Keeper::Store { index, heap, entries } => {
                index.remove(words, hash, slot.at);
                heap.release(data, slot.place, Head::at(data, slot.place).grains());
                *entries -= 1;
            }
        }
    }

    /// Writes an entry and makes the index name it, in place of the key's old entry. `old` is the
    /// old entry; a cache does not need to know it.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] and [`EngineError::IndexFull`] in a store; nothing has changed.
    #[inline]
    fn install(
        &mut self,
        hash: KeyHash,
        old: Option<Slot>,
        draft: &Draft<'_>,
    ) -> Result<(), EngineError> {
        let (words, data, keeper) = self.parts();
        let grains = draft.grains();
        let (index, heap, entries) = match keeper {
            Keeper::Cache { index, log } => {
                let appended = log.append(grains);
                if appended.begins_lap {
                    index.sweep(words, log);
                }
                draft.write(data, appended.position.place, 0);
                index.set(words, log, hash, appended.position);
                return Ok(());
            }
            Keeper::Store { index, heap, entries } => (index, heap, entries),
        };
        let old = old.map(|slot| (slot, Head::at(data, slot.place)));
        if let Some((slot, head)) = old
            && grains <= head.grains()
        {
            heap.shorten(data, slot.place, head.grains(), grains);
            draft.write(data, slot.place, head.flags & flags::AFTER_FREE);
            return Ok(());
        }
        let Some(place) = heap.allocate(data, grains) else {
            let capacity = std::mem::size_of_val(data) as u64;
            return Err(EngineError::OutOfMemory { bytes: draft.bytes(), capacity });
        };
        draft.write(data, place, 0);
        if let Some((slot, head)) = old {
            index.move_to(words, slot.at, place);
            heap.release(data, slot.place, head.grains());
        } else if index.insert(words, hash, place).is_ok() {
            *entries += 1;
        } else {
            heap.release(data, place, grains);
            return Err(EngineError::IndexFull { slots: chained::slots(words), moves: 0 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
