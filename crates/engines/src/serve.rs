//! A worker as its node runs it: what it is given, what it is told between two turns, and the loop
//! that serves.
//!
//! In a turn a worker does what there is to do, and returns. Everything else comes in by two
//! traits: the [`WorkerHost`] is the worker's part of its node (sessions, the log, users'
//! functions, when the next turn comes), and its [`WorkerTransport`] reaches memory and clients. A
//! node's threads implement them, and so can a simulator: then an engine's workers are put together
//! by the same code in both.
//!
//! # How an engine uses it
//! [`Workers::serve`](crate::engine::Workers::serve) makes the engine's worker, wraps it as
//! `Work`, and hands it to `run`. A worker that WRITEs its replies holds a session of its node, and
//! does so inside `in_sessions`.
//!
//! # Invariants
//! 1. What a worker knows of other nodes' memory is from one [`Attached`] at a time. A worker that
//!    SENDs its replies attaches the next one as it is; one that WRITEs them ends its session first
//!    and begins anew, so that nothing that it posted reaches memory it does not know.
//! 2. A report is made between two turns, when the engine says that nothing is half done.

use std::error::Error;

use loch_fabric::{Fabric, FabricError, Messages, RemoteAddr, Zeroed};
use zerocopy::FromZeros;

use crate::epoch::Session;
use crate::error::EngineError;
use crate::functions::UserFunctions;
use crate::limits::WORKER_DRAIN_US;
use crate::log::{LogError, Logging, Storage};
use crate::region::TableParams;
use crate::requests::{Sessions, WorkerId};
use crate::size::ByteSize;

/// Which worker it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSite {
    /// Its node, and its number there.
    pub id: WorkerId,
    /// The number of its table.
    pub table: usize,
    /// The name of its table.
    pub name: String,
}

/// A table in the memory of all nodes.
#[derive(Clone, Debug)]
pub struct Attached<M> {
    /// What its directory entry says.
    pub params: TableParams,
    /// Where it begins on each node, and the session slots of that node.
    pub places: Vec<(RemoteAddr, u32)>,
    /// By what the transport reaches that memory.
    pub memory: M,
}

/// How the workers of a node reach memory, and their clients.
pub trait WorkerTransport {
    /// The memory of all nodes.
    type Memory;
    /// The endpoint of a worker that WRITEs its replies.
    type Endpoint: Fabric;
    /// Its connections to the nodes of its clients, which may break.
    type ReplyLinks;
    /// The endpoint of a worker that SENDs its replies: to its own node's memory, with messages.
    type Mail: Fabric + Messages;

    /// For the worker that holds `session`. Connections that are not there yet are made later.
    ///
    /// # Errors
    /// [`WorkerError::Host`].
    fn endpoint(
        &self,
        memory: &Self::Memory,
        site: &WorkerSite,
        session: &Session,
    ) -> Result<(Self::Endpoint, Self::ReplyLinks), WorkerError>;

    /// Between two turns: goes on making connections again that broke. Waits for nobody.
    fn tend(&self, endpoint: &Self::Endpoint, links: &mut Self::ReplyLinks);

    /// For the worker that receives in `mailbox`.
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

    /// Nodes have come back with other memory: `mail` sends into this from now on.
    ///
    /// # Errors
    /// [`WorkerError::Fabric`].
    fn attach(&self, mail: &Self::Mail, memory: &Self::Memory) -> Result<(), WorkerError>;

    /// What the node knows of the sessions of the worker's clients.
    fn sessions(&self, site: &WorkerSite) -> Sessions;
}

/// What a transport calls the memory of all nodes.
pub type MemoryOf<H> = <<H as WorkerHost>::Transport as WorkerTransport>::Memory;

/// A worker's part of its node.
#[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
pub trait WorkerHost {
    /// How it reaches memory.
    type Transport: WorkerTransport;
    /// What keeps its log.
    type Storage: Storage;
    /// The functions that users registered.
    type Functions: UserFunctions;

    /// Which worker it is.
    fn site(&self) -> &WorkerSite;

    /// How it reaches memory.
    fn transport(&self) -> &Self::Transport;

    /// Opens its log, if the table has one. Nobody else has it for as long as the worker is there.
    ///
    /// # Errors
    /// [`WorkerError::Host`].
    fn log(&self) -> Result<Option<Logging<Self::Storage>>, WorkerError>;

    /// The functions that its table was declared with.
    fn functions(&self) -> Self::Functions;

    /// Waits for the memory of all nodes; `None` if the worker is to end before that is there.
    async fn attached(&self) -> Option<Attached<MemoryOf<Self>>>;

    /// Opens the session of a worker that WRITEs its replies; `None` if the worker is to end.
    async fn open_session(&self) -> Option<Session>;

    /// Ends that session. `is_in_order` says that it holds nothing, and has nothing under way.
    fn close_session(&self, is_in_order: bool);

    /// The worker serves from now on. A worker that attaches other memory says it again.
    fn opened(&self);

    /// After a turn: lets time pass if there was nothing to do, and says what is next. Wakes the
    /// table's [`Housekeeper`] if there was something to do.
    async fn after(&self, was_busy: bool) -> Next<MemoryOf<Self>>;

    /// Hands in what [`Next::Report`] asked for.
    fn report(&self, report: Report);

    /// Whether the worker is to end.
    fn is_stopping(&self) -> bool;

    /// Has the table's [`Housekeeper`] look for something to do. Costs next to nothing if it does
    /// so already, and if there is none.
    fn wake_housekeeper(&self);
}

/// What a worker does next.
#[derive(Debug)]
pub enum Next<M> {
    /// The next turn.
    Turn,
    /// Nodes have come back with other memory: this is all of it now.
    Attach(Attached<M>),
    /// Tell what it has, as soon as it can. It is asked again until it does.
    Report,
    /// End.
    Stop,
}

/// What a worker has of its table, for `loch check` and for usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Slots of its index.
    pub slots: u64,
    /// Bytes of that.
    pub index_bytes: u64,
    /// Bytes for entries.
    pub data_bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of those.
    pub entry_bytes: u64,
    /// Broken invariants, in words.
    pub broken: Vec<String>,
}

/// What is to be done for a table on one node beside its requests, by a thread of the node.
pub trait Housekeeper: Send + Sync {
    /// Does a part of it, within bounds; whether there was anything to do. Only what workers do
    /// makes more of it.
    fn turn(&self) -> bool;
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Its engine's.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The fabric's.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Its log's.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The node could not give it what it needs.
    #[error(transparent)]
    Host(Box<dyn Error + Send + Sync>),
    /// There is no memory for its entries.
    #[error("the system does not give it {size} of memory ({error}): give the table less memory")]
    NoMemory {
        /// How much it needs.
        size: ByteSize,
        /// What the system said.
        error: std::io::Error,
    },
}

/// A worker that is open, as the serve loop drives it.
#[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
pub(crate) trait Work {
    /// Before a turn: tends the connections.
    fn tend(&mut self);

    /// One turn; whether there was anything to do.
    ///
    /// # Errors
    /// The worker cannot go on.
    async fn turn(&mut self) -> Result<bool, WorkerError>;

    /// What it has, if that can be said now, after a turn that was busy or not. A worker that
    /// cannot brings about that it can, and is asked again.
    ///
    /// # Errors
    /// As [`Work::turn`].
    fn report(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError>;
}

/// Serves turn after turn. Ends with the memory that is to be attached, or with nothing if the
/// worker is to end.
///
/// # Errors
/// The worker's.
pub(crate) async fn run<H: WorkerHost>(
    work: &mut impl Work,
    host: &H,
) -> Result<Option<Attached<MemoryOf<H>>>, WorkerError> {
    loop {
        work.tend();
        let was_busy = work.turn().await?;
        match host.after(was_busy).await {
            Next::Turn => (),
            Next::Report => {
                if let Some(report) = work.report(was_busy)? {
                    host.report(report);
                }
            }
            Next::Attach(anew) => return Ok(Some(anew)),
            Next::Stop => return Ok(None),
        }
    }
}

/// Goes on with what was begun until a turn finds nothing to do; whether that was reached. Gives up
/// after [`WORKER_DRAIN_US`] if `is_bounded`, or if the worker is to end, for which others wait.
///
/// # Errors
/// The worker's.
pub(crate) async fn drain(
    work: &mut impl Work,
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
        work.tend();
        host.wake_housekeeper();
        fabric.breathe().await;
    }
    Ok(true)
}

/// How serving in one session ended: with the memory that is to be attached, or with nothing if the
/// worker is to end; and whether nothing was left unfinished.
pub(crate) type Ended<H> = (Option<Attached<MemoryOf<H>>>, bool);

/// Runs `serve` in a session of the node, and in another one whenever there is other memory, until
/// the worker is to end. Over a network a session begins when all that the one before posted is
/// over.
///
/// # Errors
/// Those of `serve`.
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

/// The turn of a worker that leases versions before it begins anything. If its own node's memory
/// was out of reach it has not got any and has begun nothing, so there was nothing to do.
///
/// # Errors
/// All others.
pub(crate) fn unless_out_of_reach(turned: Result<bool, WorkerError>) -> Result<bool, WorkerError> {
    use EngineError::{Ambiguous, Fabric};
    match turned {
        Err(WorkerError::Fabric(error) | WorkerError::Engine(Fabric(error) | Ambiguous(error)))
            if matches!(
                error,
                FabricError::Unreachable { .. }
                    | FabricError::Unattached { .. }
                    | FabricError::OutcomeUnknown { .. }
            ) =>
        {
            Ok(false)
        }
        turned => turned,
    }
}

/// The memory of a worker's own entries.
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
