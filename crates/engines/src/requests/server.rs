//! The worker's end of requests that it answers by SEND: takes the requests and sends the replies.
//!
//! In a turn a worker calls [`Server::next`] for one [`Round`], until there is no request left or
//! the worker has no room for another, and then [`Server::flush`] once.

use loch_fabric::{Buf, Fabric, FabricError, Messages};

use super::bells::Rings;
use super::layout::{RequestMap, WorkerId};
use super::message::Ticket;
use super::packet::Failure;
use super::path::make_known;
use super::peers::Peers;
use super::reply::Answer;
use super::sessions::Sessions;
use super::worker::{Inbox, Incoming};
use crate::error::EngineError;
use crate::operation::Outcome;

/// Messages taken in one round, for datagrams and for slots each.
pub const ROUND_MESSAGES_MAX: usize = 64;
/// Replies in one doorbell.
const DOORBELL_REPLIES: usize = 16;

/// One worker's requests and its replies to them.
pub struct Server<F: Messages> {
    fabric: F,
    inbox: Inbox,
    /// Whether requests come as datagrams. Otherwise only greetings do.
    requests_by_send: bool,
    /// The address for each client's replies.
    peers: Peers<F::Peer>,
    outbox: Vec<(F::Peer, Buf)>,
    /// The clients that were sent replies.
    rings: Rings,
    map: RequestMap,
    /// Buffers for messages, used again and again.
    spare: Vec<Buf>,
}

/// How far a round has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    datagrams: usize,
    slots: usize,
    has_all_datagrams: bool,
}

impl Round {
    /// The number of messages that were taken, whatever became of them.
    pub fn taken(&self) -> usize {
        self.datagrams + self.slots
    }
}

impl<F: Fabric + Messages> Server<F> {
    /// The requests of worker `id`, which starts now, from the clients whose sessions `sessions`
    /// knows. `requests_by_send` says whether requests come as datagrams, besides those in slots;
    /// greetings do in any case.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    pub fn open(
        fabric: F,
        map: &RequestMap,
        id: WorkerId,
        sessions: Sessions,
        requests_by_send: bool,
    ) -> Result<Self, FabricError> {
        make_known(&fabric, map, id)?;
        let inbox = Inbox::open(&fabric, map, id, sessions)?;
        let peers = Peers::new(map.area().clients());
        Ok(Self {
            fabric,
            inbox,
            requests_by_send,
            peers,
            outbox: Vec::new(),
            rings: Rings::default(),
            map: map.clone(),
            spare: Vec::new(),
        })
    }

    /// The fabric.
    #[inline]
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The worker's slots.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// The next operation that has to be executed, with the bytes of its request; `None` at the end
    /// of the round. Clients that introduce themselves are noted, requests that were executed
    /// before are answered again, and packets are refused.
    ///
    /// Datagrams come first: a client introduces itself in one before it writes its first request.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is no longer mapped.
    // Left to itself, the compiler makes it a call that copies its result: herd loses a tenth.
    #[inline(always)]
    pub fn next(&mut self, round: &mut Round) -> Result<Option<(Ticket, Buf)>, FabricError> {
        loop {
            let mut message = self.buf();
            let incoming = if !round.has_all_datagrams {
                let (from, datagram) = match self.fabric.try_receive(message) {
                    Ok(received) => received,
                    Err(unused) => {
                        round.has_all_datagrams = true;
                        self.give_back(unused);
                        continue;
                    }
                };
                round.datagrams += 1;
                round.has_all_datagrams = round.datagrams == ROUND_MESSAGES_MAX;
                message = datagram;
                let accepted = match self.requests_by_send {
                    true => self.inbox.accept(&message),
                    false => self.inbox.accept_greeting(&message),
                };
                accepted.inspect(|incoming| self.peers.heard(incoming, from))
            } else {
                let polled = match round.slots < ROUND_MESSAGES_MAX {
                    true => self.inbox.poll(&self.fabric, &mut message)?,
                    false => None,
                };
                let Some(incoming) = polled else {
                    self.give_back(message);
                    return Ok(None);
                };
                round.slots += 1;
                Some(incoming)
            };
            match incoming {
                Some(Incoming::Execute(ticket)) if ticket.is_packet() => {
                    self.give_back(message);
                    self.reply(&ticket, &Answer::Failed(Failure::Unsupported));
                }
                Some(Incoming::Execute(ticket)) => return Ok(Some((ticket, message))),
                Some(Incoming::Answer(ticket, short)) => {
                    self.inbox.repeat(&ticket, short, &mut message);
                    self.post(&ticket, message);
                }
                Some(Incoming::Hello(_)) | None => self.give_back(message),
            }
        }
    }

    /// Remembers the answer to a request, and queues the reply to be sent with the others. If no
    /// message can hold the reply, the reply says that the operation is not supported over
    /// messages.
    #[inline]
    pub fn reply(&mut self, ticket: &Ticket, answer: &Answer<'_>) {
        let mut reply = self.buf();
        self.inbox.complete(ticket, answer, &mut reply);
        if reply.len() > self.fabric.message_bytes_max() {
            self.inbox.complete(ticket, &Answer::Failed(Failure::Unsupported), &mut reply);
        }
        self.post(ticket, reply);
    }

    /// As [`Server::reply`], with the outcome of an operation or the reason why it was not done.
    #[inline]
    pub fn answer(&mut self, ticket: &Ticket, outcome: Result<Outcome<'_>, EngineError>) {
        let answer = match outcome {
            Ok(outcome) => Answer::Done(outcome),
            Err(error) => Answer::Failed(Failure::from(&error)),
        };
        self.reply(ticket, &answer);
    }

    /// Sends the replies, at the end of a turn.
    ///
    /// # Errors
    /// The fabric's errors. The client asks again for a reply that was not sent.
    pub fn flush(&mut self) -> Result<(), FabricError> {
        let has_replies = !self.outbox.is_empty();
        for replies in self.outbox.chunks(DOORBELL_REPLIES) {
            let mut doorbell = [(replies[0].0, &[][..]); DOORBELL_REPLIES];
            for ((peer, reply), place) in replies.iter().zip(&mut doorbell) {
                *place = (*peer, reply);
            }
            self.fabric.send_all(&doorbell[..replies.len()])?;
        }
        self.rings.after_turn(&self.fabric, has_replies);
        while let Some((_, reply)) = self.outbox.pop() {
            self.give_back(reply);
        }
        Ok(())
    }

    /// Takes back the buffer of a request that was executed.
    #[inline]
    pub fn give_back(&mut self, mut buf: Buf) {
        buf.clear();
        self.spare.push(buf);
    }

    /// A client that has not introduced itself gets no reply: it then asks again, and introduces
    /// itself.
    #[inline]
    fn post(&mut self, ticket: &Ticket, reply: Buf) {
        match self.peers.of(ticket) {
            Some(peer) => {
                self.outbox.push((peer, reply));
                self.rings.note(self.map.client_bell_addr(ticket.client));
            }
            None => self.give_back(reply),
        }
    }

    #[inline]
    fn buf(&mut self) -> Buf {
        self.spare.pop().unwrap_or_default()
    }
}
