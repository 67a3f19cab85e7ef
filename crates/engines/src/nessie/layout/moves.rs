//! The move ring: the places to which MOVEs have brought words of the index lately. A scan of the
//! index reads it, because a word may move from a slot before it to a slot behind it.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | moves noted so far |
//! | 64 | 8 × entries | move *n*, in entry *n* mod entries: 24 bits of *n* + 1, then the bucket |
//!
//! Each node has a ring, for moves to its shards. A mover adds 1 to the count, which gives it *n*,
//! and then writes the entry. The bucket is named by its distance from the node's first shard, in
//! words.

use loch_fabric::RemoteAddr;

/// Bytes before the first entry.
const ENTRIES_OFFSET: u64 = 64;
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const ENTRIES_MIN: u64 = 64;
const ENTRIES_MAX: u64 = 1 << 16;
/// Slots for each entry of the ring.
const SLOTS_OF_ENTRY: u64 = 64;

const _: () = assert!(ENTRIES_MAX < 1 << (NUMBER_BITS - 2), "numbers tell many laps apart");

/// The move ring of one node.
#[derive(Clone, Copy, Debug)]
pub struct MoveRing {
    at: RemoteAddr,
    entries: u64,
}

/// What an entry says of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The word came to the bucket at this distance from the node's first shard, in bytes.
    To(u64),
    /// The entry is not written yet.
    NotYet,
    /// The entry is of a later move by now.
    Lost,
}

impl MoveRing {
    /// The ring that starts at `at`, in a table with so many index slots on each node.
    pub fn new(at: RemoteAddr, slots: u64) -> Self {
        Self { at, entries: Self::entries_for(slots) }
    }

    fn entries_for(slots: u64) -> u64 {
        (slots / SLOTS_OF_ENTRY).next_power_of_two().clamp(ENTRIES_MIN, ENTRIES_MAX)
    }

    /// Bytes of the ring of a node with so many index slots.
    pub fn bytes(slots: u64) -> u64 {
        ENTRIES_OFFSET + Self::entries_for(slots) * 8
    }

    /// The word that counts the moves.
    pub fn count(&self) -> RemoteAddr {
        self.at
    }

    /// The number of moves that the ring holds.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The entry of move `number`.
    pub fn entry(&self, number: u64) -> RemoteAddr {
        self.at.add(ENTRIES_OFFSET + number % self.entries * 8)
    }

    /// The entry's word if move `number` went to the bucket at `distance` bytes from the node's
    /// first shard.
    pub fn word(number: u64, distance: u64) -> u64 {
        ((distance / 8) << NUMBER_BITS) | ((number + 1) & NUMBER_MASK)
    }

    /// What `word`, read from the entry of move `number`, says of that move.
    pub fn noted(word: u64, number: u64) -> Noted {
        let ahead = (word & NUMBER_MASK).wrapping_sub(number + 1) & NUMBER_MASK;
        match ahead {
            0 => Noted::To((word >> NUMBER_BITS) * 8),
            // Numbers are compared as on a clock face.
            ahead if ahead > NUMBER_MASK / 2 => Noted::NotYet,
            _ => Noted::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::RegionId;

    use super::*;

    #[test]
    fn an_entry_is_of_this_move_of_an_earlier_lap_or_of_a_later_one() {
        for number in [0, 1, 63, 64, NUMBER_MASK - 1, NUMBER_MASK, NUMBER_MASK + 1, 1 << 40] {
            let word = MoveRing::word(number, 24 << 20);
            assert_eq!(MoveRing::noted(word, number), Noted::To(24 << 20), "{number}");
            assert_eq!(MoveRing::noted(word, number + 64), Noted::NotYet, "{number}");
            if let Some(earlier) = number.checked_sub(64) {
                assert_eq!(MoveRing::noted(word, earlier), Noted::Lost, "{number}");
            }
        }
        assert_eq!(MoveRing::noted(0, 0), Noted::NotYet, "memory begins with zeros");
        assert_eq!(MoveRing::noted(0, 70_000), Noted::NotYet);
    }

    #[test]
    fn the_ring_is_as_long_as_the_index_wants() {
        let at = RemoteAddr::new(RegionId(0), 4096);
        for (slots, entries) in [(1, 64), (1 << 14, 256), (1 << 40, 1 << 16)] {
            let ring = MoveRing::new(at, slots);
            assert_eq!(ring.entries(), entries);
            let last = ring.entry(entries - 1).offset() + 8;
            assert_eq!(last - 4096, MoveRing::bytes(slots));
            assert_eq!(ring.entry(entries), ring.entry(0));
            assert!(ring.entry(0).offset() >= ring.count().offset() + 8);
        }
    }
}
