//! The worker: polls its request slots, executes, and replies by SEND (herd §4).
//!
//! One [`Worker::turn`] is one round: it takes the datagrams that came in, then looks at the slots
//! of every active client, then sends all replies in few doorbells. Between two turns the worker
//! does nothing; its owner decides how long that is, and on which core the worker runs.
//!
//! # Invariants
//! 1. Operations are executed in the order in which their requests were taken, each before the
//!    reply is sent: the moment of execution is the linearization point.
//! 2. A packet that changes something is executed once for each session, however often it comes
//!    ([`Inbox`](crate::requests::Inbox)).
//! 3. An operation leaves the pipeline after a bounded number of turns, whether other requests come
//!    or not.
//!
//! # Faults
//! A reply can get lost, or have no address, because its client has not introduced itself to this
//! incarnation of the worker. The client cannot tell the two apart: it introduces itself, sends the
//! request again, and gets the same answer. When the worker dies all of its values die with it: a
//! herd table lives only in its workers' memory.

use std::collections::VecDeque;
use std::ops::DerefMut;

use loch_fabric::{Buf, Fabric, Messages, prefetch_read};

use super::key::KeyHash;
use super::pipeline::Pipeline;
use super::storage::Partition;
use crate::error::EngineError;
use crate::limits::PACKET_OPS_MAX;
use crate::operation::Version;
use crate::requests::mailboxes::PACKET_MESSAGE_BYTES;
use crate::requests::packet::{Cursor, Packed};
use crate::requests::{Failure, RequestMap, Results, Round, Server, Sessions, Ticket, WorkerId};
use crate::versions::Versions;

const WORDS_OF_LINE: usize = 8;
/// A turn takes no more requests once it has executed this many operations.
const TURN_OPERATIONS: u64 = 1 << 10;
/// Versions that must be available when a turn begins: more than the turn can need.
const TURN_VERSIONS: u64 = 1 << 12;

/// The configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The seed with which the table's keys are hashed.
    pub seed: u64,
    /// Operations in each stage of the pipeline; 0: no pipeline, and nothing is prefetched.
    pub depth: usize,
}

/// The most operations that a stage can hold.
pub const DEPTH_MAX: usize = 64;

const _: () =
    assert!(TURN_VERSIONS as usize >= TURN_OPERATIONS as usize + PACKET_OPS_MAX + 2 * DEPTH_MAX);

/// An operation in the pipeline: the next one of the oldest open request.
#[derive(Debug)]
struct Staged {
    packed: Packed,
    hash: KeyHash,
}

/// A request whose operations are in the pipeline.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    message: Buf,
    /// The number of its operations.
    count: usize,
    /// The number of those that can be read, once all have been.
    readable: Option<usize>,
}

/// One worker of a herd table: one partition, and the requests for it.
pub struct Worker<F: Messages, M = Vec<u64>> {
    requests: Server<F>,
    partition: Partition<M>,
    pipeline: Pipeline<Staged>,
    /// The requests whose operations are in the pipeline, in their order.
    open: VecDeque<Open>,
    /// The outcomes of the oldest of them, and their number.
    results: Results,
    known: usize,
    versions: Versions,
    seed: u64,
    /// The time of this turn, once it was needed.
    now_ms: Option<u64>,
    /// The number of operations that were executed.
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
            requests: Server::open(fabric, map, id, sessions, by_send, PACKET_MESSAGE_BYTES)?,
            partition,
            pipeline: Pipeline::new(depth),
            open: VecDeque::new(),
            results: Results::default(),
            known: 0,
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

    /// The number of operations that were executed.
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
        let (mut round, until) = (Round::default(), self.executed + TURN_OPERATIONS);
        while self.executed < until
            && let Some((ticket, message)) = self.requests.next(&mut round)?
        {
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
        // A request that tells no number of operations gets no reply.
        let Ok(mut cursor) = Cursor::new(ticket.packet(&message)) else {
            return self.requests.give_back(message);
        };
        self.open.push_back(Open { ticket, message, count: cursor.left(), readable: None });
        let mut readable = 0;
        loop {
            let Open { ticket, message, .. } = self.open.back().expect("it has not all outcomes");
            let packet = ticket.packet(message);
            let Some(Ok(packed)) = cursor.next(packet) else { break };
            let hash = KeyHash::of(self.seed, packed.key(packet));
            if self.pipeline.depth() > 0 {
                prefetch_read(self.partition.bucket_line(hash));
            }
            readable += 1;
            self.advance(Some(Staged { packed, hash }));
        }
        self.open.back_mut().expect("it has not all outcomes").readable = Some(readable);
        self.answer();
    }

    /// Pushes an operation or a no-op into the pipeline, and executes the operation that leaves it.
    #[inline]
    fn advance(&mut self, staged: Option<Staged>) {
        let partition = &self.partition;
        let out = self.pipeline.push(staged, |Staged { packed, hash }| {
            // A cache replaces an entry without looking at it.
            if !(packed.is_put() && partition.loses())
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
    fn execute(&mut self, Staged { packed, hash }: Staged) {
        self.executed += 1;
        if self.known == 0 {
            self.begin();
        }
        let version = if packed.is_read() { Version::default() } else { self.versions.take() };
        let now_ms = *self.now_ms.get_or_insert_with(|| self.requests.fabric().wall_ms());
        let Open { ticket, message, readable, .. } =
            self.open.front().expect("an operation's request is open");
        let packet = ticket.packet(message);
        let (key, operation) = (packed.key(packet), packed.operation(packet));
        let outcome = self.partition.execute(hash, key, operation, version, now_ms);
        let answered = outcome.map_err(|error| Failure::from(&error));
        self.results.take(self.known, &answered);
        self.known += 1;
        if *readable == Some(self.known) {
            self.answer();
        }
    }

    /// Begins with the outcomes of the oldest request.
    #[inline]
    fn begin(&mut self) {
        let count = self.open.front().expect("a request is open").count;
        let (room, memory) = (self.requests.room(), self.requests.buf());
        self.results.begin(count, room, memory);
    }

    /// Answers the oldest requests whose operations have all been executed.
    fn answer(&mut self) {
        while let Some(open) = self.open.pop_front_if(|open| open.readable == Some(self.known)) {
            if self.known == 0 {
                let (room, memory) = (self.requests.room(), self.requests.buf());
                self.results.begin(open.count, room, memory);
            }
            for number in self.known..open.count {
                self.results.take(number, &Err(Failure::Malformed));
            }
            self.known = 0;
            self.requests.reply(&open.ticket, self.results.packet());
            self.requests.give_back(open.message);
        }
    }
}
