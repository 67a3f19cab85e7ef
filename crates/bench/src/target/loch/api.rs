//! One client: a session at its home node, and `lanes` operations under way.
//!
//! Operations go through the public API, as those of programs do: broken connections are made
//! again, and values are copied into a buffer that the lane reuses. Those of the published protocol
//! go to its client below the API, which boxes them: that would halve their number, and say nothing
//! about the protocol.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use loch::lanes::{self, block_on};
use loch::{Cluster, ConnectOptions, Error, Table};
use loch_engines::Kv;
use loch_engines::kv::OneOf;
use loch_engines::nessie::published;
use loch_fabric::shm::ShmEndpoint;

use super::homes::Homes;
use super::lane::{LOAD_BATCH, LOAD_LANES_MIN, Lane, OPERATION_LIMIT, operate, time_every};
use super::{limit, traffic};
use crate::error::TargetError;
use crate::measure::{Kind, Op, Outcome, Run};
use crate::options::TABLE;
use crate::spec::Spec;
use crate::system::{Engine, Fabric};
use crate::tally::Traffic;
use crate::target::{Endpoint, Target};
use crate::trace::Trace;
use crate::workload::Workload;

/// How long nodes may take to admit a client: they start together.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A connected client.
pub struct Client {
    engine: Engine,
    table: Table,
    /// The sockets of all nodes that it may attach to.
    sockets: Vec<PathBuf>,
    homes: Homes,
    options: ConnectOptions,
    lanes: usize,
    time_every: u32,
    /// Why the last refused operation of a run was refused.
    refusal: Option<String>,
}

impl Client {
    /// Attaches to the cluster at this client's home node.
    pub fn connect(
        engine: Engine,
        spec: &Spec,
        endpoint: &Endpoint,
        client: u32,
    ) -> Result<Self, TargetError> {
        let homes = Homes::of(endpoint, spec, client);
        let options = connect_options(spec);
        let name = spec.attach.as_ref().map_or(TABLE, |attach| &attach.table);
        let table = open(&endpoint.paths[homes.home], name, &options);
        let table = table.map_err(lost(engine, "connect"))?;
        let sockets = endpoint.paths.clone();
        let time_every = if spec.fabric == Fabric::Verbs { 1 } else { time_every(spec) };
        let (lanes, refusal) = (spec.lanes, None);
        Ok(Client { engine, table, sockets, homes, options, lanes, time_every, refusal })
    }

    /// The client of the published protocol, if the table has that protocol.
    fn published(&self) -> Option<&published::Client<ShmEndpoint>> {
        match self.table.mapped() {
            Some(OneOf::Second(client)) => Some(client),
            _ => None,
        }
    }

    /// Does the operations of `run` in all lanes, and adds up their traffic if there is a sum.
    fn operate(&self, run: &Run<'_>, sum: Option<&Cell<Traffic>>) -> Result<Option<Error>, Error> {
        let refusal = RefCell::new(None);
        let mut fatal = None;
        let work = (0..self.lanes).map(|_| lane(&self.table, run, sum, &refusal));
        block_on(lanes::run(self.lanes, work, |ended| {
            fatal = fatal.take().or(ended.err());
        }));
        fatal.map_or(Ok(refusal.into_inner()), Err)
    }
}

impl Target for Client {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), TargetError> {
        let mut done = 0;
        let lanes = self.lanes.max(LOAD_LANES_MIN);
        for (node, part) in self.homes.parts(records) {
            let elsewhere = (node != self.homes.home)
                .then(|| open(&self.sockets[node], self.table.name(), &self.options))
                .transpose()
                .map_err(lost(self.engine, "open the table"))?;
            let table = elsewhere.as_ref().unwrap_or(&self.table);
            let mut next = part.start;
            while next < part.end {
                let end = part.end.min(next + LOAD_BATCH);
                block_on(load_batch(table, workload, next..end, lanes))
                    .map_err(lost(self.engine, "load a record"))?;
                done += end - next;
                next = end;
                progress(done);
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<(), TargetError> {
        if let Some(client) = self.published() {
            let done = block_on(operate(client, run, self.lanes));
            let refusal = done.map_err(lost(self.engine, "run an operation"))?;
            self.refusal = refusal.map(|error| error.to_string());
            return Ok(());
        }
        let retries = self.table.counters().retries;
        let refusal = self.operate(run, None).map_err(lost(self.engine, "run an operation"))?;
        run.retried(self.table.counters().retries - retries);
        self.refusal = refusal.map(|error| error.to_string());
        Ok(())
    }

    fn time_every(&self) -> u32 {
        self.time_every
    }

    fn refusal(&self) -> Option<String> {
        self.refusal.clone()
    }

    fn traffic(&mut self, run: &Run<'_>) -> Result<Option<Traffic>, TargetError> {
        let sum = Cell::new(Traffic::default());
        self.operate(run, Some(&sum)).map_err(lost(self.engine, "count an operation"))?;
        Ok(Some(sum.get()))
    }

    /// There is none for a table whose clients do not do all work themselves in mapped memory.
    fn limit_ops_per_s(
        &mut self,
        workload: &Workload,
        trace: &Trace,
    ) -> Result<Option<f64>, TargetError> {
        let Some(client) = self.table.mapped() else { return Ok(None) };
        let limit = limit::ops_per_s((client.map(), client.fabric()), workload, trace);
        limit.map_err(lost(self.engine, "measure the bare loop"))
    }
}

/// How the bench's clients attach.
fn connect_options(spec: &Spec) -> ConnectOptions {
    ConnectOptions {
        connect_timeout: CONNECT_LIMIT,
        operation_timeout: OPERATION_LIMIT,
        populate: true,
        cache: spec.table.cache_limits(),
        batch: spec.servers.batch,
        ..ConnectOptions::default()
    }
}

fn open(socket: &PathBuf, table: &str, options: &ConnectOptions) -> Result<Table, Error> {
    Cluster::connect_with(socket, options.clone())?.table(table)
}

fn lost<E: Display>(engine: Engine, action: &'static str) -> impl Fn(E) -> TargetError {
    move |error| TargetError::Lost { store: engine.name(), action, reason: error.to_string() }
}

/// Stores records in several lanes.
async fn load_batch(
    table: &Table,
    workload: &Workload,
    records: Range<u64>,
    lanes: usize,
) -> Result<(), Error> {
    let next = Cell::new(records.start);
    let lane = |_| async {
        let mut lane = Lane::new(workload);
        while next.get() < records.end {
            let record = next.replace(next.get() + 1);
            let (key, value) = lane.pair(workload, &Op::load(record));
            table.asynch().put(key, value).await?;
        }
        Ok(())
    };
    let mut result = Ok(());
    lanes::run(lanes, (0..lanes).map(lane), |ended: Result<(), Error>| {
        if let Err(error) = ended {
            // The other lanes have nothing more to do either.
            next.set(records.end);
            result = Err(error);
        }
    })
    .await;
    result
}

/// One lane of a run: does one operation after the other until there are no more. `sum` gets their
/// traffic; without it nothing is counted, and operations are awaited in place.
async fn lane(
    table: &Table,
    run: &Run<'_>,
    sum: Option<&Cell<Traffic>>,
    refusal: &RefCell<Option<Error>>,
) -> Result<(), Error> {
    let (workload, operations) = (run.workload(), table.asynch());
    let mut lane = Lane::new(workload);
    let mut value = Vec::with_capacity(workload.value_size());
    while let Some(op) = run.next_due().await {
        let done = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let found = match sum {
                    None => operations.get_into(&lane.key, &mut value).await,
                    Some(sum) => {
                        let get = operations.get_into(&lane.key, &mut value);
                        counted(table, sum, op.kind, get).await
                    }
                };
                found.map(|found| match found {
                    Some(_) => Outcome::Found(&value),
                    None => Outcome::Missing,
                })
            }
            Kind::Put => {
                let (key, value) = lane.pair(workload, &op);
                let stored = match sum {
                    None => operations.put(key, value).await,
                    Some(sum) => counted(table, sum, op.kind, operations.put(key, value)).await,
                };
                stored.map(|_| Outcome::Stored)
            }
        };
        match done {
            Ok(outcome) => run.finish(&op, outcome),
            Err(error) => refuse(run, &op, error, refusal)?,
        }
    }
    Ok(())
}

/// The result of an operation, whose traffic is added to `sum` if it was not refused.
async fn counted<T>(
    table: &Table,
    sum: &Cell<Traffic>,
    kind: Kind,
    operation: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let (done, count) = traffic::counted(|| table.counters().verbs, operation).await;
    if done.is_ok() {
        traffic::add(sum, kind, count);
    }
    done
}

/// Counts a refusal; passes on an error after which nothing works.
#[cold]
fn refuse(
    run: &Run<'_>,
    op: &Op,
    error: Error,
    refusal: &RefCell<Option<Error>>,
) -> Result<(), Error> {
    run.finish(op, Outcome::Failed);
    match error {
        Error::Timeout { .. }
        | Error::OutOfMemory { .. }
        | Error::IndexFull { .. }
        | Error::Ambiguous { .. } => {
            *refusal.borrow_mut() = Some(error);
            Ok(())
        }
        error => Err(error),
    }
}
