//! Arguments that several commands have.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::request::integer;
use crate::failure::Failure;
use crate::store::Expires;

pub(crate) const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";

/// A number that an argument has to be.
pub(crate) fn number(argument: &[u8]) -> Result<i64, Failure> {
    integer(argument).ok_or_else(|| NO_INTEGER.into())
}

/// An argument as an error shows it: as with Redis, a zero ends a text.
pub(crate) fn shown(argument: &[u8]) -> String {
    shown_of(argument, usize::MAX)
}

/// So many bytes of it at most.
pub(crate) fn shown_of(argument: &[u8], most: usize) -> String {
    let text = argument[..argument.len().min(most)].split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// Whether an argument is this word, in any case.
pub(crate) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// How a time is given: `EX`, `PX`, `EXAT` or `PXAT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub is_seconds: bool,
    pub is_from_now: bool,
}

impl Unit {
    pub fn of(argument: &[u8]) -> Option<Self> {
        let unit = |is_seconds, is_from_now| Some(Self { is_seconds, is_from_now });
        match argument.to_ascii_lowercase().as_slice() {
            b"ex" => unit(true, true),
            b"px" => unit(false, true),
            b"exat" => unit(true, false),
            b"pxat" => unit(false, false),
            _ => None,
        }
    }

    /// The moment that a number stands for. It may have passed.
    pub fn moment(self, number: i64, command: &str) -> Result<SystemTime, Failure> {
        let invalid = || Failure::from(format!("ERR invalid expire time in '{command}' command"));
        let factor = if self.is_seconds { 1000 } else { 1 };
        let millis = number.checked_mul(factor).ok_or_else(invalid)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base = if self.is_from_now { now.as_millis() as i64 } else { 0 };
        let millis = millis.checked_add(base).ok_or_else(invalid)?;
        Ok(UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }

    /// The expiry that an argument stands for, which has to be above zero.
    pub fn expiry(self, argument: &[u8], command: &str) -> Result<Expires, Failure> {
        let number = number(argument)?;
        if number <= 0 {
            return Err(format!("ERR invalid expire time in '{command}' command").into());
        }
        Ok(Expires::At(self.moment(number, command)?))
    }
}
