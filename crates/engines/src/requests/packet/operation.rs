//! The code of each operation, and the fields that go with it: the part of the format that concerns
//! a single operation.
//!
//! | code | operation | its value |
//! | --- | --- | --- |
//! | 1 | GET | |
//! | 2 | CONTAINS | |
//! | 3, 4, 5 | PUT, `PUT_IF_ABSENT`, `PUT_IF_VERSION` | the value |
//! | 6 | DELETE | |
//! | 7 | UPDATE, a lambda | the scalars |
//! | 8 | `UPDATE_ALL`, a lambda; `EXTRA`: returns the vector | the scalars |
//! | 9 | `UPDATE_EACH`, a lambda; `EXTRA`: returns the vector | the scalars, the operands |
//! | 10 | REDUCE, a lambda | the scalars |
//! | 11 | FILTER, a lambda | the scalars |
//! | 12 | APPEND | what is appended |
//! | 13, 14, 15 | TOUCH, `TOUCH_IF_VERSION`, `GET_AND_TOUCH` | |
//! | 16 | `DELETE_IF_VERSION` | |
//! | 17 | `FETCH_ADD` | |

use super::format::{SAME_SIZES, SAME_VALUE, Shape};
use super::{CODE, EXTRA};
use crate::functions::Lambda;
use crate::operation::{Expect, Operation, PutOptions, Version};

mod code {
    pub const GET: u8 = 1;
    pub const CONTAINS: u8 = 2;
    pub const PUT: u8 = 3;
    pub const PUT_IF_ABSENT: u8 = 4;
    pub const PUT_IF_VERSION: u8 = 5;
    pub const DELETE: u8 = 6;
    pub const UPDATE: u8 = 7;
    pub const UPDATE_ALL: u8 = 8;
    pub const UPDATE_EACH: u8 = 9;
    pub const REDUCE: u8 = 10;
    pub const FILTER: u8 = 11;
    pub const APPEND: u8 = 12;
    pub const TOUCH: u8 = 13;
    pub const TOUCH_IF_VERSION: u8 = 14;
    pub const GET_AND_TOUCH: u8 = 15;
    pub const DELETE_IF_VERSION: u8 = 16;
    pub const FETCH_ADD: u8 = 17;
}

/// The first byte of a GET whose key is as long as the key before.
pub(super) const GET_AS_BEFORE: u8 = code::GET | SAME_SIZES;

/// The fields that an operation of a code has, besides its possible flags. 0: there is no such
/// code.
pub(super) const KNOWN: u8 = 1;
/// A value whose length is written.
pub(super) const LENGTH: u8 = 2;
/// A function, and scalars.
pub(super) const LAMBDA: u8 = 4;
/// A word: an expected version, or a number.
pub(super) const WORD: u8 = 8;

pub(super) const PARTS: [u8; CODE as usize + 1] = {
    let mut parts = [0; CODE as usize + 1];
    let bare = KNOWN | SAME_SIZES;
    let put = bare | LENGTH | EXTRA | SAME_VALUE;
    let lambda = bare | LAMBDA | SAME_VALUE;
    parts[code::GET as usize] = bare;
    parts[code::CONTAINS as usize] = bare;
    parts[code::PUT as usize] = put;
    parts[code::PUT_IF_ABSENT as usize] = put;
    parts[code::PUT_IF_VERSION as usize] = put | WORD;
    parts[code::DELETE as usize] = bare;
    parts[code::UPDATE as usize] = lambda;
    parts[code::UPDATE_ALL as usize] = lambda | EXTRA;
    parts[code::UPDATE_EACH as usize] = lambda | EXTRA | LENGTH;
    parts[code::REDUCE as usize] = lambda;
    parts[code::FILTER as usize] = lambda;
    parts[code::APPEND as usize] = bare | LENGTH | SAME_VALUE;
    parts[code::TOUCH as usize] = bare | EXTRA;
    parts[code::TOUCH_IF_VERSION as usize] = bare | EXTRA | WORD;
    parts[code::GET_AND_TOUCH as usize] = bare | EXTRA;
    parts[code::DELETE_IF_VERSION as usize] = bare | WORD;
    parts[code::FETCH_ADD as usize] = bare | WORD;
    parts
};

/// An operation divided into its written parts.
pub(super) struct Parts<'a> {
    pub code: u8,
    pub extra: bool,
    pub shape: Option<Shape>,
    pub word: Option<u64>,
    pub expires_at_ms: Option<u64>,
    /// The scalars one after the other, with as many bytes as `scalars_len` says.
    pub scalars: [u8; 16],
    pub scalars_len: usize,
    /// The bytes after the scalars.
    pub bytes: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The written parts of an operation.
    pub fn of(operation: &Operation<'a>) -> Self {
        match operation {
            Operation::Get => Self::new(code::GET),
            Operation::Contains => Self::new(code::CONTAINS),
            Operation::Put { value, options } => Self::put(code::PUT, value, options),
            Operation::PutIf { value, expect: Expect::Absent, options } => {
                Self::put(code::PUT_IF_ABSENT, value, options)
            }
            Operation::PutIf { value, expect: Expect::Version(version), options } => {
                let put = Self::put(code::PUT_IF_VERSION, value, options);
                Self { word: Some(version.as_u64()), ..put }
            }
            Operation::Append(bytes) => Self { bytes, ..Self::new(code::APPEND) },
            Operation::Touch { of: None, options } => Self::put(code::TOUCH, &[], options),
            Operation::Touch { of: Some(version), options } => Self {
                word: Some(version.as_u64()),
                ..Self::put(code::TOUCH_IF_VERSION, &[], options)
            },
            Operation::GetAndTouch(options) => Self::put(code::GET_AND_TOUCH, &[], options),
            Operation::Delete { of: None } => Self::new(code::DELETE),
            Operation::Delete { of: Some(version) } => {
                Self { word: Some(version.as_u64()), ..Self::new(code::DELETE_IF_VERSION) }
            }
            Operation::FetchAdd(add) => Self { word: Some(*add), ..Self::new(code::FETCH_ADD) },
            Operation::Update(lambda) => Self::lambda(code::UPDATE, lambda),
            Operation::UpdateAll { lambda, returns } => {
                Self { extra: *returns, ..Self::lambda(code::UPDATE_ALL, lambda) }
            }
            Operation::UpdateEach { lambda, operands, returns } => {
                let each = Self::lambda(code::UPDATE_EACH, lambda);
                Self { extra: *returns, bytes: operands, ..each }
            }
            Operation::Reduce(lambda) => Self::lambda(code::REDUCE, lambda),
            Operation::Filter(lambda) => Self::lambda(code::FILTER, lambda),
        }
    }

    fn new(code: u8) -> Self {
        Self {
            code,
            extra: false,
            shape: None,
            word: None,
            expires_at_ms: None,
            scalars: [0; 16],
            scalars_len: 0,
            bytes: &[],
        }
    }

    fn put(code: u8, bytes: &'a [u8], options: &PutOptions) -> Self {
        let expires_at_ms = options.expires_at_ms;
        Self { extra: expires_at_ms.is_some(), expires_at_ms, bytes, ..Self::new(code) }
    }

    fn lambda(code: u8, lambda: &Lambda) -> Self {
        let shape = Shape::of(lambda);
        let (len, second_len) = (shape.element.bytes(), shape.second_len());
        let bits = |scalar: u64, len: usize| u128::from(scalar) & ((1u128 << (8 * len)) - 1);
        // One after the other, as one number.
        let second = bits(lambda.second, second_len);
        let (scalars, scalars_len) = match code {
            code::UPDATE_EACH => (second, second_len),
            _ => (bits(lambda.operand, len) | second << (8 * len), len + second_len),
        };
        let scalars = scalars.to_le_bytes();
        Self { shape: Some(shape), scalars, scalars_len, ..Self::new(code) }
    }
}

/// An operation of a packet, as the offsets of its parts, so that it does not borrow the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    pub(super) key_at: u32,
    pub(super) key_len: u32,
    pub(super) value_at: u32,
    pub(super) value_len: u32,
    pub(super) first: u8,
    pub(super) shape: Shape,
}

impl Packed {
    /// The key.
    ///
    /// # Panics
    /// If `packet` is shorter than the one from which this was read. [`operation`](Self::operation)
    /// panics likewise.
    #[inline(always)]
    pub fn key<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[self.key_at as usize..][..self.key_len as usize]
    }

    /// Whether the operation changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self.code(), code::GET | code::CONTAINS | code::REDUCE | code::FILTER)
    }

    /// Whether the operation and another one are of the same kind, of those that are done together:
    /// GETs, and PUTs without options.
    #[inline]
    pub(crate) fn is_batchable_with(&self, other: &Self) -> bool {
        let is_plain_put = self.is_put() && self.first & EXTRA == 0;
        let is_same = self.code() == other.code() && other.first & EXTRA == 0;
        (self.is_get() || is_plain_put) && is_same
    }

    /// Whether the operation is a PUT without a condition.
    #[inline]
    pub fn is_put(&self) -> bool {
        self.code() == code::PUT
    }

    /// Whether the operation is a GET.
    #[inline]
    pub fn is_get(&self) -> bool {
        self.code() == code::GET
    }

    /// The operation. Scalars are zero above their element.
    #[inline(always)]
    pub fn operation<'a>(&self, packet: &'a [u8]) -> Operation<'a> {
        let extra = self.first & EXTRA != 0;
        match self.code() {
            code::CONTAINS => Operation::Contains,
            code::PUT => {
                Operation::Put { value: self.value(packet), options: self.options(packet, 0) }
            }
            code::PUT_IF_ABSENT => Operation::PutIf {
                value: self.value(packet),
                expect: Expect::Absent,
                options: self.options(packet, 0),
            },
            code::PUT_IF_VERSION => Operation::PutIf {
                value: self.value(packet),
                expect: Expect::Version(self.version(packet)),
                options: self.options(packet, 1),
            },
            code::APPEND => Operation::Append(self.value(packet)),
            code::TOUCH => Operation::Touch { of: None, options: self.options(packet, 0) },
            code::TOUCH_IF_VERSION => Operation::Touch {
                of: Some(self.version(packet)),
                options: self.options(packet, 1),
            },
            code::GET_AND_TOUCH => Operation::GetAndTouch(self.options(packet, 0)),
            code::DELETE => Operation::Delete { of: None },
            code::DELETE_IF_VERSION => Operation::Delete { of: Some(self.version(packet)) },
            code::FETCH_ADD => Operation::FetchAdd(self.word(packet, 0)),
            code::UPDATE => Operation::Update(self.lambda(packet)),
            code::UPDATE_ALL => {
                Operation::UpdateAll { lambda: self.lambda(packet), returns: extra }
            }
            code::UPDATE_EACH => {
                let (second, operands) = self.value(packet).split_at(self.shape.second_len());
                let lambda = self.lambda_of(0, scalar(second));
                Operation::UpdateEach { lambda, operands, returns: extra }
            }
            code::REDUCE => Operation::Reduce(self.lambda(packet)),
            code::FILTER => Operation::Filter(self.lambda(packet)),
            _ => Operation::Get,
        }
    }

    #[inline]
    fn code(&self) -> u8 {
        self.first & CODE
    }

    #[inline]
    fn value<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[self.value_at as usize..][..self.value_len as usize]
    }

    /// A word after the key.
    #[inline]
    fn word(&self, packet: &[u8], index: usize) -> u64 {
        let at = self.key_at as usize + self.key_len as usize + index * 8;
        scalar(&packet[at..at + 8])
    }

    #[inline]
    fn version(&self, packet: &[u8]) -> Version {
        Version::from_u64(self.word(packet, 0))
    }

    #[inline]
    fn options(&self, packet: &[u8], index: usize) -> PutOptions {
        let expires = self.first & EXTRA != 0;
        PutOptions { expires_at_ms: expires.then(|| self.word(packet, index)) }
    }

    #[inline]
    fn lambda(&self, packet: &[u8]) -> Lambda {
        let (operand, second) = self.value(packet).split_at(self.shape.element.bytes());
        self.lambda_of(scalar(operand), scalar(second))
    }

    #[inline]
    fn lambda_of(&self, operand: u64, second: u64) -> Lambda {
        let Shape { function, element } = self.shape;
        Lambda { function, element, operand, second }
    }
}

/// Up to eight bytes as a number.
#[inline]
fn scalar(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
