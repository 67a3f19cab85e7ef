//! The worker: polls its request slots, executes, and replies by SEND (herd §4).
//!
//! One [`Worker::turn`] is one round: it takes the datagrams that came in, then looks at the slots
//! of every active client, then sends all replies in few doorbells. Between two turns the worker
//! does nothing; its owner decides how long that is, and on which core the worker runs.
//!
//! # Invariants
//! 1. Requests are executed in the order in which they were taken, each before its reply is sent:
//!    the moment of execution is the linearization point.
//! 2. A mutation is executed once for each session, however often its request comes
//!    ([`Inbox`](crate::requests::Inbox)).
//! 3. A request leaves the pipeline after a bounded number of turns, whether other requests come or
//!    not.
//!
//! # Faults
//! A reply can get lost, or have no address, because its client has not introduced itself to this
//! incarnation of the worker. The client cannot tell the two apart: it introduces itself, sends the
//! request again, and gets the same answer. When the worker dies all of its values die with it: a
//! herd table lives only in its workers' memory.

use std::ops::DerefMut;

use loch_fabric::{Buf, Fabric, Messages, prefetch_read};

use super::key::KeyHash;
use super::pipeline::Pipeline;
use super::storage::Partition;
use crate::error::EngineError;
use crate::requests::{
    ROUND_MESSAGES_MAX, Request, RequestMap, Round, Server, Sessions, Ticket, WorkerId,
};
use crate::versions::Versions;

const WORDS_OF_LINE: usize = 8;
/// Versions that must be available when a turn begins: more than the turn can need.
const TURN_VERSIONS: u64 = 1 << 10;

/// The configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The seed with which the table's keys are hashed.
    pub seed: u64,
    /// Requests in each stage of the pipeline; 0: no pipeline, and nothing is prefetched.
    pub depth: usize,
}

/// The most requests that a stage can hold.
pub const DEPTH_MAX: usize = 64;

const _: () = assert!(TURN_VERSIONS as usize >= 2 * ROUND_MESSAGES_MAX + 2 * DEPTH_MAX);

/// A request in the pipeline.
#[derive(Debug)]
struct Staged {
    ticket: Ticket,
    hash: KeyHash,
    message: Buf,
}

/// One worker of a herd table: one partition, and the requests for it.
pub struct Worker<F: Messages, M = Vec<u64>> {
    requests: Server<F>,
    partition: Partition<M>,
    pipeline: Pipeline<Staged>,
    versions: Versions,
    seed: u64,
    /// The time of this turn, once it was needed.
    now_ms: Option<u64>,
    /// The number of requests that were executed.
    executed: u64,
}

impl<F: Fabric + Messages, M: DerefMut<Target = [u64]>> Worker<F, M> {
    /// Worker `id` of a table, which starts now, with an empty partition, for the clients whose
    /// sessions `sessions` knows.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    ///
    /// # Panics
    /// If the pipeline would be deeper than [`DEPTH_MAX`].
    pub fn open(
        fabric: F,
        map: &RequestMap,
        id: WorkerId,
        partition: Partition<M>,
        settings: Settings,
        sessions: Sessions,
    ) -> Result<Self, EngineError> {
        let Settings { seed, depth } = settings;
        assert!(depth <= DEPTH_MAX, "a pipeline of depth {depth}, {DEPTH_MAX} at most");
        let by_send = map.area().service().request_bytes == 0;
        Ok(Self {
            requests: Server::open(fabric, map, id, sessions, by_send)?,
            partition,
            pipeline: Pipeline::new(depth),
            versions: Versions::new(map.base(id.node).region()),
            seed,
            now_ms: None,
            executed: 0,
        })
    }

    /// The fabric, for its counters.
    pub fn fabric(&self) -> &F {
        self.requests.fabric()
    }

    /// The partition, which holds the values.
    pub fn partition(&self) -> &Partition<M> {
        &self.partition
    }

    /// The number of requests that were executed.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Clients whose slots are looked at in every round.
    pub fn active(&self) -> usize {
        self.requests.inbox().active()
    }

    /// Does one round. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The fabric's errors. Clients ask again for requests that were taken and not answered.
    pub async fn turn(&mut self) -> Result<bool, EngineError> {
        self.versions.ensure(self.requests.fabric(), TURN_VERSIONS).await?;
        self.now_ms = None;
        let mut round = Round::default();
        while let Some((ticket, message)) = self.requests.next(&mut round)? {
            self.stage(ticket, message);
        }
        let has_taken = round.taken() > 0;
        if !has_taken && !self.pipeline.is_empty() {
            // Those who sent them may send no more before they are answered.
            (0..self.pipeline.depth()).for_each(|_| self.advance(None));
        }
        self.requests.flush()?;
        Ok(has_taken || !self.pipeline.is_empty())
    }

    #[inline]
    fn stage(&mut self, ticket: Ticket, message: Buf) {
        let hash = KeyHash::of(self.seed, ticket.key(&message));
        if self.pipeline.depth() > 0 {
            prefetch_read(self.partition.bucket_line(hash));
        }
        self.advance(Some(Staged { ticket, hash, message }));
    }

    /// Pushes a request or a no-op into the pipeline, and executes the request that leaves it.
    #[inline]
    fn advance(&mut self, staged: Option<Staged>) {
        let partition = &self.partition;
        let out = self.pipeline.push(staged, |Staged { ticket, hash, .. }| {
            // A cache replaces an entry without looking at it.
            if !(ticket.is_put() && partition.loses())
                && let Some(line) = partition.entry_line(*hash)
            {
                prefetch_read(line);
                // The usual entry is as long as a line, and does not begin where a line begins.
                prefetch_read(line.get(WORDS_OF_LINE..).unwrap_or_default());
            }
        });
        if let Some(out) = out {
            self.execute(out);
        }
    }

    #[inline]
    fn execute(&mut self, Staged { ticket, hash, message }: Staged) {
        self.executed += 1;
        let Request { key, operation } = ticket.request(&message);
        let version = if ticket.is_read() { 0 } else { self.versions.take() };
        let now_ms = *self.now_ms.get_or_insert_with(|| self.requests.fabric().wall_ms());
        let outcome = self.partition.execute(hash, key, operation, version, now_ms);
        self.requests.answer(&ticket, outcome);
        self.requests.give_back(message);
    }
}
