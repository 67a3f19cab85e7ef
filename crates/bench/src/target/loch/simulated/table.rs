//! A table of any engine in the simulator. It is laid out from the configuration of its nodes, and
//! its clients and workers are put together as a program and a node do it.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use loch::simulated::{Connector, Layout, SimNet, Transport};
use loch_engines::engine::Needs;
use loch_engines::epoch::Session;
use loch_engines::lines::{Line, Near};
use loch_engines::log::{Logging, MemoryStorage};
use loch_engines::net::{Access, CacheLimits};
use loch_engines::registry::{Client, Shared};
use loch_engines::requests::WorkerId;
use loch_engines::serve::{self, Attached, Next, Report, WorkerError, WorkerHost, WorkerSite};
use loch_fabric::Zeroed;
use loch_fabric::sim::ProcessId;

use super::costs::Costs;
use super::design::{Design, Meter, Seat, Turns, sessions, timing, timing_by_send};
use super::host::{Host, Turn};
use crate::error::TargetError;
use crate::options::TABLE;
use crate::spec::Spec;
use crate::system::Engine;
use crate::target::Result;
use crate::target::loch::plan::simulated_config;

/// The cost of a poll in vain of a worker that has a pipeline. It flushes the pipeline after some
/// such polls, so each has its real cost.
const PIPELINE_POLL_NS: u64 = 10;

/// The table of a run.
pub struct Table {
    layout: Layout,
    needs: Needs,
    /// What the workers of each node share.
    shared: Vec<Shared>,
    costs: Costs,
    cache: CacheLimits,
    batch: usize,
}

impl Table {
    /// Lays out the table that the run measures.
    ///
    /// # Errors
    /// [`TargetError::Impossible`] if there is no such table.
    pub fn new(engine: Engine, spec: &Spec) -> Result<Self> {
        let layout = Layout::of(&simulated_config(engine, spec)?);
        let layout = layout.map_err(|error| TargetError::Impossible(error.to_string()))?;
        let shared = (0..spec.nodes).map(|_| Shared::of(&layout.tables[0].map)).collect();
        let (costs, cache) = (Costs::of(spec), spec.table.cache_limits());
        let needs = engine.needs();
        // In the papers only clients of KV-Direct pack operations.
        let batch = if needs.computes { spec.servers.batch } else { 1 };
        Ok(Self { layout, needs, shared, costs, cache, batch })
    }

    fn table(&self) -> &loch::simulated::Table {
        &self.layout.tables[0]
    }
}

impl Design for Table {
    type Client = Client<SimNet<Host>>;

    fn serves(&self) -> bool {
        self.needs.workers
    }

    fn region_bytes(&self) -> u64 {
        self.layout.region_bytes
    }

    fn client_slot(&self, number: u32) -> u32 {
        self.layout.client_slots.start + number
    }

    fn worker_slot(&self, worker: u16) -> Option<u32> {
        self.table().worker_slots.clone().nth(worker.into())
    }

    /// The client finds out where workers receive, as in a program.
    fn client(&self, seat: Seat, _: &[ProcessId]) -> Self::Client {
        let access = Access {
            session: seat.session(),
            node: seat.node,
            timing: if self.needs.sessions { timing() } else { timing_by_send() },
            cache: self.cache,
            batch: self.batch,
        };
        let Ok(client) = Client::open(&self.table().map, access, Connector(seat.host(self.costs)));
        client
    }

    fn serve(&self, seat: Seat, id: WorkerId, meter: Meter) -> impl Future<Output = ()> + 'static {
        let has_pipeline = self.needs.unreliable_writes;
        let poll_ns = if has_pipeline { PIPELINE_POLL_NS } else { self.costs.poll_ns };
        let costs = Costs { poll_ns, ..self.costs };
        let table = self.table();
        // A worker that has a session WRITEs its replies; no table lies behind them.
        let requests = table.map.requests().expect("workers serve the table");
        let replies_at = match self.needs.sessions {
            true => requests.base(id.node).offset(),
            false => u64::MAX,
        };
        let turn = Rc::<Turn>::default();
        let host = seat.host(costs);
        let turns = Turns::new(host, &seat, meter, turn.clone());
        let shared = self.shared[usize::from(id.node)].clone();
        let slots = seat.slots.clone();
        let worker = Worker {
            session: Cell::new(seat.session.map(|_| seat.session())),
            site: WorkerSite { id, table: 0, name: TABLE.into() },
            table: Attached { params: table.params, places: table.places.clone(), memory: () },
            transport: Transport {
                endpoint: Box::new(move || {
                    seat.host(costs).worker(replies_at, seat.card.clone(), turn.clone())
                }),
                sessions: Box::new(move || sessions(&slots)),
            },
            turns,
            shared,
        };
        async move {
            let shared = worker.shared.clone();
            shared.serve(&worker).await.expect("its own memory is there");
        }
    }
}

/// The host of a worker.
struct Worker {
    site: WorkerSite,
    table: Attached<()>,
    transport: Transport<Host>,
    /// The worker's session, until it is opened.
    session: Cell<Option<Session>>,
    turns: Turns,
    shared: Shared,
}

impl WorkerHost for Worker {
    type Transport = Transport<Host>;
    type Storage = MemoryStorage;
    type Functions = ();
    type Lines = Near<Zeroed<Line>>;

    fn site(&self) -> &WorkerSite {
        &self.site
    }

    fn transport(&self) -> &Transport<Host> {
        &self.transport
    }

    /// There is no log: the time of a disk is not simulated.
    fn log(&self) -> Result<Option<Logging<MemoryStorage>>, WorkerError> {
        Ok(None)
    }

    fn functions(&self) {}

    fn lines(&self, lines: u32) -> Result<Self::Lines, WorkerError> {
        serve::own_lines(lines)
    }

    async fn attached(&self) -> Option<Attached<()>> {
        Some(self.table.clone())
    }

    async fn open_session(&self) -> Option<Session> {
        self.session.take()
    }

    fn close_session(&self, _: bool) {}

    fn opened(&self) {}

    async fn after(&self, was_busy: bool) -> Next<()> {
        if was_busy {
            self.wake_housekeeper();
        }
        self.turns.after().await;
        Next::Turn
    }

    fn report(&self, _: Report) {
        unreachable!("no report is asked for")
    }

    fn is_stopping(&self) -> bool {
        false
    }

    fn wake_housekeeper(&self) {
        if let Some(housekeeper) = self.shared.housekeeper() {
            housekeeper.turn();
        }
    }
}
