//! The layout of a node's memory: header page, table directory, session slots, tables.
//!
//! `docs/memory-layout.md` draws it; the assertions here hold the drawing true. All words are
//! little-endian. The header and the directory are written once, when the region is made, and are
//! covered by checksums; the words on lines of their own change while the region lives.

use std::mem::offset_of;
use std::ops::Range;

use loch_fabric::{RegionId, RemoteAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::checksum;
use crate::error::LayoutError;
use crate::limits::{NODES_MAX, PINS_MAX, TABLE_NAME_BYTES_MAX, TABLES_MAX};

/// First word of every region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"LOCHMEM\0");

/// The version of everything in this file and of the engines' layouts. A region of another version
/// has to be made anew: there is no migration in place.
pub const LAYOUT_VERSION: u32 = 6;

/// Offset of the word that counts requests for a grace period; see [`crate::epoch`].
pub const EPOCH_OFFSET: u64 = 1024;
/// Offset of the word from which writers lease stamps.
pub const STAMP_OFFSET: u64 = 1088;
/// The bits of a stamp. Half of the stamps of a node are more than it hands out in five hundred
/// years.
pub const STAMP_BITS: u32 = 50;
/// The first stamp of a region is one of so many: half of them.
pub const FIRST_STAMPS: u64 = 1 << (STAMP_BITS - 1);
/// Offset of the word from which session incarnations are taken.
pub const INCARNATION_OFFSET: u64 = 1152;
/// Offset of the word that bounds the session slots that may hold pins: none from it on ever did.
pub const PINNERS_OFFSET: u64 = 1216;
/// Offset of the identities of the other nodes' memory, a word for each node: that of the memory
/// with which this region's words may name entries there, 0 if the node was not met yet.
pub const PEERS_OFFSET: u64 = 2048;
/// Offset of the table directory.
pub const DIRECTORY_OFFSET: u64 = 4096;
/// Offset of the session slots.
pub const SESSIONS_OFFSET: u64 = 8192;
/// Bytes of a session slot: a cache line.
pub const SESSION_BYTES: u64 = 64;
/// Bytes of a session's pins, which lie behind all session slots: a word for each pin.
pub const PINS_BYTES: u64 = PINS_MAX as u64 * 8;
/// Tables start at multiples of this.
pub const TABLE_ALIGN_BYTES: u64 = 64 << 10;

/// The header of a region: its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// This node's number in its cluster.
    pub node: u16,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Session slots.
    pub sessions: u32,
    /// Tables in the directory.
    pub tables: u32,
    /// Identifies the memory: random, chosen when the region was made.
    pub identity: u64,
    /// [`checksum`] of the bytes before this field.
    pub checksum: u64,
}

/// One table of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct TableEntry {
    /// The name, padded with zeros.
    pub name: [u8; TABLE_NAME_BYTES_MAX],
    /// The number of its engine: [`EngineId`](crate::registry::EngineId).
    pub engine: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// First byte of the table in the region.
    pub offset: u64,
    /// Bytes of the table in the region, its requests included.
    pub bytes: u64,
    /// The table's parameters that clients have to know, the same on every node.
    pub params: TableParams,
    /// [`checksum`] of the bytes before this field.
    pub checksum: u64,
}

/// The parameters of a table that clients and workers have to know. Only the table's engine gives a
/// meaning to the `shape` and `words` fields.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct TableParams {
    /// Defined by the engine.
    pub shape_head: [u8; 2],
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Defined by the engine.
    pub shape: [u32; 5],
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// The seed of the hash of keys.
    pub seed: u64,
    /// How workers serve the table's requests; zeros if no worker does.
    pub service: Service,
    /// Defined by the engine.
    pub words: [u64; 6],
}

/// How a table's requests are served: the same on every node, and part of its directory entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Service {
    /// Workers of each node; 0: the table has no workers.
    pub workers: u16,
    /// The most requests that a client has under way at one worker (herd's W).
    pub window: u16,
    /// Reply slots of each client, which bound the requests that it has under way at all workers
    /// together.
    pub replies: u16,
    /// Reserved, zero.
    pub reserved: u16,
    /// Session slots of each node.
    pub sessions_per_node: u32,
    /// Bytes of a request slot; 0: requests come by SEND.
    pub request_bytes: u32,
    /// Bytes of a reply slot; 0: replies go by SEND.
    pub reply_bytes: u32,
    /// Reserved, zero.
    pub reserved_too: u32,
}

/// The seed with which the keys of a table are hashed.
pub const SEED: u64 = 0x4c6f_6368_4b65_7973;

/// One session slot: a client's presence in a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SessionSlot {
    /// The incarnation of the session that holds the slot; 0: no session.
    pub incarnation: u64,
    /// Twice the epoch that the session has seen, plus one while an operation is under way.
    pub announced: u64,
    /// The process that holds the session, as the node sees it.
    pub pid: u64,
    /// Start time of that process, so that a recycled pid is not taken for it.
    pub started: u64,
    /// The bell at which the thread of the session sleeps while it waits for workers.
    pub bell: u64,
    /// 1 if the session has left something to the scrubber since the node last looked, else 0.
    pub left: u64,
    /// Reserved, zero.
    pub reserved: [u64; 2],
}

/// The slot of the node's own scrubber.
pub const SCRUBBER_SLOT: u32 = 0;

const _: () = {
    assert!(size_of::<Header>() == 48);
    assert!(size_of::<Header>() as u64 <= EPOCH_OFFSET);
    assert!(PEERS_OFFSET + NODES_MAX as u64 * 8 <= DIRECTORY_OFFSET);
    assert!(size_of::<SessionSlot>() as u64 == SESSION_BYTES);
    assert!(size_of::<TableEntry>() == 192);
    assert!(DIRECTORY_OFFSET + (TABLES_MAX * size_of::<TableEntry>()) as u64 <= SESSIONS_OFFSET);
};

impl Header {
    /// The header with its checksum.
    pub fn sealed(mut self) -> Self {
        self.checksum = checksum(&self.as_bytes()[..size_of::<Self>() - 8]);
        self
    }

    /// Reads a header from the first bytes of a region of `region_bytes` bytes.
    ///
    /// # Errors
    /// [`LayoutError`] if the bytes are not a valid header of this version.
    pub fn parse(bytes: &[u8], region_bytes: u64) -> Result<Self, LayoutError> {
        let damaged = |what: &str| LayoutError::Damaged { what: what.into() };
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| damaged("header"))?;
        if header.magic != MAGIC {
            return Err(LayoutError::NotARegion { found: header.magic });
        }
        if header.version != LAYOUT_VERSION {
            return Err(LayoutError::Version { found: header.version, reads: LAYOUT_VERSION });
        }
        if header != header.sealed() || header.region_bytes != region_bytes {
            return Err(damaged("header"));
        }
        let sane = header.nodes as usize <= NODES_MAX
            && header.node < header.nodes
            && header.tables as usize <= TABLES_MAX
            && tables_offset(header.sessions) <= region_bytes;
        if sane { Ok(header) } else { Err(damaged("header")) }
    }

    /// As [`tables_offset`].
    pub fn tables_offset(&self) -> u64 {
        tables_offset(self.sessions)
    }
}

impl TableEntry {
    /// The directory entry, with its checksum, of a table at `place` in the region. `engine` is the
    /// number of the table's engine.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if the name is empty or too long.
    pub fn new(
        name: &str,
        engine: u32,
        place: Range<u64>,
        params: TableParams,
    ) -> Result<Self, LayoutError> {
        if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX {
            return Err(LayoutError::Geometry(format!(
                "the table name {name:?} has {} bytes: a name has 1 to {TABLE_NAME_BYTES_MAX}",
                name.len()
            )));
        }
        let mut padded = [0; TABLE_NAME_BYTES_MAX];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        let mut entry = Self {
            name: padded,
            engine,
            reserved: 0,
            offset: place.start,
            bytes: place.end - place.start,
            params,
            checksum: 0,
        };
        entry.checksum = entry.computed_checksum();
        Ok(entry)
    }

    fn computed_checksum(&self) -> u64 {
        checksum(&self.as_bytes()[..size_of::<Self>() - 8])
    }

    /// Reads entry `index` from the directory's bytes. Only the table's engine can say whether its
    /// parts make a table: [`Map::of`](crate::registry::Map::of).
    ///
    /// # Errors
    /// [`LayoutError::Damaged`] if the bytes are not a valid entry inside the region.
    pub fn parse(directory: &[u8], index: usize, header: &Header) -> Result<Self, LayoutError> {
        let damaged = || LayoutError::Damaged { what: format!("table directory (entry {index})") };
        let at = index * size_of::<Self>();
        let bytes = directory.get(at..at + size_of::<Self>()).ok_or_else(damaged)?;
        let entry = Self::read_from_bytes(bytes).map_err(|_| damaged())?;
        let end = entry.offset.checked_add(entry.bytes);
        let inside = entry.offset.is_multiple_of(TABLE_ALIGN_BYTES)
            && entry.offset >= header.tables_offset()
            && end.is_some_and(|end| end <= header.region_bytes);
        let valid = entry.checksum == entry.computed_checksum()
            && entry.params.nodes == header.nodes
            && entry.params.service.sessions_per_node <= header.sessions
            && entry.name().is_some();
        if inside && valid { Ok(entry) } else { Err(damaged()) }
    }

    /// First byte after the table.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// The name, if its bytes make a valid name.
    pub fn name(&self) -> Option<&str> {
        let len = self.name.iter().position(|b| *b == 0).unwrap_or(self.name.len());
        std::str::from_utf8(&self.name[..len]).ok().filter(|n| !n.is_empty())
    }
}

/// The address of session slot `slot` of a node.
pub fn session_addr(node: RegionId, slot: u32) -> RemoteAddr {
    RemoteAddr::new(node, SESSIONS_OFFSET + slot as u64 * SESSION_BYTES)
}

/// The address of the bell in session slot `slot` of a node.
pub fn session_bell_addr(node: RegionId, slot: u32) -> RemoteAddr {
    session_addr(node, slot).add(offset_of!(SessionSlot, bell) as u64)
}

/// The address of the word by which the session of slot `slot` tells that it has left something to
/// the scrubber.
pub fn session_left_addr(node: RegionId, slot: u32) -> RemoteAddr {
    session_addr(node, slot).add(offset_of!(SessionSlot, left) as u64)
}

/// The offset of the pins of session slot `slot` in a region with `sessions` session slots.
pub const fn pins_offset(sessions: u32, slot: u32) -> u64 {
    SESSIONS_OFFSET + sessions as u64 * SESSION_BYTES + slot as u64 * PINS_BYTES
}

/// First byte after the pins of `sessions` session slots where a table may start.
pub const fn tables_offset(sessions: u32) -> u64 {
    pins_offset(sessions, sessions).next_multiple_of(TABLE_ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            node: 1,
            nodes: 3,
            region_bytes: 1 << 30,
            sessions: 128,
            tables: 1,
            identity: 9,
            checksum: 0,
        }
        .sealed()
    }

    #[test]
    fn a_header_survives_the_trip_and_every_flipped_bit_is_noticed() {
        let good = header();
        let bytes = good.as_bytes().to_vec();
        assert_eq!(Header::parse(&bytes, 1 << 30), Ok(good));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bad, 1 << 30).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let newer = Header { version: 9, ..header() }.sealed();
        let error = Header::parse(newer.as_bytes(), 1 << 30).unwrap_err();
        assert_eq!(error, LayoutError::Version { found: 9, reads: LAYOUT_VERSION });
        assert!(Header::parse(&[0; 48], 1 << 30).is_err());
        assert!(Header::parse(&[1; 7], 1 << 30).is_err());
    }
}
