//! One operation after the other, in each of a client's lanes.
//!
//! Nothing here depends on an engine or a fabric: what the lanes use is a [`Store`], which any
//! [`Kv`] is, and a table of the API.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use loch::{VerbCount, lanes};
use loch_engines::operation::{PutOptions, Value, Version};
use loch_engines::{EngineError, Kv};
use loch_fabric::Buf;

use super::traffic::counted;
use crate::measure::{Kind, Op, Outcome, Run, Ticks};
use crate::spec::Spec;
use crate::tally::Traffic;
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

/// What lanes use. Its futures are awaited as they are, so that a lane has no layer of its own.
pub trait Store {
    /// What a GET has found.
    type Found;
    /// What a PUT returns.
    type Stored;
    /// Why an operation was not done.
    type Error;

    /// GETs the key of `lane`.
    fn get(&self, lane: &mut Lane) -> impl Future<Output = Result<Self::Found, Self::Error>>;

    /// The outcome of a GET.
    fn outcome<'a>(found: &'a Self::Found, lane: &'a Lane) -> Outcome<'a>;

    /// Takes the memory of a value back for the next GET.
    fn recycle(_found: Self::Found, _lane: &mut Lane) {}

    /// PUTs a value.
    fn put(
        &self,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<Self::Stored, Self::Error>>;

    /// See [`Kv::retries`].
    fn retries(&self) -> u64;

    /// See [`Kv::counted`].
    fn counted(&self) -> VerbCount;

    /// Whether the operations after one that was refused so can be done.
    fn goes_on_after(error: &Self::Error) -> bool;
}

impl<K: Kv> Store for K {
    type Found = Option<Value>;
    type Stored = Version;
    type Error = EngineError;

    #[inline]
    fn get(&self, lane: &mut Lane) -> impl Future<Output = Result<Option<Value>, EngineError>> {
        Kv::get(self, &lane.key, std::mem::take(&mut lane.buf))
    }

    #[inline]
    fn outcome<'a>(found: &'a Option<Value>, _: &'a Lane) -> Outcome<'a> {
        found.as_ref().map_or(Outcome::Missing, |found| Outcome::Found(found))
    }

    #[inline]
    fn recycle(found: Option<Value>, lane: &mut Lane) {
        if let Some(found) = found {
            lane.buf = found.into_buf();
        }
    }

    #[inline]
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Version, EngineError>> {
        Kv::put(self, key, value, PutOptions::default())
    }

    fn retries(&self) -> u64 {
        Kv::retries(self)
    }

    #[inline]
    fn counted(&self) -> VerbCount {
        Kv::counted(self)
    }

    fn goes_on_after(error: &EngineError) -> bool {
        use EngineError::{IndexFull, OutOfMemory, Timeout};
        matches!(error, Timeout { .. } | OutOfMemory { .. } | IndexFull { .. })
    }
}

/// Does the operations of `run` in several lanes. `sums` gets their traffic, but that of those that
/// are refused; without it nothing is counted. Returns why the last refused one was refused.
pub async fn operate<S: Store, C: Ticks>(
    store: &S,
    run: &Run<'_, C>,
    lanes: usize,
    sums: Option<&Cell<Traffic>>,
) -> Result<Option<S::Error>, S::Error> {
    let retries = store.retries();
    let refusal = RefCell::new(None);
    let mut fatal = None;
    let work = (0..lanes).map(|_| lane(store, run, sums, &refusal));
    lanes::run(lanes, work, |ended| {
        fatal = fatal.take().or(ended.err());
    })
    .await;
    run.retried(store.retries() - retries);
    fatal.map_or(Ok(refusal.into_inner()), Err)
}

/// One lane of a run: does one operation after the other until there are no more.
async fn lane<S: Store, C: Ticks>(
    store: &S,
    run: &Run<'_, C>,
    sums: Option<&Cell<Traffic>>,
    refusal: &RefCell<Option<S::Error>>,
) -> Result<(), S::Error> {
    let workload = run.workload();
    let counter = || store.counted();
    let mut lane = Lane::new(workload);
    while let Some(op) = run.next_due().await {
        let result = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let found = match sums {
                    None => store.get(&mut lane).await,
                    Some(sums) => counted(counter, sums, op.kind, store.get(&mut lane)).await,
                };
                let filled = found.map(|found| {
                    let outcome = S::outcome(&found, &lane);
                    run.finish(&op, outcome);
                    let filled = run.fill(&op, outcome);
                    S::recycle(found, &mut lane);
                    filled
                });
                match filled {
                    Ok(Some(op)) => put(store, run, sums, &mut lane, &op).await,
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Kind::Put => put(store, run, sums, &mut lane, &op).await,
        };
        if let Err(error) = result {
            refuse::<S, C>(run, &op, error, refusal)?;
        }
    }
    Ok(())
}

#[inline]
async fn put<S: Store, C: Ticks>(
    store: &S,
    run: &Run<'_, C>,
    sums: Option<&Cell<Traffic>>,
    lane: &mut Lane,
    op: &Op,
) -> Result<(), S::Error> {
    let (key, value) = lane.pair(run.workload(), op);
    let stored = match sums {
        None => store.put(key, value).await,
        Some(sums) => counted(|| store.counted(), sums, op.kind, store.put(key, value)).await,
    };
    stored.map(|_| run.finish(op, Outcome::Stored))
}

/// Counts a refusal; passes on an error after which nothing works.
#[cold]
fn refuse<S: Store, C: Ticks>(
    run: &Run<'_, C>,
    op: &Op,
    error: S::Error,
    refusal: &RefCell<Option<S::Error>>,
) -> Result<(), S::Error> {
    run.finish(op, Outcome::Failed);
    if S::goes_on_after(&error) {
        refusal.replace(Some(error));
        return Ok(());
    }
    Err(error)
}

/// Stores some records, several at a time.
pub async fn load_batch<S: Store>(
    store: &S,
    workload: &Workload,
    records: Range<u64>,
    lanes: usize,
) -> Result<(), S::Error> {
    let next = Cell::new(records.start);
    let lane = |_| async {
        let mut lane = Lane::new(workload);
        while next.get() < records.end {
            let record = next.replace(next.get() + 1);
            let load = Op::load(record, workload.value_size());
            let (key, value) = lane.pair(workload, &load);
            store.put(key, value).await?;
        }
        Ok(())
    };
    let mut result = Ok(());
    lanes::run(lanes, (0..lanes).map(lane), |ended: Result<(), S::Error>| {
        if let Err(error) = ended {
            // The other lanes have nothing more to do either.
            next.set(records.end);
            result = Err(error);
        }
    })
    .await;
    result
}

/// The buffers that a lane reuses.
pub struct Lane {
    /// The key of its operation.
    pub key: Vec<u8>,
    value: Vec<u8>,
    /// The buffer into which a GET of an engine's client puts the entry.
    buf: Buf,
    /// The value that a GET of a table has copied.
    pub got: Vec<u8>,
}

impl Lane {
    /// With room for the workload's keys and values.
    fn new(workload: &Workload) -> Self {
        Lane {
            key: vec![0; workload.key_size()],
            value: vec![0; workload.value_size()],
            buf: Buf::new(),
            got: Vec::new(),
        }
    }

    /// Key and value of a PUT.
    #[inline]
    fn pair(&mut self, workload: &Workload, op: &Op) -> (&[u8], &[u8]) {
        workload.write_key(op.record, &mut self.key);
        let value = &mut self.value[..op.size as usize];
        workload.write_value(op.record, op.version, value);
        (&self.key, value)
    }
}
