//! The bytes of segments and records.
//!
//! A segment begins with its header and continues with records; the length of a record is a
//! multiple of eight bytes. `docs/memory-layout.md` has both as tables.
//!
//! # Invariants
//! 1. A record counts only if its checksum is right. The checksum covers the number of the record's
//!    segment, so bytes of another segment that a disk kept never count as a record of this one.
//! 2. Decoding neither panics nor reads beyond the bytes, whatever they are.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::checksum;
use crate::limits::KEY_BYTES_MAX;
use crate::operation::Version;

/// First word of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"LOCHLOG\0");
/// Version of everything in this file.
pub const VERSION: u32 = 1;
/// Bytes of a segment's header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record before its key.
pub const RECORD_BYTES: usize = 48;

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes, one after the other.
    Log,
    /// A part of a snapshot.
    Snapshot {
        /// The number of the part, from 0.
        part: u32,
    },
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawHeader {
    magic: u64,
    version: u32,
    /// 1: log, 2: snapshot.
    kind: u32,
    table: u64,
    segment: u64,
    lsn: u64,
    part: u32,
    reserved: u32,
    reserved_too: u64,
    checksum: u64,
}

/// The fields of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The table and node to which the segment belongs.
    pub table: u64,
    /// The segment's number.
    pub segment: u64,
    /// The segment's content.
    pub kind: Kind,
    /// In a log segment: the LSN of its first record. In a snapshot: the last LSN that the snapshot
    /// makes superfluous.
    pub lsn: u64,
}

/// A key's new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The key has this value.
    Put {
        /// The value's bytes.
        value: &'a [u8],
        /// The value's version.
        version: Version,
        /// When the value expires, in milliseconds since the Unix epoch.
        expires_at_ms: Option<u64>,
    },
    /// The key has no value.
    Delete,
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// A key has a new state. Repeating the record changes nothing.
    Change {
        /// The key.
        key: &'a [u8],
        /// The key's new state.
        change: Change<'a>,
    },
    /// Versions below this number may have been given away.
    Lease {
        /// The number.
        end: u64,
    },
    /// The last record of a log segment: the log goes on in this segment.
    Seal {
        /// The segment.
        next: u64,
    },
    /// The last record of a snapshot. The snapshot is valid only together with the log up to this
    /// LSN.
    End {
        /// The LSN.
        lsn: u64,
    },
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Counts the records of a log, or of a snapshot, from 1.
    pub lsn: u64,
    /// The last LSN that was known to be durable when this record was made.
    pub durable: u64,
    /// The record's content.
    pub op: Op<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawRecord {
    checksum: u64,
    lsn: u64,
    /// The record's number: a version, a lease's end, a segment, or an LSN.
    number: u64,
    expires_at_ms: u64,
    value_len: u32,
    /// The number of records before this one that were not known to be durable; `u32::MAX` means
    /// that many or more.
    unsynced: u32,
    key_len: u32,
    kind: u16,
    flags: u16,
}

const _: () = {
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(size_of::<RawRecord>() == RECORD_BYTES);
    assert!(RECORD_BYTES.is_multiple_of(8) && HEADER_BYTES.is_multiple_of(8));
};

mod code {
    pub const PUT: u16 = 1;
    pub const DELETE: u16 = 2;
    pub const LEASE: u16 = 3;
    pub const SEAL: u16 = 4;
    pub const END: u16 = 5;
    /// The flag of a value that expires.
    pub const EXPIRES: u16 = 1;
}

impl Header {
    /// The bytes with which a segment begins.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let (kind, part) = match self.kind {
            Kind::Log => (1, 0),
            Kind::Snapshot { part } => (2, part),
        };
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION,
            kind,
            table: self.table,
            segment: self.segment,
            lsn: self.lsn,
            part,
            reserved: 0,
            reserved_too: 0,
            checksum: 0,
        };
        raw.checksum = checksum(&raw.as_bytes()[..HEADER_BYTES - 8]);
        zerocopy::transmute!(raw)
    }

    /// The header with which a segment begins; `None` if it is invalid, or of another segment.
    pub fn read(bytes: &[u8], segment: u64) -> Option<Self> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).ok()?;
        let kind = match raw.kind {
            1 => Kind::Log,
            2 => Kind::Snapshot { part: raw.part },
            _ => return None,
        };
        let header = Self { table: raw.table, segment, kind, lsn: raw.lsn };
        (bytes.get(..HEADER_BYTES) == Some(&header.bytes()[..])).then_some(header)
    }
}

/// Appends a record of a segment to `buf`.
#[inline]
pub fn write(segment: u64, record: &Record<'_>, buf: &mut Vec<u8>) {
    let (kind, number, key, value, expiry) = match record.op {
        Op::Change { key, change: Change::Put { value, version, expires_at_ms } } => {
            (code::PUT, version.as_u64(), key, value, expires_at_ms)
        }
        Op::Change { key, change: Change::Delete } => (code::DELETE, 0, key, &[][..], None),
        Op::Lease { end } => (code::LEASE, end, &[][..], &[][..], None),
        Op::Seal { next } => (code::SEAL, next, &[][..], &[][..], None),
        Op::End { lsn } => (code::END, lsn, &[][..], &[][..], None),
    };
    let unsynced = record.lsn - record.durable;
    let raw = RawRecord {
        // The place of the checksum. Until it is computed, the segment's number stands here, which
        // the checksum covers.
        checksum: segment,
        lsn: record.lsn,
        number,
        expires_at_ms: expiry.unwrap_or(0),
        value_len: value.len() as u32,
        unsynced: u32::try_from(unsynced).unwrap_or(u32::MAX),
        key_len: key.len() as u32,
        kind,
        flags: if expiry.is_some() { code::EXPIRES } else { 0 },
    };
    let start = buf.len();
    buf.extend_from_slice(raw.as_bytes());
    buf.extend_from_slice(key);
    buf.extend_from_slice(value);
    let len = (buf.len() - start).next_multiple_of(8);
    buf.resize(start + len, 0);
    let sum = checksum(&buf[start..]);
    buf[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// The fields of bytes that look like a record. Their checksum was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// See [`Record::lsn`].
    pub lsn: u64,
    /// See [`Record::durable`].
    pub durable: u64,
    /// Bytes of the record.
    pub len: usize,
}

impl RawRecord {
    /// The claim of this header, if a record of at most `bytes` bytes can make it.
    fn claim(&self, bytes: usize) -> Option<Claim> {
        let (key_len, value_len) = (self.key_len as usize, self.value_len as usize);
        let len = RECORD_BYTES.checked_add(key_len)?.checked_add(value_len)?;
        let len = len.checked_next_multiple_of(8)?;
        let is_sound =
            key_len <= KEY_BYTES_MAX && u64::from(self.unsynced) <= self.lsn && self.lsn > 0;
        if len > bytes || !is_sound {
            return None;
        }
        // If the number exceeds the field, no record is known to have been durable.
        let is_told = self.unsynced != u32::MAX;
        let durable = if is_told { self.lsn - u64::from(self.unsynced) } else { 0 };
        Some(Claim { lsn: self.lsn, durable, len })
    }
}

/// The claim of the bytes at the start of `bytes`, without a check of the checksum; `None` if they
/// cannot be a record, or if a part of it is missing.
pub fn claim(bytes: &[u8]) -> Option<Claim> {
    RawRecord::read_from_prefix(bytes).ok()?.0.claim(bytes.len())
}

/// The record at the start of `bytes`, and its length; `None` if there is no record, or only a part
/// of one.
pub fn read(segment: u64, bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let (raw, rest) = RawRecord::read_from_prefix(bytes).ok()?;
    let Claim { lsn, durable, len } = raw.claim(bytes.len())?;
    let (key_len, value_len) = (raw.key_len as usize, raw.value_len as usize);
    if raw.checksum != checksum_of(segment, &bytes[..len]) {
        return None;
    }
    let (key, value) = (&rest[..key_len], &rest[key_len..key_len + value_len]);
    let number = raw.number;
    let expires_at_ms = (raw.flags & code::EXPIRES != 0).then_some(raw.expires_at_ms);
    let op = match raw.kind {
        code::PUT if key_len > 0 => Op::Change {
            key,
            change: Change::Put { value, version: Version::from_u64(number), expires_at_ms },
        },
        code::DELETE if key_len > 0 => Op::Change { key, change: Change::Delete },
        code::LEASE => Op::Lease { end: number },
        code::SEAL => Op::Seal { next: number },
        code::END => Op::End { lsn: number },
        _ => return None,
    };
    Some((Record { lsn, durable, op }, len))
}

/// The checksum of a record that has its segment's number in the place of the checksum.
fn checksum_of(segment: u64, record: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&segment.to_le_bytes());
    digest.update(&record[8..]);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_survives_the_trip_and_every_flipped_bit_is_noticed() {
        for kind in [Kind::Log, Kind::Snapshot { part: 3 }] {
            let header = Header { table: 5, segment: 7, kind, lsn: 100 };
            let bytes = header.bytes();
            assert_eq!(Header::read(&bytes, 7), Some(header));
            assert_eq!(Header::read(&bytes, 8), None);
            assert_eq!(Header::read(&bytes[..63], 7), None);
            for bit in 0..HEADER_BYTES * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::read(&bad, 7), None, "bit {bit}");
            }
        }
    }

    /// A key has at least one byte, and records are counted from 1.
    #[test]
    fn what_no_log_writes_is_no_record() {
        let put = Change::Put { value: b"v", version: Version::from_u64(1), expires_at_ms: None };
        let read_of = |lsn: u64, op: Op<'_>| {
            let mut bytes = Vec::new();
            write(9, &Record { lsn, durable: 0, op }, &mut bytes);
            read(9, &bytes).is_some()
        };
        for change in [put, Change::Delete] {
            assert!(read_of(1, Op::Change { key: b"k", change }));
            assert!(!read_of(1, Op::Change { key: b"", change }), "{change:?} of no key");
            assert!(!read_of(0, Op::Change { key: b"k", change }), "record 0");
        }
    }

    proptest! {
        #[test]
        fn records_survive_the_trip_and_every_flipped_bit_is_noticed(
            (lsn, back) in (1u64..u64::MAX, 0u64..100),
            (number, expires_at_ms) in any::<(u64, Option<u64>)>(),
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let version = Version::from_u64(number);
            let put = Change::Put { value: &value, version, expires_at_ms };
            for op in [
                Op::Change { key: &key, change: put },
                Op::Change { key: &key, change: Change::Delete },
                Op::Lease { end: number },
                Op::Seal { next: number },
                Op::End { lsn: number },
            ] {
                let record = Record { lsn, durable: lsn.saturating_sub(back), op };
                let mut bytes = Vec::new();
                write(9, &record, &mut bytes);
                prop_assert_eq!(read(9, &bytes), Some((record, bytes.len())));
                prop_assert_eq!(read(8, &bytes), None);
                for len in 0..bytes.len() {
                    prop_assert_eq!(read(9, &bytes[..len]), None);
                }
                for bit in 0..bytes.len() * 8 {
                    let mut bad = bytes.clone();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    prop_assert_eq!(read(9, &bad), None, "bit {}", bit);
                }
            }
        }

        #[test]
        fn hostile_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (read(1, &bytes), Header::read(&bytes, 1));
        }
    }
}
