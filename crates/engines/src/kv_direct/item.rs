//! An entry's bytes: key, value, and the other fields.
//!
//! A *body* is the same inline and in a slab. It has the key's length if the table's keys differ in
//! length (one byte below 255, otherwise 255 and two more), the key, the version if the table has
//! versions, the time of expiry if the entry has one, and the value, which is the rest. In a slab a
//! [header](super::header) precedes the body. A table with keys of one length and without versions
//! needs no other byte.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::bucket::{Bucket, INLINE_BYTES_MAX};
use super::damaged;
use super::slab::{Class, Place};
use crate::error::EngineError;
use crate::limits::{KEY_BYTES_MAX, KV_DIRECT_KEPT_LINES_MAX};
use crate::lines::Line;
use crate::operation::Version;

/// Bytes of a version, and of a time of expiry.
const WORD: usize = 8;
/// Marks a key's length that does not fit its byte.
const LONG_KEY: u8 = 255;

const _: () = assert!(KEY_BYTES_MAX <= LONG_KEY as usize + u16::MAX as usize);

/// The format of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<u16>,
    /// Whether entries have versions.
    pub versions: bool,
}

/// An entry that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The version, which a table without versions does not keep.
    pub version: Version,
    /// When the value expires.
    pub expires_at_ms: Option<u64>,
}

/// An entry that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The ranges of a body's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub key: Range<usize>,
    pub version_at: Option<usize>,
    pub expiry_at: Option<usize>,
    pub value_at: usize,
}

impl Parts {
    /// Writes a version and a time of expiry to their places in a body.
    #[inline(always)]
    pub fn stamp(&self, body: &mut [u8], version: Version, expires_at_ms: Option<u64>) {
        let words =
            [(self.version_at, version.as_u64()), (self.expiry_at, expires_at_ms.unwrap_or(0))];
        for (at, word) in words {
            if let Some(at) = at {
                body[at..at + WORD].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

impl Format {
    /// Whether the table takes keys of this key's length.
    #[inline(always)]
    pub fn admits(&self, key: &[u8]) -> bool {
        match self.key_bytes {
            Some(bytes) => key.len() == bytes as usize,
            None => (1..=KEY_BYTES_MAX).contains(&key.len()),
        }
    }

    /// Bytes of a body.
    #[inline(always)]
    pub fn body_bytes(&self, key: usize, value: usize, expires: bool) -> u64 {
        let length = match self.key_bytes {
            Some(_) => 0,
            None if key < LONG_KEY as usize => 1,
            None => 3,
        };
        let words = usize::from(self.versions) + usize::from(expires);
        (length + key + words * WORD) as u64 + value as u64
    }

    /// Writes a body to `into`, which has exactly its length.
    pub fn write(&self, draft: &Draft<'_>, into: &mut [u8]) {
        let mut rest = into;
        let mut put = |bytes: &[u8]| {
            let (to, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            to.copy_from_slice(bytes);
            rest = after;
        };
        if self.key_bytes.is_none() {
            match u8::try_from(draft.key.len()) {
                Ok(len) if len < LONG_KEY => put(&[len]),
                _ => {
                    let [low, high] = ((draft.key.len() - LONG_KEY as usize) as u16).to_le_bytes();
                    put(&[LONG_KEY, low, high]);
                }
            }
        }
        put(draft.key);
        if self.versions {
            put(&draft.version.as_u64().to_le_bytes());
        }
        if let Some(at) = draft.expires_at_ms {
            put(&at.to_le_bytes());
        }
        put(draft.value);
        assert!(rest.is_empty(), "a body has the length that was reckoned");
    }

    /// The ranges of a body's parts; `None` if the bytes cannot be a body.
    #[inline(always)]
    pub(super) fn parts(&self, body: &[u8], expires: bool) -> Option<Parts> {
        let (key_at, key_len) = match (self.key_bytes, body) {
            (Some(bytes), _) => (0, bytes as usize),
            (None, [LONG_KEY, low, high, ..]) => {
                (3, LONG_KEY as usize + u16::from_le_bytes([*low, *high]) as usize)
            }
            (None, [len, ..]) => (1, *len as usize),
            (None, []) => return None,
        };
        let mut at = key_at + key_len;
        let mut word = |is_there: bool| {
            let word = is_there.then_some(at);
            at += WORD * usize::from(is_there);
            word
        };
        let (version_at, expiry_at) = (word(self.versions), word(expires));
        let parts = Parts { key: key_at..key_at + key_len, version_at, expiry_at, value_at: at };
        (at <= body.len()).then_some(parts)
    }

    /// The entry with this body; `None` if the bytes cannot be a body.
    pub fn read<'a>(&self, body: &'a [u8], expires: bool) -> Option<Entry<'a>> {
        let parts = self.parts(body, expires)?;
        Some(Entry { key: &body[parts.key], value: &body[parts.value_at..] })
    }

    /// The key of a body, if `body` reaches to its end.
    pub fn key<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let plain = Self { versions: false, ..*self };
        plain.parts(body, false).map(|parts| &body[parts.key])
    }
}

/// The first bytes of a key's inline items. They are compared with a whole bucket first.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    word: u64,
    mask: u64,
    is_exact: bool,
}

impl Probe {
    /// The probe for `key`; it matches nothing if the key is too long to be inline.
    #[inline(always)]
    pub fn new(format: &Format, key: &[u8]) -> Self {
        let start = match key.first_chunk() {
            Some(start) => u64::from_le_bytes(*start),
            None => key.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        let (word, bytes) = match format.key_bytes {
            Some(_) => (start, key.len()),
            None => (start << 8 | key.len() as u64, key.len() + 1),
        };
        if bytes > INLINE_BYTES_MAX {
            return Self { word: 1, mask: 0, is_exact: false };
        }
        let mask = u64::MAX >> (64 - 8 * bytes.clamp(1, 8));
        Self { word: word & mask, mask, is_exact: bytes <= 8 }
    }

    /// Whether an item that begins with these bytes is the key's: they contain its length and the
    /// whole key.
    #[inline(always)]
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// The slots of `bucket` in which an item begins that could be the key's.
    #[inline(always)]
    pub fn candidates(&self, bucket: &Bucket) -> u32 {
        let mut left = bucket.begins();
        let mut found = 0;
        while left != 0 {
            let slot = left.trailing_zeros();
            found |= u32::from(bucket.start_of(slot) & self.mask == self.word) << slot;
            left &= left - 1;
        }
        found
    }
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In the bucket itself, from this slot on.
    Inline {
        /// The first slot.
        slot: u32,
    },
    /// In a slab.
    Slab {
        /// The slot of its bucket that points there.
        slot: u32,
        /// The start of the slab.
        place: Place,
        /// The size of the slab.
        class: Class,
    },
}

impl Home {
    /// The first slot of the entry.
    #[inline(always)]
    pub fn slot(self) -> u32 {
        match self {
            Self::Inline { slot } | Self::Slab { slot, .. } => slot,
        }
    }
}

/// The result of a lookup: the lines of an entry. The next lookup uses the memory again.
#[derive(Debug, Default)]
pub struct Item {
    lines: Vec<Line>,
    /// The range of the body in the bytes of the lines.
    body: Range<usize>,
    parts: Parts,
    home: Option<Home>,
    /// The version; 0 in a table without versions.
    pub version: Version,
    /// When the value expires.
    pub expires_at_ms: Option<u64>,
}

impl Item {
    /// An empty item.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value.
    #[inline(always)]
    pub fn value(&self) -> &[u8] {
        &self.lines.as_bytes()[self.body.start + self.parts.value_at..self.body.end]
    }

    /// The value, to be changed in place and [written back](super::storage::Storage::rewrite).
    #[inline(always)]
    pub fn value_mut(&mut self) -> &mut [u8] {
        let at = self.body.start + self.parts.value_at..self.body.end;
        &mut self.lines.as_mut_bytes()[at]
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.body()[self.parts.key.clone()]
    }

    /// The place where the entry was found.
    pub(super) fn home(&self) -> Option<Home> {
        self.home
    }

    /// Whether the entry has a time of expiry.
    pub(super) fn expires(&self) -> bool {
        self.parts.expiry_at.is_some()
    }

    /// All bytes of the entry, without a header.
    pub(super) fn body(&self) -> &[u8] {
        &self.lines.as_bytes()[self.body.clone()]
    }

    /// The entry's lines, up to its end.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines[..self.body.end.div_ceil(size_of::<Line>())]
    }

    /// Gives the entry another version and time of expiry, if its bytes have these fields.
    pub(super) fn stamp(&mut self, version: Version, expires_at_ms: Option<u64>) {
        let body = &mut self.lines.as_mut_bytes()[self.body.clone()];
        self.parts.stamp(body, version, expires_at_ms);
        self.version = if self.parts.version_at.is_some() { version } else { Version::default() };
        self.expires_at_ms = expires_at_ms;
    }

    /// Makes room for `lines` lines that will be read. The first `kept` lines stay.
    #[inline(always)]
    pub(super) fn room(&mut self, lines: usize, kept: usize) -> &mut [Line] {
        if self.lines.len() < lines || self.lines.len() > KV_DIRECT_KEPT_LINES_MAX {
            self.lines.resize(lines, Line::ZERO);
            self.lines.shrink_to(KV_DIRECT_KEPT_LINES_MAX);
        }
        &mut self.lines[kept..lines]
    }

    /// All lines, as bytes.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        self.lines.as_bytes()
    }

    /// Makes this the entry whose body is the bytes `body` of the lines, if it has this key. Fails
    /// if the bytes cannot be an entry.
    #[inline(always)]
    pub(super) fn become_entry(
        &mut self,
        format: &Format,
        key: &[u8],
        body: Range<usize>,
        expires: bool,
        home: Home,
    ) -> Result<bool, EngineError> {
        let bytes = self.lines.as_bytes().get(body.clone()).ok_or_else(damaged)?;
        let parts = format.parts(bytes, expires).ok_or_else(damaged)?;
        if bytes[parts.key.clone()] != *key {
            return Ok(false);
        }
        let word = |at: Option<usize>| {
            at.map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().expect("parts are inside")))
        };
        self.version = word(parts.version_at).map(Version::from_u64).unwrap_or_default();
        self.expires_at_ms = word(parts.expiry_at);
        (self.parts, self.body, self.home) = (parts, body, Some(home));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format() -> impl Strategy<Value = Format> {
        (proptest::option::of(1u16..80), any::<bool>())
            .prop_map(|(key_bytes, versions)| Format { key_bytes, versions })
    }

    proptest! {
        #[test]
        fn a_body_survives_the_trip(
            format in format(),
            long_key: bool,
            value in proptest::collection::vec(any::<u8>(), 0..200),
            version: u64,
            expires_at_ms: Option<u64>,
        ) {
            let key_bytes = format.key_bytes.map_or(if long_key { 300 } else { 9 }, usize::from);
            let key: Vec<u8> = (0..key_bytes).map(|i| i as u8).collect();
            let version = Version::from_u64(version * u64::from(format.versions));
            let draft = Draft { key: &key, value: &value, version, expires_at_ms };
            let expires = expires_at_ms.is_some();
            let mut body = vec![0; format.body_bytes(key.len(), value.len(), expires) as usize];
            format.write(&draft, &mut body);
            let entry = Entry { key: &key, value: &value };
            prop_assert_eq!(format.read(&body, expires), Some(entry));
            let mut item = Item::new();
            item.room(9, 0).as_mut_bytes()[3..3 + body.len()].copy_from_slice(&body);
            let home = Home::Inline { slot: 0 };
            let at = 3..3 + body.len();
            prop_assert_eq!(item.become_entry(&format, &key, at.clone(), expires, home), Ok(true));
            prop_assert_eq!((item.key(), item.value()), (&key[..], &value[..]));
            prop_assert_eq!(item.version, version);
            prop_assert_eq!(item.expires_at_ms, expires_at_ms);
            let mut other = key.clone();
            other[key_bytes - 1] ^= 1;
            prop_assert_eq!(item.become_entry(&format, &other, at, expires, home), Ok(false));
        }

        /// Damaged bytes are an entry that lies inside them, or no entry.
        #[test]
        fn any_bytes_can_be_read(
            format in format(),
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            expires: bool,
        ) {
            format.key(&bytes);
            if let Some(entry) = format.read(&bytes, expires) {
                prop_assert!(entry.key.len() + entry.value.len() <= bytes.len());
            }
        }
    }
}
