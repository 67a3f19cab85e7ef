//! A worker as its node runs it: the interface that the node provides, the messages that it gives
//! the worker between two turns, and the loop that serves.
//!
//! In a turn a worker does the work that is there, and returns. Two traits provide everything else:
//! the [`WorkerHost`] is the worker's part of its node (sessions, the log, users' functions, the
//! time of the next turn), and its [`WorkerTransport`] reaches memory and clients. A node's threads
//! implement both traits, and so can a simulator. The same code then assembles an engine's workers
//! in either of them.
//!
//! # How an engine uses it
//! [`Workers::serve`](crate::engine::Workers::serve) makes the engine's worker, wraps it as `Work`,
//! and hands it to `run`. A worker that WRITEs its replies needs a session of its node, so it calls
//! `run` inside `in_sessions`. For a worker that SENDs its replies `by_mail` does the rest.
//!
//! # Invariants
//! 1. A worker knows the memory of other nodes from one [`Attached`] at a time. A worker that SENDs
//!    its replies attaches the next one while it runs. A worker that WRITEs them first ends its
//!    session and then opens a new one, so that none of its verbs reaches memory that it does not
//!    know.
//! 2. A worker reports between two turns, at a moment when the engine says that no work is half
//!    done.

use std::error::Error;

use loch_fabric::{Fabric, FabricError, Messages, RemoteAddr, Zeroed};
use zerocopy::FromZeros;

use crate::epoch::Session;
use crate::error::EngineError;
use crate::functions::UserFunctions;
use crate::limits::{
    HERD_DEPTH, KV_DIRECT_IN_FLIGHT, KV_DIRECT_WAITING, WORKER_DRAIN_US, WORKER_LANES,
    WORKER_OPERATION_US,
};
use crate::lines::{HostMemory, Line, Near};
use crate::log::{LogError, Logging, Storage};
use crate::region::TableParams;
use crate::requests::{Sessions, WorkerId};
use crate::scan::{Page, Step};
use crate::size::ByteSize;

/// Identifies a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSite {
    /// The worker's node, and its number there.
    pub id: WorkerId,
    /// The number of the worker's table.
    pub table: usize,
    /// The name of the worker's table.
    pub name: String,
}

/// A table in the memory of all nodes.
#[derive(Clone, Debug)]
pub struct Attached<M> {
    /// The parameters in the table's directory entry.
    pub params: TableParams,
    /// The address where the table begins on each node, and the number of that node's session
    /// slots.
    pub places: Vec<(RemoteAddr, u32)>,
    /// The handle by which the transport reaches that memory.
    pub memory: M,
}

/// How the workers of a node reach memory, and their clients.
pub trait WorkerTransport {
    /// The memory of all nodes.
    type Memory;
    /// The endpoint of a worker that WRITEs its replies.
    type Endpoint: Fabric;
    /// The connections of such an endpoint to the nodes of its clients. They may break.
    type ReplyLinks;
    /// The endpoint of a worker that SENDs its replies: it reaches its own node's memory, and has
    /// messages.
    type Mail: Fabric + Messages;

    /// The endpoint of the worker that holds `session`. Missing connections are made later.
    ///
    /// # Errors
    /// [`WorkerError::Host`].
    fn endpoint(
        &self,
        memory: &Self::Memory,
        site: &WorkerSite,
        session: &Session,
    ) -> Result<(Self::Endpoint, Self::ReplyLinks), WorkerError>;

    /// Goes on, between two turns, with restoring broken connections. Waits for nobody.
    fn tend(&self, endpoint: &Self::Endpoint, links: &mut Self::ReplyLinks);

    /// The endpoint of the worker that receives in `mailbox`.
    ///
    /// # Errors
    /// [`WorkerError::Host`], [`WorkerError::Fabric`].
    fn mail(
        &self,
        memory: &Self::Memory,
        site: &WorkerSite,
        mailbox: RemoteAddr,
    ) -> Result<Self::Mail, WorkerError>;

    /// As [`WorkerTransport::tend`], for a worker that SENDs its replies.
    fn tend_mail(&self, mail: &Self::Mail);

    /// Nodes have come back with other memory: from now on `mail` sends into `memory`.
    ///
    /// # Errors
    /// [`WorkerError::Fabric`].
    fn attach(&self, mail: &Self::Mail, memory: &Self::Memory) -> Result<(), WorkerError>;

    /// The node's knowledge of the sessions of the worker's clients.
    fn sessions(&self, site: &WorkerSite) -> Sessions;
}

/// The transport's handle of the memory of all nodes.
pub type MemoryOf<H> = <<H as WorkerHost>::Transport as WorkerTransport>::Memory;

/// A worker's part of its node.
#[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
pub trait WorkerHost {
    /// The worker's transport.
    type Transport: WorkerTransport;
    /// The storage of the worker's log.
    type Storage: Storage;
    /// The functions that users registered.
    type Functions: UserFunctions;
    /// The memory for the entries of a kv-direct worker.
    type Lines: HostMemory;

    /// Identifies the worker.
    fn site(&self) -> &WorkerSite;

    /// The worker's transport.
    fn transport(&self) -> &Self::Transport;

    /// Opens the worker's log, if the table has one. No one else opens it while the worker lives.
    ///
    /// # Errors
    /// [`WorkerError::Host`].
    fn log(&self) -> Result<Option<Logging<Self::Storage>>, WorkerError>;

    /// The functions that the worker's table was declared with.
    fn functions(&self) -> Self::Functions;

    /// Memory of `lines` zeroed lines for the entries of a kv-direct worker.
    ///
    /// # Errors
    /// [`WorkerError::NoMemory`].
    fn lines(&self, lines: u32) -> Result<Self::Lines, WorkerError>;

    /// The worker's numbers that no declaration sets.
    fn tuning(&self) -> Tuning {
        Tuning::default()
    }

    /// Waits for the memory of all nodes; `None` if the worker has to end before all of it is
    /// there.
    async fn attached(&self) -> Option<Attached<MemoryOf<Self>>>;

    /// Opens the session of a worker that WRITEs its replies; `None` if the worker has to end.
    async fn open_session(&self) -> Option<Session>;

    /// Ends that session. `is_in_order` says that the session holds nothing and has nothing under
    /// way.
    fn close_session(&self, is_in_order: bool);

    /// Tells the host that the worker serves from now on. A worker that attaches other memory calls
    /// it again.
    fn opened(&self);

    /// Called after each turn: lets time pass if the turn was idle, wakes the table's
    /// [`Housekeeper`] if the turn was busy, and returns the worker's next step.
    async fn after(&self, was_busy: bool) -> Next<MemoryOf<Self>>;

    /// Hands in the report that [`Next::Report`] or [`Next::Count`] asked for.
    fn report(&self, report: Report);

    /// Hands in the page that [`Next::Scan`] asked for.
    ///
    /// # Panics
    /// By default: a host that never asks need not take a page.
    fn scanned(&self, page: Page) {
        unreachable!("nobody has asked for {page:?}");
    }

    /// Whether the worker has to end.
    fn is_stopping(&self) -> bool;

    /// Makes the table's [`Housekeeper`] look for work. Costs next to nothing if it does that
    /// already, or if the table has no housekeeper.
    fn wake_housekeeper(&self);
}

/// The numbers of a worker that no declaration sets. A node's workers have the default ones; a
/// simulation draws others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Operations that a worker of nessie-server or nessie-hybrid has under way at a time.
    pub lanes: usize,
    /// How long such an operation goes on after its first restart, in microseconds.
    pub operation_us: u64,
    /// Requests in each stage of herd's pipeline; 0: no pipeline.
    pub depth: usize,
    /// Operations that a kv-direct worker executes at the same time.
    pub in_flight: usize,
    /// Operations of a kv-direct worker that may wait for others.
    pub waiting: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            lanes: WORKER_LANES,
            operation_us: WORKER_OPERATION_US,
            depth: HERD_DEPTH,
            in_flight: KV_DIRECT_IN_FLIGHT,
            waiting: KV_DIRECT_WAITING,
        }
    }
}

/// A worker's next step.
#[derive(Debug)]
pub enum Next<M> {
    /// Do the next turn.
    Turn,
    /// Nodes have come back with other memory; this is now the memory of all nodes.
    Attach(Box<Attached<M>>),
    /// Report on the table as soon as possible. The host asks again until the worker has done it.
    Report,
    /// Report on the table as soon as possible, without a look at all of it in one turn. The worker
    /// verifies nothing.
    Count,
    /// List keys, as soon as possible. The host asks again until the worker has done it.
    Scan(Box<Step>),
    /// End.
    Stop,
}

/// A worker's report on its table, for `loch check` and for usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Slots of its index.
    pub slots: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes for entries.
    pub data_bytes: u64,
    /// The number of entries.
    pub entries: u64,
    /// Bytes of the entries.
    pub entry_bytes: u64,
    /// Broken invariants, described in words.
    pub broken: Vec<String>,
    /// What the worker has counted since it started, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// A table's work on one node beside its requests. A thread of the node does it.
pub trait Housekeeper: Send + Sync {
    /// Does a bounded part of the work. Returns whether there was any. Only the actions of workers
    /// make new work for it.
    fn turn(&self) -> bool;

    /// Whether a worker has done anything that may make work since the last turn began. A worker
    /// asks after each run of busy turns, so the answer costs little.
    fn has_work(&self) -> bool;
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// An error of the worker's engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error of the fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// An error of the worker's log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The node could not give the worker what it needs.
    #[error(transparent)]
    Host(Box<dyn Error + Send + Sync>),
    /// There is no memory for the worker's entries.
    #[error("the system does not give it {size} of memory ({error}): give the table less memory")]
    NoMemory {
        /// How much memory the worker needs.
        size: ByteSize,
        /// The system's error.
        error: std::io::Error,
    },
}

/// An open worker, as the serve loop drives it.
#[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
pub(crate) trait Work {
    /// Does one turn. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The reason why the worker cannot go on.
    async fn turn(&mut self) -> Result<bool, WorkerError>;

    /// The report, if it can be made now, after a turn that was busy or not. A worker that cannot
    /// report yet works towards it, and is asked again.
    ///
    /// # Errors
    /// As [`Work::turn`].
    fn report(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError>;

    /// The report without what is broken, under the same conditions. A worker that has to look at
    /// its entries for it does so in bounded steps, and is asked again.
    ///
    /// # Errors
    /// As [`Work::turn`].
    fn count(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError> {
        self.report(was_busy)
    }

    /// The keys of a step of a scan, under the same conditions as a report.
    ///
    /// # Errors
    /// As [`Work::turn`].
    fn scan(&mut self, step: &Step, was_busy: bool) -> Result<Option<Page>, WorkerError>;
}

/// Serves turn after turn, before each of which `tend` tends the connections. Returns the memory
/// that is to be attached next, or `None` if the worker has to end.
///
/// # Errors
/// The worker's errors.
pub(crate) async fn run<H: WorkerHost, W: Work>(
    work: &mut W,
    mut tend: impl FnMut(&W),
    host: &H,
) -> Result<Option<Attached<MemoryOf<H>>>, WorkerError> {
    loop {
        tend(work);
        let was_busy = work.turn().await?;
        match host.after(was_busy).await {
            Next::Turn => (),
            Next::Report => {
                if let Some(report) = work.report(was_busy)? {
                    host.report(report);
                }
            }
            Next::Count => {
                if let Some(report) = work.count(was_busy)? {
                    host.report(report);
                }
            }
            Next::Scan(step) => {
                if let Some(page) = work.scan(&step, was_busy)? {
                    host.scanned(page);
                }
            }
            Next::Attach(anew) => return Ok(Some(*anew)),
            Next::Stop => return Ok(None),
        }
    }
}

/// Serves until the worker, which SENDs its replies by the endpoint `mail`, has to end, and returns
/// it. Memory that nodes come back with is attached while the worker runs.
///
/// # Errors
/// The worker's errors.
pub(crate) async fn by_mail<H: WorkerHost, W: Work>(
    host: &H,
    mut worker: W,
    mail: impl Fn(&W) -> &<H::Transport as WorkerTransport>::Mail,
) -> Result<W, WorkerError> {
    let transport = host.transport();
    host.opened();
    while let Some(anew) =
        run(&mut worker, |worker| transport.tend_mail(mail(worker)), host).await?
    {
        transport.attach(mail(&worker), &anew.memory)?;
    }
    Ok(worker)
}

/// Finishes the work that was begun: does turns until one finds nothing to do, and returns whether
/// that was reached. Gives up after [`WORKER_DRAIN_US`] if `is_bounded`, or if the worker has to
/// end, because others wait for that.
///
/// # Errors
/// The worker's errors.
pub(crate) async fn drain<W: Work>(
    work: &mut W,
    mut tend: impl FnMut(&W),
    fabric: &impl Fabric,
    host: &impl WorkerHost,
    is_bounded: bool,
) -> Result<bool, WorkerError> {
    let begun_us = fabric.now_us();
    while work.turn().await? {
        let is_late = fabric.now_us().saturating_sub(begun_us) >= WORKER_DRAIN_US;
        if is_late && (is_bounded || host.is_stopping()) {
            return Ok(false);
        }
        tend(work);
        host.wake_housekeeper();
        fabric.yield_now().await;
    }
    Ok(true)
}

/// How serving in one session ended: the memory that is to be attached next, or `None` if the
/// worker has to end; and whether all begun work was finished.
pub(crate) type Ended<H> = (Option<Attached<MemoryOf<H>>>, bool);

/// Runs `serve` in a session of the node, and in a new session whenever the memory changes, until
/// the worker has to end. Over a network a new session begins only when all verbs of the session
/// before have ended.
///
/// # Errors
/// The errors of `serve`.
pub(crate) async fn in_sessions<H: WorkerHost>(
    host: &H,
    mut serve: impl AsyncFnMut(&Attached<MemoryOf<H>>, Session) -> Result<Ended<H>, WorkerError>,
) -> Result<(), WorkerError> {
    let Some(mut attached) = host.attached().await else { return Ok(()) };
    while let Some(session) = host.open_session().await {
        let served = serve(&attached, session).await;
        host.close_session(served.as_ref().is_ok_and(|(_, is_in_order)| *is_in_order));
        match served?.0 {
            Some(anew) => attached = anew,
            None => break,
        }
    }
    Ok(())
}

/// The result of a turn of a worker that leases versions before it begins any work. If its own
/// node's memory was out of reach, the worker has no versions and has begun nothing, so the turn
/// counts as idle.
///
/// # Errors
/// All errors of the turn but this one.
#[inline]
pub(crate) fn unless_out_of_reach(turned: Result<bool, WorkerError>) -> Result<bool, WorkerError> {
    use EngineError::{Ambiguous, Fabric};
    match turned {
        Err(WorkerError::Fabric(error) | WorkerError::Engine(Fabric(error) | Ambiguous(error)))
            if error.out_of_reach().is_some() =>
        {
            Ok(false)
        }
        turned => turned,
    }
}

/// The memory of the worker's own process for the entries of a kv-direct worker.
///
/// # Errors
/// [`WorkerError::NoMemory`].
pub fn own_lines(lines: u32) -> Result<Near<Zeroed<Line>>, WorkerError> {
    zeroed(lines as usize).map(Near::new)
}

/// Zeroed memory for a worker's own entries.
///
/// # Errors
/// [`WorkerError::NoMemory`].
pub(crate) fn zeroed<T: FromZeros + Copy>(len: usize) -> Result<Zeroed<T>, WorkerError> {
    let size = ByteSize::new((len as u64).saturating_mul(size_of::<T>() as u64));
    Zeroed::new(len).map_err(|error| WorkerError::NoMemory { size, error })
}

#[cfg(test)]
mod tests {
    use loch_fabric::RegionId;

    use super::*;

    #[test]
    fn a_turn_that_could_not_reach_its_own_memory_had_nothing_to_do() {
        let at = RemoteAddr::new(RegionId(0), 8);
        let (lost, gone) =
            (FabricError::OutcomeUnknown { at }, FabricError::Unattached { region: at.region() });
        for error in [lost, gone] {
            assert!(matches!(unless_out_of_reach(Err(error.into())), Ok(false)));
            let of_engine = WorkerError::Engine(error.into());
            assert!(matches!(unless_out_of_reach(Err(of_engine)), Ok(false)));
        }
        let damaged = EngineError::Damaged { what: "a stamp".into() };
        let damaged = unless_out_of_reach(Err(damaged.into()));
        assert!(matches!(damaged, Err(WorkerError::Engine(EngineError::Damaged { .. }))));
        assert!(matches!(unless_out_of_reach(Ok(true)), Ok(true)));
    }
}
