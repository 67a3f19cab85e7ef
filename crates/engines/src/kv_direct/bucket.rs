//! A bucket of the hash index: one line (kv-direct §3.3.1, Figure 5).
//!
//! | bytes | bits | what |
//! | --- | --- | --- |
//! | 0..50 | 10 × 40 | hash slots |
//! | 50..56 | 10 × 4 | types of the slots; 8 bits stay 0 |
//! | 56..64 | 10 | where inline items begin |
//! | | 10 | where inline items end |
//! | | 10 | which slots are pointers |
//! | | 31 | the next bucket of the chain, 0 if this is the last |
//!
//! A slot that is a pointer has 9 bits of secondary hash, then 31 bits of place: the number of 32-byte
//! units from the start of memory, of which 0 is none. Its type is the class of its slab: four bits
//! instead of the paper's three, of which Figure 5 leaves 21 unused, so that slabs of up to 4 KiB are
//! read at once. An inline item is the bytes of consecutive slots. The type of its first slot tells
//! how many bytes at its end are padding, and whether it expires: nothing of the item itself is spent
//! on that.
//!
//! # Invariants
//! 1. Begins and ends alternate, so inline items do not overlap; no slot of one is a pointer.
//! 2. What is neither a pointer nor of an inline item is free, and zero, as are its types.

use super::key::SECONDARY_BITS;
use super::memory::{LINE_BYTES, Line};

/// Slots of a bucket.
pub const SLOTS: u32 = 10;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 5;

/// Bytes of the longest inline item.
pub const INLINE_BYTES_MAX: usize = SLOTS as usize * SLOT_BYTES;

/// Bits of a place.
pub const PLACE_BITS: u32 = 31;

/// The greatest type that a slab can have.
pub const KIND_MAX: u8 = 15;

const ALL: u32 = (1 << SLOTS) - 1;
const SLOT_MASK: u64 = (1 << (8 * SLOT_BYTES)) - 1;
const SECONDARY_MASK: u64 = (1 << SECONDARY_BITS) - 1;
const TYPES_AT: usize = INLINE_BYTES_MAX;
const MARKS_AT: usize = 56;
const ENDS_SHIFT: u32 = SLOTS;
const POINTERS_SHIFT: u32 = 2 * SLOTS;
const NEXT_SHIFT: u32 = 3 * SLOTS;
const NEXT_MASK: u64 = (1 << PLACE_BITS) - 1;
/// Type of an inline item's first slot: how many bytes are padding.
const PADDING_MASK: u64 = 0b0111;
/// Type of an inline item's first slot: whether it expires.
const EXPIRES: u64 = 0b1000;

const _: () = {
    assert!(SECONDARY_BITS + PLACE_BITS == 8 * SLOT_BYTES as u32);
    assert!(TYPES_AT + (4 * SLOTS as usize).div_ceil(8) <= MARKS_AT);
    assert!(NEXT_SHIFT + PLACE_BITS <= 64 && MARKS_AT + 8 == LINE_BYTES);
};

/// A slot that points to a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Some bits of the hash of the key there.
    pub secondary: u16,
    /// Where the slab begins, in units of 32 bytes.
    pub place: u32,
    /// The type of the slab.
    pub kind: u8,
}

/// Slots that hold an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Where the item begins, in bytes of the line.
    pub at: usize,
    /// How many bytes it has.
    pub len: usize,
    /// Whether it expires.
    pub expires: bool,
}

/// A bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(pub Line);

impl Bucket {
    /// All slots free, nothing after it.
    pub const EMPTY: Self = Self(Line::ZERO);

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0.0[at..at + 8].try_into().expect("a word has 8 bytes"))
    }

    #[inline(always)]
    fn marks(&self) -> u64 {
        self.word(MARKS_AT)
    }

    #[inline(always)]
    fn set_marks(&mut self, marks: u64) {
        self.0.0[MARKS_AT..].copy_from_slice(&marks.to_le_bytes());
    }

    /// The slots in which inline items begin, a bit for each.
    #[inline(always)]
    pub fn begins(&self) -> u32 {
        self.marks() as u32 & ALL
    }

    /// The slots in which inline items end.
    #[inline(always)]
    pub fn ends(&self) -> u32 {
        (self.marks() >> ENDS_SHIFT) as u32 & ALL
    }

    /// The slots that are pointers.
    #[inline(always)]
    pub fn pointers(&self) -> u32 {
        (self.marks() >> POINTERS_SHIFT) as u32 & ALL
    }

    /// The slots of inline items: each begins with a 1 of `begins`, and ends with one of `ends`, so
    /// that the difference has ones from the one to the other.
    #[inline(always)]
    pub fn inline_slots(&self) -> u32 {
        (self.ends() << 1).wrapping_sub(self.begins()) & ALL
    }

    /// The free slots.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        !(self.inline_slots() | self.pointers()) & ALL
    }

    /// How many slots are free.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.free().count_ones()
    }

    /// Where the next bucket of the chain is.
    #[inline(always)]
    pub fn next(&self) -> Option<u32> {
        match (self.marks() >> NEXT_SHIFT & NEXT_MASK) as u32 {
            0 => None,
            place => Some(place),
        }
    }

    /// Makes `place` the next bucket of the chain.
    pub fn set_next(&mut self, place: Option<u32>) {
        let marks = self.marks() & !(NEXT_MASK << NEXT_SHIFT);
        self.set_marks(marks | u64::from(place.unwrap_or(0)) << NEXT_SHIFT);
    }

    /// The eight bytes from the start of a slot on, the first the lowest.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline(always)]
    pub fn start_of(&self, slot: u32) -> u64 {
        assert!(slot < SLOTS);
        self.word(slot as usize * SLOT_BYTES)
    }

    fn set_slot(&mut self, slot: u32, bits: u64) {
        let at = slot as usize * SLOT_BYTES;
        self.0.0[at..at + SLOT_BYTES].copy_from_slice(&bits.to_le_bytes()[..SLOT_BYTES]);
    }

    #[inline(always)]
    fn kind(&self, slot: u32) -> u64 {
        self.word(TYPES_AT) >> (4 * slot) & 0xf
    }

    fn set_kind(&mut self, slot: u32, kind: u64) {
        let types = self.word(TYPES_AT) & !(0xf << (4 * slot)) | kind << (4 * slot);
        // The word reaches into the marks, which it writes back as they are.
        self.0.0[TYPES_AT..TYPES_AT + 8].copy_from_slice(&types.to_le_bytes());
    }

    /// The pointers to keys with this secondary hash, a bit for each.
    #[inline(always)]
    pub fn pointing(&self, secondary: u16) -> u32 {
        let mut left = self.pointers();
        let mut found = 0;
        while left != 0 {
            let slot = left.trailing_zeros();
            let differs = (self.start_of(slot) ^ u64::from(secondary)) & SECONDARY_MASK;
            found |= u32::from(differs == 0) << slot;
            left &= left - 1;
        }
        found
    }

    /// The pointer in a slot that has one.
    #[inline]
    pub fn pointer(&self, slot: u32) -> Pointer {
        let bits = self.start_of(slot) & SLOT_MASK;
        Pointer {
            secondary: (bits & SECONDARY_MASK) as u16,
            place: (bits >> SECONDARY_BITS) as u32,
            kind: self.kind(slot) as u8,
        }
    }

    /// The item that begins in `slot`; none if that cannot be, in a damaged bucket.
    #[inline]
    pub fn inline(&self, slot: u32) -> Option<Inline> {
        let slots = self.slots_from(slot)?;
        let kind = self.kind(slot);
        let len = (slots as usize * SLOT_BYTES).checked_sub((kind & PADDING_MASK) as usize)?;
        Some(Inline { at: slot as usize * SLOT_BYTES, len, expires: kind & EXPIRES != 0 })
    }

    /// How many slots the inline item has that begins in `slot`.
    #[inline(always)]
    fn slots_from(&self, slot: u32) -> Option<u32> {
        match self.ends() >> slot {
            0 => None,
            ends => Some(ends.trailing_zeros() + 1),
        }
    }

    /// Whether an inline item of `len` bytes would have room, if what begins in `own` were not there.
    #[inline]
    pub fn has_room(&self, len: usize, own: Option<u32>) -> bool {
        let freed = own.map_or(0, |slot| self.slots_of(slot).count_ones());
        slots_for(len) <= self.room() + freed
    }

    /// All slots of the entry which begins in `slot`.
    fn slots_of(&self, slot: u32) -> u32 {
        let begins = self.begins() >> slot & 1 != 0;
        let slots = if begins { self.slots_from(slot).unwrap_or(1) } else { 1 };
        run(slots) << slot
    }

    /// Frees the slots of the entry which begins in `slot`.
    pub fn clear(&mut self, slot: u32) {
        let slots = self.slots_of(slot);
        let last = 31 - slots.leading_zeros();
        for slot in slot..=last {
            self.set_slot(slot, 0);
            self.set_kind(slot, 0);
        }
        let slots = u64::from(slots);
        let mask = slots | slots << ENDS_SHIFT | slots << POINTERS_SHIFT;
        self.set_marks(self.marks() & !mask);
    }

    /// Takes a free slot for a pointer: which one, if there is one.
    ///
    /// # Panics
    /// If place or type have more bits than there are.
    pub fn insert_pointer(&mut self, pointer: Pointer) -> Option<u32> {
        assert!(pointer.place >> PLACE_BITS == 0 && pointer.kind <= KIND_MAX);
        let free = self.free();
        if free == 0 {
            return None;
        }
        let slot = free.trailing_zeros();
        let secondary = u64::from(pointer.secondary) & SECONDARY_MASK;
        self.set_slot(slot, u64::from(pointer.place) << SECONDARY_BITS | secondary);
        self.set_kind(slot, pointer.kind.into());
        self.set_marks(self.marks() | 1 << (POINTERS_SHIFT + slot));
        Some(slot)
    }

    /// Takes slots for an inline item of `len` bytes, those of the entry that begins in `own` among
    /// them: the first one, if there are enough. Moves other entries if they are scattered.
    pub fn put_inline(&mut self, own: Option<u32>, len: usize, expires: bool) -> Option<u32> {
        let slots = slots_for(len);
        let padding = (slots as usize * SLOT_BYTES - len) as u64;
        let kind = padding | if expires { EXPIRES } else { 0 };
        if let Some(slot) = own {
            let stays = self.begins() >> slot & 1 != 0 && self.slots_from(slot) == Some(slots);
            if stays {
                self.set_kind(slot, kind);
                return Some(slot);
            }
            if !self.has_room(len, own) {
                return None;
            }
            self.clear(slot);
        }
        if slots > self.room() {
            return None;
        }
        if self.run_of(slots) == 0 {
            *self = self.compacted();
        }
        let slot = self.run_of(slots).trailing_zeros();
        self.set_kind(slot, kind);
        let last = slot + slots - 1;
        self.set_marks(self.marks() | 1 << slot | 1 << (ENDS_SHIFT + last));
        Some(slot)
    }

    /// The bytes of the inline item of `len` bytes that begins in `slot`; those of its padding are
    /// zero after it.
    pub fn body_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let at = slot as usize * SLOT_BYTES;
        let end = at + len.next_multiple_of(SLOT_BYTES);
        self.0.0[at + len..end].fill(0);
        &mut self.0.0[at..at + len]
    }

    /// The slots from which on `slots` are free.
    fn run_of(&self, slots: u32) -> u32 {
        let free = self.free();
        (1..slots).fold(free, |runs, next| runs & free >> next)
    }

    /// The same entries without free slots between them.
    fn compacted(&self) -> Self {
        let mut packed = Self::EMPTY;
        let mut marks = self.marks() & NEXT_MASK << NEXT_SHIFT;
        let mut to = 0;
        for from in (0..SLOTS).filter(|&slot| self.free() >> slot & 1 == 0) {
            packed.set_slot(to, self.start_of(from));
            packed.set_kind(to, self.kind(from));
            for shift in [0, ENDS_SHIFT, POINTERS_SHIFT] {
                marks |= (self.marks() >> (shift + from) & 1) << (shift + to);
            }
            to += 1;
        }
        packed.set_marks(marks);
        packed
    }

    /// What contradicts the invariants.
    pub fn broken(&self) -> Option<&'static str> {
        let (mut inside, mut alternate) = (false, true);
        for slot in 0..SLOTS {
            let (begins, ends) = (self.begins() >> slot & 1 != 0, self.ends() >> slot & 1 != 0);
            alternate &= !(begins && inside);
            inside |= begins;
            alternate &= inside || !ends;
            inside &= !ends;
        }
        let is_clean = |slot: u32| self.start_of(slot) & SLOT_MASK == 0 && self.kind(slot) == 0;
        let inline = self.inline_slots();
        let mut items = (0..SLOTS).filter(|slot| self.begins() >> slot & 1 != 0);
        if !alternate || inside {
            Some("begins and ends of inline items do not alternate")
        } else if inline & self.pointers() != 0 {
            Some("a slot is a pointer and of an inline item")
        } else if !(0..SLOTS).filter(|slot| self.free() >> slot & 1 != 0).all(is_clean) {
            Some("a free slot is not zero")
        } else if !items.all(|slot| self.kind(slot) & PADDING_MASK < SLOT_BYTES as u64) {
            Some("an inline item has a whole slot of padding")
        } else {
            None
        }
    }
}

/// Ones in the lowest `n` bits.
#[inline(always)]
fn run(n: u32) -> u32 {
    (1 << n) - 1
}

/// Slots of an inline item.
#[inline(always)]
pub fn slots_for(len: usize) -> u32 {
    len.div_ceil(SLOT_BYTES) as u32
}
