//! Numbers in values, and the functions by which workers compute on them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub use loch_engines::functions::{Builtin, Element, Function};

use loch_engines::functions;

/// A number of which a value can consist: `u8` to `u64`, `i8` to `i64`, `f32` and `f64`. The
/// numbers of a value follow each other, in little-endian order.
pub trait Number: Copy + fmt::Debug + fmt::Display + FromStr + PartialEq + sealed::Word {
    /// The number's type, as the engine names it.
    const ELEMENT: Element;

    /// The bytes of numbers, as they are in a value.
    fn bytes(numbers: &[Self]) -> Cow<'_, [u8]>;

    /// The numbers of a value. Bytes at its end that are less than a number are left out.
    fn of_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// A [`Number`] with bit operations: all but floats.
pub trait Integer: Number {}

/// A function of an element `v` of a value and an operand `d`. Updates, reductions and filters
/// ([`Table::update`](crate::Table::update) and others) compute by such functions, in tables of
/// `kv-direct`.
///
/// ```
/// use loch::{ByteSize, Cluster, EmbeddedConfig, Lambda, Number, TableConfig};
/// let table = TableConfig { engine: "kv-direct".parse()?, ..TableConfig::default() };
/// let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
/// let table = Cluster::embedded(config)?.table("default")?;
///
/// // One number.
/// assert_eq!(table.update(b"highest", Lambda::max(17i64))?, 0);
/// assert_eq!(table.update(b"highest", Lambda::max(12i64))?, 17);
///
/// // Many under one key.
/// table.put(b"weights", &Number::bytes(&[1.5f32, -2.0, 4.0]))?;
/// assert_eq!(table.update_each(b"weights", Lambda::add(0f32), &[0.5, 0.5, 1.0])?, Some(3));
/// assert_eq!(table.reduce(b"weights", Lambda::add(0f32))?, Some(5.5));
/// assert_eq!(table.filter(b"weights", Lambda::greater(0f32))?, Some(vec![2.0, 5.0]));
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lambda<T> {
    function: Function,
    operand: T,
    second: T,
}

/// The constructors of functions that every processor has: the name, and the function.
macro_rules! builtins {
    ($($(#[$doc:meta])* $name:ident: $builtin:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(operand: T) -> Self {
            Self::new(Function::Builtin(Builtin::$builtin), operand)
        }
    )*};
}

impl<T: Number> Lambda<T> {
    /// Any function with an operand. In a reduction the operand is the first value of the result,
    /// and [`update_each`](crate::Table::update_each) does not use it.
    pub fn new(function: Function, operand: T) -> Self {
        Self { function, operand, second: T::of_word(0) }
    }

    /// Adds a second operand, for functions that take two.
    #[must_use]
    pub fn with_second(self, second: T) -> Self {
        Self { second, ..self }
    }

    /// The function that the table was declared with under this number.
    pub fn user(number: u16, operand: T) -> Self {
        Self::new(Function::User(number), operand)
    }

    builtins! {
        /// `v + d`, wrapping.
        add: Add;
        /// `v + d`, or the nearest number of the type.
        saturating_add: SaturatingAdd;
        /// `v - d`, wrapping.
        subtract: Subtract;
        /// `v - d`, or the nearest number of the type.
        saturating_subtract: SaturatingSubtract;
        /// The greater of `v` and `d`.
        max: Max;
        /// The lesser of `v` and `d`.
        min: Min;
        /// `d`.
        exchange: Exchange;
        /// For filters: whether `v` equals `d`.
        equal: Equal;
        /// For filters: whether `v` differs from `d`.
        not_equal: NotEqual;
        /// For filters: whether `v` is less than `d`.
        less: Less;
        /// For filters: whether `v` is greater than `d`.
        greater: Greater;
    }

    /// `new` if `v` is `expected`, else `v`.
    pub fn compare_swap(expected: T, new: T) -> Self {
        Self::new(Function::Builtin(Builtin::CompareSwap), new).with_second(expected)
    }

    /// The engine's form of the function.
    pub(crate) fn of_engine(self) -> functions::Lambda {
        functions::Lambda {
            function: self.function,
            element: T::ELEMENT,
            operand: self.operand.word(),
            second: self.second.word(),
        }
    }
}

impl<T: Integer> Lambda<T> {
    builtins! {
        /// `v & d`.
        and: And;
        /// `v | d`.
        or: Or;
        /// `v ^ d`.
        xor: Xor;
    }
}

/// A trait that cannot be named outside this crate, so that other crates cannot define numbers.
pub(crate) mod sealed {
    /// A number in a word.
    pub trait Word: Sized {
        /// The low bits of a word.
        fn word(self) -> u64;

        /// The number in the low bits of a word.
        fn of_word(word: u64) -> Self;
    }
}

macro_rules! numbers {
    ($($type:ty, $element:ident, |$it:ident| $word:expr, |$in_word:ident| $number:expr;)*) => {$(
        impl Number for $type {
            const ELEMENT: Element = Element::$element;

            fn bytes(numbers: &[Self]) -> Cow<'_, [u8]> {
                if cfg!(target_endian = "little") {
                    return zerocopy::IntoBytes::as_bytes(numbers).into();
                }
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
            }

            fn of_bytes(bytes: &[u8]) -> Vec<Self> {
                let (numbers, _) = bytes.as_chunks();
                numbers.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
            }
        }

        impl sealed::Word for $type {
            #[inline]
            fn word(self) -> u64 {
                let $it = self;
                $word
            }

            #[inline]
            fn of_word($in_word: u64) -> Self {
                $number
            }
        }
    )*};
}

numbers! {
    u8, U8, |it| it.into(), |word| word as u8;
    u16, U16, |it| it.into(), |word| word as u16;
    u32, U32, |it| it.into(), |word| word as u32;
    u64, U64, |it| it, |word| word;
    i8, I8, |it| (it as u8).into(), |word| word as i8;
    i16, I16, |it| (it as u16).into(), |word| word as i16;
    i32, I32, |it| (it as u32).into(), |word| word as i32;
    i64, I64, |it| it as u64, |word| word as i64;
    f32, F32, |it| it.to_bits().into(), |word| f32::from_bits(word as u32);
    f64, F64, |it| it.to_bits(), |word| f64::from_bits(word);
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Integer for $type {}
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_both_ways<T: Number>(numbers: &[T]) {
        assert_eq!(size_of::<T>(), T::ELEMENT.bytes());
        for number in numbers {
            assert_eq!(T::of_word(number.word()), *number);
            let bits = T::ELEMENT.bytes() as u32 * 8;
            assert!(bits == 64 || number.word() >> bits == 0, "{number:?}: low bits alone");
            let bytes = T::bytes(std::slice::from_ref(number)).into_owned();
            assert_eq!(bytes, number.word().to_le_bytes()[..T::ELEMENT.bytes()]);
        }
        let mut bytes = T::bytes(numbers).into_owned();
        assert_eq!(T::of_bytes(&bytes), numbers);
        bytes.truncate(bytes.len() - 1);
        assert_eq!(T::of_bytes(&bytes), numbers[..numbers.len() - 1]);
    }

    #[test]
    fn numbers_are_words_and_bytes_and_come_back() {
        goes_both_ways(&[0u8, 1, u8::MAX]);
        goes_both_ways(&[0u16, 1, 0x1234, u16::MAX]);
        goes_both_ways(&[0u32, 0x1234_5678, u32::MAX]);
        goes_both_ways(&[0u64, 0x1234_5678_9abc_def0, u64::MAX]);
        goes_both_ways(&[0i8, -1, i8::MIN, i8::MAX]);
        goes_both_ways(&[0i16, -1, i16::MIN, i16::MAX]);
        goes_both_ways(&[0i32, -1, i32::MIN, i32::MAX]);
        goes_both_ways(&[0i64, -1, i64::MIN, i64::MAX]);
        goes_both_ways(&[0f32, -0.5, f32::MIN, f32::INFINITY]);
        goes_both_ways(&[0f64, -0.5, f64::MIN, f64::INFINITY]);
    }

    #[test]
    fn a_lambda_says_what_the_engine_is_to_do() {
        let lambda = Lambda::compare_swap(-1i16, 7).of_engine();
        assert_eq!(lambda.function, Function::Builtin(Builtin::CompareSwap));
        assert_eq!((lambda.element, lambda.operand, lambda.second), (Element::I16, 7, 0xffff));
        let lambda = Lambda::user(9, 1f64).of_engine();
        assert_eq!((lambda.function, lambda.operand), (Function::User(9), 1f64.to_bits()));
    }
}
