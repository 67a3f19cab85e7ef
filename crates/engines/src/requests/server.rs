//! The worker's end of requests that it answers by SEND: takes the requests and sends the replies.
//!
//! In a turn a worker calls [`Server::next`] for one [`Round`], until there is no request left or
//! the worker has no room for another, and then [`Server::flush`] once.

use loch_fabric::{Buf, Fabric, FabricError, Messages};

use super::bells::Rings;
use super::layout::{RequestMap, WorkerId};
use super::message::{REPLY_TRAILER_BYTES, Request, Ticket};
use super::packet::{Cursor, Failure};
use super::path::make_known;
use super::peers::Peers;
use super::results::Results;
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
    /// Bytes of the longest reply.
    reply_bytes_max: usize,
    /// The outcomes of the request that is executed.
    results: Results,
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
    /// greetings do in any case. A reply has at most `reply_bytes_max` bytes.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    pub fn open(
        fabric: F,
        map: &RequestMap,
        id: WorkerId,
        sessions: Sessions,
        requests_by_send: bool,
        reply_bytes_max: usize,
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
            reply_bytes_max,
            results: Results::default(),
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
    /// before are answered again.
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
                Some(Incoming::Execute(ticket)) => return Ok(Some((ticket, message))),
                Some(Incoming::Answer(ticket)) => {
                    message.clear();
                    let reply = self.inbox.repeat(&ticket, message);
                    self.post(&ticket, reply);
                }
                Some(Incoming::Hello(_)) | None => self.give_back(message),
            }
        }
    }

    /// Bytes that the outcomes of a request may take.
    #[inline]
    pub fn room(&self) -> usize {
        let max = self.reply_bytes_max.min(self.fabric.message_bytes_max());
        max.saturating_sub(REPLY_TRAILER_BYTES)
    }

    /// Executes the operations of a request, one after the other, and queues the reply. `execute`
    /// hands each outcome to its last argument. A request that cannot be read gets no reply.
    pub fn execute(
        &mut self,
        ticket: &Ticket,
        message: Buf,
        mut execute: impl FnMut(&F, Request<'_>, &mut dyn FnMut(Result<Outcome<'_>, EngineError>)),
    ) {
        let packet = ticket.packet(&message);
        if let Ok(cursor) = Cursor::new(packet) {
            let (memory, room) = (self.buf(), self.room());
            self.results.begin(cursor.left(), room, memory);
            for (number, packed) in cursor.all(packet).enumerate() {
                let results = &mut self.results;
                let Ok(packed) = packed else {
                    results.take(number, &Err(Failure::Malformed));
                    continue;
                };
                let (key, operation) = (packed.key(packet), packed.operation(packet));
                execute(&self.fabric, Request { key, operation }, &mut |outcome| {
                    results.take(number, &outcome.map_err(|error| Failure::from(&error)));
                });
            }
            let outcomes = self.results.packet();
            self.reply(ticket, outcomes);
        }
        self.give_back(message);
    }

    /// Remembers the packet of a request's outcomes, and queues the reply to be sent with the
    /// others.
    #[inline]
    pub fn reply(&mut self, ticket: &Ticket, outcomes: Buf) {
        let (reply, _) = self.inbox.complete(ticket, outcomes);
        self.post(ticket, reply);
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

    /// An empty buffer.
    #[inline]
    pub(crate) fn buf(&mut self) -> Buf {
        self.spare.pop().unwrap_or_default()
    }
}
