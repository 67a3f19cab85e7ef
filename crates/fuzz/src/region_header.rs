//! A region's header, table directory and session slots: what passes for a layout lies in the
//! region, and so does everything that is computed from it.

use std::cell::RefCell;
use std::sync::Arc;

use loch_engines::checksum::checksum;
use loch_engines::nessie::hash::{Candidates, TableMap};
use loch_engines::nessie::slab::Slab;
use loch_engines::region::{
    DIRECTORY_OFFSET, Header, INCARNATION_OFFSET, LAYOUT_VERSION, MAGIC, SESSION_BYTES,
    SESSIONS_OFFSET, TableEntry, tables_offset,
};
use loch_engines::registry::EngineId;
use loch_fabric::shm::Region;
use loch_fabric::{RegionId, RemoteAddr};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// Bytes of the region that the input is written into.
const REGION_BYTES: u64 = 2 << 20;
/// The header page, the directory and some session slots are all that is read.
const HEAD_BYTES: usize = SESSIONS_OFFSET as usize + 16 * SESSION_BYTES as usize;
const ENTRY_BYTES: usize = size_of::<TableEntry>();

thread_local! {
    static REGION: RefCell<Arc<Region>> =
        RefCell::new(Arc::new(Region::anonymous(REGION_BYTES).expect("2 MiB of memory")));
}

/// A byte that says what to mend, the header's bytes, the directory's, and the session slots'.
///
/// # Panics
/// If something passes for a layout and is none.
pub fn region_header(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mode = input.byte();
    let mut head = vec![0; HEAD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    let incarnation = input.u64();
    put(INCARNATION_OFFSET as usize, &incarnation.to_le_bytes());
    let (header, tables) = header_of(&mut input, mode);
    put(0, header.as_bytes());
    for table in 0..tables {
        put(
            DIRECTORY_OFFSET as usize + table * ENTRY_BYTES,
            &entry_of(&mut input, mode, header.nodes),
        );
    }
    let slots = input.take(16 * SESSION_BYTES as usize);
    put(SESSIONS_OFFSET as usize, slots);
    read_directory(&head, header.region_bytes);
    let region = REGION.with_borrow(Arc::clone);
    region.copy_in(0, &head);
    read_region(&region, &header);
}

/// A header of the input's bytes, and its tables, up to two. Without the mending hardly anything
/// would come further than the checksum.
fn header_of(input: &mut Input<'_>, mode: u8) -> (Header, usize) {
    let mut raw = [0; size_of::<Header>()];
    let bytes = input.take(raw.len());
    raw[..bytes.len()].copy_from_slice(bytes);
    let mut header = Header::read_from_bytes(&raw).expect("as many bytes as a header has");
    if mode & 1 == 0 {
        (header.magic, header.version) = (MAGIC, LAYOUT_VERSION);
        header = header.sealed();
    }
    if mode & 2 == 0 {
        header.region_bytes = REGION_BYTES;
        header.sessions %= 1 << 15;
        header.tables %= 3;
        header.nodes = header.nodes % 256 + 1;
        header.node %= header.nodes;
        header = header.sealed();
    }
    (header, header.tables.min(2) as usize)
}

fn entry_of(input: &mut Input<'_>, mode: u8, nodes: u16) -> [u8; ENTRY_BYTES] {
    let mut raw = [0; ENTRY_BYTES];
    let bytes = input.take(raw.len());
    raw[..bytes.len()].copy_from_slice(bytes);
    if mode & 8 == 0 {
        let mut entry = TableEntry::read_from_bytes(&raw).expect("as many bytes as an entry has");
        entry.engine = EngineId::Nessie as u32;
        entry.params.nodes = nodes;
        raw.copy_from_slice(entry.as_bytes());
    }
    if mode & 4 == 0 {
        let sum = checksum(&raw[..ENTRY_BYTES - 8]);
        raw[ENTRY_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    }
    raw
}

/// The bytes alone, as a region of whatever size.
fn read_directory(head: &[u8], region_bytes: u64) {
    let Ok(header) = Header::parse(head, region_bytes) else {
        return;
    };
    let directory = &head[DIRECTORY_OFFSET as usize..SESSIONS_OFFSET as usize];
    for table in 0..header.tables as usize + 1 {
        if let Ok(entry) = TableEntry::parse(directory, table, &header) {
            assert_inside(&header, &[entry]);
        }
    }
}

/// As a client that attaches reads it, and as a node that starts.
fn read_region(region: &Arc<Region>, written: &Header) {
    let layout = loch::fuzzing::layout(region);
    let sessions = loch::fuzzing::sessions(region);
    assert_eq!(layout.as_ref().err(), sessions.as_ref().err(), "clients and nodes read the same");
    let (Ok((header, tables, maps)), Ok((slots, freed, opened))) = (layout, sessions) else {
        return;
    };
    assert_eq!(header, *written, "it is what was written");
    assert_eq!(tables.len(), header.tables as usize);
    assert!(slots < header.sessions && freed <= header.sessions as usize);
    assert!(opened.is_none_or(|incarnation| incarnation as u32 & 0xff_ffff != 0));
    assert_inside(&header, &tables);
    for map in maps.into_iter().flatten() {
        let id = RegionId(header.node as u8);
        assert_map_inside(&map, id, REGION_BYTES);
    }
}

/// Every table lies in the region, behind the slots, and none in another.
///
/// # Panics
/// Otherwise.
pub fn assert_inside(header: &Header, tables: &[TableEntry]) {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for table in tables {
        let end = table.offset.checked_add(table.bytes).expect("it ends somewhere");
        let first = tables_offset(header.sessions);
        assert!(table.offset >= first, "a table in the session slots: {header:?} {table:?}");
        assert!(end <= header.region_bytes, "a table out of its region: {header:?} {table:?}");
        let apart = |(from, to): &(u64, u64)| end <= *from || table.offset >= *to;
        assert!(ranges.iter().all(apart), "two tables in the same place: {header:?} {tables:?}");
        ranges.push((table.offset, end));
        assert!(table.name().is_some_and(|name| !name.is_empty()));
    }
}

/// Every address that a map gives out for one region is inside it.
fn assert_map_inside(map: &TableMap, region: RegionId, region_bytes: u64) {
    let inside = |at: RemoteAddr, len: u64| {
        assert!(at.region() != region || at.offset() + len <= region_bytes, "{len} bytes at {at}");
    };
    let geometry = &map.shape.geometry;
    for shard in map.shards() {
        inside(*shard, geometry.shard_bytes());
    }
    let dti = map.dti_of(region).expect("a node has a data table");
    inside(map.data_base(dti).expect("there it is"), geometry.data_bytes());
    inside(map.chunk_addr(dti, geometry.chunks - 1), 8);
    inside(map.slab_addr(Slab { dti, chunk: geometry.chunks as u32 - 1 }), 1 << 16);
    for key in 0..16u8 {
        let candidates = Candidates::of(map, &[key]);
        let slots = candidates.count();
        for c in 0..slots {
            inside(candidates.slot(c), 8);
            let same = (0..slots).filter(|d| candidates.slot(*d) == candidates.slot(c));
            assert_eq!(same.count(), 1, "candidate slots are distinct");
        }
    }
}
