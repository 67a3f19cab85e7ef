//! The data table entry: header, extras, key, value (nessie §4.1.2).
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | generation; its low bits stand in the index entry. Written first on reuse |
//! | 8 | 8 | version: unique among all versions of the table, what users compare |
//! | 16 | 4 | bytes of the value |
//! | 20 | 2 | bytes of the key, less one |
//! | 22 | 2 | flags |
//! | 24 | 4 | checksum of header, place, expiry and key, or zero |
//! | 28 | 4 | checksum of generation and value, or zero |
//! | 32 | 32 | the extension of the published protocol, if the flag says so |
//! | 32 or 64 | 8 | expiry in milliseconds since the Unix epoch, if the flag says so |
//!
//! Between its installation in the index and its reuse an entry never changes, except for the first
//! word of the extension, the status (see [`crate::nessie::published`]), and for the generation's
//! highest bit, [`PINNED`].

use loch_fabric::Buf;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::geometry::Protocol;
use super::ite::Place;
use crate::limits::{GRAIN_BYTES, KEY_BYTES_MAX};
use crate::operation::{Value, Version};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the expiry that may follow it.
pub const EXPIRY_BYTES: usize = 8;
/// Bytes of the extension that precedes the expiry in tables of the published protocol.
pub const EXTENSION_BYTES: usize = 32;

/// The most bytes that an entry has before its value.
pub const BEFORE_VALUE_BYTES_MAX: usize =
    HEADER_BYTES + EXTENSION_BYTES + EXPIRY_BYTES + KEY_BYTES_MAX;

/// Bytes of the status word, which starts the extension.
const STATUS_BYTES: usize = 8;

/// The flags of an entry.
pub mod flags {
    /// Written by an unconditional PUT: a PUT that lost to it may count as done just before it.
    pub const BLIND: u16 = 1;
    /// The entry expires.
    pub const EXPIRES: u16 = 2;
    /// The entry has a status, and the rest of the published protocol's extension.
    pub const STATUS: u16 = 4;
    /// All known flags.
    pub const ALL: u16 = BLIND | EXPIRES | STATUS;
}

/// Set in the generation of an entry that was pinned since its memory was used last. No generation
/// is as large: they start at stamps.
pub const PINNED: u64 = 1 << 63;

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// Counts the uses of this memory, and never repeats; with [`PINNED`].
    pub generation: u64,
    /// The version that users see.
    pub version: Version,
    value_len: u32,
    key_len_less_one: u16,
    /// See [`flags`].
    pub flags: u16,
    /// See [`Header::checksum_of`]; zero in tables without checksums.
    pub checksum: u64,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(KEY_BYTES_MAX == 1 << 16);

/// Bytes of an entry before its key, if it does not expire.
pub fn head_bytes(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Loch => HEADER_BYTES,
        Protocol::Published { .. } => HEADER_BYTES + EXTENSION_BYTES,
    }
}

impl Header {
    /// The same header with this checksum.
    pub fn with_checksum(self, checksum: u64) -> Self {
        Self { checksum, ..self }
    }

    /// A header without checksum.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`] bytes, or the value more than `u32::MAX`.
    pub fn new(
        generation: u64,
        version: Version,
        key_len: usize,
        value_len: usize,
        flags: u16,
    ) -> Self {
        assert!((1..=KEY_BYTES_MAX).contains(&key_len), "keys are checked on entry");
        let value_len = u32::try_from(value_len).expect("values are checked on entry");
        Self {
            generation,
            version,
            value_len,
            key_len_less_one: (key_len - 1) as u16,
            flags,
            checksum: 0,
        }
    }

    /// Reads a header from the first bytes of an entry; `None` if there are too few.
    #[inline]
    pub fn read(entry: &[u8]) -> Option<Self> {
        Self::read_from_prefix(entry).ok().map(|(header, _)| header)
    }

    /// Bytes of the key.
    #[inline]
    pub fn key_len(&self) -> usize {
        self.key_len_less_one as usize + 1
    }

    /// Bytes of the value.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.value_len as usize
    }

    /// Where the key starts.
    #[inline]
    pub fn key_at(&self) -> usize {
        let extension = if self.flags & flags::STATUS != 0 { EXTENSION_BYTES } else { 0 };
        let expiry = if self.flags & flags::EXPIRES != 0 { EXPIRY_BYTES } else { 0 };
        HEADER_BYTES + extension + expiry
    }

    /// The start of the bytes that never change and that, up to the value, [`Header::key_sum`]
    /// covers: after the status, if there is one.
    #[inline]
    pub fn summed_at(&self) -> usize {
        HEADER_BYTES + if self.flags & flags::STATUS != 0 { STATUS_BYTES } else { 0 }
    }

    /// Where the value starts.
    #[inline]
    pub fn value_at(&self) -> usize {
        self.key_at() + self.key_len()
    }

    /// Bytes of the whole entry.
    #[inline]
    pub fn entry_len(&self) -> usize {
        self.value_at() + self.value_len()
    }

    /// The expiry, if the entry has one and `entry` holds it.
    #[inline]
    pub fn expires_at_ms(&self, entry: &[u8]) -> Option<u64> {
        (self.flags & flags::EXPIRES != 0).then_some(())?;
        let bytes = entry.get(self.key_at() - EXPIRY_BYTES..self.key_at())?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// The value in an entry that was read whole.
    ///
    /// # Panics
    /// If `entry` is shorter than the header says.
    #[inline]
    pub fn value_in(&self, entry: Buf) -> Value {
        let at = self.value_at()..self.entry_len();
        let expires_at_ms = self.expires_at_ms(&entry);
        Value::new(entry, at, self.version, expires_at_ms)
    }

    /// The two sums of an entry at `place`, as they stand in the header. The low half covers
    /// header, place, expiry and key (and the extension, without its status); the high half covers
    /// generation and value. A reader that wants only the key can therefore check it. The sum
    /// includes the place, so that a reader notices an entry from a wrong address.
    pub fn checksum_of(&self, place: Place, expiry_and_key: &[u8], value: &[u8]) -> u64 {
        self.key_sum(place, expiry_and_key) | self.value_sum(value)
    }

    /// The half of [`Header::checksum_of`] that covers everything but the value.
    pub fn key_sum(&self, place: Place, expiry_and_key: &[u8]) -> u64 {
        let mut digest = crc_fast::Digest::new(CRC);
        digest.update(&unpinned(self.generation).to_le_bytes());
        digest.update(&self.as_bytes()[8..24]);
        digest.update(&[place.dti]);
        let [low, high] = [0, 32].map(|shift| ((place.offset / GRAIN_BYTES) >> shift) as u32);
        digest.update(&low.to_le_bytes());
        if high > 0 {
            digest.update(&high.to_le_bytes());
        }
        digest.update(expiry_and_key);
        digest.finalize() & LOW_HALF
    }

    /// The half of [`Header::checksum_of`] that covers the value.
    pub fn value_sum(&self, value: &[u8]) -> u64 {
        let mut digest = crc_fast::Digest::new(CRC);
        digest.update(&unpinned(self.generation).to_le_bytes());
        digest.update(value);
        digest.finalize() << 32
    }
}

const CRC: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;

/// The half of the checksum that covers everything but the value.
pub const LOW_HALF: u64 = u32::MAX as u64;

/// The note that tells which incarnation of an entry was unlinked. It is never zero: zero says that
/// the entry is in use.
#[inline]
pub fn note_of(generation: u64) -> u32 {
    generation as u32
}

/// A generation without [`PINNED`].
#[inline]
pub fn unpinned(generation: u64) -> u64 {
    generation & !PINNED
}

/// The generation after `generation`, with a note that is not zero. (No generation ever reaches the
/// end of its range; only damaged memory may hold such a one.)
#[inline]
pub fn next_generation(generation: u64) -> u64 {
    let next = generation.wrapping_add(1);
    if note_of(next) == 0 { next.wrapping_add(1) } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lengths_survive_the_trip(
            key in 1usize..=KEY_BYTES_MAX,
            value in 0usize..1 << 30,
            expires: bool,
            status: bool,
        ) {
            let expiry = if expires { flags::EXPIRES } else { 0 };
            let flags = expiry | if status { flags::STATUS } else { 0 };
            let h = Header::new(7, Version::from_u64(8), key, value, flags);
            let back = Header::read(h.as_bytes()).unwrap();
            prop_assert_eq!(back, h);
            prop_assert_eq!((back.key_len(), back.value_len()), (key, value));
            let head = 32 + if expires { 8 } else { 0 } + if status { 32 } else { 0 };
            prop_assert_eq!(back.entry_len(), head + key + value);
        }

        #[test]
        fn the_checksum_notices_any_changed_byte(at in 0usize..40, flip in 1u8..) {
            // The one bit that it leaves out: another session sets it while it pins the entry.
            prop_assume!((at, flip) != (7, (PINNED >> 56) as u8));
            let (place, key, value) = (Place { dti: 1, offset: 144 }, [5u8; 6], [6u8; 10]);
            let h = Header::new(7, Version::from_u64(8), 6, 10, 0);
            let good = h.checksum_of(place, &key, &value);
            let mut bytes = [&h.as_bytes()[..24], &key, &value].concat();
            bytes[at] ^= flip;
            let changed = Header::read(&[&bytes[..24], &[0; 8]].concat()).unwrap();
            prop_assert_ne!(changed.checksum_of(place, &bytes[24..30], &bytes[30..]), good);
            prop_assert_ne!(h.checksum_of(Place { dti: 2, ..place }, &key, &value), good);
            for far in [16 << 10, 16 << 32, 16 << 39] {
                let elsewhere = Place { offset: place.offset + far, ..place };
                prop_assert_ne!(h.checksum_of(elsewhere, &key, &value), good);
            }
        }
    }

    #[test]
    fn a_pin_changes_neither_checksum_nor_note() {
        let (place, key, value) = (Place { dti: 1, offset: 144 }, [5u8; 6], [6u8; 10]);
        let plain = Header::new(7, Version::from_u64(8), 6, 10, 0);
        let pinned = Header { generation: 7 | PINNED, ..plain };
        let sum = |header: Header| header.checksum_of(place, &key, &value);
        assert_eq!(sum(pinned), sum(plain));
        assert_eq!(note_of(pinned.generation), note_of(7));
        assert_eq!(unpinned(pinned.generation), 7);
    }

    #[test]
    fn notes_are_never_zero() {
        assert_eq!(next_generation(u32::MAX as u64), (1 << 32) + 1);
        assert_eq!(next_generation(0), 1);
    }
}
