//! The server of one node's part: takes requests, logs them, changes the table, replies (pilaf
//! §3.1).
//!
//! One [`Worker::turn`] is one round: it shows and acknowledges the changes that the log has made
//! durable, then takes and executes requests, then sends replies in few doorbells. Between two
//! turns the server does nothing; its owner decides how long that is, and on which core the server
//! runs.
//!
//! # Start
//! [`Worker::open`] closes the table to clients, empties it, replays snapshot and log, leases
//! versions, opens the table, and makes its incarnation known. Clients that know the table from
//! before find another state in its root and start over (`resize.rs`).
//!
//! # When changes are logged
//! * With [`Policy::sync`](crate::log::Policy::sync) a change is prepared, logged, and **not
//!   shown** to any client until its record is durable; then it is committed and acknowledged. So
//!   no client ever reads a value that a crash could take back. Requests that come while a sync is
//!   under way are prepared meanwhile and share the next sync: group commit.
//! * Otherwise a change is prepared, logged in memory, committed and acknowledged at once. A crash
//!   may take back the last changes, and readers may have seen them. The lost changes are a suffix
//!   of the changes that this server made, and bounded (see [`crate::log`]): the server takes no
//!   request while more would be at risk.
//! * Without a log a crash of the server loses its part of the table.
//!
//! # Invariants
//! 1. A packet that changes something is executed once for each session, however often it comes
//!    ([`Inbox`](crate::requests::Inbox)).
//! 2. An acknowledgement is sent after the change is in memory, and with `sync` after it is
//!    durable.
//! 3. Records are in the log in the order in which their changes are committed, key by key.
//!
//! # Faults
//! * **The log fails.** The turn returns an error, only durable changes are acknowledged, and the
//!   owner has to stop the server: a failed fsync is not tried again. Clients go on reading.
//! * **The server is killed.** Clients go on reading. Mutations wait for the next server, which has
//!   another incarnation: mutations that the dead server may have executed are ambiguous.

use std::collections::VecDeque;

use loch_fabric::{Buf, Fabric, Messages};

use super::change::Staged;
use super::path::REPLY_BYTES_MAX;
use super::store::{Shape, Store};
use crate::log::{Log, Logging, Recovered, Snapshot, Storage, Told, recover};
use crate::requests::packet::Packed;
use crate::requests::{RequestMap, Results, Round, Server, Sessions, Ticket, WorkerId};
use crate::serve::WorkerError;

/// The most changes that wait for one sync.
const STAGED_MAX: usize = 256;

/// The storage of a server without a log. It is never used.
pub type NoStorage = crate::log::MemoryStorage;

/// A request of which not all outcomes are known.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub ticket: Option<Ticket>,
    /// Its message, until its last operation has begun.
    pub message: Buf,
    pub operations: Vec<Packed>,
    /// The number of the first operation that has not begun.
    pub next: usize,
    pub results: Results,
}

/// An operation of an open request: the request's place, and the operation's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub request: usize,
    pub number: usize,
}

/// A change that waits for its record to be durable.
#[derive(Debug)]
pub(super) struct Waiting {
    pub lsn: u64,
    pub staged: Staged,
    pub place: Place,
}

/// A snapshot that is being written.
#[derive(Debug)]
pub(super) struct Compaction {
    pub snapshot: Snapshot,
    /// The first slot that the scan has not looked at.
    pub cursor: u64,
    pub generation: u64,
}

/// The counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Requests that were executed.
    pub executed: u64,
    /// Snapshots that replaced a part of the log.
    pub snapshots: u64,
    /// Turns in which no request was taken because too many changes were at risk.
    pub held_back: u64,
}

/// The server of one node's part of a table.
pub struct Worker<F: Messages, S> {
    pub(super) requests: Server<F>,
    pub(super) store: Store,
    pub(super) log: Option<Log<S>>,
    recovered: Recovered,
    pub(super) waiting: VecDeque<Waiting>,
    /// The requests of which not all outcomes are known, and the places that are free.
    pub(super) open: Vec<Open>,
    pub(super) idle: Vec<usize>,
    /// The place of a request that has to wait until `waiting` is empty.
    pub(super) deferred: Option<usize>,
    pub(super) compaction: Option<Compaction>,
    pub(super) compact_bytes: u64,
    /// The end of the leased versions, which a snapshot records too.
    pub(super) leased: u64,
    pub(super) counts: WorkerCounts,
}

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// The server of node `node` of a table, which starts now, for the clients whose sessions
    /// `sessions` knows.
    ///
    /// # Errors
    /// The fabric's errors, if the region of the node is not mapped and writable; the log's errors,
    /// if it cannot be read; [`EngineError::OutOfMemory`](crate::EngineError::OutOfMemory) if the
    /// table has no room for the logged changes.
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
        let id = WorkerId { node, worker: 0 };
        let mut worker = Self {
            requests: Server::open(fabric, map, id, sessions, true, REPLY_BYTES_MAX)?,
            store,
            log,
            recovered,
            waiting: VecDeque::new(),
            open: Vec::new(),
            idle: Vec::new(),
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

    /// The node's part of the table.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The log, if there is one.
    pub fn log(&self) -> Option<&Log<S>> {
        self.log.as_ref()
    }

    /// What the server recovered from the log at the start.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The counts.
    pub fn counts(&self) -> WorkerCounts {
        self.counts
    }

    /// Does one round. Returns whether there was anything to do. If not, the owner may let time
    /// pass; the log then keeps its [`sync_us`](crate::log::Policy::sync_us) only as precisely as
    /// the owner's pauses allow.
    ///
    /// # Errors
    /// [`WorkerError`]: the server cannot go on. Unanswered requests may have been executed.
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

    /// Makes everything durable and ends: for a server that is stopped in order.
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

    /// Lets the log do the work that is due, then shows and acknowledges the changes that are
    /// durable. Returns whether to call it again soon.
    fn settle(&mut self) -> Result<bool, WorkerError> {
        let Some(log) = &mut self.log else { return Ok(false) };
        log.turn(self.requests.fabric().now_us())?;
        let durable = log.durable();
        while self.waiting.front().is_some_and(|one| one.lsn <= durable) {
            let one = self.waiting.pop_front().expect("there is one");
            self.acknowledge(one.place, one.staged)?;
        }
        let unwritten = self.log.as_ref().is_some_and(|log| log.last() > log.written());
        Ok(unwritten || !self.waiting.is_empty())
    }

    /// Whether all logged changes are made.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether another request may be taken.
    pub(super) fn has_room(&mut self) -> bool {
        let room = self.deferred.is_none()
            && self.waiting.len() < STAGED_MAX
            && (self.is_idle() || !self.compaction_is_due())
            && self.log.as_ref().is_none_or(|log| log.has_room(self.requests.fabric().now_us()));
        self.counts.held_back += u64::from(!room);
        room
    }
}
