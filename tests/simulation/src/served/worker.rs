//! A worker of a simulated node: the engine's own, whose host draws from the seed what a node's
//! threads decide by the clock.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use loch::simulated::Transport;
use loch_engines::epoch::Session;
use loch_engines::log::{LogError, Logging, MemoryStorage};
use loch_engines::nessie::release_dead;
use loch_engines::registry::Shared;
use loch_engines::requests::WorkerId;
use loch_engines::serve::{Attached, Next, Report, Tuning, WorkerError, WorkerHost, WorkerSite};
use loch_fabric::Fabric;
use loch_fabric::sim::{ProcessId, SimEndpoint};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cluster::Cluster;
use super::memory::{Functions, Memory};
use super::setting::Setting;

/// A busy turn is followed by a report this many times less often than an idle one.
const BUSY_TURNS: u32 = 10;

/// A simulated worker, as the run steers it.
pub struct SimWorker {
    pub id: WorkerId,
    pub process: Cell<ProcessId>,
    /// Goes up when the program in the process has to be dropped.
    pub crashes: Cell<u32>,
    /// The time until which the program does not run.
    pub down_until_ns: Cell<u64>,
    /// The worker's session, if it has one.
    pub slot: Cell<Option<u32>>,
    /// Whether the worker has to report.
    pub reports: Cell<bool>,
    /// Whether the worker has to end in order.
    pub stops: Cell<bool>,
}

impl SimWorker {
    pub fn new(id: WorkerId, process: ProcessId) -> Self {
        Self {
            id,
            process: Cell::new(process),
            crashes: Cell::new(0),
            down_until_ns: Cell::new(0),
            slot: Cell::new(None),
            reports: Cell::new(false),
            stops: Cell::new(false),
        }
    }
}

/// The program of a worker's process: the worker, again and again.
pub async fn work(cluster: Rc<Cluster>, worker: Rc<SimWorker>) {
    let pauses = cluster.world.endpoint(worker.process.get());
    loop {
        while cluster.world.now_ns() < worker.down_until_ns.get() {
            pauses.pause(10).await;
        }
        let crash = worker.crashes.get();
        let host = Host::new(cluster.clone(), worker.clone());
        let mut serves = Box::pin(host.shared.serve(&host));
        let ended = poll_fn(|cx| match worker.crashes.get() == crash {
            true => serves.as_mut().poll(cx).map(Some),
            false => Poll::Ready(None),
        });
        match ended.await {
            None => (),
            Some(Ok(())) if worker.stops.take() => cluster.dies(worker.id),
            // The worker is started anew.
            Some(Err(WorkerError::Log(LogError::Storage(_)))) if cluster.design.disks_fail() => (),
            Some(ended) => return cluster.recorder.wrong(format!("a worker ended: {ended:?}")),
        }
    }
}

/// The host of a worker, for one life.
struct Host {
    cluster: Rc<Cluster>,
    worker: Rc<SimWorker>,
    endpoint: SimEndpoint,
    transport: Transport<SimEndpoint>,
    site: WorkerSite,
    shared: Shared,
    random: RefCell<ChaCha8Rng>,
    /// The worker's counts in its last report.
    counted: RefCell<Vec<(&'static str, u64)>>,
}

impl Host {
    fn new(cluster: Rc<Cluster>, worker: Rc<SimWorker>) -> Self {
        let process = worker.process.get();
        let (endpoint, world) = (cluster.world.endpoint(process), cluster.world.clone());
        let sessions = cluster.sessions.clone();
        let transport = Transport {
            endpoint: Box::new(move || world.endpoint(process)),
            sessions: Box::new(move || sessions.known()),
        };
        Self {
            site: WorkerSite { id: worker.id, table: 0, name: "table".into() },
            shared: Shared::of(&cluster.table.map),
            random: RefCell::new(ChaCha8Rng::seed_from_u64(endpoint.random())),
            counted: RefCell::default(),
            cluster,
            worker,
            endpoint,
            transport,
        }
    }

    fn draw(&self, draw: impl FnOnce(&mut ChaCha8Rng, &Setting) -> bool) -> bool {
        draw(&mut self.random.borrow_mut(), self.cluster.setting())
    }
}

impl WorkerHost for Host {
    type Transport = Transport<SimEndpoint>;
    type Storage = MemoryStorage;
    type Functions = Functions;
    type Lines = Memory;

    fn site(&self) -> &WorkerSite {
        &self.site
    }

    fn transport(&self) -> &Transport<SimEndpoint> {
        &self.transport
    }

    fn log(&self) -> Result<Option<Logging<MemoryStorage>>, WorkerError> {
        Ok(self.cluster.design.log(self.worker.id.node, &|| self.endpoint.random()))
    }

    fn functions(&self) -> Functions {
        Functions
    }

    fn lines(&self, lines: u32) -> Result<Memory, WorkerError> {
        Ok(self.cluster.design.lines(lines, self.endpoint.random()))
    }

    fn tuning(&self) -> Tuning {
        self.cluster.design.tuning()
    }

    async fn attached(&self) -> Option<Attached<()>> {
        let table = &self.cluster.table;
        Some(Attached { params: table.params, places: table.places.clone(), memory: () })
    }

    /// Acts as the node that starts a worker. The worker gives back the chunks of its node that
    /// ended sessions have left: only workers of a node lease its chunks.
    async fn open_session(&self) -> Option<Session> {
        let Cluster { sessions, table, .. } = &*self.cluster;
        let (WorkerId { node, worker }, process) = (self.worker.id, self.worker.process.get());
        let slot = table.worker_slots.start + u32::from(worker);
        let session = sessions.open(process, node, slot);
        self.worker.slot.set(Some(slot));
        if let Some(map) = table.map.nessie() {
            for owner in sessions.take_dead(node) {
                let released = release_dead(&self.endpoint, map, node as u8, owner as u32).await;
                released.expect("nothing is cut");
            }
        }
        Some(session)
    }

    fn close_session(&self, _: bool) {
        let slot = self.worker.slot.take().expect("it was opened");
        self.cluster.sessions.close(self.worker.id.node, slot);
    }

    fn opened(&self) {}

    async fn after(&self, was_busy: bool) -> Next<()> {
        if self.draw(|random, setting| random.random_bool(setting.housekeeping)) {
            self.wake_housekeeper();
        }
        let rarer = if was_busy { BUSY_TURNS } else { 1 };
        if self.draw(|random, setting| random.random_ratio(1, setting.turns_a_report * rarer)) {
            self.worker.reports.set(true);
        }
        self.endpoint.yield_now().await;
        if self.worker.stops.get() {
            Next::Stop
        } else if self.worker.reports.get() {
            Next::Report
        } else {
            Next::Turn
        }
    }

    fn report(&self, report: Report) {
        self.worker.reports.set(false);
        if !report.broken.is_empty() {
            let wrong = format!("a worker's memory is not in order: {:?}", report.broken);
            self.cluster.recorder.wrong(wrong);
        }
        let before = self.counted.replace(report.counts.clone());
        for (name, count) in report.counts {
            let counted = before.iter().find(|(other, _)| *other == name);
            self.cluster.count(name, count - counted.map_or(0, |(_, count)| *count));
        }
    }

    fn is_stopping(&self) -> bool {
        self.worker.stops.get()
    }

    fn wake_housekeeper(&self) {
        if let Some(housekeeper) = self.shared.housekeeper() {
            housekeeper.turn();
        }
    }
}
