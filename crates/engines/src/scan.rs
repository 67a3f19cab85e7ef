//! Scans: walks over the keys of a table, in bounded steps, while others change it.
//!
//! # What a scan promises
//! A key that has a value from the first step of a scan to the last is found at least once. A key
//! that is found had a value at some moment between those steps. A key may be found more than once.
//!
//! # Who scans
//! Where clients read the table's memory they scan by themselves. Elsewhere a client asks one
//! worker after the other for a [`Page`]; a worker looks at its own part of the table between two
//! turns, so nothing changes while it looks.

use serde::{Deserialize, Serialize};

use crate::effect::Versioned;
use crate::limits::{SCAN_PAGE_BYTES, SCAN_PAGE_KEYS, SCAN_PAGE_PLACES};
use crate::operation::Version;

/// Where a scan goes on. A scan begins with the default cursor.
///
/// A cursor means something only to the table that has given it, but no cursor does any harm: with
/// one that is not its own, a table begins again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The place in the index where the next step begins.
    pub place: u64,
    /// What the table's parts have told since the scan began, in the engine's own terms; empty
    /// before the first step.
    pub noted: Vec<u64>,
    /// Steps in a row that found nothing to do but to wait.
    pub waited: u32,
}

/// A key that a scan has found, and facts of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Bytes of the value.
    pub value_bytes: u64,
    /// The value's version.
    pub version: Version,
    /// When the value expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
}

/// The same, with bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key.
    #[serde(with = "hexadecimal")]
    pub key: Vec<u8>,
    /// Bytes of the value.
    pub value_bytes: u64,
    /// The value's version.
    pub version: Version,
    /// When the value expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
}

/// A step that a worker is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Where the scan of this worker's part goes on.
    pub from: Cursor,
    /// Only keys that begin with these bytes are wanted.
    #[serde(with = "hexadecimal")]
    pub prefix: Vec<u8>,
}

/// The keys that a worker has found in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The keys.
    pub keys: Vec<Key>,
    /// Where the scan of this worker's part goes on; `None` if it has come to its end.
    pub next: Option<Cursor>,
}

impl<'a> Listed<'a> {
    /// A key and its value.
    pub fn new<V: std::ops::Deref<Target = [u8]>>(key: &'a [u8], value: &Versioned<V>) -> Self {
        Self {
            key,
            value_bytes: value.value.len() as u64,
            version: value.version,
            expires_at_ms: value.expires_at_ms,
        }
    }
}

impl From<Listed<'_>> for Key {
    fn from(listed: Listed<'_>) -> Self {
        let Listed { key, value_bytes, version, expires_at_ms } = listed;
        Self { key: key.to_vec(), value_bytes, version, expires_at_ms }
    }
}

/// A page that is being made.
pub(crate) struct Listing<'a> {
    prefix: &'a [u8],
    now_ms: u64,
    keys: Vec<Key>,
    bytes: usize,
    places: u64,
}

impl Listing<'_> {
    /// Adds a key, if it is wanted and its value has not expired.
    pub fn add(&mut self, listed: Listed<'_>) {
        let is_expired = listed.expires_at_ms.is_some_and(|at| at <= self.now_ms);
        if !is_expired && listed.key.starts_with(self.prefix) {
            self.bytes += listed.key.len();
            self.keys.push(listed.into());
        }
    }

    /// Whether another place may be looked at; then it is counted. Few keys are in one place.
    pub fn looks_on(&mut self) -> bool {
        let has_room = self.places < SCAN_PAGE_PLACES
            && self.keys.len() < SCAN_PAGE_KEYS
            && self.bytes < SCAN_PAGE_BYTES;
        self.places += u64::from(has_room);
        has_room
    }

    /// The page.
    pub fn page(self, next: Option<Cursor>) -> Page {
        Page { keys: self.keys, next }
    }
}

impl Step {
    /// An empty page.
    pub(crate) fn listing(&self, now_ms: u64) -> Listing<'_> {
        Listing { prefix: &self.prefix, now_ms, keys: Vec::new(), bytes: 0, places: 0 }
    }

    /// The page of an index of `places` whose keys stay where they are; `list` lists those in one
    /// place.
    pub(crate) fn page(
        &self,
        places: u64,
        now_ms: u64,
        mut list: impl FnMut(u64, &mut Listing<'_>),
    ) -> Page {
        let mut place = if self.from.place <= places { self.from.place } else { 0 };
        let mut listing = self.listing(now_ms);
        while place < places && listing.looks_on() {
            list(place, &mut listing);
            place += 1;
        }
        listing.page((place < places).then(|| Cursor { place, ..Cursor::default() }))
    }
}

/// Bytes as text, for messages.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let digit = |digit: u8| char::from_digit(digit.into(), 16).expect("half a byte");
        let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        to.serialize_str(&digits.collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        let bytes = pairs.iter().map(byte).collect::<Option<Vec<u8>>>();
        bytes.filter(|_| rest.is_empty()).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key for each place; of one of them the value has expired.
    fn list(place: u64, listing: &mut Listing<'_>) {
        let key = [b'a' + (place % 2) as u8, place as u8];
        let expires_at_ms = (place == 4).then_some(100);
        listing.add(Listed {
            key: &key,
            value_bytes: 1,
            version: Version::from_u64(place),
            expires_at_ms,
        });
    }

    #[test]
    fn a_page_has_the_keys_that_are_wanted_and_have_not_expired() {
        let step = Step { from: Cursor::default(), prefix: b"a".to_vec() };
        let page = step.page(10, 100, list);
        let versions: Vec<_> = page.keys.iter().map(|key| key.version.as_u64()).collect();
        assert_eq!((versions, page.next), (vec![0, 2, 6, 8], None));
    }

    #[test]
    fn a_page_has_an_end_and_the_scan_goes_on_behind_it() {
        let places = 3 * SCAN_PAGE_KEYS as u64 - 1;
        let (mut from, mut seen) = (Cursor::default(), 0);
        for pages in 1.. {
            let step = Step { from, prefix: Vec::new() };
            let page = step.page(places, 0, list);
            seen += page.keys.len() as u64;
            let Some(next) = page.next else {
                assert_eq!((pages, seen), (3, places));
                return;
            };
            from = next;
        }
    }

    #[test]
    fn a_page_of_long_keys_or_of_empty_places_has_an_end_too() {
        let step = Step { from: Cursor::default(), prefix: Vec::new() };
        let long = vec![0; SCAN_PAGE_BYTES / 4];
        let listed = Listed {
            key: &long,
            value_bytes: 1,
            version: Version::from_u64(1),
            expires_at_ms: None,
        };
        assert_eq!(step.page(1 << 40, 0, |_, page| page.add(listed)).keys.len(), 4);
        let empty = step.page(1 << 40, 0, |_, _| ());
        assert_eq!(empty.next.map(|next| next.place), Some(SCAN_PAGE_PLACES));
    }

    #[test]
    fn a_place_behind_the_end_is_the_beginning() {
        let from = Cursor { place: 11, ..Cursor::default() };
        let step = Step { from, prefix: Vec::new() };
        assert_eq!(step.page(10, 0, list).keys.len(), 10);
    }
}
