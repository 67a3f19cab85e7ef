//! The worker: polls its request slots, executes, and replies by SEND (herd §4).
//!
//! One [`Worker::turn`] is one round: a look at the slots of every active client, then at the
//! datagrams that came in, then all replies in few doorbells. Between two turns the worker does
//! nothing; how long that is, and on which core, is its owner's business.
//!
//! # Invariants
//! 1. Requests are executed in the order in which they were taken, each before its reply is sent:
//!    the moment of its execution is its linearization point.
//! 2. A mutation is executed once for each session, however often its request comes
//!    ([`Inbox`]).
//! 3. A request leaves the pipeline after a bounded number of turns, whether others come or not.
//!
//! # Faults
//! A reply can get lost, or have nowhere to go, since its client has not introduced itself to this
//! incarnation of the worker. Both look alike to the client: it introduces itself, sends the request
//! again, and gets the same answer. When the worker dies all of its values die with it: a herd table
//! lives in its workers' memory alone.

use std::ops::DerefMut;

use loch_fabric::{Buf, Fabric, Messages, prefetch_read};

use super::key::KeyHash;
use super::pipeline::Pipeline;
use super::storage::Partition;
use crate::error::EngineError;
use crate::operation::Operation;
use crate::requests::{
    Answer, Failure, Inbox, Incoming, Peers, Request, RequestMap, Sessions, Ticket, WorkerId,
    make_known,
};
use crate::versions::Versions;

/// Looks that found nothing, one after the other, after which a no-op is pushed into each place of a
/// stage (herd §4.1.1).
const EMPTY_POLLS_MAX: u32 = 100;
/// Requests taken in one turn, from slots and from datagrams each.
const TURN_REQUESTS_MAX: usize = 64;
/// Replies in one doorbell.
const DOORBELL_REPLIES: usize = 16;
const WORDS_OF_LINE: usize = 8;
/// Versions that must be there when a turn begins: more than it can need.
const TURN_VERSIONS: u64 = 1 << 10;

/// How a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the table's keys are hashed with.
    pub seed: u64,
    /// Requests in each stage of the pipeline; 0: no pipeline, and nothing is prefetched.
    pub depth: usize,
}

/// Requests in each stage of a pipeline, where nobody asks for another number: in the time that so
/// many take, memory answers.
pub const DEPTH_DEFAULT: usize = 8;
/// The most there can be.
pub const DEPTH_MAX: usize = 64;

const _: () = assert!(TURN_VERSIONS as usize >= 2 * TURN_REQUESTS_MAX + 2 * DEPTH_MAX);

/// A request in the pipeline.
#[derive(Debug)]
struct Staged {
    ticket: Ticket,
    hash: KeyHash,
    message: Buf,
}

/// What a worker counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were executed.
    pub executed: u64,
    /// Requests that were answered again, or were for an earlier incarnation.
    pub repeated: u64,
    /// Replies that were not sent, as their clients were not known.
    pub nowhere: u64,
    /// Doorbells rung for replies.
    pub doorbells: u64,
}

/// One worker of a herd table: one partition, and the requests for it.
pub struct Worker<F: Messages, M = Vec<u64>> {
    fabric: F,
    inbox: Inbox,
    partition: Partition<M>,
    pipeline: Pipeline<Staged>,
    versions: Versions,
    seed: u64,
    empty_polls: u32,
    /// The time of this turn, if anybody asked for it.
    now_ms: Option<u64>,
    /// Whether requests come by SEND; else only greetings do.
    by_send: bool,
    /// Where each client's replies go.
    peers: Peers<F::Peer>,
    outbox: Vec<(F::Peer, Buf)>,
    /// Buffers for messages, used again and again.
    spare: Vec<Buf>,
    counts: Counts,
}

impl<F: Fabric + Messages, M: DerefMut<Target = [u64]>> Worker<F, M> {
    /// Worker `id` of a table, which starts now, with an empty partition, for the clients of which
    /// `sessions` tells.
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
        make_known(&fabric, map, id)?;
        let inbox = Inbox::open(&fabric, map, id, sessions)?;
        Ok(Self {
            inbox,
            partition,
            pipeline: Pipeline::new(depth),
            versions: Versions::new(map.base(id.node).region()),
            seed,
            empty_polls: 0,
            now_ms: None,
            by_send: map.area().service().request_bytes == 0,
            peers: Peers::new(map.area().clients()),
            outbox: Vec::new(),
            spare: Vec::new(),
            counts: Counts::default(),
            fabric,
        })
    }

    /// The fabric, for its counters.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The values.
    pub fn partition(&self) -> &Partition<M> {
        &self.partition
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Clients whose slots are looked at in every round.
    pub fn active(&self) -> usize {
        self.inbox.active()
    }

    /// One round; whether there was anything to do.
    ///
    /// # Errors
    /// The fabric's. What was taken and not answered will be asked for again.
    pub async fn turn(&mut self) -> Result<bool, EngineError> {
        if self.versions.left() < TURN_VERSIONS {
            self.versions.lease(&self.fabric).await?;
        }
        self.now_ms = None;
        // Who introduces itself in a datagram does so before it writes its request.
        let taken = self.take_datagrams() + self.take_slots()?;
        if taken > 0 {
            self.empty_polls = 0;
        } else if !self.pipeline.is_empty() {
            // One of datagrams, the others of slots.
            self.empty_polls += 1 + self.inbox.looks_in_vain() as u32;
            if self.empty_polls >= EMPTY_POLLS_MAX {
                self.empty_polls = 0;
                (0..self.pipeline.depth()).for_each(|_| self.advance(None));
            }
        }
        self.reply()?;
        Ok(taken > 0 || !self.pipeline.is_empty())
    }

    /// Takes requests out of the slots, until the end of the round; how many.
    fn take_slots(&mut self) -> Result<usize, EngineError> {
        let mut message = self.spare.pop().unwrap_or_default();
        let mut taken = 0;
        while taken < TURN_REQUESTS_MAX
            && let Some(incoming) = self.inbox.poll(&self.fabric, &mut message)?
        {
            taken += 1;
            message = self.dispatch(incoming, message);
        }
        self.give_back(message);
        Ok(taken)
    }

    /// Takes what came by SEND; how much.
    fn take_datagrams(&mut self) -> usize {
        let mut message = self.spare.pop().unwrap_or_default();
        let mut taken = 0;
        while taken < TURN_REQUESTS_MAX {
            let (from, datagram) = match self.fabric.try_receive(message) {
                Ok(received) => received,
                Err(back) => {
                    message = back;
                    break;
                }
            };
            taken += 1;
            message = datagram;
            let accepted = match self.by_send {
                true => self.inbox.accept(&message),
                false => self.inbox.accept_greeting(&message),
            };
            if let Some(incoming) = accepted {
                self.peers.heard(&incoming, from);
                message = self.dispatch(incoming, message);
            }
            message.clear();
        }
        self.give_back(message);
        taken
    }

    /// Does what is to be done about a message; gives a buffer back for the next.
    #[inline]
    fn dispatch(&mut self, incoming: Incoming, message: Buf) -> Buf {
        match incoming {
            Incoming::Execute(ticket) => {
                let hash = KeyHash::of(self.seed, ticket.request(&message).key);
                if self.pipeline.depth() > 0 {
                    prefetch_read(self.partition.bucket_line(hash));
                }
                self.advance(Some(Staged { ticket, hash, message }));
                self.spare.pop().unwrap_or_default()
            }
            Incoming::Answer(ticket, short) => {
                self.counts.repeated += 1;
                let mut reply = self.spare.pop().unwrap_or_default();
                self.inbox.repeat(&ticket, short, &mut reply);
                self.post(&ticket, reply);
                message
            }
            Incoming::Hello(_) => message,
        }
    }

    /// Pushes a request or a no-op into the pipeline, and executes what comes out of it.
    #[inline]
    fn advance(&mut self, staged: Option<Staged>) {
        let partition = &self.partition;
        let out = self.pipeline.push(staged, |Staged { ticket, hash, message }| {
            let put = matches!(ticket.request(message).operation, Operation::Put { .. });
            // A cache replaces an entry without a look at it.
            if !(put && partition.loses())
                && let Some(line) = partition.entry_line(*hash)
            {
                prefetch_read(line);
                // The usual entry is as long as a line, and does not begin where one begins.
                prefetch_read(line.get(WORDS_OF_LINE..).unwrap_or_default());
            }
        });
        if let Some(out) = out {
            self.execute(out);
        }
    }

    #[inline]
    fn execute(&mut self, Staged { ticket, hash, message }: Staged) {
        self.counts.executed += 1;
        let Request { key, operation } = ticket.request(&message);
        let version = if ticket.is_read() { 0 } else { self.versions.take() };
        let now_ms = *self.now_ms.get_or_insert_with(|| self.fabric.wall_ms());
        let outcome = self.partition.execute(hash, key, operation, version, now_ms);
        let answer = match outcome {
            Ok(outcome) => Answer::Done(outcome),
            Err(error) => Answer::Failed(Failure::from(&error)),
        };
        let mut reply = self.spare.pop().unwrap_or_default();
        self.inbox.complete(&ticket, &answer, &mut reply);
        self.give_back(message);
        self.post(&ticket, reply);
    }

    /// Leaves a reply to be sent with the others.
    #[inline]
    fn post(&mut self, ticket: &Ticket, reply: Buf) {
        match self.peers.of(ticket) {
            Some(peer) => self.outbox.push((peer, reply)),
            None => {
                self.counts.nowhere += 1;
                self.give_back(reply);
            }
        }
    }

    /// Sends what is to be sent.
    fn reply(&mut self) -> Result<(), EngineError> {
        for replies in self.outbox.chunks(DOORBELL_REPLIES) {
            let mut doorbell = [(replies[0].0, &[][..]); DOORBELL_REPLIES];
            for ((peer, reply), place) in replies.iter().zip(&mut doorbell) {
                *place = (*peer, reply);
            }
            self.fabric.send_all(&doorbell[..replies.len()])?;
            self.counts.doorbells += 1;
        }
        while let Some((_, reply)) = self.outbox.pop() {
            self.give_back(reply);
        }
        Ok(())
    }

    #[inline]
    fn give_back(&mut self, mut buf: Buf) {
        buf.clear();
        self.spare.push(buf);
    }
}
