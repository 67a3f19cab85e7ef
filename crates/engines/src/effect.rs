//! What an operation does to the value of its key: the rule that workers share which hold a key's
//! present value and its next version when they execute a request.

use std::ops::Deref;

use crate::error::EngineError;
use crate::operation::{Expect, Operation, Outcome, Version};

/// A value, with what a table knows of it. `V` is its bytes, wherever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versioned<V> {
    /// The value's version.
    pub version: Version,
    /// When the value expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    /// The value's bytes.
    pub value: V,
}

/// The change that a worker has to make, before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    /// The key keeps its value, or the absence of one.
    Nothing,
    /// The key loses its value.
    Remove,
    /// The key gets this value.
    Store(Versioned<NewValue<'a>>),
}

/// The bytes of a value that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// The bytes that the operation carries.
    Given(&'a [u8]),
    /// The number that FETCH_ADD computed.
    Number([u8; 8]),
    /// The bytes that APPEND joined.
    Joined(Vec<u8>),
    /// The bytes of the present value, which TOUCH keeps.
    Kept(Vec<u8>),
}

impl Deref for NewValue<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Number(bytes) => bytes,
            Self::Joined(bytes) | Self::Kept(bytes) => bytes,
        }
    }
}

impl<'a> Operation<'a> {
    /// The outcome and the effect of the operation on a key with this present value. A value that
    /// has expired is not present. `version` is the version of a value that the operation stores.
    ///
    /// # Errors
    /// [`EngineError::NotACounter`]; [`EngineError::Unsupported`] of an operation that computes, or
    /// that changes and returns a value. Nothing is changed then.
    #[inline]
    pub fn on<'p>(
        self,
        present: Option<Versioned<&'p [u8]>>,
        version: Version,
    ) -> Result<(Outcome<'p>, Effect<'a>), EngineError> {
        let there = present.map(|present| present.version);
        let store =
            |value, expires_at_ms| Effect::Store(Versioned { version, expires_at_ms, value });
        Ok(match self {
            Operation::Get => (present.map_or(Outcome::Absent, Versioned::found), Effect::Nothing),
            Operation::Contains => (Outcome::Contained(there.is_some()), Effect::Nothing),
            Operation::PutIf { expect: Expect::Absent, .. } if there.is_some() => {
                (Outcome::Refused(there), Effect::Nothing)
            }
            Operation::PutIf { expect: Expect::Version(expected), .. }
                if there != Some(expected) =>
            {
                (Outcome::Refused(there), Effect::Nothing)
            }
            Operation::Put { value, options } | Operation::PutIf { value, options, .. } => {
                (Outcome::Stored(version), store(NewValue::Given(value), options.expires_at_ms))
            }
            Operation::Delete { of }
                if there.is_some_and(|there| of.is_none_or(|of| of == there)) =>
            {
                (Outcome::Deleted(true), Effect::Remove)
            }
            Operation::Delete { .. } => (Outcome::Deleted(false), Effect::Nothing),
            Operation::FetchAdd(add) => {
                let before = present.map_or(Ok(0), |present| counter(present.value))?;
                let sum = before.wrapping_add(add).to_le_bytes();
                (Outcome::Scalar(before), store(NewValue::Number(sum), None))
            }
            Operation::Append(bytes) => {
                let joined = [present.map_or(&[][..], |present| present.value), bytes].concat();
                let expires_at_ms = present.and_then(|present| present.expires_at_ms);
                (Outcome::Stored(version), store(NewValue::Joined(joined), expires_at_ms))
            }
            Operation::Touch { of, options } => match present {
                Some(present) if of.is_none_or(|of| of == present.version) => {
                    let kept = NewValue::Kept(present.value.to_vec());
                    (Outcome::Stored(version), store(kept, options.expires_at_ms))
                }
                _ => (Outcome::Refused(there), Effect::Nothing),
            },
            _ => return Err(EngineError::Unsupported),
        })
    }
}

impl<V: Deref<Target = [u8]>> Versioned<V> {
    /// The same value, whose bytes are borrowed.
    #[inline]
    pub fn borrowed(&self) -> Versioned<&[u8]> {
        let Self { version, expires_at_ms, ref value } = *self;
        Versioned { version, expires_at_ms, value }
    }

    /// The same value, whose bytes are a copy.
    pub fn to_owned(&self) -> Versioned<Vec<u8>> {
        let Self { version, expires_at_ms, ref value } = *self;
        Versioned { version, expires_at_ms, value: value.to_vec() }
    }

    /// Whether the value has expired by now.
    #[inline]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now_ms)
    }
}

impl<'a> Versioned<&'a [u8]> {
    /// The outcome of a GET.
    #[inline]
    pub fn found(self) -> Outcome<'a> {
        let Self { version, expires_at_ms, value } = self;
        Outcome::Found { version, expires_at_ms, value }
    }
}

/// The number that a value is.
///
/// # Errors
/// [`EngineError::NotACounter`].
pub(crate) fn counter(value: &[u8]) -> Result<u64, EngineError> {
    let wrong = |_| EngineError::NotACounter { len: value.len() as u64 };
    Ok(u64::from_le_bytes(value.try_into().map_err(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::PutOptions;

    const OTHER: Version = Version::from_u64(2);
    const OLD: Version = Version::from_u64(3);
    const NEW: Version = Version::from_u64(4);
    const PRESENT: Versioned<&[u8]> =
        Versioned { version: OLD, expires_at_ms: Some(9), value: b"eightful" };

    fn store(value: NewValue<'_>, expires_at_ms: Option<u64>) -> Effect<'_> {
        Effect::Store(Versioned { version: NEW, expires_at_ms, value })
    }

    #[test]
    fn a_condition_that_does_not_hold_changes_nothing() {
        let put =
            |expect| Operation::PutIf { value: b"new", expect, options: PutOptions::default() };
        let refused = |there| Ok((Outcome::Refused(there), Effect::Nothing));
        assert_eq!(put(Expect::Absent).on(Some(PRESENT), NEW), refused(Some(OLD)));
        assert_eq!(put(Expect::Version(OTHER)).on(Some(PRESENT), NEW), refused(Some(OLD)));
        assert_eq!(put(Expect::Version(OTHER)).on(None, NEW), refused(None));
        let done = Ok((Outcome::Stored(NEW), store(NewValue::Given(b"new"), None)));
        assert_eq!(put(Expect::Absent).on(None, NEW), done);
        assert_eq!(put(Expect::Version(OLD)).on(Some(PRESENT), NEW), done);
    }

    #[test]
    fn append_keeps_the_expiry_and_fetch_add_does_not() {
        let joined = NewValue::Joined(b"eightful!".to_vec());
        let appended = Operation::Append(b"!").on(Some(PRESENT), NEW);
        assert_eq!(appended, Ok((Outcome::Stored(NEW), store(joined, Some(9)))));
        let before = u64::from_le_bytes(*b"eightful");
        let sum = NewValue::Number((before + 1).to_le_bytes());
        let added = Operation::FetchAdd(1).on(Some(PRESENT), NEW);
        assert_eq!(added, Ok((Outcome::Scalar(before), store(sum, None))));
        let short = Versioned { value: &b"short"[..], ..PRESENT };
        let wrong = Operation::FetchAdd(1).on(Some(short), NEW);
        assert_eq!(wrong, Err(EngineError::NotACounter { len: 5 }));
    }

    #[test]
    fn touch_changes_the_expiry_and_the_version_alone() {
        let touch = |of, expires_at_ms| {
            let options = PutOptions { expires_at_ms };
            Operation::Touch { of, options }.on(Some(PRESENT), NEW)
        };
        let kept = || NewValue::Kept(b"eightful".to_vec());
        for (of, expires_at_ms) in [(None, Some(20)), (None, None), (Some(OLD), Some(1))] {
            let touched = Ok((Outcome::Stored(NEW), store(kept(), expires_at_ms)));
            assert_eq!(touch(of, expires_at_ms), touched);
        }
        assert_eq!(touch(Some(OTHER), None), Ok((Outcome::Refused(Some(OLD)), Effect::Nothing)));
        for of in [None, Some(OLD)] {
            let absent = Operation::Touch { of, options: PutOptions::default() }.on(None, NEW);
            assert_eq!(absent, Ok((Outcome::Refused(None), Effect::Nothing)));
        }
    }

    #[test]
    fn a_delete_of_nothing_or_of_another_version_changes_nothing() {
        let none = Ok((Outcome::Deleted(false), Effect::Nothing));
        let removed = Ok((Outcome::Deleted(true), Effect::Remove));
        for of in [None, Some(OLD)] {
            assert_eq!(Operation::Delete { of }.on(None, NEW), none);
            assert_eq!(Operation::Delete { of }.on(Some(PRESENT), NEW), removed);
        }
        assert_eq!(Operation::Delete { of: Some(OTHER) }.on(Some(PRESENT), NEW), none);
    }
}
