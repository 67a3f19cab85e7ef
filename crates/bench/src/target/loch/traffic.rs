//! The traffic of GETs and of PUTs over the fabric, separated exactly.
//!
//! An endpoint counts all verbs of its thread, and the lanes of a thread mix GETs and PUTs. But
//! only one operation runs at any moment: so verbs that are counted between the beginning and the
//! end of a poll belong to the operation that was polled. Adding this up costs about as much as a
//! GET. The bench therefore counts with separate operations, after the timed ones: with the same
//! trace, lanes and clients, all clients at once.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;

use loch::VerbCount;
use loch::lanes;
use loch_engines::operation::PutOptions;
use loch_engines::{EngineError, Kv};

use super::lane::{Lane, refuse};
use crate::measure::{Kind, Outcome, Run, Ticks};
use crate::tally::{OpTraffic, Traffic};

/// Executes the operations of `run` and counts. Refused operations do not count; `refusal` says why
/// the last of them was refused.
pub async fn count<S: Kv, C: Ticks>(
    store: &S,
    run: &Run<'_, C>,
    lanes: usize,
    refusal: &RefCell<Option<EngineError>>,
) -> Result<Traffic, EngineError> {
    let sums = Cell::new(Traffic::default());
    let mut fatal = None;
    let work = (0..lanes).map(|_| lane(store, run, &sums, refusal));
    lanes::run(lanes, work, |ended| {
        fatal = fatal.take().or(ended.err());
    })
    .await;
    fatal.map_or(Ok(sums.get()), Err)
}

async fn lane<S: Kv, C: Ticks>(
    store: &S,
    run: &Run<'_, C>,
    sums: &Cell<Traffic>,
    refusal: &RefCell<Option<EngineError>>,
) -> Result<(), EngineError> {
    let workload = run.workload();
    let mut lane = Lane::new(workload);
    while let Some(op) = run.next() {
        let result = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let buf = std::mem::take(&mut lane.buf);
                let get = store.get(&lane.key, buf);
                let (found, count) = counted(|| store.counted(), get).await;
                found.map(|found| {
                    match found {
                        Some(found) => {
                            run.finish(&op, Outcome::Found(&found));
                            lane.buf = found.into_buf();
                        }
                        None => run.finish(&op, Outcome::Missing),
                    }
                    count
                })
            }
            Kind::Put => {
                let (key, value) = lane.pair(workload, &op);
                let put = store.put(key, value, PutOptions::default());
                let (stored, count) = counted(|| store.counted(), put).await;
                stored.map(|_| {
                    run.finish(&op, Outcome::Stored);
                    count
                })
            }
        };
        match result {
            Ok(count) => add(sums, op.kind, count),
            Err(error) => refuse(run, &op, error, refusal)?,
        }
    }
    Ok(())
}

/// The output of `future`, and the counts while it was polled.
pub async fn counted<F: Future>(
    snapshot: impl Fn() -> VerbCount,
    future: F,
) -> (F::Output, VerbCount) {
    let mut future = pin!(future);
    let mut count = VerbCount::default();
    let output = poll_fn(|cx| {
        let before = snapshot();
        let polled = future.as_mut().poll(cx);
        count = count + (snapshot() - before);
        polled
    })
    .await;
    (output, count)
}

/// Adds the traffic of an operation.
pub fn add(sums: &Cell<Traffic>, kind: Kind, count: VerbCount) {
    let mut traffic = sums.get();
    let sum = match kind {
        Kind::Get => &mut traffic.get,
        Kind::Put => &mut traffic.put,
    };
    sum.add(OpTraffic {
        ops: 1,
        verbs: count.verbs,
        round_trips: count.round_trips,
        bytes: count.bytes,
    });
    sums.set(traffic);
}
