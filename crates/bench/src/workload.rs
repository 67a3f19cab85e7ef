//! Keys and values: pure functions of a record's number (and a version).
//!
//! Invariants:
//! 1. Different records have different keys, which differ in their first 8 bytes; in a table that
//!    others use too, they differ in the 8 bytes behind the common prefix.
//! 2. Keys are printable ASCII without blanks, so that every peer's protocol
//!    carries them as they are.
//! 3. A value of 8 bytes or more tells which record and version it belongs to,
//!    so a wrong, stale-by-mixing or torn value is recognised ([`Workload::check_value`]).
//!
//! All of this costs a few nanoseconds, because some measured engines answer in less than a
//! hundred.

use crate::mix::mix;
use crate::options::KEY_PREFIX;
use crate::spec::{RECORDS_MAX, Spec};

/// Bytes of a cache line.
const CACHE_LINE_BYTES: usize = 64;
/// Bytes of a value before its body: version and tag.
const HEADER_BYTES: usize = 8;
/// Bodies start at one of this many 8-byte steps of the template.
const BODY_STARTS: usize = 512;
/// Records have 48-bit numbers: 8 characters of 6 bits.
const RECORD_BITS: u32 = 48;

const _: () = assert!(RECORDS_MAX <= 1 << RECORD_BITS);

/// Makes the keys and values of one run.
#[derive(Debug)]
pub struct Workload {
    key_size: usize,
    value_size: usize,
    verify: bool,
    /// Whether values have other sizes, too, up to this one.
    sizes_vary: bool,
    /// Whether a GET that finds nothing is followed by a PUT.
    fills: bool,
    /// The prefix of all keys.
    prefix: &'static [u8],
    /// Random bytes that bodies are cut from.
    template: Vec<u8>,
}

impl Workload {
    /// The keys and values of `spec`.
    pub fn new(spec: &Spec) -> Self {
        let words = (spec.value_size + BODY_STARTS * 8).div_ceil(8) as u64;
        Workload {
            key_size: spec.key_size,
            value_size: spec.value_size,
            verify: spec.verify,
            sizes_vary: spec.replay.is_some(),
            fills: spec.is_cache(),
            prefix: if spec.attach.is_some() { KEY_PREFIX } else { &[] },
            template: (0..words).flat_map(|word| mix(word).to_le_bytes()).collect(),
        }
    }

    /// Whether a GET that finds nothing is followed by a PUT of the record, as users of caches do.
    #[inline]
    pub fn fills(&self) -> bool {
        self.fills
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> usize {
        self.key_size
    }

    /// Bytes of a value; of the longest one, if they have different sizes.
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// Writes the key of `record` to `key`, which has [`Self::key_size`] bytes.
    #[inline]
    pub fn write_key(&self, record: u64, key: &mut [u8]) {
        let id = scramble48(record);
        let (prefix, key) = key.split_at_mut(self.prefix.len());
        if !prefix.is_empty() {
            prefix.copy_from_slice(self.prefix);
        }
        let (head, rest) = key.split_first_chunk_mut().expect("keys have at least eight bytes");
        *head = printable(id);
        let mut padding = id;
        let mut next = || {
            padding = padding.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (padding >> 23);
            printable(padding >> 16)
        };
        let (words, end) = rest.as_chunks_mut();
        words.iter_mut().for_each(|word| *word = next());
        if !end.is_empty() {
            end.copy_from_slice(&next()[..end.len()]);
        }
    }

    /// Writes the value of `record` at `version` to `value`, which has the value's
    /// size.
    #[inline]
    pub fn write_value(&self, record: u64, version: u32, value: &mut [u8]) {
        let header = header(record, version);
        if value.len() < HEADER_BYTES {
            // Too short to carry a version: the record's bytes, always the same.
            value.copy_from_slice(&mix(record).to_le_bytes()[..value.len()]);
            return;
        }
        let (head, body) = value.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header.to_le_bytes());
        body.copy_from_slice(self.body(header, body.len()));
    }

    /// Whether `value` is one that `write_value` made for `record`: its length
    /// always, unless lengths differ, and its bytes when the run verifies.
    #[inline]
    pub fn check_value(&self, record: u64, value: &[u8]) -> bool {
        (self.sizes_vary || value.len() == self.value_size)
            && (!self.verify || self.check_bytes(record, value))
    }

    #[cold]
    fn check_bytes(&self, record: u64, value: &[u8]) -> bool {
        let Some((head, body)) = value.split_first_chunk::<HEADER_BYTES>() else {
            return *value == mix(record).to_le_bytes()[..value.len()];
        };
        let found = u64::from_le_bytes(*head);
        found == header(record, found as u32) && body == self.body(found, body.len())
    }

    /// The body that belongs to a header.
    fn body(&self, header: u64, len: usize) -> &[u8] {
        let start = (mix(header) as usize % BODY_STARTS) * 8;
        &self.template[start..start + len]
    }
}

/// A value after a byte of each of its cache lines was loaded: the least that its reader does.
#[inline]
pub fn touched(value: &[u8]) -> &[u8] {
    let lines = value.chunks(CACHE_LINE_BYTES);
    std::hint::black_box(lines.fold(0u8, |sum, line| sum.wrapping_add(line[0])));
    value
}

/// The version below, a tag of record and version above.
fn header(record: u64, version: u32) -> u64 {
    let tag = mix(record ^ (u64::from(version) << 32).rotate_left(7));
    (tag & !0xFFFF_FFFF) | u64::from(version)
}

/// A bijection of 48 bits: xor-shifts and odd factors are.
#[inline]
fn scramble48(record: u64) -> u64 {
    const MASK: u64 = (1 << RECORD_BITS) - 1;
    let mut x = record & MASK;
    x ^= x >> 25;
    x = x.wrapping_mul(0xBF58_476D_1CE5) & MASK;
    x ^= x >> 23;
    x = x.wrapping_mul(0x94D0_49BB_1331) & MASK;
    x ^ (x >> 24)
}

/// The low 48 bits as 8 characters from `'0'` to `'o'`, 6 bits each.
#[inline]
fn printable(bits: u64) -> [u8; 8] {
    // Spread 48 bits to 8 bytes in three halvings: 2 x 24, 4 x 12, 8 x 6.
    let x = (bits & 0xFF_FFFF) | ((bits & 0xFFFF_FF00_0000) << 8);
    let x = (x & 0x0000_0FFF_0000_0FFF) | ((x & 0x00FF_F000_00FF_F000) << 4);
    let x = (x & 0x003F_003F_003F_003F) | ((x & 0x0FC0_0FC0_0FC0_0FC0) << 2);
    (x + 0x3030_3030_3030_3030).to_le_bytes()
}

/// The beginning of part number `number` if `records` are split into `parts` parts.
pub fn part(records: u64, number: u32, parts: u32) -> u64 {
    (u128::from(records) * u128::from(number) / u128::from(parts)) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn workload(key_size: usize, value_size: usize) -> Workload {
        let line = format!("--key-size {key_size} --value-size {value_size} --verify");
        Workload::new(&crate::args::tests::spec(&line).unwrap())
    }

    fn key(workload: &Workload, record: u64) -> Vec<u8> {
        let mut key = vec![0; workload.key_size()];
        workload.write_key(record, &mut key);
        key
    }

    #[test]
    fn keys_are_unique_already_in_their_first_eight_bytes() {
        let workload = workload(8, 64);
        let keys: HashSet<_> = (0..200_000).map(|record| key(&workload, record)).collect();
        assert_eq!(keys.len(), 200_000);
    }

    #[test]
    fn spreading_bits_loses_none() {
        for bit in 0..RECORD_BITS {
            let spread = printable(1 << bit);
            let back: u64 =
                (0..8).map(|i| u64::from(spread[i] - b'0') << (6 * i)).fold(0, |a, b| a | b);
            assert_eq!(back, 1 << bit);
        }
    }

    #[test]
    fn too_short_a_value_is_still_its_records_own() {
        let workload = workload(16, 5);
        let mut value = vec![0; 5];
        workload.write_value(3, 9, &mut value);
        assert!(workload.check_value(3, &value));
        assert!(!workload.check_value(4, &value));
    }

    #[test]
    fn a_value_of_two_versions_is_recognised() {
        let workload = workload(16, 4096);
        let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
        workload.write_value(11, 1, &mut old);
        workload.write_value(11, 2, &mut new);
        new[2048..].copy_from_slice(&old[2048..]);
        assert!(!workload.check_value(11, &new));
    }

    proptest! {
        #[test]
        fn scrambling_is_undone_by_no_other_record(a in 0u64..1 << 48, b in 0u64..1 << 48) {
            prop_assert_eq!(a == b, scramble48(a) == scramble48(b));
        }

        #[test]
        fn keys_are_printable_and_of_the_size_asked_for(
            size in 8usize..80,
            record in 0u64..1 << 40,
        ) {
            let key = key(&workload(size, 1), record);
            prop_assert_eq!(key.len(), size);
            prop_assert!(key.iter().all(|byte| (b'0'..=b'o').contains(byte)));
        }

        #[test]
        fn a_value_is_its_records_and_nobody_elses(
            size in 8usize..300,
            record in 0u64..1 << 40,
            other in 0u64..1 << 40,
            version: u32,
            at: prop::sample::Index, flip in 1u8..,
        ) {
            let workload = workload(16, size);
            let mut value = vec![0; size];
            workload.write_value(record, version, &mut value);
            prop_assert!(workload.check_value(record, &value));
            prop_assert!(other == record || !workload.check_value(other, &value));
            prop_assert!(!workload.check_value(record, &value[1..]));
            value[at.index(size)] ^= flip;
            prop_assert!(!workload.check_value(record, &value));
        }
    }

    #[test]
    fn every_record_is_loaded_once() {
        for (records, clients) in [(1, 1), (1, 3), (10, 3), (1_000_003, 7), (u64::MAX, 5)] {
            let mut next = 0;
            for client in 0..clients {
                let (begin, end) =
                    (part(records, client, clients), part(records, client + 1, clients));
                assert_eq!(begin, next);
                next = end;
            }
            assert_eq!(next, records);
        }
    }
}
