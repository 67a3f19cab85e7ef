//! The wire format: many operations in one packet (kv-direct §4, "Vector Operation Decoder").
//!
//! A network message has tens of bytes besides its content, and an operation on a small key-value
//! pair has about twenty. So a client packs many operations into one message, and a flag of each
//! operation says what it has in common with the one before. Numbers are little-endian. A *length*
//! is written seven bits to a byte, the lowest first, in as few bytes as it needs; all bytes but
//! the last have their highest bit set.
//!
//! | packet of operations | field |
//! | --- | --- |
//! | 2 | how many operations follow, at least one |
//! | ... | the operations, without gaps |
//!
//! | operation | field |
//! | --- | --- |
//! | 1 | bits 0-4: code; bit 5: `EXTRA`; bit 6: `SAME_VALUE`; bit 7: `SAME_SIZES` |
//! | length | bytes of the key less one; not if `SAME_SIZES` |
//! | length | bytes of the value; only if it has one, of lambdas only of `UPDATE_EACH`; not if `SAME_SIZES` or `SAME_VALUE` |
//! | 2 or 3 | bits 0-3: element, bit 7: whether the function is a user's; then its code (1) or number (2); of lambdas only, not if `SAME_SIZES` |
//! | ... | the key |
//! | 8 | the version that is expected, of `PUT_IF_VERSION`, `TOUCH_IF_VERSION` and `DELETE_IF_VERSION` only; or the number of `FETCH_ADD` |
//! | 8 | the expiry, in milliseconds since the Unix epoch; of PUTs and TOUCHes with `EXTRA` only |
//! | ... | the value, not if `SAME_VALUE` |
//!
//! The codes, and what the value of each operation is, are in `operation.rs`.
//!
//! The scalars are as long as the element: the operand, but of `UPDATE_EACH`, and the second
//! operand of a function that has one. `SAME_SIZES` says that the key, the value and the lambda are
//! as long as the last ones that were given: the key's length that of the operation before, the
//! value's that of the last value before, of whatever operation, and element and function those of
//! the last lambda. `SAME_VALUE` says that the value is the last one before, and as long: of a
//! lambda whose scalars are longer or shorter it cannot be.
//!
//! | packet of replies | field |
//! | --- | --- |
//! | ... | the replies in the order of the operations, without gaps; who asked knows how many |
//!
//! | reply | field |
//! | --- | --- |
//! | 1 | bits 0-4: status; bit 5: `EXPIRES`; bit 6: `SAME_SIZE`; bit 7: zero |
//! | length | bytes of the value; of statuses with a value only, not if `SAME_SIZE` |
//! | ... | its words: version, number, what an error tells |
//! | 8 | the expiry, if `EXPIRES` |
//! | ... | the value |
//!
//! | run | field |
//! | --- | --- |
//! | 1 | bit 7: one; bits 0-6: one less than how many replies follow |
//! | ... | words, expiry and value of each: their first byte and length are those of the reply before |
//!
//! | status | reply | words |
//! | --- | --- | --- |
//! | 1, 2 | found; found, with a version | -; version (8) |
//! | 3 | absent | |
//! | 4, 5 | not contained, contained | |
//! | 6, 7 | stored; stored, with a version | -; version (8) |
//! | 8, 9 | refused: there is no value; there is one | -; version (8) |
//! | 10, 11 | there was nothing to delete; deleted | |
//! | 12 | scalar | 8 |
//! | 13 | updated | number of elements (8) |
//! | 14 | vector, which is the value | |
//! | 16, 17, 18 | too long, out of memory, no vector | two numbers (8, 8) |
//! | 19, 20 | no such function, trapped | its number (2) |
//! | 21, 22, 23, 24, 25 | unfit, unsupported, malformed, damaged, no room | |
//! | 26 | the index is full | two numbers (8, 8) |
//! | 27, 28 | the time is up, no counter | 8 |
//! | 29, 30, 31 | no versions, ambiguous, unreachable | |
//!
//! # Invariants
//! 1. Decoding neither panics nor reads beyond the bytes nor takes memory, whatever they are. It
//!    ends after as many operations as the packet says, at most [`PACKET_OPS_MAX`].
//! 2. An operation that cannot be read ends the packet there. The operations before it are
//!    executed. It and all operations that should follow are [`Malformed`], each of them, so that
//!    there are as many replies as the packet says. Bytes after the last operation make that
//!    operation malformed.
//! 3. A packet may claim more operations than its bytes hold: the missing ones only cost a count.
//!
//! [`PACKET_OPS_MAX`]: crate::limits::PACKET_OPS_MAX

mod cursor;
mod failure;
mod format;
mod operation;
mod outcome;
#[cfg(test)]
mod tests;
mod writer;

pub use cursor::Cursor;
pub use failure::Failure;
pub(crate) use failure::strange_outcomes;
pub use operation::Packed;
pub use outcome::{Answered, OUTCOME_BYTES, OutcomeWriter, Outcomes};
pub use writer::{OPERATION_BYTES, One, Writer};

use thiserror::Error;

/// Bytes that cannot be read as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the packet cannot be read from its byte {at} on")]
pub struct Malformed {
    /// The offset where reading ended.
    pub at: u32,
}

/// The bit of a reply's or an operation's first byte for `EXTRA` or `EXPIRES`.
const EXTRA: u8 = 1 << 5;
/// The bits of a first byte that hold a code or a status.
const CODE: u8 = EXTRA - 1;

/// The next `N` bytes from `at` on; `at` moves to the end of them.
#[inline(always)]
fn take<const N: usize>(packet: &[u8], at: &mut usize) -> Option<[u8; N]> {
    let bytes = packet.get(*at..)?.first_chunk::<N>()?;
    *at += N;
    Some(*bytes)
}

/// The next `len` bytes, as the offset where they start.
#[inline(always)]
fn skip(packet: &[u8], at: &mut usize, len: usize) -> Option<u32> {
    let start = *at;
    let end = start.checked_add(len)?;
    if end > packet.len() {
        return None;
    }
    *at = end;
    Some(start as u32)
}

/// Reads a length, which must be written in as few bytes as it needs.
#[inline]
fn take_length(packet: &[u8], at: &mut usize) -> Option<u32> {
    let mut length = 0u64;
    for shift in (0..35).step_by(7) {
        let [byte] = take(packet, at)?;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let is_short = byte != 0 || shift == 0;
            return u32::try_from(length).ok().filter(|_| is_short);
        }
    }
    None
}

#[inline]
fn push_length(out: &mut impl Sink, mut length: u32) {
    while length >= 0x80 {
        out.put(&[length as u8 | 0x80]);
        length >>= 7;
    }
    out.put(&[length as u8]);
}

/// Something that bytes are appended to.
trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes of a length.
#[inline]
fn length_len(length: u32) -> usize {
    (32 - (length | 1).leading_zeros()).div_ceil(7) as usize
}

#[inline]
fn as_length(len: usize) -> u32 {
    u32::try_from(len).expect("keys and values are checked on entry")
}
