//! What a GET and a PUT send over the fabric, told apart exactly.
//!
//! An endpoint counts all that its thread sends, and the lanes of a thread mix
//! GETs and PUTs. But at any moment only one operation runs: so what is
//! counted between the beginning and the end of a poll belongs to the
//! operation that was polled. Adding this up costs about as much as a GET,
//! so it is done by operations of their own, after those that are timed: the
//! same trace, lanes and clients, all clients at once.

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

/// Executes the operations of `run` and counts. Operations that are refused do not count; why the
/// last of them was is in `refusal`.
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

/// What `future` came to, and what was counted while it was polled.
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

/// Adds what an operation cost.
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
