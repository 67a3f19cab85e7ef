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
//! A slot that is a pointer has 9 bits of secondary hash, then 31 bits of place: the number of
//! 32-byte units from the start of memory, where 0 means no place. Its type is the class of its
//! slab. A type has four bits instead of the paper's three (Figure 5 leaves 21 bits unused), so
//! that slabs of up to 4 KiB are read at once. An inline item is the bytes of consecutive slots.
//! The type of its first slot tells how many bytes at its end are padding, and whether it expires,
//! so the item itself needs no byte for that.
//!
//! # Invariants
//! 1. Begins and ends alternate, so inline items do not overlap; no slot of an inline item is a
//!    pointer.
//! 2. A slot that is neither a pointer nor part of an inline item is free. Its bytes and its type
//!    are zero.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::key::SECONDARY_BITS;
use crate::lines::{LINE_BYTES, Line};

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
    /// The start of the slab, in units of 32 bytes.
    pub place: u32,
    /// The type of the slab.
    pub kind: u8,
}

/// Slots that hold an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    /// The start of the item, in bytes of the line.
    pub at: usize,
    /// The item's bytes.
    pub len: usize,
    /// Whether the item expires.
    pub expires: bool,
}

/// A bucket. It is not aligned as its line is, because a struct with some buckets is handed on by
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Bucket([u8; LINE_BYTES]);

impl Bucket {
    /// A bucket with all slots free and no next bucket.
    pub const EMPTY: Self = Self(Line::ZERO.0);

    /// The bucket in a line.
    #[inline(always)]
    pub fn of(line: &Line) -> Self {
        Self(line.0)
    }

    /// The bucket in a line, in its place.
    #[inline(always)]
    pub fn in_place(line: &Line) -> &Self {
        zerocopy::transmute_ref!(line)
    }

    /// As [`in_place`](Self::in_place), to be changed.
    #[inline(always)]
    pub fn in_place_mut(line: &mut Line) -> &mut Self {
        zerocopy::transmute_mut!(line)
    }

    /// The bucket as a line.
    #[inline(always)]
    pub fn line(&self) -> Line {
        Line(self.0)
    }

    /// The bucket's bytes. Of its slots, only the bytes of inline items may be changed.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The bucket's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("a word has 8 bytes"))
    }

    #[inline(always)]
    fn marks(&self) -> u64 {
        self.word(MARKS_AT)
    }

    #[inline(always)]
    fn set_marks(&mut self, marks: u64) {
        self.0[MARKS_AT..].copy_from_slice(&marks.to_le_bytes());
    }

    /// The slots in which inline items begin, one bit for each slot.
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

    /// The slots of inline items. Each item begins with a 1 of `begins` and ends with a 1 of
    /// `ends`, so the difference has ones from its first slot to its last.
    #[inline(always)]
    pub fn inline_slots(&self) -> u32 {
        (self.ends() << 1).wrapping_sub(self.begins()) & ALL
    }

    /// The free slots.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        !(self.inline_slots() | self.pointers()) & ALL
    }

    /// The number of free slots.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.free().count_ones()
    }

    /// The place of the next bucket of the chain.
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

    /// The eight bytes from the start of a slot on, with the first byte lowest.
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
        self.0[at..at + SLOT_BYTES].copy_from_slice(&bits.to_le_bytes()[..SLOT_BYTES]);
    }

    #[inline(always)]
    fn kind(&self, slot: u32) -> u64 {
        self.word(TYPES_AT) >> (4 * slot) & 0xf
    }

    fn set_kind(&mut self, slot: u32, kind: u64) {
        let types = self.word(TYPES_AT) & !(0xf << (4 * slot)) | kind << (4 * slot);
        // The word reaches into the marks, which it writes back unchanged.
        self.0[TYPES_AT..TYPES_AT + 8].copy_from_slice(&types.to_le_bytes());
    }

    /// The pointers to keys with this secondary hash, one bit for each slot.
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

    /// The pointer in a slot that is a pointer.
    #[inline]
    pub fn pointer(&self, slot: u32) -> Pointer {
        let bits = self.start_of(slot) & SLOT_MASK;
        Pointer {
            secondary: (bits & SECONDARY_MASK) as u16,
            place: (bits >> SECONDARY_BITS) as u32,
            kind: self.kind(slot) as u8,
        }
    }

    /// The item that begins in `slot`; `None` if that is impossible, in a damaged bucket.
    #[inline]
    pub fn inline(&self, slot: u32) -> Option<Inline> {
        let slots = self.slots_from(slot)?;
        let kind = self.kind(slot);
        let len = (slots as usize * SLOT_BYTES).checked_sub((kind & PADDING_MASK) as usize)?;
        Some(Inline { at: slot as usize * SLOT_BYTES, len, expires: kind & EXPIRES != 0 })
    }

    /// The number of slots of the inline item that begins in `slot`.
    #[inline(always)]
    fn slots_from(&self, slot: u32) -> Option<u32> {
        match self.ends() >> slot {
            0 => None,
            ends => Some(ends.trailing_zeros() + 1),
        }
    }

    /// Whether an inline item of `len` bytes would have room if the entry that begins in `own` were
    /// not there.
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

    /// Takes a free slot for a pointer. Returns the slot, if one is free.
    ///
    /// # Panics
    /// If place or type have more bits than their fields.
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

    /// Takes slots for an inline item of `len` bytes. The slots of the entry that begins in `own`
    /// count as free. Returns the first slot, if there are enough. Moves other entries if the free
    /// slots are scattered.
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
        let runs = self.run_of(slots);
        if runs == 0 {
            // The bucket is damaged: packed, the entries leave less room than they claimed.
            return None;
        }
        let slot = runs.trailing_zeros();
        self.set_kind(slot, kind);
        let last = slot + slots - 1;
        self.set_marks(self.marks() | 1 << slot | 1 << (ENDS_SHIFT + last));
        Some(slot)
    }

    /// The bytes of the inline item of `len` bytes that begins in `slot`. The padding after them is
    /// zero.
    pub fn body_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let at = slot as usize * SLOT_BYTES;
        let end = at + len.next_multiple_of(SLOT_BYTES);
        self.0[at + len..end].fill(0);
        &mut self.0[at..at + len]
    }

    /// The slots from which on `slots` consecutive slots are free.
    fn run_of(&self, slots: u32) -> u32 {
        let free = self.free();
        (1..slots).fold(free, |runs, next| runs & free >> next)
    }

    /// The same entries without free slots between them.
    fn compacted(&self) -> Self {
        let mut packed = Self::EMPTY;
        let mut marks = self.marks() & NEXT_MASK << NEXT_SHIFT;
        let used = (0..SLOTS).filter(|&slot| self.free() >> slot & 1 == 0);
        for (to, from) in (0..).zip(used) {
            packed.set_slot(to, self.start_of(from));
            packed.set_kind(to, self.kind(from));
            for shift in [0, ENDS_SHIFT, POINTERS_SHIFT] {
                marks |= (self.marks() >> (shift + from) & 1) << (shift + to);
            }
        }
        packed.set_marks(marks);
        packed
    }

    /// The invariant that the bucket breaks, if any.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry of a bucket, as the test expects it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Kept {
        Item { bytes: Vec<u8>, expires: bool },
        Slab(Pointer),
    }

    impl Kept {
        fn slots(&self) -> u32 {
            match self {
                Self::Item { bytes, .. } => slots_for(bytes.len()),
                Self::Slab(_) => 1,
            }
        }

        /// Puts the entry into a bucket, in place of the entry that begins in `own`. Returns
        /// whether there was room.
        fn put(&self, bucket: &mut Bucket, own: Option<u32>) -> bool {
            match self {
                Self::Item { bytes, expires } => {
                    let slot = bucket.put_inline(own, bytes.len(), *expires);
                    slot.inspect(|slot| bucket.body_mut(*slot, bytes.len()).copy_from_slice(bytes))
                        .is_some()
                }
                Self::Slab(pointer) => {
                    own.into_iter().for_each(|slot| bucket.clear(slot));
                    bucket.insert_pointer(*pointer).is_some()
                }
            }
        }
    }

    /// The entries of a bucket, with the slots where they begin.
    fn entries(bucket: &Bucket) -> Vec<(u32, Kept)> {
        let is_slab = |slot: u32| bucket.pointers() >> slot & 1 != 0;
        let begins = (0..SLOTS).filter(|slot| (bucket.begins() >> slot & 1 != 0) || is_slab(*slot));
        let entry = |slot| match is_slab(slot) {
            true => (slot, Kept::Slab(bucket.pointer(slot))),
            false => {
                let Inline { at, len, expires } = bucket.inline(slot).unwrap();
                (slot, Kept::Item { bytes: bucket.0[at..at + len].to_vec(), expires })
            }
        };
        begins.map(entry).collect()
    }

    fn kept() -> impl Strategy<Value = Kept> {
        let item = (proptest::collection::vec(any::<u8>(), 1..=INLINE_BYTES_MAX), any::<bool>());
        let slab = (0..1u16 << SECONDARY_BITS, 1..1u32 << PLACE_BITS, 0..=KIND_MAX);
        prop_oneof![
            item.prop_map(|(bytes, expires)| Kept::Item { bytes, expires }),
            slab.prop_map(|(secondary, place, kind)| Kept::Slab(Pointer {
                secondary,
                place,
                kind
            })),
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(Kept),
        Replace(usize, Kept),
        Clear(usize),
        Next(Option<u32>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let next = proptest::option::of(1..1u32 << PLACE_BITS);
        prop_oneof![
            4 => kept().prop_map(Step::Put),
            2 => (any::<usize>(), kept()).prop_map(|(which, entry)| Step::Replace(which, entry)),
            2 => any::<usize>().prop_map(Step::Clear),
            1 => next.prop_map(Step::Next),
        ]
    }

    proptest! {
        #[test]
        fn a_bucket_keeps_what_was_put_and_nothing_else(
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let (mut bucket, mut next) = (Bucket::EMPTY, None);
            let mut model: Vec<Kept> = Vec::new();
            for step in steps {
                let used: u32 = model.iter().map(Kept::slots).sum();
                match step {
                    Step::Put(entry) => {
                        let fits = used + entry.slots() <= SLOTS;
                        prop_assert_eq!(entry.put(&mut bucket, None), fits);
                        model.extend(fits.then_some(entry));
                    }
                    Step::Replace(which, entry) if !model.is_empty() => {
                        let (slot, old) = entries(&bucket)[which % model.len()].clone();
                        let fits = used - old.slots() + entry.slots() <= SLOTS;
                        prop_assert_eq!(entry.put(&mut bucket, Some(slot)), fits);
                        if fits {
                            let at = model.iter().position(|kept| *kept == old).unwrap();
                            model[at] = entry;
                        }
                    }
                    Step::Clear(which) if !model.is_empty() => {
                        let (slot, old) = entries(&bucket)[which % model.len()].clone();
                        bucket.clear(slot);
                        model.remove(model.iter().position(|kept| *kept == old).unwrap());
                    }
                    Step::Next(place) => {
                        bucket.set_next(place);
                        next = place;
                    }
                    Step::Replace(..) | Step::Clear(_) => (),
                }
                prop_assert_eq!(bucket.broken(), None);
                prop_assert_eq!(bucket.next(), next);
                prop_assert_eq!(bucket.room(), SLOTS - model.iter().map(Kept::slots).sum::<u32>());
                let mut there: Vec<Kept> = entries(&bucket).into_iter().map(|(_, it)| it).collect();
                for kept in &model {
                    let at = there.iter().position(|it| it == kept);
                    prop_assert!(at.is_some(), "{:?} is not in {:?}", kept, there);
                    there.swap_remove(at.unwrap());
                }
                prop_assert_eq!(there, Vec::new());
            }
        }

        /// A damaged bucket is read like any other: its items never reach outside it.
        #[test]
        fn any_line_can_be_looked_at(bytes in proptest::array::uniform32(any::<u64>())) {
            let mut line = Line::ZERO;
            let words = line.0.as_chunks_mut().0.iter_mut().zip(bytes);
            words.for_each(|(chunk, word): (&mut [u8; 8], u64)| *chunk = word.to_le_bytes());
            let bucket = Bucket::of(&line);
            prop_assert_eq!((bucket.free() | bucket.pointing(7)) >> SLOTS, 0);
            for slot in 0..SLOTS {
                let inline = bucket.inline(slot);
                prop_assert!(inline.is_none_or(|it| it.at + it.len <= INLINE_BYTES_MAX));
                prop_assert!(bucket.pointer(slot).place < 1 << PLACE_BITS);
                let mut cleared = bucket;
                cleared.clear(slot);
            }
            bucket.broken();
        }
    }

    #[test]
    fn five_entries_of_ten_bytes_fill_a_bucket_and_one_of_fifty_does() {
        let mut bucket = Bucket::EMPTY;
        let slots: Vec<_> = (0..6).map(|_| bucket.put_inline(None, 10, false)).collect();
        assert_eq!(slots, [Some(0), Some(2), Some(4), Some(6), Some(8), None]);
        bucket = Bucket::EMPTY;
        assert_eq!(bucket.put_inline(None, 50, true), Some(0));
        assert_eq!((bucket.room(), bucket.inline(0).unwrap().len), (0, 50));
        assert!(!Bucket::EMPTY.has_room(51, None));
    }

    #[test]
    fn pointers_are_found_by_their_secondary_hash_and_inline_bytes_are_not() {
        let mut bucket = Bucket::EMPTY;
        let slot = bucket.put_inline(None, 15, false).unwrap();
        bucket.body_mut(slot, 15).fill(0xff);
        let pointer = |secondary| Pointer { secondary, place: 1 << 30 | 5, kind: 3 };
        for secondary in [511, 0, 511] {
            bucket.insert_pointer(pointer(secondary)).unwrap();
        }
        assert_eq!(bucket.pointing(511), 0b101000);
        assert_eq!(bucket.pointing(0), 0b010000, "free slots are no pointers");
        assert_eq!(bucket.pointer(5), pointer(511));
    }

    #[test]
    fn all_bits_of_all_fields_can_be_set() {
        let mut bucket = Bucket::EMPTY;
        let all = Pointer { secondary: 511, place: (1 << PLACE_BITS) - 1, kind: KIND_MAX };
        (0..SLOTS).for_each(|slot| assert_eq!(bucket.insert_pointer(all), Some(slot)));
        bucket.set_next(Some((1 << PLACE_BITS) - 1));
        assert!((0..SLOTS).all(|slot| bucket.pointer(slot) == all));
        assert_eq!((bucket.next(), bucket.begins(), bucket.ends()), (Some((1 << 31) - 1), 0, 0));
        let bits: u32 = bucket.0.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(bits, SLOTS * (40 + 4 + 1) + 31, "no two fields share a bit");
    }
}
