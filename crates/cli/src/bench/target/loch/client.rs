//! One client: a session at its home node, and `lanes` operations under way.
//!
//! Operations go to the engine that `loch::Table` stands on, in the way that a
//! program does which re-uses its buffers: a GET allocates nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use loch::lanes::{self, block_on};
use loch::{Cluster, ConnectOptions, Table};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{self, published};
use loch_engines::operation::PutOptions;
use loch_engines::{EngineError, Kv};
use loch_fabric::Buf;
use loch_fabric::shm::ShmEndpoint;

use super::store::load_batch;
use super::{Homes, TABLE, limit, traffic};
use crate::bench::measure::{Kind, Op, Outcome, Run, Ticks};
use crate::bench::spec::Spec;
use crate::bench::system::Engine;
use crate::bench::target::{Endpoint, Target, TargetError, Traffic};
use crate::bench::trace::Trace;
use crate::bench::workload::Workload;

/// How long nodes may take to let a client in: they start together.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// How long an operation may take. Nobody waits for one of the bench's, and on a machine whose cores
/// many others want, a worker and its client each wait for theirs: what that takes is measured, and
/// ends a run only when something stands still.
pub const OPERATION_LIMIT: Duration = Duration::from_secs(60);
/// Records loaded between two reports of progress.
pub const LOAD_BATCH: u64 = 1 << 16;
/// Loading overlaps at least so many operations.
pub const LOAD_LANES_MIN: usize = 16;
/// One operation in so many is timed: a GET costs little more than the clock.
/// A prime, so that it keeps no step with the lanes.
const TIME_EVERY: u32 = 29;
/// Operations on values from this size on cost microseconds: all are timed.
const TIME_ALL_VALUE_BYTES: usize = 16 << 10;

/// Times one operation in so many, where memory is shared.
pub fn time_every(spec: &Spec) -> u32 {
    if spec.value_size < TIME_ALL_VALUE_BYTES { TIME_EVERY } else { 1 }
}

/// How the bench's clients attach.
pub fn connect_options(spec: &Spec) -> ConnectOptions {
    ConnectOptions {
        connect_timeout: CONNECT_LIMIT,
        operation_timeout: OPERATION_LIMIT,
        populate: true,
        cache: spec.table.cache_limits(),
        batch: spec.servers.batch,
        ..ConnectOptions::default()
    }
}

/// An engine below the API, on shared memory.
pub trait Below: Kv + 'static {
    /// The engine of a table.
    fn of(table: &Table) -> &Self;

    /// Where its memory is, and its way there.
    fn reach(&self) -> (&TableMap, &ShmEndpoint);
}

impl Below for nessie::Client<ShmEndpoint> {
    fn of(table: &Table) -> &Self {
        table.engine()
    }

    fn reach(&self) -> (&TableMap, &ShmEndpoint) {
        (self.map(), self.fabric())
    }
}

impl Below for published::Client<ShmEndpoint> {
    fn of(table: &Table) -> &Self {
        table.published_engine()
    }

    fn reach(&self) -> (&TableMap, &ShmEndpoint) {
        (self.map(), self.fabric())
    }
}

/// A connected client.
pub struct Client<S> {
    engine: Engine,
    cluster: Cluster,
    table: Table,
    homes: Homes,
    lanes: usize,
    time_every: u32,
    /// Why the last operation that was refused in a run was.
    refusal: Option<EngineError>,
    store: PhantomData<S>,
}

impl<S: Below> Client<S> {
    /// Attaches to the cluster at this client's home node.
    pub fn connect(
        engine: Engine,
        spec: &Spec,
        endpoint: &Endpoint,
        client: u32,
    ) -> Result<Self, TargetError> {
        let lost = |error: loch::Error| TargetError::Lost {
            store: engine.name(),
            action: "connect",
            reason: error.to_string(),
        };
        let homes = Homes::of(endpoint, spec, client);
        let socket = &endpoint.paths[homes.home];
        let cluster = Cluster::connect_with(socket, connect_options(spec)).map_err(lost)?;
        let table = cluster.table(TABLE).map_err(lost)?;
        Ok(Client {
            engine,
            cluster,
            table,
            homes,
            lanes: spec.lanes,
            time_every: time_every(spec),
            refusal: None,
            store: PhantomData,
        })
    }

    fn lost(&self, action: &'static str, reason: impl ToString) -> TargetError {
        TargetError::Lost { store: self.engine.name(), action, reason: reason.to_string() }
    }
}

impl<S: Below> Target for Client<S> {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), TargetError> {
        let mut done = 0;
        for (node, part) in self.homes.parts(records) {
            let elsewhere = if node == self.homes.home {
                None
            } else {
                let cluster = self.cluster.with_home(node);
                let table = cluster.and_then(|cluster| cluster.table(TABLE));
                Some(table.map_err(|error| self.lost("open the table", error))?)
            };
            let store = S::of(elsewhere.as_ref().unwrap_or(&self.table));
            let mut next = part.start;
            while next < part.end {
                let end = part.end.min(next + LOAD_BATCH);
                block_on(load_batch(store, workload, next..end, self.lanes.max(LOAD_LANES_MIN)))
                    .map_err(|error| self.lost("load a record", error))?;
                done += end - next;
                next = end;
                progress(done);
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<(), TargetError> {
        let store = S::of(&self.table);
        let done = block_on(operate(store, run, self.lanes));
        self.refusal = done.map_err(|error| self.lost("run an operation", error))?;
        Ok(())
    }

    fn time_every(&self) -> u32 {
        self.time_every
    }

    fn refusal(&self) -> Option<String> {
        self.refusal.as_ref().map(ToString::to_string)
    }

    fn traffic(&mut self, run: &Run<'_>) -> Result<Option<Traffic>, TargetError> {
        let refusal = RefCell::new(None);
        block_on(traffic::count(S::of(&self.table), run, self.lanes, &refusal))
            .map(Some)
            .map_err(|error| self.lost("count an operation", error))
    }

    fn limit_ops_per_s(
        &mut self,
        workload: &Workload,
        trace: &Trace,
    ) -> Result<Option<f64>, TargetError> {
        limit::ops_per_s(S::of(&self.table).reach(), workload, trace)
            .map_err(|error| self.lost("measure the bare loop", error))
    }
}

/// Does the operations of `run` in so many lanes. Why the last one that was refused was.
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

/// Counts a refusal; an error after which nothing works is passed on.
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

/// What a lane uses again and again.
pub struct Lane {
    /// The key of its operation.
    pub key: Vec<u8>,
    value: Vec<u8>,
    /// Where a GET puts the entry.
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
