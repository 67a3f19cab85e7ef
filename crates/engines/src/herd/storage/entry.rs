//! The entry of a key, as the log or the heap holds it.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | version |
//! | 8 | 2 | bytes of the key |
//! | 10 | 2 | flags |
//! | 12 | 4 | bytes of the value |
//! | 16 | 8 | expiry in milliseconds since the Unix epoch, if the flag says so |
//!
//! Then come the key, the value, and padding to a whole grain. A free block of the heap has the
//! same second word, with the number of its grains in the place of the value's length.
//!
//! Only the partition's worker ever sees this memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::effect::Versioned;
use crate::limits::{GRAIN_BYTES, HERD_ITEM_BYTES_MAX};
use crate::operation::Version;

/// Words of a grain.
pub(super) const GRAIN_WORDS: usize = (GRAIN_BYTES / 8) as usize;
/// Bytes before the expiry, or before the key.
const HEAD_BYTES: usize = 16;
const EXPIRY_BYTES: usize = 8;

/// Grains of the longest entry.
pub(super) const ENTRY_GRAINS_MAX: u32 =
    ((HEAD_BYTES + EXPIRY_BYTES + HERD_ITEM_BYTES_MAX) as u64).div_ceil(GRAIN_BYTES) as u32;

/// The flags of an entry or a free block.
pub(super) mod flags {
    /// The entry expires.
    pub const EXPIRES: u16 = 1;
    /// This is a free block.
    pub const FREE: u16 = 2;
    /// The block before this one is free, so the word before this one holds its number of grains.
    pub const AFTER_FREE: u16 = 4;
}

/// The second word of an entry or a free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Head {
    pub key_len: u16,
    pub flags: u16,
    /// Bytes of the value, or grains of the free block.
    pub len: u32,
}

const _: () = assert!(size_of::<Head>() == 8);

/// A draft of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub version: Version,
    pub expires_at_ms: Option<u64>,
}

impl Head {
    /// The head of no entry.
    pub const NOTHING: Self = Self { key_len: 0, flags: flags::FREE, len: 0 };

    /// The head of the entry or block at a place.
    #[inline(always)]
    pub fn at(data: &[u64], place: u32) -> Self {
        zerocopy::transmute!(data[place as usize * GRAIN_WORDS + 1])
    }

    #[inline(always)]
    pub fn put(self, data: &mut [u64], place: u32) {
        data[place as usize * GRAIN_WORDS + 1] = zerocopy::transmute!(self);
    }

    pub fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Grains of the entry or block.
    pub fn grains(self) -> u32 {
        if self.has(flags::FREE) {
            return self.len;
        }
        grains(self.key_len as usize, self.len as usize, self.has(flags::EXPIRES))
    }

    /// The entry's key, and the offset of the bytes after it.
    #[inline(always)]
    fn key_and_rest(self, data: &[u64], place: u32) -> Option<(&[u8], &[u8])> {
        let extra = if self.has(flags::EXPIRES) { EXPIRY_BYTES } else { 0 };
        let start = place as usize * GRAIN_BYTES as usize + HEAD_BYTES + extra;
        data.as_bytes().get(start..)?.split_at_checked(self.key_len as usize)
    }

    /// Whether the entry at `place` has the key `key`.
    #[inline(always)]
    pub fn is_of(self, data: &[u64], place: u32, key: &[u8]) -> bool {
        self.key_len as usize == key.len()
            && self.key_and_rest(data, place).is_some_and(|(own, _)| own == key)
    }

    /// The entry's key; `None` if it would end outside `data`.
    pub fn key(self, data: &[u64], place: u32) -> Option<&[u8]> {
        self.key_and_rest(data, place).map(|(key, _)| key)
    }
}

/// The value of the entry at a place where there is one.
#[inline]
pub(super) fn present(data: &[u64], place: u32) -> Versioned<&[u8]> {
    let head = Head::at(data, place);
    let first = place as usize * GRAIN_WORDS;
    let (_, rest) = head.key_and_rest(data, place).expect("entries lie inside the data");
    let expires_at_ms = head.has(flags::EXPIRES).then(|| data[first + HEAD_BYTES / 8]);
    Versioned {
        version: Version::from_u64(data[first]),
        expires_at_ms,
        value: &rest[..head.len as usize],
    }
}

impl Draft<'_> {
    pub fn grains(&self) -> u32 {
        grains(self.key.len(), self.value.len(), self.expires_at_ms.is_some())
    }

    pub fn bytes(&self) -> u64 {
        u64::from(self.grains()) * GRAIN_BYTES
    }

    /// Writes the entry to a place that has room for it, with `more` flags.
    #[inline]
    pub fn write(&self, data: &mut [u64], place: u32, more: u16) {
        let first = place as usize * GRAIN_WORDS;
        let expires = if self.expires_at_ms.is_some() { flags::EXPIRES } else { 0 };
        let (key_len, len) = (self.key.len() as u16, self.value.len() as u32);
        data[first] = self.version.as_u64();
        Head { key_len, flags: expires | more, len }.put(data, place);
        let mut start = first * 8 + HEAD_BYTES;
        if let Some(at) = self.expires_at_ms {
            data[first + HEAD_BYTES / 8] = at;
            start += EXPIRY_BYTES;
        }
        let (key, rest) = data.as_mut_bytes()[start..].split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        rest[..self.value.len()].copy_from_slice(self.value);
    }
}

fn grains(key_len: usize, value_len: usize, expires: bool) -> u32 {
    let extra = if expires { EXPIRY_BYTES } else { 0 };
    ((HEAD_BYTES + extra + key_len + value_len) as u64).div_ceil(GRAIN_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(
            key in prop::collection::vec(any::<u8>(), 1..200),
            value in prop::collection::vec(any::<u8>(), 0..500),
            version: u64,
            expires_at_ms: Option<u64>,
            place in 0u32..8,
        ) {
            let version = Version::from_u64(version);
            let draft = Draft { key: &key, value: &value, version, expires_at_ms };
            let words = (place + draft.grains()) as usize * GRAIN_WORDS;
            let mut data = vec![!0; words + GRAIN_WORDS];
            draft.write(&mut data, place, flags::AFTER_FREE);
            prop_assert_eq!(
                present(&data, place),
                Versioned { version, expires_at_ms, value: &value[..] }
            );
            let head = Head::at(&data, place);
            prop_assert!(head.is_of(&data, place, &key) && head.has(flags::AFTER_FREE));
            prop_assert!(!head.is_of(&data, place, &[&key[..], b"x"].concat()));
            prop_assert_eq!(head.grains(), draft.grains());
            prop_assert!(data[words..].iter().all(|word| *word == !0), "nothing behind it");
        }
    }
}
