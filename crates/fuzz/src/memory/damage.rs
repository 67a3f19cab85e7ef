//! Damages: which word of a table's memory changes, and into what.
//!
//! Any word can change into any other; those whose meaning the engine relies on, and values that
//! may mean something there, come first.

use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::ite::Ite;
use loch_engines::nessie::slab::Slab;
use loch_engines::region::{
    EPOCH_OFFSET, INCARNATION_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, STAMP_OFFSET,
};
use loch_fabric::{RegionId, RemoteAddr};

use super::table::{OWNERS, SESSIONS};
use super::watch::{Again, Change, Run};
use crate::input::Input;

/// Values at the edge of something.
const EDGES: [u64; 10] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    u32::MAX as u64,
    1 << 32,
    (1 << 50) - 1,
    (1 << 50) - 8,
    u64::MAX << 32,
];

/// The next damage of an input.
pub fn read(input: &mut Input<'_>, map: &TableMap, run: &Run) -> Change {
    let how = input.byte();
    let at = place(input, map, run, how & 15);
    let was = load(run, at);
    let new = match how >> 4 & 7 {
        0 => input.pick(&EDGES),
        1 => was ^ 1 << input.below(64),
        2 => input.u64(),
        3 => was.wrapping_add(input.byte() as i8 as u64),
        4 => load(run, index_word(input, map)),
        5 => descriptor(input),
        6 => was ^ (input.u16() as u64) << (input.below(4) * 16),
        // A half of it, as a note is.
        _ => was & !(u32::MAX as u64) | input.pick(&EDGES) >> 16 & u32::MAX as u64,
    };
    let when = if how & 128 != 0 { input.byte() } else { 0 };
    let again = [Again::No, Again::No, Again::Back, Again::On][when as usize >> 6];
    Change { at, flip: was ^ new, after: (when & 63) as u64, again }
}

fn load(run: &Run, at: RemoteAddr) -> u64 {
    let region = &run.regions[at.region().0 as usize];
    region.word(at.offset()).load(std::sync::atomic::Ordering::Relaxed)
}

/// A word that may be the descriptor of a slab.
fn descriptor(input: &mut Input<'_>) -> u64 {
    let kind = input.byte() as u64 & 7;
    let class = input.pick(&[0, 1, 2, 5, 8, 20, 40, 60, 255u64]);
    let chunks = input.pick(&[1, 0, 2, 4, 15, 16, 17, 1 << 20, (1 << 21) - 1u64]);
    let owner = input.pick(&OWNERS) as u64;
    kind | class << 3 | chunks << 11 | owner << 32
}

fn index_word(input: &mut Input<'_>, map: &TableMap) -> RemoteAddr {
    let shard = map.shards()[input.below(map.shards().len())];
    let slots = map.shape.geometry.shard_bytes() / 8;
    shard.add(input.byte() as u64 % slots * 8)
}

fn slab(input: &mut Input<'_>, map: &TableMap) -> Slab {
    let which = input.byte();
    let chunks = map.shape.geometry.chunks as u32;
    Slab { dti: which >> 7, chunk: (which & 127) as u32 % chunks }
}

/// The address of a word, aligned and inside its region.
fn place(input: &mut Input<'_>, map: &TableMap, run: &Run, area: u8) -> RemoteAddr {
    match area {
        0..=3 => index_word(input, map),
        4..=6 => {
            let slab = slab(input, map);
            map.chunk_addr(slab.dti, slab.chunk as u64)
        }
        7 => map.slab_addr(slab(input, map)).add(input.byte() as u64 % 2 * 8),
        8 => map.slab_addr(slab(input, map)).add(64 + input.byte() as u64 * 8),
        9..=11 => {
            // The header of an entry that the index names, or its key.
            let word = Ite(load(run, index_word(input, map)));
            let place = map.codec.place(word);
            let base = map.data_base(place.dti & 1).expect("there are two data tables");
            let words = map.shape.geometry.data_bytes() / 8 - 8;
            base.add(place.offset / 8 % words * 8 + input.byte() as u64 % 8 * 8)
        }
        12 => {
            let words = SESSIONS as u64 * SESSION_BYTES / 8;
            let offset = SESSIONS_OFFSET + input.byte() as u64 % words * 8;
            RemoteAddr::new(RegionId(input.byte() & 1), offset)
        }
        13 => {
            let offset = input.pick(&[EPOCH_OFFSET, STAMP_OFFSET, INCARNATION_OFFSET]);
            RemoteAddr::new(RegionId(input.byte() & 1), offset)
        }
        14 => {
            let slab = slab(input, map);
            map.slab_addr(slab).add(input.u16() as u64 * 8 % CHUNK_BYTES)
        }
        _ => {
            let len = run.table.end - run.table.start;
            let offset = run.table.start + input.u64() % len / 8 * 8;
            RemoteAddr::new(RegionId(input.byte() & 1), offset)
        }
    }
}
