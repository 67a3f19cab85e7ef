//! Packing operations into a packet.

use super::format::{Given, HEAD_BYTES, SAME_SIZES, SAME_VALUE, Shape};
use loch_fabric::Buf;

use super::operation::{GET_AS_BEFORE, LENGTH, PARTS, Parts};
use super::{EXTRA, Sink, as_length, length_len, push_length};
use crate::limits::{KEY_BYTES_MAX, PACKET_OPS_MAX};
use crate::operation::Operation;

/// Packs operations into a packet.
///
/// ```
/// use loch_engines::operation::Operation;
/// use loch_engines::requests::packet::{Cursor, Writer};
/// let mut packet = Writer::default();
/// packet.push(b"left", &Operation::Get);
/// packet.push(b"hand", &Operation::Get);
/// assert_eq!(packet.bytes(), b"\x02\0\x01\x03left\x81hand");
/// let operations = Cursor::new(packet.bytes()).unwrap().all(packet.bytes());
/// let keys: Vec<_> = operations.map(|op| op.unwrap()).collect();
/// assert_eq!(keys[1].key(packet.bytes()), b"hand");
/// ```
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    count: usize,
    gets: usize,
    /// Bytes of the packet while its message is under way.
    len: usize,
    changes: bool,
    given: Given,
}

impl Default for Writer {
    fn default() -> Self {
        let bytes = vec![0; HEAD_BYTES];
        Self { bytes, count: 0, gets: 0, len: 0, changes: false, given: Given::NOTHING }
    }
}

impl Writer {
    /// Adds an operation. Of a lambda, only the fields that it uses are sent: scalars as long as
    /// the element, the second operand if the function has one, and no operand if there is a vector
    /// of operands.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`] bytes, or the packet has
    /// [`PACKET_OPS_MAX`] operations, or would have 4 GiB.
    #[inline]
    pub fn push(&mut self, key: &[u8], operation: &Operation<'_>) {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "keys are checked on entry");
        assert!(self.count < PACKET_OPS_MAX, "a packet has room");
        self.count += 1;
        self.gets += usize::from(matches!(operation, Operation::Get));
        self.bytes[..HEAD_BYTES].copy_from_slice(&(self.count as u16).to_le_bytes());
        match operation {
            // The usual operation: a GET of a key that is as long as the one before.
            Operation::Get if key.len() == self.given.key_len as usize => {
                self.bytes.push(GET_AS_BEFORE);
                self.bytes.extend_from_slice(key);
            }
            operation => self.push_parts(key, operation),
        }
    }

    /// The packet, as the beginning of its message, until it is [given back](Self::give_back).
    #[inline]
    pub(in crate::requests) fn take(&mut self) -> Buf {
        self.len = self.bytes.len();
        Buf::from(std::mem::take(&mut self.bytes))
    }

    /// Takes the packet back from its message.
    #[inline]
    pub(in crate::requests) fn give_back(&mut self, message: Buf) {
        self.bytes = message.into_vec();
        self.bytes.truncate(self.len);
    }

    fn push_parts(&mut self, key: &[u8], operation: &Operation<'_>) {
        let parts = Parts::of(operation);
        let first = parts.first(key, &self.given, &self.bytes);
        let end = self.bytes.len() + parts.len(first, key);
        assert!(u32::try_from(end).is_ok(), "a packet has less than 4 GiB");
        self.bytes.reserve(end - self.bytes.len());
        parts.put_sizes(first, key, &mut self.bytes);
        if parts.shape.is_some() {
            self.given.shape = parts.shape;
        }
        self.given.key_len = key.len() as u32;
        self.bytes.extend_from_slice(key);
        parts.put_words(first, &mut self.bytes);
        if parts.has(SAME_VALUE) && first & SAME_VALUE == 0 {
            self.given.value_at = (self.bytes.len() - parts.scalars_len) as u32;
            self.given.value_len = parts.value_len() as u32;
            self.bytes.extend_from_slice(parts.bytes);
        }
        debug_assert_eq!(self.bytes.len(), end);
        self.changes |= !operation.is_read();
    }

    /// The bytes that the packet would have with this operation.
    pub fn len_with(&self, key: &[u8], operation: &Operation<'_>) -> usize {
        let parts = Parts::of(operation);
        self.bytes.len() + parts.len(parts.first(key, &self.given, &self.bytes), key)
    }

    /// The packet. Without operations it is not a valid packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of operations.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of GETs.
    pub(in crate::requests) fn gets(&self) -> usize {
        self.gets
    }

    /// Whether no operation changes anything, so that the packet may be executed again.
    pub fn is_read(&self) -> bool {
        !self.changes
    }

    /// Starts another packet, in the same memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        self.count = 0;
        self.gets = 0;
        self.changes = false;
        self.given = Given::NOTHING;
    }
}

/// The most bytes that a packet of one operation has besides key and value.
pub const OPERATION_BYTES: usize = 32;

/// A packet of one operation, in the parts from which its message is written.
#[derive(Clone, Copy, Debug)]
pub struct One<'a> {
    before: Short,
    key: &'a [u8],
    after: Short,
    value: &'a [u8],
    is_read: bool,
}

/// Up to 32 bytes.
#[derive(Clone, Copy, Debug)]
struct Short {
    bytes: [u8; 32],
    len: u8,
}

impl Short {
    const EMPTY: Self = Self { bytes: [0; 32], len: 0 };

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Sink for Short {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl<'a> One<'a> {
    /// A packet of this operation.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`] bytes.
    #[inline]
    pub fn new(key: &'a [u8], operation: Operation<'a>) -> Self {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "keys are checked on entry");
        let parts = Parts::of(&operation);
        let first = parts.first(key, &Given::NOTHING, &[]);
        let (mut before, mut after) = (Short::EMPTY, Short::EMPTY);
        before.put(&[1, 0]);
        parts.put_sizes(first, key, &mut before);
        parts.put_words(first, &mut after);
        let value = if first & SAME_VALUE == 0 { parts.bytes } else { &[] };
        Self { before, key, after, value, is_read: operation.is_read() }
    }

    /// The parts, one after the other.
    #[inline]
    pub(in crate::requests) fn parts(&self) -> [&[u8]; 4] {
        [self.before.bytes(), self.key, self.after.bytes(), self.value]
    }

    /// Bytes of the packet.
    #[inline]
    pub(in crate::requests) fn len(&self) -> usize {
        usize::from(self.before.len + self.after.len) + self.key.len() + self.value.len()
    }

    /// Bytes of the key, and of the value.
    pub(in crate::requests) fn lens(&self) -> [usize; 2] {
        [self.key.len(), self.value.len()]
    }

    /// Whether the operation changes nothing.
    #[inline]
    pub(in crate::requests) fn is_read(&self) -> bool {
        self.is_read
    }
}

impl Parts<'_> {
    /// Writes everything before the key.
    #[inline]
    fn put_sizes(&self, first: u8, key: &[u8], out: &mut impl Sink) {
        out.put(&[first]);
        if first & SAME_SIZES != 0 {
            return;
        }
        push_length(out, as_length(key.len() - 1));
        if first & SAME_VALUE == 0 && self.has(LENGTH) {
            push_length(out, as_length(self.value_len()));
        }
        if let Some(shape) = self.shape {
            shape.push(out);
        }
    }

    /// Writes everything between the key and the bytes of the value.
    #[inline]
    fn put_words(&self, first: u8, out: &mut impl Sink) {
        for word in [self.word, self.expires_at_ms].into_iter().flatten() {
            out.put(&word.to_le_bytes());
        }
        if first & SAME_VALUE == 0 {
            out.put(self.scalars());
        }
    }

    fn scalars(&self) -> &[u8] {
        &self.scalars[..self.scalars_len]
    }

    fn value_len(&self) -> usize {
        self.scalars_len + self.bytes.len()
    }

    /// Whether the value is `other`, which has the same length.
    fn value_is(&self, other: &[u8]) -> bool {
        let (scalars, bytes) = other.split_at(self.scalars_len);
        // Empty scalars are not compared: with the address of an empty slice, a masked vector load,
        // which memcmp may use, takes a hundred nanoseconds.
        (scalars.is_empty() || scalars == self.scalars())
            && (bytes.is_empty() || bytes == self.bytes)
    }

    fn has(&self, part: u8) -> bool {
        PARTS[usize::from(self.code)] & part != 0
    }

    /// The first byte of the operation, after the `given` fields.
    fn first(&self, key: &[u8], given: &Given, packet: &[u8]) -> u8 {
        let mut first = self.code | if self.extra { EXTRA } else { 0 };
        let mut same_sizes = key.len() as u64 == u64::from(given.key_len);
        if self.has(SAME_VALUE) {
            let as_long = self.value_len() as u64 == u64::from(given.value_len);
            if as_long && self.value_is(given.value(packet)) {
                first |= SAME_VALUE;
            }
            same_sizes &= as_long || !self.has(LENGTH);
            same_sizes &= self.shape.is_none() || self.shape == given.shape;
        }
        first | if same_sizes { SAME_SIZES } else { 0 }
    }

    /// Bytes of the operation.
    fn len(&self, first: u8, key: &[u8]) -> usize {
        let mut len = 1 + key.len();
        if first & SAME_SIZES == 0 {
            len += length_len(as_length(key.len() - 1));
            len += self.shape.map_or(0, Shape::encoded_len);
        }
        let words = [self.word, self.expires_at_ms];
        len += 8 * words.iter().flatten().count();
        if first & SAME_VALUE == 0 {
            len += self.value_len();
            if self.has(LENGTH) && first & SAME_SIZES == 0 {
                len += length_len(as_length(self.value_len()));
            }
        }
        len
    }
}
