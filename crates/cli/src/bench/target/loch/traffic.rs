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
use loch::lanes::{self, block_on};
use loch_engines::EngineError;
use loch_engines::nessie::PutOptions;
use loch_fabric::{Counters, Fabric};

use super::client::{Lane, Nessie, refuse};
use crate::bench::measure::{Kind, Outcome, Run};
use crate::bench::target::{OpTraffic, Traffic};

/// Executes the operations of `run` and counts.
pub fn count(engine: &Nessie, run: &Run<'_>, lanes: usize) -> Result<Traffic, EngineError> {
    let sums = Cell::new(Traffic::default());
    let mut fatal = None;
    let work = (0..lanes).map(|_| lane(engine, run, &sums));
    block_on(lanes::run(lanes, work, |ended| {
        fatal = fatal.take().or(ended.err());
    }));
    fatal.map_or(Ok(sums.get()), Err)
}

async fn lane(engine: &Nessie, run: &Run<'_>, sums: &Cell<Traffic>) -> Result<(), EngineError> {
    let workload = run.workload();
    let counters = engine.fabric().counters();
    let refusal = RefCell::new(None);
    let mut lane = Lane::new(workload);
    while let Some(op) = run.next() {
        let (result, count) = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let buf = std::mem::take(&mut lane.buf);
                let (found, count) = counted(counters, engine.get(&lane.key, buf)).await;
                let found =
                    found.map(|found| lane.buf = found.map(|f| f.into_buf()).unwrap_or_default());
                (found, count)
            }
            Kind::Put => {
                let (key, value) = lane.pair(workload, &op);
                let put = engine.put(key, value, PutOptions::default());
                let (stored, count) = counted(counters, put).await;
                (stored.map(drop), count)
            }
        };
        match result {
            Ok(()) => {
                add(sums, op.kind, count);
                run.finish(&op, Outcome::Stored);
            }
            Err(error) => refuse(run, &op, error, &refusal)?,
        }
    }
    Ok(())
}

/// What `future` came to, and what was counted while it was polled.
async fn counted<F: Future>(counters: &Counters, future: F) -> (F::Output, VerbCount) {
    let mut future = pin!(future);
    let mut count = VerbCount::default();
    let output = poll_fn(|cx| {
        let before = counters.snapshot();
        let polled = future.as_mut().poll(cx);
        count = count + (counters.snapshot() - before);
        polled
    })
    .await;
    (output, count)
}

fn add(sums: &Cell<Traffic>, kind: Kind, count: VerbCount) {
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
