//! Reading the operations of a packet, which may come from any writer.

use super::format::{Given, HEAD_BYTES, SAME_SIZES, SAME_VALUE, Shape};
use super::operation::{GET_AS_BEFORE, KNOWN, LAMBDA, LENGTH, PARTS, Packed, WORD};
use super::{CODE, EXTRA, Malformed, skip, take, take_length};
use crate::functions::{Builtin, Element, Function};
use crate::limits::{KEY_BYTES_MAX, PACKET_OPS_MAX};

/// A position in the reading of a packet. It does not borrow the packet. The caller must pass the
/// same packet every time: another packet is read as if it were hostile.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: u32,
    left: u16,
    given: Given,
}

impl Cursor {
    /// The position before the first operation.
    ///
    /// # Errors
    /// If there is no operation, or more than [`PACKET_OPS_MAX`]: the number of expected
    /// replies is then unknown, and there is no reply.
    pub fn new(packet: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed { at: 0 };
        let left = u16::from_le_bytes(take(packet, &mut 0).ok_or(malformed)?);
        let fits = (1..=PACKET_OPS_MAX).contains(&usize::from(left));
        if !fits || u32::try_from(packet.len()).is_err() {
            return Err(malformed);
        }
        Ok(Self { at: HEAD_BYTES as u32, left, given: Given::NOTHING })
    }

    /// The operations from here on, one after the other.
    pub fn all(mut self, packet: &[u8]) -> impl Iterator<Item = Result<Packed, Malformed>> {
        std::iter::from_fn(move || self.next(packet))
    }

    /// The number of operations that are left, malformed ones included.
    #[inline]
    pub fn left(&self) -> usize {
        usize::from(self.left)
    }

    /// The next operation. After a malformed operation all are malformed.
    #[inline(always)]
    pub fn next(&mut self, packet: &[u8]) -> Option<Result<Packed, Malformed>> {
        self.left = self.left.checked_sub(1)?;
        // The usual operation: a GET of a key that is as long as the one before.
        let (at, key_len) = (self.at as usize, self.given.key_len);
        let end = at + 1 + key_len as usize;
        let ends_well = if self.left > 0 { end <= packet.len() } else { end == packet.len() };
        if key_len > 0 && ends_well && packet[at] == GET_AS_BEFORE {
            self.at = end as u32;
            let key_at = at as u32 + 1;
            let (value_at, value_len, first, shape) = (0, 0, GET_AS_BEFORE, NONE);
            return Some(Ok(Packed { key_at, key_len, value_at, value_len, first, shape }));
        }
        Some(self.next_of_any(packet, at))
    }

    #[inline(never)]
    fn next_of_any(&mut self, packet: &[u8], mut at: usize) -> Result<Packed, Malformed> {
        match self.decode(packet, &mut at) {
            Some(packed) if self.left > 0 || at == packet.len() => {
                self.at = at as u32;
                Ok(packed)
            }
            _ => {
                let malformed = Malformed { at: self.at };
                // Nothing is left, so that no byte is read as an operation.
                self.at = packet.len() as u32;
                Err(malformed)
            }
        }
    }

    #[inline]
    fn decode(&mut self, packet: &[u8], at: &mut usize) -> Option<Packed> {
        let [first] = take(packet, at)?;
        let parts = PARTS[usize::from(first & CODE)];
        if first & !CODE & !parts != 0 || parts & KNOWN == 0 {
            return None;
        }
        if first & SAME_SIZES == 0 {
            self.sizes(packet, at, first, parts)?;
        } else if self.given.key_len == 0 {
            return None;
        }
        let key_len = self.given.key_len;
        let key_at = skip(packet, at, key_len as usize)?;
        let mut packed = Packed { key_at, key_len, value_at: 0, value_len: 0, first, shape: NONE };
        if parts & (SAME_VALUE | EXTRA | WORD) != 0 {
            self.value(packet, at, parts, &mut packed)?;
        }
        Some(packed)
    }

    /// Reads the sizes of an operation that has its own.
    fn sizes(&mut self, packet: &[u8], at: &mut usize, first: u8, parts: u8) -> Option<()> {
        let key_less_one = take_length(packet, at)?;
        if key_less_one as usize >= KEY_BYTES_MAX {
            return None;
        }
        self.given.key_len = key_less_one + 1;
        if parts & LENGTH != 0 && first & SAME_VALUE == 0 {
            self.given.value_len = take_length(packet, at)?;
        }
        if parts & LAMBDA != 0 {
            self.given.shape = Some(Shape::take(packet, at)?);
        }
        Some(())
    }

    /// Reads the fields after the key of an operation that can have some.
    #[inline]
    fn value(
        &mut self,
        packet: &[u8],
        at: &mut usize,
        parts: u8,
        packed: &mut Packed,
    ) -> Option<()> {
        let is_put = parts & LAMBDA == 0;
        let words = u8::from(parts & WORD != 0) + u8::from(is_put && packed.first & EXTRA != 0);
        skip(packet, at, usize::from(words) * 8)?;
        if parts & SAME_VALUE == 0 {
            return Some(());
        }
        let is_same = packed.first & SAME_VALUE != 0;
        if !is_put {
            packed.shape = self.given.shape?;
            let element = packed.shape.element.bytes();
            let second = packed.shape.second_len();
            if parts & LENGTH != 0 {
                // The second operand is a part of the value.
                (self.given.value_len as usize >= second).then_some(())?;
            } else if is_same {
                (self.given.value_len as usize == element + second).then_some(())?;
            } else {
                self.given.value_len = (element + second) as u32;
            }
        }
        if !is_same {
            self.given.value_at = skip(packet, at, self.given.value_len as usize)?;
        }
        packed.value_at = self.given.value_at;
        packed.value_len = self.given.value_len;
        Some(())
    }
}

/// The shape of an operation that has none.
const NONE: Shape = Shape { function: Function::Builtin(Builtin::Add), element: Element::U8 };
