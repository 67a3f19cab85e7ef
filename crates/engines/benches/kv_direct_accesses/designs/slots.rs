//! A bucket of the two other designs: one line, of four slots with their keys inlined.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 × 15 | a slot: key (8), pointer to the value (4, 0 if the slot is free), not used (3) |
//! | 4 | the next block of a chain, 0 if none; of hopscotch only |
//!
//! 16 bytes an entry, as MemC3 and FaRM have them for keys of 8 bytes. MemC3's tag is a byte of the
//! hash of a key that is not in the bucket; here it is, and its tag is computed of it.

use loch_engines::lines::{LINE_BYTES, Line};

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;

/// Slots of a bucket.
pub const SLOTS: usize = 4;

const SLOT_BYTES: usize = 15;
const NEXT_AT: usize = SLOTS * SLOT_BYTES;

const _: () = assert!(NEXT_AT + 4 == LINE_BYTES && KEY_BYTES + 4 <= SLOT_BYTES);

/// A key and where its value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub key: [u8; KEY_BYTES],
    /// Not 0.
    pub value: u32,
}

/// Four slots.
#[derive(Clone, Copy)]
pub struct Slots(pub Line);

impl Slots {
    /// The entry in slot `slot`.
    pub fn entry(&self, slot: usize) -> Option<Entry> {
        let (key, rest) = self.0.0[slot * SLOT_BYTES..].split_first_chunk()?;
        let value = u32::from_le_bytes(*rest.first_chunk()?);
        (value != 0).then_some(Entry { key: *key, value })
    }

    /// Puts something else into slot `slot`.
    pub fn set(&mut self, slot: usize, entry: Option<Entry>) {
        let at = slot * SLOT_BYTES;
        let (key, value) = entry.map_or(([0; KEY_BYTES], 0), |entry| (entry.key, entry.value));
        self.0.0[at..at + KEY_BYTES].copy_from_slice(&key);
        self.0.0[at + KEY_BYTES..at + KEY_BYTES + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// All that is in it, with the slots.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        (0..SLOTS).filter_map(|slot| Some((slot, self.entry(slot)?)))
    }

    /// The slot that has `key`.
    pub fn find(&self, key: &[u8]) -> Option<(usize, Entry)> {
        self.entries().find(|(_, entry)| entry.key == *key)
    }

    /// A free slot.
    pub fn free(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.entry(*slot).is_none())
    }

    /// The next block of the chain.
    pub fn next(&self) -> Option<u32> {
        let next = u32::from_le_bytes(*self.0.0[NEXT_AT..].first_chunk().expect("it has 4 bytes"));
        (next != 0).then_some(next)
    }

    /// Makes `next` the next block of the chain.
    pub fn set_next(&mut self, next: Option<u32>) {
        self.0.0[NEXT_AT..].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
    }
}
