//! Numbers on the command line: the elements of values of `loch update`, `loch reduce` and
//! `loch filter`, their functions, and how both are read and written.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use loch::{Builtin, Function, Number};

use crate::outcome::Usage;
use crate::output;

/// The type of the numbers in a value.
#[derive(Debug, Args)]
pub struct NumberArgs {
    /// The type of the numbers in the value: little-endian, one after the other
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Element::U64)]
    pub element: Element,
}

/// The types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Element {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

/// An expression with the type of an element.
macro_rules! with_element {
    ($element:expr, $number:ident => $with:expr) => {{
        macro_rules! with {
            ($type:ty) => {{
                type $number = $type;
                $with
            }};
        }
        match $element {
            $crate::commands::numbers::Element::U8 => with!(u8),
            $crate::commands::numbers::Element::U16 => with!(u16),
            $crate::commands::numbers::Element::U32 => with!(u32),
            $crate::commands::numbers::Element::U64 => with!(u64),
            $crate::commands::numbers::Element::I8 => with!(i8),
            $crate::commands::numbers::Element::I16 => with!(i16),
            $crate::commands::numbers::Element::I32 => with!(i32),
            $crate::commands::numbers::Element::I64 => with!(i64),
            $crate::commands::numbers::Element::F32 => with!(f32),
            $crate::commands::numbers::Element::F64 => with!(f64),
        }
    }};
}
pub(crate) use with_element;

/// A number that people write.
pub trait Written: Number + Default {
    /// Its type's name.
    const NAME: &'static str;
    /// The least number of the type; for floats minus infinity.
    const LEAST: Self;
    /// The greatest number of the type; for floats infinity.
    const GREATEST: Self;
    /// Reads a number: decimal, or hexadecimal with 0x.
    fn of_text(text: &str) -> Option<Self>;
    /// All bits set.
    fn all_bits() -> Self {
        Self::of_bytes(&[0xFF; size_of::<u64>()])[0]
    }
}

macro_rules! written {
    ($($($type:ident)+: $least:ident, $greatest:ident, |$text:ident| $hex:expr;)*) => {$($(
        impl Written for $type {
            const NAME: &'static str = stringify!($type);
            const LEAST: Self = Self::$least;
            const GREATEST: Self = Self::$greatest;

            fn of_text($text: &str) -> Option<Self> {
                $text.parse().ok().or_else(|| $hex)
            }
        }
    )+)*};
}

/// A hexadecimal number with 0x before it.
fn of_hex<T: TryFrom<u64>>(text: &str) -> Option<T> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?.try_into().ok()
}

written! {
    u8 u16 u32 u64 i8 i16 i32 i64: MIN, MAX, |text| of_hex(text);
    f32 f64: NEG_INFINITY, INFINITY, |_text| None;
}

/// Reads a number.
///
/// # Errors
/// [`Usage`] says which numbers are allowed.
pub fn number<T: Written>(text: &str) -> Result<T, Usage> {
    T::of_text(text.trim()).ok_or_else(|| {
        Usage(format!(
            "{text:?} is no {}: write a number from {} to {}, or choose another --element",
            T::NAME,
            T::LEAST,
            T::GREATEST
        ))
    })
}

/// Characters of standard input for each number, at most.
const CHARS_MAX: u64 = 64;

/// The numbers of standard input, as many as a value can have: separated by blanks or line ends, or
/// `raw`.
pub fn of_stdin<T: Written>(raw: bool, value_bytes_max: u64) -> Result<Vec<T>> {
    let numbers_max = value_bytes_max / size_of::<T>() as u64;
    let bytes_a_number = if raw { size_of::<T>() as u64 } else { CHARS_MAX };
    let bytes_max = numbers_max.saturating_mul(bytes_a_number);
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .context("cannot read numbers from standard input")?;
    let is_whole = bytes.len() as u64 <= bytes_max;
    let is_cut = raw && !bytes.len().is_multiple_of(size_of::<T>());
    let numbers = match raw {
        _ if !is_whole => Vec::new(),
        _ if is_cut => {
            let (bytes, name) = (bytes.len(), T::NAME);
            let what = format!("standard input has {bytes} bytes: with --raw it is whole {name}s");
            return Err(Usage(what).into());
        }
        true => T::of_bytes(&bytes),
        false => {
            let text = String::from_utf8_lossy(&bytes);
            text.split_ascii_whitespace().map(number).collect::<Result<Vec<T>, Usage>>()?
        }
    };
    if is_whole && numbers.len() as u64 <= numbers_max {
        return Ok(numbers);
    }
    Err(Usage(format!(
        "standard input has more than the {numbers_max} numbers that a value of the table can have: \
         declare the table with a larger value_max, or with another engine if this one takes no more"
    ))
    .into())
}

/// Writes numbers to standard output: one a line, or `raw`.
pub fn write<T: Written>(numbers: &[T], raw: bool) -> Result<()> {
    if raw {
        return output::write(&T::bytes(numbers));
    }
    let mut lines = Vec::new();
    for number in numbers {
        writeln!(lines, "{number}").expect("a vector has room");
    }
    output::write(&lines)
}

/// A function, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named(pub Function);

const USER: &str = "user:";

type Names = [(&'static str, Builtin)];

/// The functions that make one number of two.
const COMBINING: &Names = &[
    ("add", Builtin::Add),
    ("saturating-add", Builtin::SaturatingAdd),
    ("subtract", Builtin::Subtract),
    ("saturating-subtract", Builtin::SaturatingSubtract),
    ("max", Builtin::Max),
    ("min", Builtin::Min),
    ("and", Builtin::And),
    ("or", Builtin::Or),
    ("xor", Builtin::Xor),
    ("exchange", Builtin::Exchange),
    ("compare-swap", Builtin::CompareSwap),
];

/// The functions that compare two numbers.
const COMPARING: &Names = &[
    ("equal", Builtin::Equal),
    ("not-equal", Builtin::NotEqual),
    ("less", Builtin::Less),
    ("greater", Builtin::Greater),
];

/// Reads the name of a function that makes one number of two, for an update or a reduction.
///
/// # Errors
/// The names of all such functions.
pub fn combining(text: &str) -> Result<Named, String> {
    named(text, COMBINING, (COMPARING, "filters"))
}

/// Reads the name of a function that compares two numbers, for a filter.
///
/// # Errors
/// The names of all such functions.
pub fn comparing(text: &str) -> Result<Named, String> {
    named(text, COMPARING, (COMBINING, "updates and reductions"))
}

/// Reads the name of a function among `names`; the `others` are for something else.
fn named(text: &str, names: &Names, (others, purpose): (&Names, &str)) -> Result<Named, String> {
    if let Some(number) = text.strip_prefix(USER).and_then(|number| number.parse().ok()) {
        return Ok(Named(Function::User(number)));
    }
    let known = names.iter().find(|(name, _)| *name == text);
    known.map(|(_, function)| Named(Function::Builtin(*function))).ok_or_else(|| {
        let is_other = others.iter().any(|(name, _)| *name == text);
        let why = if is_other { format!("{text} is for {purpose}; ") } else { String::new() };
        let names: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        format!(
            "{why}there are {}, and {USER}NUMBER for a function that the table was declared with",
            names.join(", ")
        )
    })
}

impl Named {
    /// The operand that changes nothing, if there is such a number: a reduction begins with it.
    pub fn neutral<T: Written>(self) -> Option<T> {
        let Function::Builtin(function) = self.0 else { return None };
        Some(match function {
            Builtin::Add
            | Builtin::SaturatingAdd
            | Builtin::Subtract
            | Builtin::SaturatingSubtract
            | Builtin::Or
            | Builtin::Xor => T::default(),
            Builtin::Max => T::LEAST,
            Builtin::Min => T::GREATEST,
            Builtin::And => T::all_bits(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        assert_eq!(number::<u16>(" 0xff00 ").unwrap(), 0xff00);
        assert_eq!(number::<i8>("-128").unwrap(), i8::MIN);
        assert_eq!(number::<f64>("-1.5e3").unwrap(), -1500.0);
        for (error, words) in [
            (number::<u8>("256").unwrap_err(), "from 0 to 255"),
            (number::<i8>("0xff").unwrap_err(), "from -128 to 127"),
            (number::<u64>("1.5").unwrap_err(), "--element"),
            (number::<f32>("x").unwrap_err(), "\"x\" is no f32"),
        ] {
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn functions_have_names_where_they_fit() {
        assert_eq!(combining("max"), Ok(Named(Function::Builtin(Builtin::Max))));
        assert_eq!(comparing("less"), Ok(Named(Function::Builtin(Builtin::Less))));
        for parsed in [combining("user:7"), comparing("user:7")] {
            assert_eq!(parsed, Ok(Named(Function::User(7))));
        }
        for wrong in ["maximum", "user:", "user:65536", ""] {
            let error = combining(wrong).unwrap_err();
            assert!(error.contains("saturating-add") && !error.contains("equal"), "{error}");
        }
        let error = comparing("maximum").unwrap_err();
        assert!(error.contains("not-equal") && !error.contains("add"), "{error}");
        assert!(combining("less").unwrap_err().starts_with("less is for filters; there are add"));
        assert!(comparing("add").unwrap_err().starts_with("add is for updates and reductions; "));
    }

    #[test]
    fn a_reduction_begins_with_what_changes_nothing() {
        let neutral = |name: &str| combining(name).unwrap().neutral::<i16>();
        assert_eq!(neutral("add"), Some(0));
        assert_eq!(neutral("max"), Some(i16::MIN));
        assert_eq!(neutral("and"), Some(-1));
        assert_eq!(neutral("exchange"), None);
        assert_eq!(neutral("user:1"), None);
    }

    #[test]
    fn every_element_is_the_type_of_its_name() {
        for element in Element::value_variants() {
            let name = element.to_possible_value().unwrap().get_name().to_owned();
            let named = with_element!(*element, T => <T as Written>::NAME);
            assert_eq!(name, named);
        }
    }
}
