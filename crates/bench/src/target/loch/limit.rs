//! The bare loops: the highest rates of GETs that the memory allows, over the memory that is being
//! measured.
//!
//! The index slot that shows the key of each operation of the trace is looked up beforehand (for
//! PUTs too: their keys are drawn like those of GETs, and a run without GETs needs a bound as
//! well). Then one thread loads slot after slot, and all words of the entry that each names, as
//! fast as it can, without hashing, comparing or copying. No GET can do without these accesses.
//! They are made in the order of the trace: once without prefetching, which bounds operations one
//! at a time, and with prefetching at several distances, the best of which bounds everything.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use loch::lanes::block_on;
use loch_engines::EngineError;
use loch_engines::nessie::dte::{Header, head_bytes};
use loch_engines::nessie::hash::{Candidates, TableMap};
use loch_engines::nessie::ite::{Codec, Ite};
use loch_fabric::shm::{Area, BareGets, Names, ShmEndpoint};
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

use crate::measured::Limits;
use crate::trace::Trace;
use crate::workload::Workload;

/// Steps of one pass.
const PASS_STEPS: usize = 128 << 10;
/// The most bytes of entries that a pass reads.
const PASS_BYTES_MAX: usize = 256 << 20;
/// Each loop runs this often, by turns, and its best pass counts, because it is a bound.
const ROUNDS: usize = 2;

/// A table's map, and the way to its memory.
type Reach<'a> = (&'a TableMap, &'a ShmEndpoint);

/// A bare loop over slots and their entries.
type Loop = fn(&mut BareGets<'_, Entries<'_>>) -> Result<(), FabricError>;

/// The loop without prefetching, and those with it.
const LOOPS: [Loop; 5] = [
    |gets| gets.one_by_one(),
    |gets| gets.ahead::<8>(),
    |gets| gets.ahead::<16>(),
    |gets| gets.ahead::<32>(),
    |gets| gets.ahead::<64>(),
];

/// Where in the trace the bare loops are.
#[derive(Debug, Default)]
pub struct Cursor {
    position: usize,
    /// The slots of the whole trace, if no operation changes them.
    kept: Vec<RemoteAddr>,
}

/// The rates of the bare loops over the next steps of the trace; `None` if none of their keys is
/// there. `is_at_rest` says that no client changes the table.
pub fn limits(
    reach: Reach<'_>,
    workload: &Workload,
    trace: &Trace,
    cursor: &mut Cursor,
    is_at_rest: bool,
) -> Result<Option<Limits>, EngineError> {
    let entry_bytes =
        head_bytes(reach.0.shape.protocol) + workload.key_size() + workload.value_size();
    let steps = PASS_STEPS.min(PASS_BYTES_MAX / entry_bytes).max(1);
    let areas = areas(reach.0);
    // What misses in a cache is put, and takes others out.
    let is_at_rest = is_at_rest && !reach.0.shape.options.evicts;
    if is_at_rest && cursor.kept.is_empty() {
        cursor.kept = slots(reach, workload, trace, 0..trace.len())?;
    }
    let mut next_slots = || {
        let len = if is_at_rest { cursor.kept.len() } else { trace.len() };
        let begin = if cursor.position < len { cursor.position } else { 0 };
        let end = len.min(begin + steps);
        cursor.position = end;
        match is_at_rest {
            true => Ok(Cow::Borrowed(&cursor.kept[begin..end])),
            false => slots(reach, workload, trace, begin..end).map(Cow::Owned),
        }
    };
    let mut limits: Option<Limits> = None;
    for _ in 0..ROUNDS {
        for (number, bare_loop) in LOOPS.iter().enumerate() {
            let slots = next_slots()?;
            if slots.is_empty() {
                return Ok(None);
            }
            let mut gets =
                reach.1.bare_gets(&slots, &areas, Entries(&reach.0.codec), entry_bytes)?;
            let began = Instant::now();
            match bare_loop(&mut gets) {
                // A slot was emptied meanwhile, and its word names no place.
                Err(FabricError::OutOfBounds { .. }) if !is_at_rest => continue,
                done => done?,
            }
            let rate = slots.len() as f64 / began.elapsed().as_secs_f64();
            let limits = limits.get_or_insert_default();
            // The bound of one operation at a time is also one of several.
            limits.ops_per_s = limits.ops_per_s.max(rate);
            if number == 0 {
                limits.one_ops_per_s = limits.one_ops_per_s.max(rate);
            }
        }
    }
    Ok(limits)
}

/// The slots that show the keys of these operations of the trace.
fn slots(
    reach: Reach<'_>,
    workload: &Workload,
    trace: &Trace,
    steps: Range<usize>,
) -> Result<Vec<RemoteAddr>, EngineError> {
    let mut slots = Vec::with_capacity(steps.len());
    let mut key = vec![0; workload.key_size()];
    let mut buf = Buf::new();
    for at in steps {
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
    base.add(place.offset)
}

/// The data tables.
fn areas(map: &TableMap) -> Vec<Area> {
    let area = |dti| map.data_base(dti as u8).map(|base| (base, map.data_bytes()));
    (0..map.data_tables()).map_while(area).collect()
}

/// From words to entries in the data tables.
struct Entries<'a>(&'a Codec);

impl Names for Entries<'_> {
    #[inline(always)]
    fn entry(&self, word: u64) -> (usize, u64) {
        let place = self.0.place(Ite(word));
        (usize::from(place.dti), place.offset)
    }
}
