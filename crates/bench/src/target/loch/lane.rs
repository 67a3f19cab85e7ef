//! One operation after the other, in each of a client's lanes.
//!
//! Nothing here depends on an engine or a fabric: a store is any [`Kv`].

use std::cell::RefCell;
use std::time::Duration;

use loch::lanes;
use loch_engines::operation::PutOptions;
use loch_engines::{EngineError, Kv};
use loch_fabric::Buf;

use crate::measure::{Kind, Op, Outcome, Run, Ticks};
use crate::spec::Spec;
use crate::workload::Workload;

/// How long an operation may take. It is long, because no user waits for the bench's operations,
/// and on a busy machine a worker and its client each wait for a core: that wait is measured, and
/// the limit ends a run only if something stands still.
pub const OPERATION_LIMIT: Duration = Duration::from_secs(60);
/// Records loaded between two reports of progress.
pub const LOAD_BATCH: u64 = 1 << 16;
/// Loading overlaps at least this many operations.
pub const LOAD_LANES_MIN: usize = 16;
/// One operation in this many is timed: a GET costs little more than the clock. It is a prime, so
/// that it keeps no step with the lanes.
const TIME_EVERY: u32 = 29;
/// Operations on values from this size on cost microseconds: all are timed.
const TIME_ALL_VALUE_BYTES: usize = 16 << 10;

/// Times one operation in this many, on shared memory.
pub fn time_every(spec: &Spec) -> u32 {
    if spec.value_size < TIME_ALL_VALUE_BYTES { TIME_EVERY } else { 1 }
}

/// Does the operations of `run` in several lanes. Returns why the last refused one was refused.
pub async fn operate<S: Kv>(
    store: &S,
    run: &Run<'_>,
    lanes: usize,
) -> Result<Option<EngineError>, EngineError> {
    let retries = store.retries();
    let refusal = RefCell::new(None);
    let mut fatal = None;
    let work = (0..lanes).map(|_| lane(store, run, &refusal));
    lanes::run(lanes, work, |ended| {
        fatal = fatal.take().or(ended.err());
    })
    .await;
    run.retried(store.retries() - retries);
    fatal.map_or(Ok(refusal.into_inner()), Err)
}

/// One lane of a run: does one operation after the other until there are no more.
async fn lane<S: Kv>(
    store: &S,
    run: &Run<'_>,
    refusal: &RefCell<Option<EngineError>>,
) -> Result<(), EngineError> {
    let workload = run.workload();
    let mut lane = Lane::new(workload);
    while let Some(op) = run.next_due().await {
        let result = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let buf = std::mem::take(&mut lane.buf);
                store.get(&lane.key, buf).await.map(|found| match found {
                    Some(found) => {
                        run.finish(&op, Outcome::Found(&found));
                        lane.buf = found.into_buf();
                    }
                    None => run.finish(&op, Outcome::Missing),
                })
            }
            Kind::Put => {
                let (key, value) = lane.pair(workload, &op);
                let stored = store.put(key, value, PutOptions::default()).await;
                stored.map(|_| run.finish(&op, Outcome::Stored))
            }
        };
        if let Err(error) = result {
            refuse(run, &op, error, refusal)?;
        }
    }
    Ok(())
}

/// Counts a refusal; passes on an error after which nothing works.
#[cold]
pub fn refuse<C: Ticks>(
    run: &Run<'_, C>,
    op: &Op,
    error: EngineError,
    refusal: &RefCell<Option<EngineError>>,
) -> Result<(), EngineError> {
    run.finish(op, Outcome::Failed);
    match error {
        EngineError::Timeout { .. }
        | EngineError::OutOfMemory { .. }
        | EngineError::IndexFull { .. } => {
            *refusal.borrow_mut() = Some(error);
            Ok(())
        }
        error => Err(error),
    }
}

/// The buffers that a lane reuses.
pub struct Lane {
    /// The key of its operation.
    pub key: Vec<u8>,
    value: Vec<u8>,
    /// The buffer into which a GET puts the entry.
    pub buf: Buf,
}

impl Lane {
    /// With room for the workload's keys and values.
    pub fn new(workload: &Workload) -> Self {
        Lane {
            key: vec![0; workload.key_size()],
            value: vec![0; workload.value_size()],
            buf: Buf::new(),
        }
    }

    /// Key and value of a PUT.
    #[inline]
    pub fn pair(&mut self, workload: &Workload, op: &Op) -> (&[u8], &[u8]) {
        workload.write_key(op.record, &mut self.key);
        workload.write_value(op.record, op.version, &mut self.value);
        (&self.key, &self.value)
    }
}
