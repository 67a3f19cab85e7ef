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
use loch_engines::region::session_addr;
use loch_engines::registry::Shared;
use loch_engines::requests::WorkerId;
use loch_engines::serve::{Attached, Next, Report, Tuning, WorkerError, WorkerHost, WorkerSite};
use loch_fabric::sim::SimEndpoint;
use loch_fabric::{Fabric, RegionId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cluster::Cluster;
use super::memory::{Functions, Memory};
use super::node::{SimNode, SimWorker};
use super::sessions::SessionEnd;
use super::setting::Setting;

/// A busy turn is followed by a report this many times less often than an idle one.
const BUSY_TURNS: u32 = 10;
/// How long a worker waits before it tries again to fence a session, in microseconds.
const FENCE_AGAIN_US: u64 = 10;

/// The program of a worker's process: the worker, again and again.
pub async fn work(cluster: Rc<Cluster>, node: Rc<SimNode>, worker: Rc<SimWorker>) {
    let pauses = cluster.world.endpoint(worker.process.get());
    loop {
        // A node can die before all of its workers have started.
        let crash = worker.crashes.get();
        while !worker.runs.get() || cluster.world.now_ns() < node.down_until_ns.get() {
            pauses.pause(10).await;
        }
        let host = Host::new(cluster.clone(), node.clone(), worker.clone());
        let ended = {
            let mut serves = Box::pin(host.shared.serve(&host));
            let ended = poll_fn(|cx| match worker.crashes.get() == crash {
                true => serves.as_mut().poll(cx).map(Some),
                false => Poll::Ready(None),
            });
            ended.await
        };
        host.fence().await;
        match ended {
            None => (),
            Some(Ok(())) if node.stops.get() => cluster.dies(worker.id),
            // The other workers of the node end in order.
            Some(Err(WorkerError::Log(LogError::Storage(_)))) if cluster.design.disks_fail() => {
                node.stops.set(true);
            }
            Some(ended) => return cluster.recorder.wrong(format!("a worker ended: {ended:?}")),
        }
        node.ended(&worker);
    }
}

/// The host of a worker, for one life.
struct Host {
    cluster: Rc<Cluster>,
    node: Rc<SimNode>,
    worker: Rc<SimWorker>,
    endpoint: SimEndpoint,
    transport: Transport<SimEndpoint>,
    site: WorkerSite,
    shared: Shared,
    random: RefCell<ChaCha8Rng>,
    /// The number of the memory that the worker has.
    generation: Cell<u64>,
    /// The worker's counts in its last report.
    counted: RefCell<Vec<(&'static str, u64)>>,
}

impl Host {
    fn new(cluster: Rc<Cluster>, node: Rc<SimNode>, worker: Rc<SimWorker>) -> Self {
        let process = worker.process.get();
        let (endpoint, world) = (cluster.world.endpoint(process), cluster.world.clone());
        let sessions = cluster.sessions.clone();
        let transport = Transport {
            endpoint: Box::new(move || world.endpoint(process)),
            sessions: Box::new(move || sessions.known()),
        };
        let shared = node.shared().clone();
        Self {
            site: WorkerSite { id: worker.id, table: 0, name: "table".into() },
            shared,
            random: RefCell::new(ChaCha8Rng::seed_from_u64(endpoint.random())),
            generation: Cell::new(cluster.generation.get()),
            counted: RefCell::default(),
            cluster,
            node,
            worker,
            endpoint,
            transport,
        }
    }

    /// Fences the session that the worker has ended, if it has ended one: no verb of the session is
    /// executed any more when another process learns that its slot is free.
    async fn fence(&self) {
        let Some((slot, how)) = self.worker.dying.get() else { return };
        for node in 0..self.cluster.setting().nodes {
            while self.endpoint.reconnect(RegionId(node as u8)).await.is_err() {
                self.endpoint.pause(FENCE_AGAIN_US).await;
            }
        }
        self.worker.dying.take();
        self.cluster.sessions.close(self.worker.id.node, slot, how);
    }

    fn attached_memory(&self) -> Attached<()> {
        let table = &self.cluster.table;
        Attached { params: table.params, places: table.places.clone(), memory: () }
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
        self.generation.set(self.cluster.generation.get());
        Some(self.attached_memory())
    }

    /// Acts as the node that starts a worker. The worker gives back the chunks of its node that
    /// ended sessions have left: only workers of a node lease its chunks.
    async fn open_session(&self) -> Option<Session> {
        self.fence().await;
        if self.node.stops.get() {
            return None;
        }
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

    /// The stores of the session have reached memory when its node's process, which is also the
    /// worker's, learns of its end.
    fn close_session(&self, is_in_order: bool) {
        let (slot, home) = (self.worker.slot.take().expect("it was opened"), self.site.id.node);
        let announced = session_addr(RegionId(home as u8), slot).add(8);
        self.endpoint.announce(announced, self.cluster.world.load(announced)).expect("it is there");
        let how = if is_in_order { SessionEnd::Left } else { SessionEnd::Died };
        if is_in_order {
            self.cluster.holds_nothing(self.cluster.sessions.incarnation(home, slot));
        }
        self.worker.dying.set(Some((slot, how)));
    }

    /// A worker that has opened another session counts from the beginning.
    fn opened(&self) {
        self.counted.take();
    }

    async fn after(&self, was_busy: bool) -> Next<()> {
        if self.draw(|random, setting| random.random_bool(setting.housekeeping)) {
            self.wake_housekeeper();
        }
        let rarer = if was_busy { BUSY_TURNS } else { 1 };
        if self.draw(|random, setting| random.random_ratio(1, setting.turns_a_report * rarer)) {
            self.worker.reports.set(true);
        }
        self.endpoint.yield_now().await;
        if self.node.stops.get() {
            Next::Stop
        } else if self.generation.replace(self.cluster.generation.get())
            != self.cluster.generation.get()
        {
            self.cluster.count("attached", 1);
            Next::Attach(Box::new(self.attached_memory()))
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
        self.node.stops.get()
    }

    fn wake_housekeeper(&self) {
        if let Some(housekeeper) = self.shared.housekeeper() {
            housekeeper.turn();
        }
    }
}
