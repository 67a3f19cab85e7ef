//! A node's workers: the threads that serve tables of engines whose server takes part.
//!
//! There is a thread for each worker of each table ([`Workers::start`]), and one for each table
//! that has to be kept house for ([`housekeeper`]). What a worker is, and what it does in a turn,
//! is its engine's business ([`serve`](loch_engines::engine::Workers::serve)). What it needs for
//! that, when the next turn comes, and what else is asked of it in between comes from its
//! [`ThreadHost`]; how it reaches memory and clients from a [`NodeTransport`].
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

mod failure;
mod host;
mod housekeeper;
mod idle_backoff;
pub(super) mod inspect;
mod log;
mod mail;
pub(crate) mod plan;
pub(crate) mod transport;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use loch_engines::region::TableEntry;
use loch_engines::registry::{EngineId, Shared};
use loch_engines::requests::WorkerId;
use loch_engines::serve::{WorkerError, WorkerSite};
use loch_fabric::lanes::block_on;

use super::neighbours::Surroundings;
use super::sessions::Sessions;
use crate::Error;
use crate::layout::memory::Member;

pub(crate) use failure::Failure;
use host::{Share, ThreadHost};
use housekeeper::HousekeeperThread;
use idle_backoff::IdleBackoff;
pub(crate) use inspect::Orders;
use inspect::questions;
use plan::WorkerPlan;
use transport::NodeTransport;

/// A worker's thread cannot be what it was declared to be.
#[derive(Debug, thiserror::Error)]
#[error("it cannot be bound to processor {core}: {cause}")]
struct NotBound {
    core: u16,
    cause: rustix::io::Errno,
}

/// A node's workers. Dropping them ends them: they finish what they have begun, within a bound.
pub(crate) struct Workers {
    failure: Arc<Failure>,
    orders: Orders,
    threads: Vec<JoinHandle<()>>,
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
        transport: &impl NodeTransport,
    ) -> Result<Self, Error> {
        let shares = shares(own, plan, sessions);
        let failure = Arc::new(Failure::new(shares.len()));
        let mut workers =
            Self { failure: failure.clone(), orders: Orders::default(), threads: Vec::new() };
        for share in &shares {
            forget_incarnation(own, &share.site);
        }
        for share in shares.iter().filter(|share| share.site.id.worker == 0) {
            if let Some(housekeeper) = &share.housekeeper {
                let (site, shared) = (share.site.clone(), share.shared.clone());
                let housekeeper = housekeeper.clone();
                let keeps = start_housekeeper(site, shared, housekeeper, failure.clone())?;
                workers.threads.push(keeps);
            }
        }
        for share in shares {
            let (sender, asked) = questions();
            let WorkerSite { id, table, ref name } = share.site;
            let builder = std::thread::Builder::new().name(format!("loch-{name}-{}", id.worker));
            let (transport, failure) = (transport.clone(), failure.clone());
            let (surroundings, idle) = (surroundings.clone(), IdleBackoff::new(&plan.waiting));
            let host = ThreadHost::new(share, transport, failure, surroundings, asked, idle);
            let thread = builder
                .spawn(move || work(&host))
                .map_err(Error::os("start a thread for", &own.socket))?;
            // What a nessie table holds is in memory for all to see.
            if own.parts(table).is_some_and(|map| map.nessie().is_none()) {
                workers.orders.add(table, sender, thread.thread().clone());
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

/// Starts the thread that keeps house for a table.
fn start_housekeeper(
    site: WorkerSite,
    shared: Shared,
    housekeeper: Arc<HousekeeperThread>,
    failure: Arc<Failure>,
) -> Result<JoinHandle<()>, Error> {
    let name = format!("loch-{}-housekeeper", site.name);
    let table = site.name.clone();
    let run = move || {
        let work = AssertUnwindSafe(|| {
            let its = shared.housekeeper().expect("the table has one");
            housekeeper.run(its, &failure);
        });
        if let Err(panic) = catch_unwind(work) {
            let what = format!("its housekeeper panicked: {}", message_of(&*panic));
            fail(&failure, &site, what);
        }
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(Error::os("start a thread for", table.as_ref()))
}

/// Whether a node needs workers at all.
pub(crate) fn are_needed(own: &Member) -> bool {
    own.tables.iter().any(is_served)
}

/// Whether workers serve a table.
fn is_served(table: &TableEntry) -> bool {
    EngineId::of(table).is_some_and(|engine| engine.needs().workers)
}

fn shares(own: &Member, plan: &WorkerPlan, sessions: &Arc<Sessions>) -> Vec<Share> {
    let mut shares = Vec::new();
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
            shares.push(Share {
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
    shares
}

/// Invariant 3.
fn forget_incarnation(own: &Member, site: &WorkerSite) {
    let entry = &own.tables[site.table];
    let map = own.parts(site.table).expect("it is one of its own");
    let area = map.requests().expect("workers serve it").area();
    let at = entry.offset + area.incarnation_at(site.id.worker);
    own.region().word(at).store(0, Ordering::SeqCst);
}

/// A worker's thread.
fn work(host: &ThreadHost<impl NodeTransport>) {
    let Share { site, shared, core, .. } = host.share();
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
    fail(host.failure(), site, what);
}

/// The node stops, since a worker or what keeps house for it has failed.
fn fail(failure: &Failure, site: &WorkerSite, what: String) {
    let (table, worker) = (site.name.clone(), site.id.worker);
    tracing::error!(table, worker, what, "a worker failed: the node stops");
    failure.fail(Error::WorkerFailed { table, worker, what });
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
