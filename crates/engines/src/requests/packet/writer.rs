//! Packing operations into a packet.

use super::format::{Given, HEAD_BYTES, SAME_SIZES, SAME_VALUE, Shape};
use super::operation::{GET_AS_BEFORE, LENGTH, PARTS, Parts};
use super::{EXTRA, as_length, length_len, push_length};
use crate::limits::{KEY_BYTES_MAX, KV_DIRECT_PACKET_OPS_MAX};
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
    changes: bool,
    given: Given,
}

impl Default for Writer {
    fn default() -> Self {
        let bytes = vec![0; HEAD_BYTES];
        Self { bytes, count: 0, changes: false, given: Given::NOTHING }
    }
}

impl Writer {
    /// Adds an operation. Of a lambda, only the fields that it uses are sent: scalars as long as
    /// the element, the second operand if the function has one, and no operand if there is a vector
    /// of operands.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`] bytes, or the packet has
    /// [`KV_DIRECT_PACKET_OPS_MAX`] operations, or would have 4 GiB.
    #[inline]
    pub fn push(&mut self, key: &[u8], operation: &Operation<'_>) {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "keys are checked on entry");
        assert!(self.count < KV_DIRECT_PACKET_OPS_MAX, "a packet has room");
        self.count += 1;
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

    fn push_parts(&mut self, key: &[u8], operation: &Operation<'_>) {
        let parts = Parts::of(operation);
        let first = parts.first(key, &self.given, &self.bytes);
        let end = self.bytes.len() + parts.len(first, key);
        assert!(u32::try_from(end).is_ok(), "a packet has less than 4 GiB");
        self.bytes.reserve(end - self.bytes.len());
        self.bytes.push(first);
        let own_sizes = first & SAME_SIZES == 0;
        if own_sizes {
            push_length(&mut self.bytes, as_length(key.len() - 1));
        }
        if own_sizes && first & SAME_VALUE == 0 && parts.has(LENGTH) {
            push_length(&mut self.bytes, as_length(parts.value_len()));
        }
        if let Some(shape) = parts.shape {
            if own_sizes {
                shape.push(&mut self.bytes);
            }
            self.given.shape = Some(shape);
        }
        self.given.key_len = key.len() as u32;
        self.bytes.extend_from_slice(key);
        for word in [parts.word, parts.expires_at_ms].into_iter().flatten() {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        if parts.has(SAME_VALUE) && first & SAME_VALUE == 0 {
            self.given.value_at = self.bytes.len() as u32;
            self.given.value_len = parts.value_len() as u32;
            self.bytes.extend_from_slice(parts.scalars());
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

    /// Whether no operation changes anything, so that the packet may be executed again.
    pub fn is_read(&self) -> bool {
        !self.changes
    }

    /// Starts another packet, in the same memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEAD_BYTES);
        self.count = 0;
        self.changes = false;
        self.given = Given::NOTHING;
    }
}

impl Parts<'_> {
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
