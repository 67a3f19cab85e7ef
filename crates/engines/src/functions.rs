//! The functions that operations apply to the elements of a value (kv-direct §3.2): those that are
//! built in, and those that users register with a table. The engine that computes on values does
//! not know how the latter run, and a node that has functions does not know the engine.

use zerocopy::TryFromBytes;

use crate::error::EngineError;

/// How the bytes of a value are read as numbers. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the type of its name")]
pub enum Element {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    U64 = 3,
    I8 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    F32 = 10,
    F64 = 11,
}

impl Element {
    /// All element types.
    pub const ALL: [Element; 10] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one element.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << (self as u8 & 3)
    }
}

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

impl Lambda {
    /// The lambda of a FETCH_ADD.
    pub(crate) fn adds(operand: u64) -> Self {
        let function = Function::Builtin(Builtin::Add);
        Self { function, element: Element::U64, operand, second: 0 }
    }
}

/// The operands that go with the elements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands<'a> {
    /// One operand for all elements: the low bits of a word.
    Scalar(u64),
    /// An operand for each element, by index. There are as many operands as elements.
    Each(&'a [u8]),
}

/// Why a function was not applied. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionFailure {
    /// No function was registered under this number.
    Unknown(u16),
    /// The function is of another kind: either for filters only, or for all operations but filters.
    Unfit,
    /// The function trapped, or used up its fuel.
    Trapped(u16),
}

impl From<FunctionFailure> for EngineError {
    fn from(failure: FunctionFailure) -> Self {
        match failure {
            FunctionFailure::Unknown(number) => Self::NoFunction { number },
            FunctionFailure::Unfit => Self::UnfitFunction,
            FunctionFailure::Trapped(number) => Self::FunctionFailed { number },
        }
    }
}

/// The functions that users registered. The default methods answer that the function is not
/// registered.
///
/// The caller has checked that a value is a multiple of the element, and that there are as many
/// operands.
///
/// # Errors
/// All methods: [`FunctionFailure`]. Then `value` must be as it was, and `out` as long as it was.
pub trait UserFunctions {
    /// Replaces each element by the function's result for it and its operand.
    fn update(
        &self,
        number: u16,
        element: Element,
        operands: Operands<'_>,
        value: &mut [u8],
    ) -> Result<(), FunctionFailure> {
        let _ = (element, operands, value);
        Err(FunctionFailure::Unknown(number))
    }

    /// The function's result over `initial` and all elements, one after the other.
    fn reduce(
        &self,
        number: u16,
        element: Element,
        initial: u64,
        value: &[u8],
    ) -> Result<u64, FunctionFailure> {
        let _ = (element, initial, value);
        Err(FunctionFailure::Unknown(number))
    }

    /// Appends to `out` those elements for which the function, with the operand, says yes.
    fn filter(
        &self,
        number: u16,
        element: Element,
        operand: u64,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), FunctionFailure> {
        let _ = (element, operand, value, out);
        Err(FunctionFailure::Unknown(number))
    }
}

/// No function was registered.
impl UserFunctions for () {}
