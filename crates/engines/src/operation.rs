//! The operations that a client can ask of a table, and their outcomes: the terms that all engines
//! share.

use std::ops::Range;

use loch_fabric::Buf;

use crate::error::EngineError;
use crate::functions::Lambda;
pub use crate::value::{Value, ValueRef, Version};

impl<'a> Outcome<'a> {
    /// The value that a GET has found.
    #[inline]
    pub fn found(self) -> Option<ValueRef<'a>> {
        match self {
            Outcome::Found { version, expires_at_ms, value } => {
                Some(ValueRef { version, bytes: value, expires_at_ms })
            }
            _ => None,
        }
    }
}

impl<'a> From<ValueRef<'a>> for Outcome<'a> {
    #[inline]
    fn from(ValueRef { version, bytes, expires_at_ms }: ValueRef<'a>) -> Self {
        Self::Found { version, expires_at_ms, value: bytes }
    }
}

/// The options of a PUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// When the value expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
}

/// What a conditional PUT expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No value.
    Absent,
    /// A value of this version, as a GET or a PUT returned it.
    Version(Version),
}

/// The outcome of a conditional PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// The PUT was done; this is the version of the new value.
    Done(Version),
    /// The PUT was refused; this is the version of the present value, if there is one.
    Refused(Option<Version>),
}

/// One operation on one key.
///
/// Its methods take it by value: a future that lent it to them would keep a second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Returns the value.
    Get,
    /// Returns whether there is a value.
    Contains,
    /// Gives the key this value.
    Put {
        /// The new value.
        value: &'a [u8],
        /// The options of the PUT.
        options: PutOptions,
    },
    /// Gives the key this value if the present value is as expected.
    PutIf {
        /// The new value.
        value: &'a [u8],
        /// The condition on the present value.
        expect: Expect,
        /// The options of the PUT.
        options: PutOptions,
    },
    /// Deletes the value.
    Delete {
        /// The version that the value must have, if it must have a certain one.
        of: Option<Version>,
    },
    /// Adds this number, wrapping; a key without a value counts as 0.
    FetchAdd(u64),
    /// Appends these bytes to the value, which still expires when it did. A key without a value
    /// gets these bytes as a value that does not expire.
    Append(&'a [u8]),
    /// Gives the present value another expiry. The value keeps its bytes and gets a new version. A
    /// key without a value still has none.
    Touch {
        /// The version that the value must have, if it must have a certain one.
        of: Option<Version>,
        /// The new expiry.
        options: PutOptions,
    },
    /// Gives the present value another expiry, and returns the value.
    GetAndTouch(PutOptions),
    /// `update_scalar2scalar` (kv-direct §3.2, Table 1): replaces the one element by the function's
    /// result for it and the operand; a key without a value counts as 0.
    Update(Lambda),
    /// `update_scalar2vector`: replaces each element by the function's result for it and the
    /// operand.
    UpdateAll {
        /// The function and its operand.
        lambda: Lambda,
        /// Whether the elements before the update are returned.
        returns: bool,
    },
    /// `update_vector2vector`: replaces each element by the function's result for it and the
    /// operand of the same index.
    UpdateEach {
        /// The function; the lambda's operand is not used.
        lambda: Lambda,
        /// The operands: as many bytes as the value has.
        operands: &'a [u8],
        /// Whether the elements before the update are returned.
        returns: bool,
    },
    /// Returns the function's result over the operand and all elements, one after the other.
    Reduce(Lambda),
    /// Returns the elements for which the function says yes, in their order.
    Filter(Lambda),
}

impl<'a> Operation<'a> {
    /// The value, the bytes or the operands that the operation carries, if any.
    #[inline]
    pub fn value(self) -> &'a [u8] {
        match self {
            Operation::Put { value, .. } | Operation::PutIf { value, .. } => value,
            Operation::Append(bytes) => bytes,
            Operation::UpdateEach { operands, .. } => operands,
            _ => &[],
        }
    }

    /// Whether an operation other than a GET returns elements or a value, perhaps all of it.
    #[inline]
    pub fn returns_vector(self) -> bool {
        matches!(
            self,
            Operation::Filter(_)
                | Operation::GetAndTouch(_)
                | Operation::UpdateAll { returns: true, .. }
                | Operation::UpdateEach { returns: true, .. }
        )
    }

    /// Whether the operation's outcome can have bytes.
    #[inline]
    pub(crate) fn returns_bytes(self) -> bool {
        self == Operation::Get || self.returns_vector()
    }

    /// Whether the operation changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(
            self,
            Operation::Get | Operation::Contains | Operation::Reduce(_) | Operation::Filter(_)
        )
    }
}

/// The outcome of an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// GET, and GET-and-touch: the value.
    Found {
        /// The value's version.
        version: Version,
        /// When the value expires.
        expires_at_ms: Option<u64>,
        /// The value's bytes.
        value: &'a [u8],
    },
    /// GET, and operations that need a value to compute on: there is no value.
    Absent,
    /// CONTAINS: whether there is a value.
    Contained(bool),
    /// A PUT of any kind, an APPEND or a TOUCH was done: the version of the new value.
    Stored(Version),
    /// The condition did not hold, or there is no value to touch: the version of the present value,
    /// if there is one.
    Refused(Option<Version>),
    /// DELETE: whether there was a value, or one of the expected version.
    Deleted(bool),
    /// FETCH_ADD, or an update of one element: the number before, in the low bits of a word. A
    /// reduction: its result.
    Scalar(u64),
    /// An update of a vector that does not return the vector: the number of elements.
    Updated(u64),
    /// The elements before the update, or the elements that a filter kept.
    Vector(&'a [u8]),
}

impl Outcome<'_> {
    /// The outcome of a PUT or an APPEND: the version of the new value.
    ///
    /// # Errors
    /// [`EngineError::Damaged`] if this is the outcome of another operation. The methods below do
    /// the same.
    pub fn stored(self) -> Result<Version, EngineError> {
        match self {
            Outcome::Stored(version) => Ok(version),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of a conditional PUT, or of a TOUCH.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn conditional(self) -> Result<Conditional, EngineError> {
        match self {
            Outcome::Stored(version) => Ok(Conditional::Done(version)),
            Outcome::Refused(version) => Ok(Conditional::Refused(version)),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of a DELETE: whether there was such a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn deleted(self) -> Result<bool, EngineError> {
        match self {
            Outcome::Deleted(was) => Ok(was),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of a FETCH_ADD: the number before.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn scalar(self) -> Result<u64, EngineError> {
        match self {
            Outcome::Scalar(number) => Ok(number),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of a CONTAINS: whether there is a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn contained(self) -> Result<bool, EngineError> {
        match self {
            Outcome::Contained(is) => Ok(is),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of an update of a vector that is not returned: the number of elements; `None`
    /// without a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn updated(self) -> Result<Option<u64>, EngineError> {
        match self {
            Outcome::Updated(elements) => Ok(Some(elements)),
            Outcome::Absent => Ok(None),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of a reduction; `None` without a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn reduced(self) -> Result<Option<u64>, EngineError> {
        if self == Outcome::Absent { Ok(None) } else { self.scalar().map(Some) }
    }

    /// The outcome of an operation that brings no value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn without_value(self) -> Result<Outcome<'static>, EngineError> {
        match self {
            Outcome::Found { .. } | Outcome::Vector(_) => Err(self.of_another_operation()),
            other => Ok(other.with_bytes(&[])),
        }
    }

    /// The bytes that the outcome carries.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Outcome::Found { value, .. } | Outcome::Vector(value) => value,
            _ => &[],
        }
    }

    /// The same outcome with other bytes, if it has any.
    pub(crate) fn with_bytes<'b>(self, bytes: &'b [u8]) -> Outcome<'b> {
        match self {
            Outcome::Found { version, expires_at_ms, .. } => {
                Outcome::Found { version, expires_at_ms, value: bytes }
            }
            Outcome::Vector(_) => Outcome::Vector(bytes),
            Outcome::Absent => Outcome::Absent,
            Outcome::Contained(is) => Outcome::Contained(is),
            Outcome::Stored(version) => Outcome::Stored(version),
            Outcome::Refused(version) => Outcome::Refused(version),
            Outcome::Deleted(was) => Outcome::Deleted(was),
            Outcome::Scalar(number) => Outcome::Scalar(number),
            Outcome::Updated(elements) => Outcome::Updated(elements),
        }
    }

    #[cold]
    pub(crate) fn of_another_operation(&self) -> EngineError {
        let what = match self {
            Outcome::Found { .. } => "a value",
            Outcome::Absent => "the absence of one",
            Outcome::Contained(_) => "whether there is a value",
            Outcome::Stored(_) | Outcome::Refused(_) => "what became of a PUT",
            Outcome::Deleted(_) => "what became of a DELETE",
            Outcome::Scalar(_) | Outcome::Updated(_) => "a number",
            Outcome::Vector(_) => "elements",
        };
        EngineError::Damaged { what: format!("a worker told {what} when asked for something else") }
    }
}

impl From<Conditional> for Outcome<'static> {
    fn from(conditional: Conditional) -> Self {
        match conditional {
            Conditional::Done(version) => Self::Stored(version),
            Conditional::Refused(version) => Self::Refused(version),
        }
    }
}

/// Operations of one kind on many keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch<'a> {
    /// GETs of these keys.
    Get(&'a [&'a [u8]]),
    /// Whether these keys have values.
    Contains(&'a [&'a [u8]]),
    /// PUTs of these keys and values, without options.
    Put(&'a [(&'a [u8], &'a [u8])]),
    /// DELETEs of these keys.
    Delete(&'a [&'a [u8]]),
}

impl<'a> Batch<'a> {
    /// The number of operations.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Batch::Get(keys) | Batch::Contains(keys) | Batch::Delete(keys) => keys.len(),
            Batch::Put(pairs) => pairs.len(),
        }
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the operations change nothing.
    pub fn is_read(&self) -> bool {
        matches!(self, Batch::Get(_) | Batch::Contains(_))
    }

    /// An operation, with its key.
    ///
    /// # Panics
    /// If there is no operation of this number.
    #[inline]
    pub fn operation(&self, number: usize) -> (&'a [u8], Operation<'a>) {
        match self {
            Batch::Get(keys) => (keys[number], Operation::Get),
            Batch::Contains(keys) => (keys[number], Operation::Contains),
            Batch::Put(pairs) => {
                let (key, value) = pairs[number];
                (key, Operation::Put { value, options: PutOptions::default() })
            }
            Batch::Delete(keys) => (keys[number], Operation::Delete { of: None }),
        }
    }
}

/// Some operations of a batch.
#[derive(Debug)]
pub enum SomeOf<'a> {
    /// GETs, CONTAINS or DELETEs of these keys: the kind of the batch.
    Keys(Batch<'a>, Vec<&'a [u8]>),
    /// PUTs.
    Pairs(Vec<(&'a [u8], &'a [u8])>),
}

impl<'a> SomeOf<'a> {
    /// The operations of these numbers.
    ///
    /// # Panics
    /// If there is no operation of one of them.
    pub fn new(batch: Batch<'a>, numbers: &[usize]) -> Self {
        match batch {
            Batch::Put(pairs) => Self::Pairs(numbers.iter().map(|at| pairs[*at]).collect()),
            Batch::Get(keys) | Batch::Contains(keys) | Batch::Delete(keys) => {
                Self::Keys(batch, numbers.iter().map(|at| keys[*at]).collect())
            }
        }
    }

    /// The operations, as a batch.
    pub fn batch(&self) -> Batch<'_> {
        match self {
            Self::Pairs(pairs) => Batch::Put(pairs),
            Self::Keys(Batch::Contains(_), keys) => Batch::Contains(keys),
            Self::Keys(Batch::Delete(_), keys) => Batch::Delete(keys),
            Self::Keys(_, keys) => Batch::Get(keys),
        }
    }
}

/// The outcome of an operation, with the buffer that holds the bytes of its value.
#[derive(Debug)]
pub struct Done {
    /// The outcome, without its bytes.
    outcome: Outcome<'static>,
    buf: Buf,
    at: Range<usize>,
}

impl Done {
    /// An outcome whose bytes, if it has any, are the bytes `at` of `buf`.
    #[inline]
    pub(crate) fn new(outcome: Outcome<'_>, buf: Buf, at: Range<usize>) -> Self {
        Self { outcome: outcome.with_bytes(&[]), buf, at }
    }

    /// An outcome without bytes. The buffer that the operation was given is the caller's again.
    #[inline]
    pub fn without_bytes(outcome: Outcome<'static>, buf: Buf) -> Self {
        Self { outcome, buf, at: 0..0 }
    }

    /// The outcome.
    #[inline]
    pub fn outcome(&self) -> Outcome<'_> {
        self.outcome.with_bytes(&self.buf[self.at.clone()])
    }

    /// The outcome of an operation that returns a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    #[inline]
    pub fn into_found(self) -> Result<Option<Value>, EngineError> {
        match self.outcome {
            Outcome::Found { version, expires_at_ms, .. } => {
                Ok(Some(Value::new(self.buf, self.at, version, expires_at_ms)))
            }
            Outcome::Absent => Ok(None),
            other => Err(other.of_another_operation()),
        }
    }

    /// The outcome of an operation that returns elements; `None` without a value.
    ///
    /// # Errors
    /// As [`Outcome::stored`].
    pub fn into_vector(self) -> Result<Option<Value>, EngineError> {
        match self.outcome {
            Outcome::Vector(_) => Ok(Some(Value::new(self.buf, self.at, Version::default(), None))),
            Outcome::Absent => Ok(None),
            other => Err(other.of_another_operation()),
        }
    }

    /// The buffer, for another operation.
    pub fn into_buf(self) -> Buf {
        self.buf
    }
}

impl From<Option<Value>> for Done {
    /// The outcome of an operation that returns a value.
    #[inline]
    fn from(found: Option<Value>) -> Self {
        match found {
            Some(value) => {
                let outcome = Outcome::from(ValueRef::from(&value)).with_bytes(&[]);
                let (buf, at) = value.into_parts();
                Self { outcome, buf, at }
            }
            None => Self::without_bytes(Outcome::Absent, Buf::new()),
        }
    }
}
