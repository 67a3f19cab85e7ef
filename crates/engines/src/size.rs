//! Sizes as people write them: `64`, `16KiB`, `1GiB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A number of bytes that is read and shown as people write it.
///
/// ```
/// use loch_engines::size::ByteSize;
/// let size: ByteSize = "16KiB".parse()?;
/// assert_eq!(size.bytes(), 16 << 10);
/// assert_eq!(ByteSize::new(3 << 30).to_string(), "3GiB");
/// assert_eq!(ByteSize::new(1000).to_string(), "1000");
/// assert!("1.5GiB".parse::<ByteSize>().is_err());
/// # Ok::<(), loch_engines::size::ParseSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no size: write 64, 16KiB, 4MiB, 1GiB or 2TiB, below 16EiB")]
pub struct ParseSizeError {
    /// The text.
    pub text: String,
}

/// Units, the largest first, and how far they shift.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl ByteSize {
    /// A size of this many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl FromStr for ByteSize {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let wrong = || ParseSizeError { text: text.into() };
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = match unit {
            "" | "B" => 0,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, shift): &&(&str, u32)| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        match UNITS.iter().find(exact) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A number of bytes in the text of an error: exact, and readable if it is long.
pub struct InWords(pub u64);

/// A number of bytes up to this is readable without a unit.
const PLAIN_BYTES_MAX: u64 = 4096;
/// A number of units below this is readable at a glance.
const PLAIN_UNITS_MAX: u64 = 10_000;

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let whole = |(_, shift): &(&str, u32)| {
            bytes.is_multiple_of(1 << shift) && (1..PLAIN_UNITS_MAX).contains(&(bytes >> shift))
        };
        if UNITS.iter().any(whole) {
            return ByteSize(bytes).fmt(f);
        }
        let one = |(_, shift): &&(&str, u32)| bytes >> shift > 0;
        match UNITS.iter().find(one).filter(|_| bytes > PLAIN_BYTES_MAX) {
            Some((unit, shift)) => {
                let units = bytes as f64 / (1u64 << shift) as f64;
                write!(f, "{bytes} bytes ({units:.1}{unit})")
            }
            None => write!(f, "{bytes} bytes"),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64, \"16KiB\" or \"1GiB\"")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let unexpected = de::Unexpected::Signed(bytes);
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::invalid_value(unexpected, &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_in_errors_are_exact_and_readable() {
        let words = |bytes| InWords(bytes).to_string();
        assert_eq!((words(0), words(968)), ("0 bytes".into(), "968 bytes".into()));
        assert_eq!((words(1 << 10), words(64 << 20)), ("1KiB".into(), "64MiB".into()));
        assert_eq!(words((16 << 20) + 1), "16777217 bytes (16.0MiB)");
        assert_eq!(words((1 << 40) - (1 << 20)), "1099510579200 bytes (1024.0GiB)");
        assert_eq!(words(5_000_000_000), "5000000000 bytes (4.7GiB)");
        assert_eq!(words(u64::MAX), "18446744073709551615 bytes (16777216.0TiB)");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("64", 64), ("64B", 64), ("16KiB", 16 << 10), ("1GiB", 1 << 30), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "KiB", "16kb", "1.5GiB", "-1", "+1", "99999999TiB", "16 KiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(bytes: u64) {
            for bytes in [bytes, bytes >> 20 << 20, bytes >> 40 << 40] {
                let size = ByteSize(bytes);
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }
    }
}
