//! Numbers as elements.

use std::ops::{Add, Sub};

/// A number as an element: all its bits count, in little-endian order.
pub(super) trait Number: Copy + PartialOrd {
    const BYTES: usize;

    /// The number in these bytes.
    fn read(bytes: &[u8]) -> Self;

    fn write(self, bytes: &mut [u8]);

    /// The number in a word's low bits.
    fn of_word(word: u64) -> Self;

    /// The number's bits, with zeros above them.
    fn to_word(self) -> u64;

    /// The sum; it wraps for integers.
    fn plus(self, other: Self) -> Self;

    /// The difference; it wraps for integers.
    fn minus(self, other: Self) -> Self;

    /// The nearest number to the sum.
    fn nearest_plus(self, other: Self) -> Self;

    /// The nearest number to the difference.
    fn nearest_minus(self, other: Self) -> Self;
}

/// The numbers, each with the integer that has its bits, and the operations of their kind.
macro_rules! numbers {
    ($plus:ident, $minus:ident, $nearest_plus:ident, $nearest_minus:ident:
     $($number:ty, $bits:ty;)*) => {$(
        impl Number for $number {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("an element's bytes"))
            }

            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn of_word(word: u64) -> Self {
                Self::from_ne_bytes((word as $bits).to_ne_bytes())
            }

            #[inline(always)]
            fn to_word(self) -> u64 {
                u64::from(<$bits>::from_ne_bytes(self.to_ne_bytes()))
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.$plus(other)
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.$minus(other)
            }

            #[inline(always)]
            fn nearest_plus(self, other: Self) -> Self {
                self.$nearest_plus(other)
            }

            #[inline(always)]
            fn nearest_minus(self, other: Self) -> Self {
                self.$nearest_minus(other)
            }
        }
    )*};
}

numbers! {
    wrapping_add, wrapping_sub, saturating_add, saturating_sub:
    u8, u8;
    u16, u16;
    u32, u32;
    u64, u64;
    i8, u8;
    i16, u16;
    i32, u32;
    i64, u64;
}

numbers! {
    add, sub, add, sub:
    f32, u32;
    f64, u64;
}
