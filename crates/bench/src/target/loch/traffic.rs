//! The traffic of GETs and of PUTs over the fabric, separated exactly.
//!
//! An endpoint counts all verbs of its thread, and the lanes of a thread mix GETs and PUTs. But
//! only one operation runs at any moment: so verbs that are counted between the beginning and the
//! end of a poll belong to the operation that was polled. Adding this up costs about as much as a
//! GET. The bench therefore counts with separate operations, after the timed ones: with the same
//! trace, lanes and clients, all clients at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

use loch::VerbCount;

use crate::measure::Kind;
use crate::tally::{OpTraffic, Traffic};

/// The result of an operation, whose traffic is added to `sums` if it was not refused. `counter`
/// counts all verbs.
pub async fn counted<T, E>(
    counter: impl Fn() -> VerbCount,
    sums: &Cell<Traffic>,
    kind: Kind,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut operation = pin!(operation);
    let mut count = VerbCount::default();
    let done = poll_fn(|cx| {
        let before = counter();
        let polled = operation.as_mut().poll(cx);
        count = count + (counter() - before);
        polled
    })
    .await;
    if done.is_ok() {
        let VerbCount { verbs, round_trips, bytes, .. } = count;
        let mut traffic = sums.get();
        let sum = match kind {
            Kind::Get => &mut traffic.get,
            Kind::Put => &mut traffic.put,
        };
        sum.add(OpTraffic { ops: 1, verbs, round_trips, bytes });
        sums.set(traffic);
    }
    done
}
