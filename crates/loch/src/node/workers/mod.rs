//! A node's workers: the threads that serve tables whose engine needs workers.
//!
//! Each worker of each table has a thread ([`Workers::start`]), and so has the housekeeper of each
//! table that needs one ([`housekeeper`]). The engine defines the worker and its turns
//! ([`serve`](loch_engines::engine::Workers::serve)). The [`ThreadHost`] gives the worker its
//! session, log and functions, and says what is next between two turns. The [`NodeTransport`] is
//! its way to memory and clients.
//!
//! # Invariants
//! 1. Workers begin when the memory of all nodes is known, so they can reply to every client. A
//!    node that comes back with other memory is attached anew, and the workers lose nothing of
//!    their own.
//! 2. A worker number has one worker at a time: threads are joined before the region is given up,
//!    and a region has one node ([`region`](super::region), invariant 2).
//! 3. A node that starts removes the incarnations of the last node's workers from memory before it
//!    accepts a client. So where the node is up, an incarnation belongs to a worker that works.
//!
//! # Faults
//! * **A worker fails or panics.** The node's other workers end, and so does its server; clients
//!   find the node down. [`WorkersStatus`] has the error for the process that runs the node.
//! * **The process is killed.** Its nessie workers leave the same as dead clients do: their
//!   sessions end at the next start, and the scrubber does the rest.

mod housekeeper;
mod idle_backoff;
pub(super) mod inspector;
mod log;
mod mail;
pub(crate) mod plan;
mod status;
mod thread_host;
pub(crate) mod transport;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use loch_engines::region::TableEntry;
use loch_engines::registry::{EngineId, Shared};
use loch_engines::requests::WorkerId;
use loch_engines::serve::{WorkerError, WorkerSite};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::Bell;

use super::attacher::LatestMemory;
use super::sessions::Sessions;
use crate::layout::memory::{Member, of_region};
use crate::{Error, Result};

use housekeeper::HousekeeperThread;
use idle_backoff::{IdleBackoff, Sleeps};
pub(crate) use inspector::Inspector;
use plan::WorkerPlan;
pub(crate) use status::WorkersStatus;
use thread_host::{ThreadHost, WorkerSetup};
use transport::NodeTransport;

/// The thread of a worker cannot be bound to the processor that was declared.
#[derive(Debug, thiserror::Error)]
#[error("it cannot be bound to processor {core}: {cause}")]
struct NotBound {
    core: u16,
    cause: rustix::io::Errno,
}

/// A node's workers. Dropping them ends them, within a bound, after they have finished the requests
/// that they have begun.
pub(crate) struct Workers {
    status: Arc<WorkersStatus>,
    inspector: Inspector,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts the workers of the tables of `own`. If the memory of all nodes is known already, the
    /// workers have opened when this returns.
    ///
    /// # Errors
    /// [`Error::Os`] if there are no more threads, [`Error::WorkerFailed`].
    pub fn start<T: NodeTransport>(
        own: &Member,
        plan: &WorkerPlan,
        sessions: &Arc<Sessions>,
        latest_memory: &Arc<LatestMemory>,
        transport: &T,
    ) -> Result<Self> {
        let setups = setups(own, plan, sessions);
        let status = Arc::new(WorkersStatus::new(setups.len()));
        let mut workers =
            Self { status: status.clone(), inspector: Inspector::default(), threads: Vec::new() };
        for setup in &setups {
            forget_incarnation(own, &setup.site);
        }
        for setup in setups.iter().filter(|setup| setup.site.id.worker == 0) {
            if let Some(housekeeper) = &setup.housekeeper {
                let (site, shared) = (setup.site.clone(), setup.shared.clone());
                let housekeeper = housekeeper.clone();
                let keeps = start_housekeeper(site, shared, housekeeper, status.clone())?;
                workers.threads.push(keeps);
            }
        }
        for setup in setups {
            let (sender, asked) = mpsc::channel();
            let WorkerSite { id, table, ref name } = setup.site;
            let builder = std::thread::Builder::new().name(format!("loch-{name}-{}", id.worker));
            let (transport, status) = (transport.clone(), status.clone());
            let bell = bell::<T>(own, &setup.site)?;
            status.add_bell(bell.clone());
            latest_memory.add_bell(bell.clone());
            let sleeps = match T::IS_RUNG {
                true => Sleeps::rung(setup.log.is_some()),
                false => Sleeps::looking(&plan.waiting),
            };
            let idle = IdleBackoff::new(plan.waiting.dedicated, bell.clone(), sleeps);
            let latest_memory = latest_memory.clone();
            let host = ThreadHost::new(setup, transport, status, latest_memory, asked, idle);
            let thread = builder
                .spawn(move || work(&host))
                .map_err(Error::os("start a thread for", &own.socket))?;
            // The entries of a nessie table are in memory that everybody can read.
            if own.parts(table).is_some_and(|map| map.nessie().is_none()) {
                workers.inspector.add(table, sender, bell);
            }
            workers.threads.push(thread);
        }
        if latest_memory.is_known() {
            status.wait_until_open()?;
        }
        Ok(workers)
    }

    /// Asks the workers what they have.
    pub fn inspector(&self) -> &Inspector {
        &self.inspector
    }

    /// The status of the workers.
    pub fn status(&self) -> &Arc<WorkersStatus> {
        &self.status
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.status.stop();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic was reported as a failure.
            let _ = thread.join();
        }
    }
}

/// Starts the housekeeper's thread of a table.
fn start_housekeeper(
    site: WorkerSite,
    shared: Shared,
    housekeeper: Arc<HousekeeperThread>,
    status: Arc<WorkersStatus>,
) -> Result<JoinHandle<()>> {
    let name = format!("loch-{}-housekeeper", site.name);
    let table = site.name.clone();
    let run = move || {
        let work = AssertUnwindSafe(|| {
            let its = shared.housekeeper().expect("the table has one");
            housekeeper.run(its, &status);
        });
        if let Err(panic) = catch_unwind(work) {
            let what = format!("its housekeeper panicked: {}", message_of(&*panic));
            fail(&status, &site, what);
        }
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(Error::os("start a thread for", table.as_ref()))
}

/// Returns whether a node needs workers at all.
pub(crate) fn are_needed(own: &Member) -> bool {
    own.tables.iter().any(is_served)
}

/// Returns whether workers serve a table.
fn is_served(table: &TableEntry) -> bool {
    EngineId::of(table).is_some_and(|engine| engine.needs().workers)
}

fn setups(own: &Member, plan: &WorkerPlan, sessions: &Arc<Sessions>) -> Vec<WorkerSetup> {
    let mut setups = Vec::new();
    let mut cores = plan.waiting.cores.iter().copied().cycle();
    for (table, entry) in own.tables.iter().enumerate() {
        if !is_served(entry) {
            continue;
        }
        let name = entry.name().unwrap_or_default();
        let log = plan.logs.iter().find(|(of, _)| of == name);
        let functions = plan.functions.iter().find(|(of, _)| of == name);
        let shared = Shared::of(&own.parts(table).expect("it is one of its own"));
        let housekeeper = shared.housekeeper().map(|_| Arc::<HousekeeperThread>::default());
        let mut slots = own.worker_slots(table);
        for worker in 0..entry.params.service.workers {
            let id = WorkerId { node: own.header.node, worker };
            setups.push(WorkerSetup {
                site: WorkerSite { id, table, name: name.into() },
                shared: shared.clone(),
                sessions: sessions.clone(),
                slot: slots.next(),
                log: log.map(|(_, log)| log.clone()),
                functions: functions.map(|(_, it)| it.clone()).unwrap_or_default(),
                housekeeper: housekeeper.clone(),
                core: cores.next(),
            });
        }
    }
    setups
}

/// Removes the incarnation of the last node's worker: invariant 3.
fn forget_incarnation(own: &Member, site: &WorkerSite) {
    let map = own.parts(site.table).expect("it is one of its own");
    let at = map.requests().expect("workers serve it").incarnation_addr(site.id);
    own.region().word(at.offset()).store(0, Ordering::SeqCst);
}

/// The bell at which a worker sleeps. Where clients cannot ring, only the node does.
fn bell<T: NodeTransport>(own: &Member, site: &WorkerSite) -> Result<Bell> {
    if !T::IS_RUNG {
        return Bell::private().map_err(of_region(&own.socket));
    }
    let map = own.parts(site.table).expect("it is one of its own");
    let at = map.requests().expect("workers serve it").bell_addr(site.id);
    Ok(Bell::new(own.region().clone(), at).expect("a worker's line is in its node's region"))
}

/// Runs a worker on this thread.
fn work(host: &ThreadHost<impl NodeTransport>) {
    let WorkerSetup { site, shared, core, .. } = host.setup();
    let work = || -> Result<(), WorkerError> {
        if let Some(core) = *core {
            bind(core).map_err(|error| WorkerError::Host(error.into()))?;
        }
        block_on(shared.serve(host))
    };
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("it panicked: {}", message_of(&*panic)),
    };
    fail(host.status(), site, what);
}

/// Stops the node, since a worker or a housekeeper has failed.
fn fail(status: &WorkersStatus, site: &WorkerSite, what: String) {
    let (table, worker) = (site.name.clone(), site.id.worker);
    tracing::error!(table, worker, what, "a worker failed: the node stops");
    status.fail(Error::WorkerFailed { table, worker, what });
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Binds this thread to a processor.
fn bind(core: u16) -> Result<(), NotBound> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core.into());
    let bound = rustix::thread::sched_setaffinity(None, &set);
    bound.map_err(|cause| NotBound { core, cause })
}
