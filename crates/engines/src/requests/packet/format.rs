//! The parts from which operations are written: flags, functions, and the fields to which flags
//! refer.

use zerocopy::TryFromBytes;

use super::{Sink, take};
use crate::functions::{Builtin, Element, Function, Lambda};

/// Bytes before the first operation.
pub(super) const HEAD_BYTES: usize = 2;
/// The value is the same as the one before.
pub(super) const SAME_VALUE: u8 = 1 << 6;
/// Sizes and function are the same as the ones before.
pub(super) const SAME_SIZES: u8 = 1 << 7;
/// In a shape: the function is a user's.
const IS_USER: u8 = 1 << 7;

/// A function, and the type of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub function: Function,
    pub element: Element,
}

impl Shape {
    pub fn of(lambda: &Lambda) -> Self {
        Self { function: lambda.function, element: lambda.element }
    }

    /// Bytes of the scalars without the first operand.
    pub fn second_len(self) -> usize {
        let has_second = self.function == Function::Builtin(Builtin::CompareSwap);
        if has_second { self.element.bytes() } else { 0 }
    }

    pub fn encoded_len(self) -> usize {
        if matches!(self.function, Function::User(_)) { 3 } else { 2 }
    }

    pub fn push(self, out: &mut impl Sink) {
        let element = self.element as u8;
        match self.function {
            Function::Builtin(builtin) => out.put(&[element, builtin as u8]),
            Function::User(number) => {
                out.put(&[element | IS_USER]);
                out.put(&number.to_le_bytes());
            }
        }
    }

    pub fn take(packet: &[u8], at: &mut usize) -> Option<Self> {
        let [first] = take(packet, at)?;
        let element = Element::try_read_from_bytes(&[first & !IS_USER]).ok()?;
        let function = match first & IS_USER {
            0 => {
                let code: [u8; 1] = take(packet, at)?;
                Function::Builtin(Builtin::try_read_from_bytes(&code).ok()?)
            }
            _ => Function::User(u16::from_le_bytes(take(packet, at)?)),
        };
        Some(Self { function, element })
    }
}

/// The last sizes, value and function that were given. Flags refer to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// 0 before the first key.
    pub key_len: u32,
    pub value_at: u32,
    pub value_len: u32,
    pub shape: Option<Shape>,
}

impl Given {
    pub const NOTHING: Self = Self { key_len: 0, value_at: 0, value_len: 0, shape: None };

    pub fn value(self, packet: &[u8]) -> &[u8] {
        &packet[self.value_at as usize..][..self.value_len as usize]
    }
}
