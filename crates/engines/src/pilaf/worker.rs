//! The server of one node's part: takes requests, logs them, changes the table, replies (pilaf
//! §3.1).
//!
//! One [`Worker::turn`] is one round: what the log has made durable is shown and acknowledged; then
//! requests are taken and executed; then replies are sent in few doorbells. Between two turns the
//! server does nothing; how long that is, and on which core, is its owner's business.
//!
//! # Start
//! [`Worker::open`] closes the table to clients, empties it, replays snapshot and log, leases
//! versions, opens the table, and makes its incarnation known. Clients that know the table from
//! before find another state in its root and start over (`resize.rs`).
//!
//! # What is logged when
//! * With [`Policy::sync`](crate::log::Policy::sync) a change is prepared, logged, and **not
//!   shown** to anybody until its record is durable; then it is committed and acknowledged. So
//!   nobody ever reads a value that a crash could take back. Requests that come while a sync is
//!   under way are prepared meanwhile and share the next one: group commit.
//! * Otherwise a change is prepared, logged in memory, committed and acknowledged at once. A crash
//!   may take back the last of them, and readers may have seen those. What is lost is a suffix of
//!   the changes that this server made, and bounded (see [`crate::log`]): the server takes no
//!   request while more would be at risk.
//! * Without a log a crash of the server loses its part of the table.
//!
//! # Invariants
//! 1. A mutation is executed once for each session, however often its request comes
//!    ([`Inbox`](crate::requests::Inbox)).
//! 2. An acknowledgement is sent after the change is in memory, and with `sync` after it is
//!    durable.
//! 3. Records are in the log in the order in which their changes are committed, key by key.
//!
//! # Faults
//! * **The log fails.** The turn is an error, nothing that was not durable is acknowledged any
//!   more, and the owner has to stop the server: a failed fsync is not tried again. Clients go on
//!   reading.
//! * **The server is killed.** Clients go on reading. Mutations wait for the next server, which
//!   says that it is another: those that the dead one may have executed are ambiguous.

use std::collections::VecDeque;

use loch_fabric::{Buf, Fabric, Messages};

use super::change::Staged;
use super::store::{Shape, Store};
use crate::error::EngineError;
use crate::log::{Log, LogError, Logging, Recovered, Snapshot, Storage, Told, recover};
use crate::requests::{RequestMap, Round, Server, Sessions, Ticket, WorkerId};

/// Changes that wait for one sync.
const STAGED_MAX: usize = 256;

/// Why a server cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Its memory.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its log.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<loch_fabric::FabricError> for WorkerError {
    fn from(error: loch_fabric::FabricError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<WorkerError> for crate::serve::WorkerError {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Engine(error) => Self::Engine(error),
            WorkerError::Log(error) => Self::Log(error),
        }
    }
}

/// The log of a server that has none: nothing is ever asked of it.
pub type NoStorage = crate::log::MemoryStorage;

/// A change that waits for its record to be durable.
#[derive(Debug)]
pub(super) struct Waiting {
    pub lsn: u64,
    pub staged: Staged,
    pub ticket: Ticket,
}

/// A snapshot that is being written.
#[derive(Debug)]
pub(super) struct Compaction {
    pub snapshot: Snapshot,
    /// The first slot that was not looked at.
    pub cursor: u64,
    pub generation: u64,
}

/// What a server counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Requests that were executed.
    pub executed: u64,
    /// Snapshots that took the place of log.
    pub snapshots: u64,
    /// Turns in which no request was taken because too much was at risk.
    pub held_back: u64,
}

/// The server of one node's part of a table.
pub struct Worker<F: Messages, S> {
    pub(super) requests: Server<F>,
    pub(super) store: Store,
    pub(super) log: Option<Log<S>>,
    recovered: Recovered,
    pub(super) waiting: VecDeque<Waiting>,
    /// A request that has to wait until `waiting` is empty.
    pub(super) deferred: Option<(Ticket, Buf)>,
    pub(super) compaction: Option<Compaction>,
    pub(super) compact_bytes: u64,
    /// End of the versions that are leased: a snapshot says it too.
    pub(super) leased: u64,
    pub(super) counts: WorkerCounts,
}

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// The server of node `node` of a table, which starts now, for the clients of which `sessions`
    /// tells.
    ///
    /// # Errors
    /// The fabric's, if the region of the node is not mapped and writable; the log's, if it cannot
    /// be read; [`EngineError::OutOfMemory`] if the table has no room for what was logged.
    pub fn open(
        fabric: F,
        map: &RequestMap,
        node: u16,
        shape: Shape,
        logging: Option<Logging<S>>,
        sessions: Sessions,
    ) -> Result<Self, WorkerError> {
        let mut store = Store::create(&fabric, shape)?;
        let compact_bytes = logging.as_ref().map_or(u64::MAX, |logging| logging.compact_bytes);
        let replayed = logging.map(|Logging { storage, table, policy, .. }| {
            recover(storage, table, policy, |Told { key, change }| {
                store.replay(&fabric, key, change).map_err(WorkerError::from)
            })
        });
        let (log, recovered) = replayed.transpose()?.unzip();
        let recovered = recovered.unwrap_or_default();
        store.versions_were_leased(recovered.leased);
        let mut worker = Self {
            requests: Server::open(fabric, map, WorkerId { node, worker: 0 }, sessions, true)?,
            store,
            log,
            recovered,
            waiting: VecDeque::new(),
            deferred: None,
            compaction: None,
            compact_bytes,
            leased: recovered.leased,
            counts: WorkerCounts::default(),
        };
        worker.lease()?;
        worker.store.open(worker.requests.fabric())?;
        Ok(worker)
    }

    /// The fabric, for its counters.
    pub fn fabric(&self) -> &F {
        self.requests.fabric()
    }

    /// The table's part.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The log, if there is one.
    pub fn log(&self) -> Option<&Log<S>> {
        self.log.as_ref()
    }

    /// What the log said at the start.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// What was counted.
    pub fn counts(&self) -> WorkerCounts {
        self.counts
    }

    /// One round; whether there was anything to do. If there was not, the owner may let time pass:
    /// the log's [`sync_us`](crate::log::Policy::sync_us) is kept no better than that.
    ///
    /// # Errors
    /// [`WorkerError`]: the server cannot go on. Whatever it did not answer may have been done.
    pub fn turn(&mut self) -> Result<bool, WorkerError> {
        let mut busy = self.settle()?;
        if self.deferred.is_some() {
            busy = true;
            self.resume()?;
        }
        let mut round = Round::default();
        while self.has_room()
            && let Some((ticket, message)) = self.requests.next(&mut round)?
        {
            self.execute(ticket, message)?;
        }
        busy |= round.taken() > 0;
        busy |= self.compact()?;
        busy |= self.settle()?;
        self.requests.flush()?;
        Ok(busy)
    }

    /// Makes everything durable and leaves: for a server that is stopped in order.
    ///
    /// # Errors
    /// As [`Worker::turn`].
    pub fn close(mut self) -> Result<(), WorkerError> {
        if let Some(log) = &mut self.log {
            log.sync(self.requests.fabric().now_us())?;
        }
        self.settle()?;
        Ok(self.requests.flush()?)
    }

    /// Lets the log do what is due, and shows and acknowledges what is durable by now. Whether it
    /// should be asked again soon.
    fn settle(&mut self) -> Result<bool, WorkerError> {
        let Some(log) = &mut self.log else { return Ok(false) };
        log.turn(self.requests.fabric().now_us())?;
        let durable = log.durable();
        while self.waiting.front().is_some_and(|one| one.lsn <= durable) {
            let one = self.waiting.pop_front().expect("there is one");
            self.acknowledge(&one.ticket, one.staged)?;
        }
        let unwritten = self.log.as_ref().is_some_and(|log| log.last() > log.written());
        Ok(unwritten || !self.waiting.is_empty())
    }

    /// Whether every change that was logged was made.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether another request may be taken.
    fn has_room(&mut self) -> bool {
        let room = self.deferred.is_none()
            && self.waiting.len() < STAGED_MAX
            && (self.is_idle() || !self.compaction_is_due())
            && self.log.as_ref().is_none_or(|log| log.has_room(self.requests.fabric().now_us()));
        self.counts.held_back += u64::from(!room);
        room
    }
}
