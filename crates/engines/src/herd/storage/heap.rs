//! The data of a store: blocks of whole grains, which are freed, joined with their free neighbours
//! and used again.
//!
//! A block is an entry or free. Free blocks of one length are in one list, and all blocks that are
//! longer than any entry are in another. The list of the shortest blocks that are long enough is
//! therefore one bit scan away, and both [`Heap::allocate`] and [`Heap::release`] look at a fixed
//! number of blocks (segregated fits with boundary tags).
//!
//! ```text
//! free block   word 0                    word 1             …   last word
//!              63..32 before 31..0 next  head: FREE, grains     the same head
//! ```
//! `before` and `next` are the block's neighbours in the list. In a block of one grain the last
//! word is word 1.
//!
//! # Invariants
//! 1. Blocks lie side by side from place 0 to the end.
//! 2. No two free blocks lie side by side.
//! 3. A block has the flag AFTER_FREE if, and only if, the block before it is free.
//!
//! # Bounds
//! Freed memory can be used for entries of any length, unless its pieces are too short. When an
//! entry of `g` grains is refused, every free block has fewer grains, and between two free blocks
//! lies an entry of at least 2 grains. So at least 2 of `g + 1` grains are in use, and an adverse
//! order of PUTs and DELETEs can come near that bound. Entries of a single length never leave a
//! gap, and when everything is deleted there is one free block again.

use super::entry::{ENTRY_GRAINS_MAX, GRAIN_WORDS, Head, flags};

/// The list of the blocks that are longer than any entry; other blocks are in their length's list.
const LONG: usize = ENTRY_GRAINS_MAX as usize + 1;
const NONE: u32 = u32::MAX;

const _: () = assert!(LONG < u128::BITS as usize, "a bit for each list");

/// The free blocks of a heap; the blocks themselves are the partition's.
#[derive(Debug)]
pub(super) struct Heap {
    /// Grains of the heap.
    grains: u32,
    /// Grains of free blocks.
    pub free: u32,
    /// The first block of each list.
    first: [u32; LONG + 1],
    /// A bit for each list that is not empty.
    lists: u128,
}

/// The neighbours of a free block in its list.
#[derive(Clone, Copy)]
struct Links {
    before: u32,
    next: u32,
}

impl Links {
    fn at(data: &[u64], place: u32) -> Self {
        let word = data[place as usize * GRAIN_WORDS];
        Self { before: (word >> 32) as u32, next: word as u32 }
    }

    fn put(self, data: &mut [u64], place: u32) {
        data[place as usize * GRAIN_WORDS] = u64::from(self.before) << 32 | u64::from(self.next);
    }
}

fn list_of(grains: u32) -> usize {
    (grains as usize).min(LONG)
}

impl Heap {
    /// A heap that is one free block.
    pub fn new(data: &mut [u64], grains: u32) -> Self {
        assert!(grains < NONE && data.len() >= grains as usize * GRAIN_WORDS, "{grains} grains");
        let mut heap = Self { grains, free: 0, first: [NONE; LONG + 1], lists: 0 };
        heap.link(data, 0, grains);
        heap
    }

    /// A block of this many grains, marked as an entry without key and value; `None` if no free
    /// block is long enough.
    pub fn allocate(&mut self, data: &mut [u64], grains: u32) -> Option<u32> {
        assert!((1..=ENTRY_GRAINS_MAX).contains(&grains), "an entry of {grains} grains");
        let long_enough = self.lists & (!0 << grains);
        if long_enough == 0 {
            return None;
        }
        let place = self.first[long_enough.trailing_zeros() as usize];
        let all = self.unlink(data, place);
        if all > grains {
            // The block after it still follows a free block.
            self.link(data, place + grains, all - grains);
        } else {
            self.mark(data, place + grains, false);
        }
        // Invariant 2: the block before a free block is not free.
        Head { key_len: 0, flags: 0, len: 0 }.put(data, place);
        Some(place)
    }

    /// Frees a block of this many grains.
    pub fn release(&mut self, data: &mut [u64], place: u32, grains: u32) {
        let (mut first, mut end) = (place, place + grains);
        if Head::at(data, place).has(flags::AFTER_FREE) {
            first -= Head::at(data, place - 1).len;
            self.unlink(data, first);
        }
        if end < self.grains && Head::at(data, end).has(flags::FREE) {
            end += self.unlink(data, end);
        } else {
            self.mark(data, end, true);
        }
        self.link(data, first, end - first);
    }

    /// Frees all but the first `left` grains of a block of `grains` grains.
    pub fn shorten(&mut self, data: &mut [u64], place: u32, grains: u32, left: u32) {
        assert!(0 < left && left <= grains, "{left} of {grains} grains");
        if left < grains {
            Head { key_len: 0, flags: 0, len: 0 }.put(data, place + left);
            self.release(data, place + left, grains - left);
        }
    }

    /// Writes a free block and puts it first in its list.
    fn link(&mut self, data: &mut [u64], place: u32, grains: u32) {
        let head = Head { key_len: 0, flags: flags::FREE, len: grains };
        head.put(data, place);
        // The last word of its last grain.
        head.put(data, place + grains - 1);
        let list = list_of(grains);
        let next = std::mem::replace(&mut self.first[list], place);
        Links { before: NONE, next }.put(data, place);
        if next != NONE {
            Links { before: place, ..Links::at(data, next) }.put(data, next);
        }
        self.lists |= 1 << list;
        self.free += grains;
    }

    /// Takes a free block out of its list. Returns its grains.
    fn unlink(&mut self, data: &mut [u64], place: u32) -> u32 {
        let Head { flags, len: grains, .. } = Head::at(data, place);
        assert!(flags & flags::FREE != 0, "the block at {place} is not free");
        let Links { before, next } = Links::at(data, place);
        if next != NONE {
            Links { before, ..Links::at(data, next) }.put(data, next);
        }
        if before != NONE {
            Links { next, ..Links::at(data, before) }.put(data, before);
        } else {
            let list = list_of(grains);
            self.first[list] = next;
            if next == NONE {
                self.lists &= !(1 << list);
            }
        }
        self.free -= grains;
        grains
    }

    /// Tells the block at `place`, if there is one, whether the block before it is free.
    fn mark(&self, data: &mut [u64], place: u32, after_free: bool) {
        if place < self.grains {
            let head = Head::at(data, place);
            let others = head.flags & !flags::AFTER_FREE;
            let flag = if after_free { flags::AFTER_FREE } else { 0 };
            Head { flags: others | flag, ..head }.put(data, place);
        }
    }

    /// Grains of all entries.
    pub fn taken_grains(&self) -> u64 {
        u64::from(self.grains - self.free)
    }

    /// Walks all blocks: the places of the entries, or the first invariant that does not hold.
    pub fn entries(&self, data: &[u64]) -> Result<Vec<u32>, String> {
        let (mut place, mut after_free, mut free, mut entries) = (0, false, 0, Vec::new());
        while place < self.grains {
            let head = Head::at(data, place);
            let (is_free, grains) = (head.has(flags::FREE), head.grains());
            if grains == 0 || grains > self.grains - place {
                return Err(format!("the block at {place} has {grains} grains"));
            }
            if after_free && is_free {
                return Err(format!("free blocks side by side at {place}"));
            }
            if !is_free && head.has(flags::AFTER_FREE) != after_free {
                return Err(format!("the block at {place} is wrong about the one before it"));
            }
            if is_free && Head::at(data, place + grains - 1) != head {
                return Err(format!("the free block at {place} does not end as it begins"));
            }
            if is_free {
                free += grains;
            } else {
                entries.push(place);
            }
            after_free = is_free;
            place += grains;
        }
        if free != self.free {
            return Err(format!("{free} grains are free, {} should be", self.free));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Draft;
    use super::*;
    use crate::operation::Version;
    use proptest::prelude::*;

    const GRAINS: u32 = 300;

    /// Fills a block as its entry would.
    fn fill(data: &mut [u64], place: u32, grains: u32) {
        let kept = Head::at(data, place).flags & flags::AFTER_FREE;
        let value = vec![0xee; grains as usize * GRAIN_WORDS * 8 - 17];
        Draft { key: b"k", value: &value, version: Version::from_u64(1), expires_at_ms: None }
            .write(data, place, kept);
    }

    proptest! {
        #[test]
        fn blocks_do_not_overlap_and_all_comes_back(
            steps in prop::collection::vec(
                (0u8..5, 2u32..=ENTRY_GRAINS_MAX, any::<prop::sample::Index>()),
                1..300,
            ),
        ) {
            let mut data = vec![!0; GRAINS as usize * GRAIN_WORDS];
            let mut heap = Heap::new(&mut data, GRAINS);
            let mut blocks: Vec<(u32, u32)> = Vec::new();
            for (kind, grains, which) in steps {
                match kind {
                    0..3 => match heap.allocate(&mut data, grains) {
                        Some(place) => {
                            fill(&mut data, place, grains);
                            blocks.push((place, grains));
                        }
                        None => prop_assert!(heap.free < GRAINS),
                    },
                    3 if !blocks.is_empty() => {
                        let (place, grains) = blocks.swap_remove(which.index(blocks.len()));
                        heap.release(&mut data, place, grains);
                    }
                    4 if !blocks.is_empty() => {
                        let which = which.index(blocks.len());
                        let (place, old) = &mut blocks[which];
                        let left = grains.min(*old);
                        heap.shorten(&mut data, *place, *old, left);
                        fill(&mut data, *place, left);
                        *old = left;
                    }
                    _ => (),
                }
                let mut expected: Vec<_> = blocks.iter().map(|(place, _)| *place).collect();
                expected.sort_unstable();
                prop_assert_eq!(heap.entries(&data), Ok(expected));
            }
            for (place, grains) in blocks {
                heap.release(&mut data, place, grains);
            }
            prop_assert_eq!(heap.free, GRAINS);
            prop_assert_eq!(heap.lists, 1 << LONG, "one block");
        }
    }

    #[test]
    fn one_length_alone_leaves_no_gap() {
        let mut data = vec![0; GRAINS as usize * GRAIN_WORDS];
        let mut heap = Heap::new(&mut data, GRAINS);
        let mut allocate = |heap: &mut Heap| {
            let place = heap.allocate(&mut data, 3);
            place.inspect(|place| fill(&mut data, *place, 3))
        };
        let blocks: Vec<_> = std::iter::from_fn(|| allocate(&mut heap)).collect();
        assert_eq!(blocks.len(), 100);
        for place in blocks.iter().step_by(2) {
            heap.release(&mut data, *place, 3);
        }
        let again = (0..60).map_while(|_| heap.allocate(&mut data, 3)).count();
        assert_eq!(again, 50);
    }
}
