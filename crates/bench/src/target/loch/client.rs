//! One client: a session at its home node, and `lanes` operations under way.
//!
//! Operations go to the engine below `loch::Table`, as in a program that re-uses its buffers: a GET
//! allocates nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use loch::lanes::block_on;
use loch::{Cluster, ConnectOptions, Table};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{self, published};
use loch_engines::{EngineError, Kv};
use loch_fabric::shm::ShmEndpoint;

use super::homes::Homes;
use super::lane::{LOAD_BATCH, LOAD_LANES_MIN, OPERATION_LIMIT, operate, time_every};
use super::store::load_batch;
use super::{limit, traffic};
use crate::error::TargetError;
use crate::measure::Run;
use crate::options::TABLE;
use crate::spec::Spec;
use crate::system::Engine;
use crate::tally::Traffic;
use crate::target::{Endpoint, Target};
use crate::trace::Trace;
use crate::workload::Workload;

/// How long nodes may take to admit a client: they start together.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
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

    /// The map of its memory, and the endpoint to reach it.
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
    /// Why the last refused operation of a run was refused.
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
