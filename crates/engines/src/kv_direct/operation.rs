//! What can be asked of a processor, and what it answers (kv-direct §3.2, Table 1).

use crate::operation::{Expect, Operation, PutOptions};

pub use crate::functions::Element;
use crate::functions::FunctionFailure;

/// A function that is built in. `v` is an element of the value, `d` the operand that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Builtin {
    /// `v + d`, wrapping.
    Add = 0,
    /// `v + d`, or the nearest number that there is.
    SaturatingAdd = 1,
    /// `v - d`, wrapping.
    Subtract = 2,
    /// `v - d`, or the nearest number that there is.
    SaturatingSubtract = 3,
    /// The greater one.
    Max = 4,
    /// The lesser one.
    Min = 5,
    /// Bit by bit; not of floats.
    And = 6,
    /// Bit by bit; not of floats.
    Or = 7,
    /// Bit by bit; not of floats.
    Xor = 8,
    /// `d`.
    Exchange = 9,
    /// `d` if `v` is the second operand, else `v`.
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

/// What is done with each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// One that every processor has.
    Builtin(Builtin),
    /// One that was registered with the table, under this number.
    User(u16),
}

/// What an update, a reduction or a filter computes with. Scalars are the low bits of a word,
/// floats by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lambda {
    /// What is done with each element.
    pub function: Function,
    /// What an element is.
    pub element: Element,
    /// The operand; of a reduction the initial value.
    pub operand: u64,
    /// The second operand, of those functions that have one: what a compare-and-swap expects.
    pub second: u64,
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// The value.
    Get,
    /// Whether there is a value.
    Contains,
    /// To have this value.
    Put {
        /// The value.
        value: &'a [u8],
        /// How.
        options: PutOptions,
    },
    /// To have this value if what there is, is as expected.
    PutIf {
        /// The value.
        value: &'a [u8],
        /// The condition.
        expect: Expect,
        /// How.
        options: PutOptions,
    },
    /// To have these bytes behind those of the value, which expires when it did; without a value
    /// these alone, which do not expire.
    Append(&'a [u8]),
    /// To have no value.
    Delete,
    /// `update_scalar2scalar`: replaces the one element by what the function makes of it; a key
    /// without a value counts as 0.
    Update(Lambda),
    /// `update_scalar2vector`: replaces each element by what the function makes of it and the
    /// operand.
    UpdateAll {
        /// How.
        lambda: Lambda,
        /// Whether the elements as they were are returned.
        returns: bool,
    },
    /// `update_vector2vector`: replaces each element by what the function makes of it and the
    /// operand of the same index.
    UpdateEach {
        /// How; its operand is not used.
        lambda: Lambda,
        /// The operands: as many bytes as the value.
        operands: &'a [u8],
        /// Whether the elements as they were are returned.
        returns: bool,
    },
    /// The function's result of the operand and all elements, one after the other.
    Reduce(Lambda),
    /// The elements of which the function says so, in their order.
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
            Operation::Delete => Self::Delete,
            Operation::FetchAdd(operand) => {
                let function = Function::Builtin(Builtin::Add);
                Self::Update(Lambda { function, element: Element::U64, operand, second: 0 })
            }
        }
    }
}

impl Action<'_> {
    /// The bytes that it brings: a value, or operands.
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

    /// Whether elements are returned, as many as the value has perhaps.
    pub fn returns_vector(&self) -> bool {
        matches!(
            self,
            Action::Filter(_)
                | Action::UpdateAll { returns: true, .. }
                | Action::UpdateEach { returns: true, .. }
        )
    }

    /// Whether it changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self, Action::Get | Action::Contains | Action::Reduce(_) | Action::Filter(_))
    }
}

/// What an [`Action`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// GET: the value.
    Found {
        /// Its version, 0 in a table without.
        version: u64,
        /// When it expires.
        expires_at_ms: Option<u64>,
        /// Its bytes.
        value: &'a [u8],
    },
    /// GET, and whatever needs a vector: there is no value.
    Absent,
    /// CONTAINS: whether there is a value.
    Contained(bool),
    /// A PUT of any kind, or an APPEND, was done: the version of the new value.
    Stored(u64),
    /// The condition did not hold: the version of the value there is, if there is one.
    Refused(Option<u64>),
    /// DELETE: whether there was a value.
    Deleted(bool),
    /// An update of a scalar: what it was. A reduction: its result.
    Scalar(u64),
    /// An update of a vector that does not return it: how many elements.
    Updated(u64),
    /// The elements as they were, or those that were kept.
    Vector(&'a [u8]),
    /// It could not be done, and nothing has changed.
    Failed(Failure),
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The key and value are longer than the table takes.
    TooLong {
        /// Bytes of the value.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// No slab for so many bytes.
    OutOfMemory {
        /// Bytes that were needed.
        bytes: u64,
        /// Bytes of the processor's memory.
        capacity: u64,
    },
    /// The value is not made of such elements, or of so many.
    NotAVector {
        /// Bytes of the value.
        len: u64,
        /// Bytes that an element has, or that the operands have.
        wanted: u64,
    },
    /// No function was registered under this number.
    NoFunction(u16),
    /// The function cannot be applied to such elements, or not by such an operation.
    Unfit,
    /// A registered function trapped, or used up its fuel.
    Trapped(u16),
    /// The table keeps no versions, or not with keys of such a length.
    Unsupported,
    /// It is done, and the packet's reply has no room for the value: ask for it alone.
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
