//! The parts that the lanes of every client of Loch's fabric have: limits, buffers, and what a
//! refusal is.

use std::cell::RefCell;
use std::time::Duration;

use loch_engines::EngineError;
use loch_fabric::Buf;

use crate::measure::{Op, Outcome, Run, Ticks};
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
