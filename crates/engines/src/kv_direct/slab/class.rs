//! Sizes and addresses of slabs.

use std::fmt;
use std::num::NonZeroU32;

/// log2 of [`PLACE_BYTES`].
const PLACE_SHIFT: u32 = 5;

/// Bytes of a place, the unit of allocation.
pub const PLACE_BYTES: u64 = 1 << PLACE_SHIFT;

/// Places are below this: a pointer in a hash slot has 31 bits (kv-direct §3.3.1).
pub const PLACES_MAX: u32 = 1 << 31;

/// The size of a slab: class `n` has `32 << n` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// 32 bytes.
    pub const SMALLEST: Class = Class(0);

    /// 512 bytes: the largest class for which the processor keeps a stack (kv-direct §3.3.2).
    pub const LARGEST_CACHED: Class = Class(4);

    /// The number of classes for which it keeps a stack.
    pub(super) const CACHED: usize = Self::LARGEST_CACHED.index() + 1;

    /// 32 GiB: half of what places can address.
    pub const LARGEST: Class = Class(30);

    /// Class `number`, if there is one.
    #[inline(always)]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::LARGEST.0 { Some(Self(number)) } else { None }
    }

    /// The smallest class whose slabs have at least `bytes` bytes, if there is one.
    #[inline(always)]
    pub const fn holding(bytes: u64) -> Option<Self> {
        let places = bytes.div_ceil(PLACE_BYTES);
        // Every size takes at least one place, and `ilog2` rounds down.
        let number = if places <= 1 { 0 } else { (places - 1).ilog2() + 1 };
        Self::new(number as u8)
    }

    /// The number of the class, from 0 on.
    #[inline(always)]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The class as an index.
    #[inline(always)]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Places of a slab.
    #[inline(always)]
    pub const fn places(self) -> u32 {
        1 << self.0
    }

    /// Bytes of a slab.
    #[inline(always)]
    pub const fn bytes(self) -> u64 {
        PLACE_BYTES << self.0
    }

    /// The class of half a slab; `None` for the smallest class.
    #[inline(always)]
    pub(super) const fn half(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The classes from `from` to `to`, both included.
    pub(super) fn between(from: Class, to: Class) -> impl DoubleEndedIterator<Item = Class> {
        (from.0..=to.0).map(Class)
    }
}

/// The place of a slab: a number of 32-byte units from the start of the processor's memory. A slab
/// of class `n` is at a multiple of `2^n`. No slab has place 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(NonZeroU32);

impl Place {
    /// Place `number`; `None` if that is 0 or has more than 31 bits.
    #[inline(always)]
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) if number.get() < PLACES_MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The number of the place: 31 bits, not 0.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// The place's offset in bytes from the start of the memory.
    #[inline(always)]
    pub const fn bytes(self) -> u64 {
        (self.number() as u64) << PLACE_SHIFT
    }
}

/// A free slab: an entry of a pool (kv-direct §3.3.2: address and slab type).
///
/// A place of class `n` ends in `n` zeros, so there is room for the class: the word is twice the
/// place, plus `2^n`. The word is never 0, and words have the order of their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slab(NonZeroU32);

const _: () = assert!(size_of::<Option<Slab>>() == 4, "16 entries a line");

impl Slab {
    /// The slab of this class at this place.
    ///
    /// # Panics
    /// If the place is not aligned to the class.
    #[inline(always)]
    pub fn new(place: Place, class: Class) -> Self {
        let is_aligned = place.number().trailing_zeros() >= u32::from(class.number());
        assert!(is_aligned, "{place:?} is no place for {class:?}");
        Self::of_word(place.number() << 1 | class.places()).expect("a class has places")
    }

    /// The slab in this word; `None` if the word is 0.
    #[inline(always)]
    pub(super) const fn of_word(word: u32) -> Option<Self> {
        match NonZeroU32::new(word) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    /// The slab as a word.
    #[inline(always)]
    pub(super) const fn word(self) -> u32 {
        self.0.get()
    }

    /// The slab's first place.
    ///
    /// # Panics
    /// If that is 0, which no slab has.
    #[inline(always)]
    pub fn place(self) -> Place {
        Place::new(self.start()).expect("place 0 is nobody's")
    }

    /// The slab's size.
    #[inline(always)]
    pub const fn class(self) -> Class {
        Class(self.0.trailing_zeros() as u8)
    }

    /// The number of the slab's first place.
    #[inline(always)]
    pub(super) const fn start(self) -> u32 {
        (self.0.get() & (self.0.get() - 1)) >> 1
    }

    /// The number of the place behind the slab.
    #[inline(always)]
    pub(super) const fn end(self) -> u32 {
        self.start() + self.class().places()
    }

    /// The slab's lower and upper half; `None` for the smallest class.
    #[inline(always)]
    pub(super) fn halves(self) -> Option<(Slab, Slab)> {
        let class = self.class().half()?;
        let upper = Place::new(self.start() + class.places())?;
        Some((Self::new(self.place(), class), Self::new(upper, class)))
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at place {}", self.class().bytes(), self.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_it_says() {
        for (bytes, number) in [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (512, 4)] {
            assert_eq!(Class::holding(bytes), Class::new(number), "{bytes} bytes");
        }
        assert_eq!(Class::holding(128 << 20), Class::new(22));
        assert_eq!(Class::holding(Class::LARGEST.bytes()), Some(Class::LARGEST));
        assert_eq!(Class::holding(Class::LARGEST.bytes() + 1), None);
        assert_eq!(Class::holding(u64::MAX), None);
        assert_eq!(Class::new(31), None);
    }

    #[test]
    fn a_word_holds_place_and_class() {
        for class in Class::between(Class::SMALLEST, Class::LARGEST) {
            let last = PLACES_MAX - class.places();
            for number in [class.places(), last, last / 3 / class.places() * class.places()] {
                let Some(place) = Place::new(number) else { continue };
                let slab = Slab::new(place, class);
                assert_eq!((slab.place(), slab.class()), (place, class));
                assert_eq!(slab.end(), number + class.places());
                assert_eq!(Slab::of_word(slab.word()), Some(slab));
                let Some((lower, upper)) = slab.halves() else { continue };
                assert!(lower < upper && lower.end() == upper.start());
                assert_eq!((lower.start(), upper.end()), (slab.start(), slab.end()));
            }
        }
        assert_eq!((Place::new(0), Place::new(PLACES_MAX)), (None, None));
    }
}
