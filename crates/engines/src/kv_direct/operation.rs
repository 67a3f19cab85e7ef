//! The operations of a processor and their results (kv-direct §3.2, Table 1).

use zerocopy::TryFromBytes;

use crate::operation::{Expect, Operation, PutOptions};

pub use crate::functions::Element;
use crate::functions::FunctionFailure;

/// A built-in function. `v` is an element of the value, `d` the operand that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
pub enum Builtin {
    /// `v + d`, wrapping.
    Add = 0,
    /// `v + d`, or the nearest number that the element can hold.
    SaturatingAdd = 1,
    /// `v - d`, wrapping.
    Subtract = 2,
    /// `v - d`, or the nearest number that the element can hold.
    SaturatingSubtract = 3,
    /// The greater of `v` and `d`.
    Max = 4,
    /// The lesser of `v` and `d`.
    Min = 5,
    /// Bit by bit; not of floats.
    And = 6,
    /// Bit by bit; not of floats.
    Or = 7,
    /// Bit by bit; not of floats.
    Xor = 8,
    /// `d`.
    Exchange = 9,
    /// `d` if `v` is the second operand, otherwise `v`.
    CompareSwap = 10,
    /// Filter: whether `v` is `d`.
    Equal = 16,
    /// Filter: whether `v` is not `d`.
    NotEqual = 17,
    /// Filter: whether `v` is less than `d`.
    Less = 18,
    /// Filter: whether `v` is greater than `d`.
    Greater = 19,
}

/// The function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// A function that every processor has.
    Builtin(Builtin),
    /// A function that was registered with the table, under this number.
    User(u16),
}

/// The function and the operands of an update, a reduction or a filter. Scalars are the low bits of
/// a word, floats by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lambda {
    /// The function that is applied to each element.
    pub function: Function,
    /// The type of an element.
    pub element: Element,
    /// The operand; for a reduction, the initial value.
    pub operand: u64,
    /// The second operand, for functions that have one: the value that a compare-and-swap expects.
    pub second: u64,
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
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
    /// Appends these bytes to the value, which still expires when it did. A key without a value
    /// gets these bytes as a value that does not expire.
    Append(&'a [u8]),
    /// Gives the present value another expiry. The value keeps its bytes and gets a new version. A
    /// key without a value still has none.
    Touch {
        /// The version that the value must have, if it must have a certain one.
        of: Option<u64>,
        /// The new expiry.
        options: PutOptions,
    },
    /// Gives the present value another expiry, and returns the value.
    GetAndTouch(PutOptions),
    /// Deletes the value.
    Delete {
        /// The version that the value must have, if it must have a certain one.
        of: Option<u64>,
    },
    /// `update_scalar2scalar`: replaces the one element by the function's result for it; a key
    /// without a value counts as 0.
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

impl<'a> From<Operation<'a>> for Action<'a> {
    fn from(operation: Operation<'a>) -> Self {
        match operation {
            Operation::Get => Self::Get,
            Operation::Contains => Self::Contains,
            Operation::Put { value, options } => Self::Put { value, options },
            Operation::PutIf { value, expect, options } => Self::PutIf { value, expect, options },
            Operation::Append(bytes) => Self::Append(bytes),
            Operation::Touch { of, options } => Self::Touch { of, options },
            Operation::Delete { of } => Self::Delete { of },
            Operation::FetchAdd(operand) => {
                let function = Function::Builtin(Builtin::Add);
                Self::Update(Lambda { function, element: Element::U64, operand, second: 0 })
            }
        }
    }
}

impl Action<'_> {
    /// The bytes that the action carries: a value, or operands.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Action::Put { value, .. } | Action::PutIf { value, .. } | Action::Append(value) => {
                value
            }
            Action::UpdateEach { operands, .. } => operands,
            _ => &[],
        }
    }

    /// Whether an action other than a GET returns elements or a value, perhaps all of it.
    pub fn returns_vector(&self) -> bool {
        matches!(
            self,
            Action::Filter(_)
                | Action::GetAndTouch(_)
                | Action::UpdateAll { returns: true, .. }
                | Action::UpdateEach { returns: true, .. }
        )
    }

    /// Whether the action changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self, Action::Get | Action::Contains | Action::Reduce(_) | Action::Filter(_))
    }
}

/// The outcome of an [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// GET, and GET-and-touch: the value.
    Found {
        /// The value's version; 0 in a table without versions.
        version: u64,
        /// When the value expires.
        expires_at_ms: Option<u64>,
        /// The value's bytes.
        value: &'a [u8],
    },
    /// GET, and actions that need a vector: there is no value.
    Absent,
    /// CONTAINS: whether there is a value.
    Contained(bool),
    /// A PUT of any kind, an APPEND or a TOUCH was done: the version of the new value.
    Stored(u64),
    /// The condition did not hold, or there is no value to touch: the version of the present value,
    /// if there is one.
    Refused(Option<u64>),
    /// DELETE: whether there was a value.
    Deleted(bool),
    /// An update of a scalar: the element before. A reduction: its result.
    Scalar(u64),
    /// An update of a vector that does not return the vector: the number of elements.
    Updated(u64),
    /// The elements before the update, or the elements that a filter kept.
    Vector(&'a [u8]),
    /// The action was not done, and nothing has changed.
    Failed(Failure),
}

/// The reasons why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The key and value are longer than the table takes.
    TooLong {
        /// Bytes of the value.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// There is no slab for this many bytes.
    OutOfMemory {
        /// Bytes that were needed.
        bytes: u64,
        /// Bytes of the processor's memory.
        capacity: u64,
    },
    /// The value is not made of such elements, or has another number of them.
    NotAVector {
        /// Bytes of the value.
        len: u64,
        /// Bytes of an element, or of the operands.
        wanted: u64,
    },
    /// No function was registered under this number.
    NoFunction(u16),
    /// The function cannot be applied to such elements, or by such an operation.
    Unfit,
    /// A registered function trapped, or used up its fuel.
    Trapped(u16),
    /// The table keeps no versions, or takes no keys of this length.
    Unsupported,
    /// The operation is done, but the packet's reply has no room for the value: ask for it alone.
    NoRoom,
    /// The packet could not be read from here on.
    Malformed,
    /// The processor's memory contradicts itself.
    Damaged,
}

impl From<FunctionFailure> for Failure {
    fn from(failure: FunctionFailure) -> Self {
        match failure {
            FunctionFailure::Unknown(number) => Self::NoFunction(number),
            FunctionFailure::Unfit => Self::Unfit,
            FunctionFailure::Trapped(number) => Self::Trapped(number),
        }
    }
}
