//! The bare loop: the highest rate of GETs that the memory allows, over the memory just measured.
//!
//! The index slot that shows the key of each operation of the trace is looked up beforehand (for
//! PUTs too: their keys are drawn like those of GETs, and a run without GETs needs a bound as
//! well). Then one thread loads slot after slot, and all words of the entry that each names, as
//! fast as it can, without hashing, comparing or copying. No GET can do without these accesses.
//! They are made in the order of the trace.

use std::hint::black_box;
use std::time::Instant;

use loch::lanes::block_on;
use loch_engines::EngineError;
use loch_engines::limits::GRAIN_BYTES;
use loch_engines::nessie::dte::{Header, head_bytes};
use loch_engines::nessie::hash::{Candidates, TableMap};
use loch_engines::nessie::ite::Ite;
use loch_fabric::shm::{Chase, ShmEndpoint};
use loch_fabric::{Buf, Fabric, RemoteAddr};

use crate::trace::Trace;
use crate::workload::Workload;

/// The best of this many passes counts, because the loop is a bound.
const PASSES: u32 = 3;
/// The most bytes of entries that a pass reads; with small entries it is the whole trace.
const PASS_BYTES_MAX: u64 = 2 << 30;

/// A table's map, and the way to its memory.
type Reach<'a> = (&'a TableMap, &'a ShmEndpoint);

/// Operations a second of the bare loop; `None` if no key of the trace is there.
pub fn ops_per_s(
    reach: Reach<'_>,
    workload: &Workload,
    trace: &Trace,
) -> Result<Option<f64>, EngineError> {
    let entry_bytes =
        head_bytes(reach.0.shape.protocol) + workload.key_size() + workload.value_size();
    let steps = (PASS_BYTES_MAX / entry_bytes as u64).max(1);
    let slots = slots(reach, workload, trace, steps as usize)?;
    if slots.is_empty() {
        return Ok(None);
    }
    let entries = Entries {
        map: reach.0,
        // Whole words; an entry's memory is a multiple of its grain.
        bytes: entry_bytes.next_multiple_of(8),
    };
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let began = Instant::now();
        black_box(reach.1.chase(&slots, &entries)?);
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(Some(slots.len() as f64 / best))
}

/// The slots that show the keys of the first operations of the trace.
fn slots(
    reach: Reach<'_>,
    workload: &Workload,
    trace: &Trace,
    most: usize,
) -> Result<Vec<RemoteAddr>, EngineError> {
    let mut slots = Vec::with_capacity(most.min(trace.len()));
    let mut key = vec![0; workload.key_size()];
    let mut buf = Buf::new();
    for at in 0..trace.len().min(most) {
        workload.write_key(trace.at(at).record, &mut key);
        slots.extend(slot_of(reach, &key, &mut buf)?);
    }
    Ok(slots)
}

/// The slot that shows `key`; `None` if there is no such key.
fn slot_of(reach: Reach<'_>, key: &[u8], buf: &mut Buf) -> Result<Option<RemoteAddr>, EngineError> {
    let (map, fabric) = reach;
    let candidates = Candidates::of(map, key);
    for slot in (0..candidates.count()).map(|candidate| candidates.slot(candidate)) {
        let word = fabric.load(slot)?;
        let shows =
            map.codec.is_visible(Ite(word)) && map.codec.has_filter(Ite(word), candidates.filter);
        if shows && key_at(reach, place(map, word), key, buf)? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Whether the entry at `at` is of `key`.
fn key_at(
    reach: Reach<'_>,
    at: RemoteAddr,
    key: &[u8],
    buf: &mut Buf,
) -> Result<bool, EngineError> {
    let (map, fabric) = reach;
    let mut into = std::mem::take(buf);
    into.clear();
    let (filled, done) =
        block_on(fabric.read(at, head_bytes(map.shape.protocol) + key.len(), into));
    *buf = filled;
    done?;
    let found = Header::read(buf).and_then(|header| buf.get(header.key_at()..header.value_at()));
    Ok(found == Some(key))
}

/// The place of the entry that a word names.
#[inline(always)]
fn place(map: &TableMap, word: u64) -> RemoteAddr {
    let place = map.codec.place(Ite(word));
    // A word that names no table leads nowhere, and the fabric says so.
    let nowhere = RemoteAddr::new(map.region_of(0), 1 << 55);
    let base = map.data_base(place.dti).unwrap_or(nowhere);
    base.add(u64::from(place.idx) * GRAIN_BYTES)
}

/// From slots to entries, all of the same length.
struct Entries<'a> {
    map: &'a TableMap,
    bytes: usize,
}

impl Chase for Entries<'_> {
    #[inline(always)]
    fn entry(&self, word: u64) -> (RemoteAddr, usize) {
        (place(self.map, word), self.bytes)
    }
}
