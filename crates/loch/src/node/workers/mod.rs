//! A node's workers: the threads that serve tables of engines whose server takes part.
//!
//! There is a thread for each worker of each table ([`start`]). What it does in a turn is its
//! engine's business (`nessie.rs`, `herd.rs`, `pilaf.rs`, `kv_direct.rs`); when the next one comes,
//! and what else is asked of it in between, is told by its [`Control`](control::Control).
//!
//! # Invariants
//! 1. Workers begin when the memory of all nodes is known: so no client of theirs lives whose
//!    replies they cannot send. A node that comes back with other memory is attached anew, without
//!    their losing anything of their own.
//! 2. There is one worker of a number at a time: threads are joined before the region is given up,
//!    and a region has one node ([`region`](super::region), invariant 2).
//! 3. A node that starts takes the incarnations of the last one's workers out of memory before it
//!    lets anybody in: an incarnation that is there is of a worker that works, or was killed.
//!
//! # Faults
//! * **A worker fails or panics.** The node's other workers end, and so does its server: its
//!   clients find it down. Whoever runs the node is told why ([`Failure`]).
//! * **The process is killed.** What its nessie workers leave is what dead clients leave: their
//!   sessions end at the next start, and the scrubber does the rest.

mod control;
pub(crate) mod ground;
mod herd;
mod housekeeper;
mod kv_direct;
mod nessie;
mod pilaf;
mod rest;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

use loch_engines::EngineError;
use loch_engines::engine::LogConfig;
use loch_engines::region::TableEntry;
use loch_engines::registry::{EngineId, Map};
use loch_engines::requests::WorkerId;
use loch_fabric::{FabricError, Zeroed};
use zerocopy::FromZeros;

use super::neighbours::Surroundings;
use super::sessions::Sessions;
use crate::memory::Member;
use crate::plan::WorkerPlan;
use crate::wire::Inspected;
use crate::{ByteSize, Error};

pub(crate) use control::Failure;
use control::{Control, Order};
use ground::Ground;

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Pilaf(#[from] loch_engines::pilaf::WorkerError),
    #[error(transparent)]
    Reach(#[from] Error),
    #[error(
        "its log at {path} cannot be opened: {cause}; put that right, or give the table another \
         folder (log)",
        path = .path.display()
    )]
    Log { path: PathBuf, cause: String },
    #[error("the system does not give it {size} of memory ({error}): give the table less memory")]
    NoMemory { size: ByteSize, error: std::io::Error },
    #[error("it cannot be bound to processor {core}: {cause}")]
    Core { core: u16, cause: rustix::io::Errno },
}

/// One worker: which, and what it needs of its node.
struct Station {
    home: usize,
    /// The table's number.
    table: usize,
    name: String,
    worker: u16,
    engine: EngineId,
    sessions: Arc<Sessions>,
    /// The session slot of a worker that is a client of its node.
    slot: Option<u32>,
    log: Option<LogConfig>,
    /// Of a table of kv-direct.
    direct: Option<kv_direct::Shared>,
    core: Option<u16>,
}

/// What can be asked of a node's workers.
#[derive(Clone, Default)]
pub(crate) struct Orders {
    to: Vec<Recipient>,
    /// The last gathering of each table.
    gatherings: Arc<Mutex<HashMap<usize, Arc<Mutex<Gathering>>>>>,
}

#[derive(Clone)]
struct Recipient {
    table: usize,
    sender: Sender<Order>,
    thread: Thread,
}

/// A node's workers. Dropping them ends them: they finish what they have begun, within a bound.
pub(crate) struct Workers {
    failure: Arc<Failure>,
    orders: Orders,
    threads: Vec<JoinHandle<()>>,
}

/// What goes with the tells of several workers.
type Answer = Box<dyn FnOnce(Inspected) + Send>;

/// The workers of a table that have been asked, and have not told.
pub(super) struct Gathering {
    left: usize,
    told: Inspected,
    answers: Vec<Answer>,
}

impl Orders {
    /// Has the workers of a table tell what they have; `answer` is told when all did. Whether it
    /// has any that have something of their own.
    ///
    /// Workers walk all their entries for it, so that they do it once for all that ask meanwhile.
    pub fn inspect(&self, table: usize, answer: Answer) -> bool {
        let to: Vec<_> = self.to.iter().filter(|it| it.table == table).collect();
        if to.is_empty() {
            return false;
        }
        let mut gatherings = self.gatherings.lock().expect("nothing panics while it is held");
        if let Some(last) = gatherings.get(&table) {
            let mut last = last.lock().expect("nothing panics while it is held");
            if last.left > 0 {
                last.answers.push(answer);
                return true;
            }
        }
        let told = Inspected::default();
        let gathering = Gathering { left: to.len(), told, answers: vec![answer] };
        let gathering = Arc::new(Mutex::new(gathering));
        gatherings.insert(table, gathering.clone());
        for it in to {
            // One that has ended tells nothing any more, and neither does its node.
            let _ = it.sender.send(Order { gathering: gathering.clone() });
            it.thread.unpark();
        }
        true
    }
}

#[cfg(all(test, feature = "verbs"))]
impl Orders {
    /// To one worker of a table, which is `tell`.
    pub fn of_one(table: usize, mut tell: impl FnMut() -> Inspected + Send + 'static) -> Self {
        let (sender, orders) = mpsc::channel::<Order>();
        let worker = std::thread::spawn(move || orders.iter().for_each(|it| it.tell(tell())));
        let to = vec![Recipient { table, sender, thread: worker.thread().clone() }];
        Self { to, gatherings: Arc::default() }
    }
}

impl Workers {
    /// Starts the workers of the tables of `own`. If all memory is known already, they have opened
    /// when this returns.
    ///
    /// # Errors
    /// [`Error::Os`] if there are no more threads, [`Error::WorkerFailed`].
    pub fn start(
        own: &Member,
        plan: &WorkerPlan,
        sessions: &Arc<Sessions>,
        surroundings: &Arc<Surroundings>,
        ground: &impl Ground,
    ) -> Result<Self, Error> {
        let stations = stations(own, plan, sessions);
        let failure = Arc::new(Failure::new(stations.len()));
        let mut workers =
            Self { failure: failure.clone(), orders: Orders::default(), threads: Vec::new() };
        for station in &stations {
            forget_incarnation(own, station);
        }
        for (station, shared) in stations.iter().filter_map(|it| Some((it, it.direct.as_ref()?))) {
            if station.worker == 0 {
                workers.threads.push(start_housekeeper(station, shared, failure.clone())?);
            }
        }
        for station in stations {
            let (sender, orders) = mpsc::channel();
            let table = station.table;
            let control =
                Control::new(&plan.waiting, failure.clone(), surroundings.clone(), orders);
            let name = format!("loch-{}-{}", station.name, station.worker);
            let ground = ground.clone();
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || work(&station, &ground, control))
                .map_err(Error::os("start a thread for", &own.socket))?;
            // What a nessie table holds is in memory for all to see.
            if own.parts(table).is_some_and(|map| map.nessie().is_none()) {
                let thread = thread.thread().clone();
                workers.orders.to.push(Recipient { table, sender, thread });
            }
            workers.threads.push(thread);
        }
        if surroundings.is_known() {
            failure.wait_until_open()?;
        }
        Ok(workers)
    }

    /// What can be asked of them.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// What is known of their failing.
    pub fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.failure.stop();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic was told as a failure.
            let _ = thread.join();
        }
    }
}

/// Starts the thread of a table's housekeeper.
fn start_housekeeper(
    station: &Station,
    shared: &kv_direct::Shared,
    failure: Arc<Failure>,
) -> Result<JoinHandle<()>, Error> {
    let (table, housekeeper) = (station.name.clone(), shared.housekeeper.clone());
    let run = move || {
        let work = AssertUnwindSafe(|| housekeeper.run(&failure));
        if let Err(panic) = catch_unwind(work) {
            let what = format!("its housekeeper panicked: {}", message_of(&*panic));
            tracing::error!(table, what, "a worker failed: the node stops");
            failure.fail(Error::WorkerFailed { table, worker: 0, what });
        }
    };
    std::thread::Builder::new()
        .name(format!("loch-{}-slabs", station.name))
        .spawn(run)
        .map_err(Error::os("start a thread for", station.name.as_ref()))
}

/// Whether a node needs workers at all.
pub(crate) fn are_needed(own: &Member) -> bool {
    own.tables.iter().any(|table| served_by(table).is_some())
}

/// The engine of a table that workers serve.
fn served_by(table: &TableEntry) -> Option<EngineId> {
    EngineId::of(table).filter(|engine| engine.needs().workers)
}

fn stations(own: &Member, plan: &WorkerPlan, sessions: &Arc<Sessions>) -> Vec<Station> {
    let mut stations = Vec::new();
    let mut cores = plan.waiting.cores.iter().copied().cycle();
    for (table, entry) in own.tables.iter().enumerate() {
        let Some(engine) = served_by(entry) else { continue };
        let name = entry.name().unwrap_or_default();
        let log = plan.logs.iter().find(|(of, _)| of == name);
        let mut slots = own.worker_slots(table);
        let direct = match own.parts(table) {
            Some(Map::KvDirect(map)) => Some(kv_direct::Shared::new(name, &map, plan)),
            _ => None,
        };
        for worker in 0..entry.params.service.workers {
            stations.push(Station {
                home: own.header.node.into(),
                table,
                name: name.into(),
                worker,
                engine,
                sessions: sessions.clone(),
                slot: slots.next(),
                log: log.map(|(_, log)| log.clone()),
                direct: direct.clone(),
                core: cores.next(),
            });
        }
    }
    stations
}

/// Invariant 3.
fn forget_incarnation(own: &Member, station: &Station) {
    let entry = &own.tables[station.table];
    let map = own.parts(station.table).expect("it is one of its own");
    let area = map.requests().expect("workers serve it").area();
    let at = entry.offset + area.incarnation_at(station.worker);
    own.region().word(at).store(0, Ordering::SeqCst);
}

/// A worker's thread.
fn work(station: &Station, ground: &impl Ground, mut control: Control) {
    let failure = control.failure().clone();
    let work = || -> Result<(), WorkerError> {
        if let Some(core) = station.core {
            bind(core)?;
        }
        match station.engine {
            EngineId::Herd => herd::serve(station, ground, &mut control),
            EngineId::Pilaf => pilaf::serve(station, ground, &mut control),
            EngineId::KvDirect => kv_direct::serve(station, ground, &mut control),
            _ => nessie::serve(station, ground, &mut control),
        }
    };
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("it panicked: {}", message_of(&*panic)),
    };
    let (table, worker) = (station.name.clone(), station.worker);
    tracing::error!(table, worker, what, "a worker failed: the node stops");
    failure.fail(Error::WorkerFailed { table, worker, what });
}

/// The memory of a worker's own entries.
fn zeroed<T: FromZeros + Copy>(len: usize) -> Result<Zeroed<T>, WorkerError> {
    let size = ByteSize::new((len as u64).saturating_mul(size_of::<T>() as u64));
    Zeroed::new(len).map_err(|error| WorkerError::NoMemory { size, error })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Binds this thread to a processor.
fn bind(core: u16) -> Result<(), WorkerError> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core.into());
    let bound = rustix::thread::sched_setaffinity(None, &set);
    bound.map_err(|cause| WorkerError::Core { core, cause })
}

impl Station {
    fn id(&self) -> WorkerId {
        WorkerId { node: self.home as u16, worker: self.worker }
    }
}
