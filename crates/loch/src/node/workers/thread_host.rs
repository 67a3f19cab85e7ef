//! The host of a worker: its thread, its part of the node, and what it is told between two turns.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use loch_engines::engine::LogConfig;
use loch_engines::epoch::Session;
use loch_engines::lines::{Line, Near};
use loch_engines::log::Logging;
use loch_engines::registry::Shared;
use loch_engines::scan::Page;
use loch_engines::serve::{self, Attached, Next, Report, WorkerError, WorkerHost, WorkerSite};
use loch_fabric::{RegionId, Zeroed};

use super::housekeeper::HousekeeperThread;
use super::idle_backoff::IdleBackoff;
use super::inspector::Asked;
use super::transport::NodeTransport;
use super::{WorkersStatus, log};
use crate::layout::memory::ClusterMemory;
use crate::limits::{NEIGHBOUR_PAUSE, WORKER_TURNS};
use crate::node::attacher::LatestMemory;
use crate::node::registered::{CalledFunctions, TableFunctions};
use crate::node::sessions::{SessionEnd, Sessions};
use crate::node::storage::FileStorage;
use crate::session::slot::SessionId;
use crate::session::wire::Told;

/// A worker's part of the node.
pub(super) struct WorkerSetup {
    pub site: WorkerSite,
    /// Shared with the other workers of the table.
    pub shared: Shared,
    pub sessions: Arc<Sessions>,
    /// The session slot, if the worker is a client of its node.
    pub slot: Option<u32>,
    pub log: Option<LogConfig>,
    pub functions: TableFunctions,
    /// The table's housekeeper, if the table has one.
    pub housekeeper: Option<Arc<HousekeeperThread>>,
    /// The processor that its thread is bound to.
    pub core: Option<u16>,
}

/// The host of one worker.
pub(super) struct ThreadHost<T> {
    setup: WorkerSetup,
    transport: T,
    status: Arc<WorkersStatus>,
    latest_memory: Arc<LatestMemory>,
    /// The number of the memory that the worker has.
    generation: Cell<u64>,
    /// The worker's session, while it has one.
    session: Cell<Option<SessionId>>,
    is_open: Cell<bool>,
    /// The lock of the log, for as long as the worker has its log.
    log_lock: RefCell<Option<File>>,
    requests: Receiver<Asked>,
    /// The question that was put to the worker, until it reports.
    asked: RefCell<Option<Asked>>,
    idle: RefCell<IdleBackoff>,
    /// Busy turns since the host last looked for something else to do.
    turns: Cell<u32>,
}

impl<T> ThreadHost<T> {
    pub fn new(
        setup: WorkerSetup,
        transport: T,
        status: Arc<WorkersStatus>,
        latest_memory: Arc<LatestMemory>,
        requests: Receiver<Asked>,
        idle: IdleBackoff,
    ) -> Self {
        Self {
            setup,
            transport,
            status,
            latest_memory,
            generation: Cell::new(0),
            session: Cell::new(None),
            is_open: Cell::new(false),
            log_lock: RefCell::default(),
            requests,
            asked: RefCell::default(),
            idle: RefCell::new(idle),
            turns: Cell::new(0),
        }
    }

    pub fn setup(&self) -> &WorkerSetup {
        &self.setup
    }

    pub fn status(&self) -> &WorkersStatus {
        &self.status
    }

    fn view(&self, memory: Arc<ClusterMemory>) -> Attached<Arc<ClusterMemory>> {
        let table = &memory.tables[self.setup.site.table];
        Attached { params: table.entry.params, places: table.places.clone(), memory }
    }

    #[inline]
    fn next_step(&self) -> Next<Arc<ClusterMemory>> {
        if self.status.is_stopping() {
            return Next::Stop;
        }
        if let Some((generation, memory)) = self.latest_memory.newer_than(self.generation.get()) {
            self.generation.set(generation);
            return Next::Attach(Box::new(self.view(memory)));
        }
        let mut asked = self.asked.borrow_mut();
        if asked.is_none() {
            *asked = self.requests.try_recv().ok();
        }
        match &*asked {
            None => Next::Turn,
            Some(Asked::Inspect(_)) => Next::Report,
            Some(Asked::Count(_)) => Next::Count,
            Some(Asked::Scan(step, _)) => Next::Scan(step.clone()),
        }
    }
}

/// The thread waits, so the futures are ready when they are first polled.
impl<T: NodeTransport> WorkerHost for ThreadHost<T> {
    type Transport = T;
    type Storage = FileStorage;
    type Functions = CalledFunctions;
    type Lines = Near<Zeroed<Line>>;

    fn site(&self) -> &WorkerSite {
        &self.setup.site
    }

    fn transport(&self) -> &T {
        &self.transport
    }

    fn log(&self) -> Result<Option<Logging<FileStorage>>, WorkerError> {
        let Some(config) = &self.setup.log else { return Ok(None) };
        let opened = log::open(&self.setup.site, config);
        let (lock, logging) = opened.map_err(|error| WorkerError::Host(error.into()))?;
        self.log_lock.replace(Some(lock));
        Ok(Some(logging))
    }

    fn functions(&self) -> CalledFunctions {
        self.setup.functions.callable()
    }

    fn lines(&self, lines: u32) -> Result<Near<Zeroed<Line>>, WorkerError> {
        serve::own_lines(lines)
    }

    async fn attached(&self) -> Option<Attached<Arc<ClusterMemory>>> {
        let (generation, memory) = self.latest_memory.wait(|| self.status.is_stopping())?;
        self.generation.set(generation);
        Some(self.view(memory))
    }

    /// Over a network the session of the worker before has to be fenced first.
    async fn open_session(&self) -> Option<Session> {
        let slot = self.setup.slot.expect("a worker that WRITEs its replies has a session slot");
        while !self.status.is_stopping() {
            if let Some(opened) = self.setup.sessions.open_worker(slot) {
                self.session.set(Some(opened));
                let home = RegionId(self.setup.site.id.node as u8);
                return Some(Session::new(home, opened.slot, opened.incarnation));
            }
            // The thread that stops the workers unparks them.
            std::thread::park_timeout(NEIGHBOUR_PAUSE);
        }
        None
    }

    fn close_session(&self, is_in_order: bool) {
        let session = self.session.take().expect("it was opened");
        let how = if is_in_order { SessionEnd::Left } else { SessionEnd::Died };
        self.setup.sessions.close_worker(session, how);
        self.transport.session_ended();
    }

    fn opened(&self) {
        if !self.is_open.replace(true) {
            self.status.opened();
        }
    }

    /// After some busy turns the host looks for something else to do, and wakes the housekeeper.
    #[inline]
    async fn after(&self, was_busy: bool) -> Next<Arc<ClusterMemory>> {
        let turns = self.turns.get() + u32::from(was_busy);
        if was_busy {
            self.idle.borrow_mut().end();
            if turns < WORKER_TURNS {
                self.turns.set(turns);
                return Next::Turn;
            }
        }
        if turns > 0 {
            self.wake_housekeeper();
        }
        if !was_busy && self.asked.borrow().is_none() {
            self.idle.borrow_mut().go_on();
        }
        self.turns.set(0);
        self.next_step()
    }

    fn report(&self, report: Report) {
        match self.asked.take() {
            Some(Asked::Inspect(asked) | Asked::Count(asked)) => asked.report(report.into()),
            _ => unreachable!("the worker was not asked for a report"),
        }
    }

    fn scanned(&self, page: Page) {
        match self.asked.take() {
            Some(Asked::Scan(_, answer)) => answer(Told::Scanned(page)),
            _ => unreachable!("the worker was not asked for a page"),
        }
    }

    fn is_stopping(&self) -> bool {
        self.status.is_stopping()
    }

    #[inline]
    fn wake_housekeeper(&self) {
        if let Some(thread) = &self.setup.housekeeper
            && let Some(housekeeper) = self.setup.shared.housekeeper()
        {
            thread.wake(housekeeper);
        }
    }
}
