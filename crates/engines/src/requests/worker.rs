//! The worker's half: finds requests, says which of them have to be executed, and remembers their
//! answers.
//!
//! A worker looks at one slot of each *active* client: the slot of the next number that it expects.
//! The **roll call** finds every other request (the first one of a client, one that was sent again,
//! one whose predecessor got lost). It looks at all slots of all clients, a few in each round. So a
//! silent client costs next to nothing, however many silent clients there are.
//!
//! A worker sleeps at its bell. Before the first sleep, which is a short one, it looks at active
//! clients as always. Before the second, and when it was woken and finds nothing from active
//! clients, it looks at all slots: so the request of any client that has rung, or that came too
//! early to ring, is found. As long as the bell stays armed after that look, no client has sent
//! anything since: later sleeps need no look at all slots.

use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

use super::layout::{Area, RequestMap, WorkerId};
use super::mapped;
use super::memory::{Admission, Memory};
use super::message::{ReplyHead, Ticket};
use super::seal::Seal;
use super::sessions::Sessions;
use crate::planted::{self, Bug};

/// A message that a worker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A request that is to be executed and answered.
    Execute(Ticket),
    /// A request that only has to be [answered](Inbox::repeat): it was executed before, or is for
    /// another incarnation of the worker.
    Answer(Ticket),
    /// A client introduced itself, for the first time or anew: the worker sends to the place where
    /// this message came from.
    Hello(Ticket),
}

/// A client that the worker looks at in every round.
#[derive(Clone, Copy, Debug)]
struct Active {
    client: u32,
    /// The round in which the client last had a request.
    seen: u32,
    /// The number of the client's next request.
    next: u64,
    /// The word that shows whether that request has come.
    poll: RemoteAddr,
}

/// One worker's requests.
#[derive(Debug)]
pub struct Inbox {
    area: Area,
    id: WorkerId,
    base: RemoteAddr,
    bell: RemoteAddr,
    source: u16,
    incarnation: u32,
    active: Vec<Active>,
    /// The round's position in `active`, and the number of requests of that client that it has
    /// found.
    cursor: usize,
    found: u16,
    rounds: u32,
    /// Whether this round has found a request.
    has_found: bool,
    /// Whether the worker was about to sleep when the last round ended.
    was_armed: bool,
    /// Whether a look at all slots has found nothing, and the bell has been armed ever since the
    /// look began: a client that has sent a request meanwhile has disarmed it.
    has_seen_all: bool,
    /// The slot at which the roll call goes on: client times window plus slot.
    called: u64,
    memory: Memory,
    /// For each slot, the poll word that was last dealt with.
    dealt: Vec<u64>,
}

/// Slots that the roll call looks at in each round.
const CALLED_SLOTS: u64 = 16;
/// Rounds without a request after which a client is no longer active.
const ACTIVE_ROUNDS: u32 = 1 << 14;

impl Inbox {
    /// The requests of worker `id`, which starts now: draws the worker's incarnation and makes it
    /// known. The worker serves the clients whose sessions `sessions` knows. Requests that are in
    /// the slots by now were meant for an earlier incarnation; a client that waits for an answer
    /// sends its request again.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    pub fn open<F: Fabric>(
        fabric: &F,
        map: &RequestMap,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Self, FabricError> {
        let (area, word) = (*map.area(), map.incarnation_addr(id));
        let last = fabric.load(word)? as u32;
        let mut incarnation = fabric.random() as u32;
        while incarnation == 0 || incarnation == last {
            incarnation = fabric.random() as u32;
        }
        let service = area.service();
        let slots = match service.request_bytes {
            0 => 0,
            _ => u64::from(area.clients()) * u64::from(service.window),
        };
        let mut inbox = Self {
            id,
            base: map.base(id.node),
            bell: map.bell_addr(id),
            source: area.source(id.node, id.worker),
            incarnation,
            active: Vec::new(),
            cursor: 0,
            found: 0,
            rounds: 0,
            has_found: false,
            was_armed: false,
            has_seen_all: false,
            called: 0,
            memory: Memory::new(area, sessions),
            dealt: vec![0; slots as usize],
            area,
        };
        for slot in 0..slots {
            inbox.dealt[slot as usize] = fabric.load(inbox.poll_addr(slot))?;
        }
        fabric.announce(word, u64::from(incarnation))?;
        Ok(inbox)
    }

    /// Which worker this is.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// This worker's incarnation.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Clients that are looked at in every round.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// The next request in the slots, with its bytes in `message`; `None` at the end of a round,
    /// that is, after a look at each active client. In one round at most a window of requests comes
    /// from one client, however fast it sends.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is no longer mapped.
    #[inline]
    pub fn poll<F: Fabric>(
        &mut self,
        fabric: &F,
        message: &mut Buf,
    ) -> Result<Option<Incoming>, FabricError> {
        while let Some(active) = self.active.get_mut(self.cursor) {
            let word = fabric.load(active.poll)?;
            let (client, next) = (active.client, active.next);
            let slot = self.area.slot_of(client, next);
            // A request that was dealt with was for another incarnation, or from another session.
            if word >> 8 == next && word != self.dealt[slot as usize] {
                active.seen = self.rounds;
                if let Some(incoming) = self.look(fabric, slot, message)? {
                    self.found += 1;
                    self.has_found = true;
                    if self.found == self.area.service().window {
                        self.go_on();
                    }
                    return Ok(Some(incoming));
                }
            }
            self.go_on();
        }
        if self.dealt.is_empty() {
            return Ok(None);
        }
        self.call_the_roll(fabric, message)
    }

    /// Goes on to the next active client.
    #[inline]
    fn go_on(&mut self) {
        self.cursor += 1;
        self.found = 0;
    }

    /// Judges a datagram to a worker whose requests come as datagrams; `None` if the worker has
    /// nothing to do about it. A sender that does not know the session's secret gets nothing done
    /// and no answer.
    pub fn accept(&mut self, message: &[u8]) -> Option<Incoming> {
        let ticket = self.authentic(message)?;
        let incoming = self.judge(ticket)?;
        let is_repeated =
            matches!(incoming, Incoming::Hello(_)) && !self.memory.is_first_greeting(&ticket);
        (!is_repeated).then_some(incoming)
    }

    /// Judges a datagram to a worker whose requests are WRITTEN: only greetings come as datagrams.
    pub fn accept_greeting(&mut self, message: &[u8]) -> Option<Incoming> {
        Ticket::claimed(message).filter(Ticket::is_hello)?;
        self.accept(message)
    }

    /// The ticket of a datagram, if it comes from the session that it names.
    fn authentic(&self, message: &[u8]) -> Option<Ticket> {
        let ticket = Ticket::claimed(message)?;
        let is_clients = ticket.client < self.area.clients();
        (is_clients && self.memory.is_sealed(&ticket, message)).then_some(ticket)
    }

    /// Remembers the packet of a request's outcomes, and makes the reply of it. Also returns
    /// whether the request may come again, and must then not be executed again.
    #[inline]
    pub fn complete(&mut self, ticket: &Ticket, outcomes: Buf) -> (Buf, bool) {
        let is_kept = self.memory.keep(ticket, &outcomes);
        (self.reply(ticket, outcomes), is_kept)
    }

    /// Makes the reply to an [`Incoming::Answer`] of an empty buffer.
    pub fn repeat(&self, ticket: &Ticket, mut message: Buf) -> Buf {
        if !self.is_stale(ticket) {
            message.extend_from_slice(self.memory.kept(ticket));
        }
        self.reply(ticket, message)
    }

    #[inline]
    fn reply(&self, ticket: &Ticket, mut message: Buf) -> Buf {
        let seal = match self.area.service().reply_bytes {
            0 => self.memory.reply_seal(ticket),
            _ => Seal::CHECKSUM,
        };
        let head = ReplyHead::new(ticket, self.source, self.incarnation, message.len());
        head.finish(seal, &mut message);
        message
    }

    /// Whether a request was meant for another incarnation of the worker.
    #[inline]
    fn is_stale(&self, ticket: &Ticket) -> bool {
        ticket.worker != self.incarnation && !planted::is(Bug::AnyIncarnation)
    }

    /// Looks at a slot whose poll word changed.
    #[inline]
    fn look<F: Fabric>(
        &mut self,
        fabric: &F,
        slot: u64,
        message: &mut Buf,
    ) -> Result<Option<Incoming>, FabricError> {
        let bytes = self.area.service().request_bytes;
        let Some(ticket) = mapped::load_request(fabric, self.slot_addr(slot), bytes, message)?
        else {
            // A part of it is still missing; or it is nonsense, which costs a look now and then.
            return Ok(None);
        };
        self.dealt[slot as usize] = ticket.poll_word();
        // So it is a request of the client that may write there.
        let in_place = self.area.slot_of(ticket.client, ticket.number) == slot;
        Ok(if in_place { self.judge(ticket) } else { None })
    }

    /// Says what to do with a request from a client that exists.
    #[inline]
    fn judge(&mut self, ticket: Ticket) -> Option<Incoming> {
        if ticket.is_hello() {
            return self.memory.greets(&ticket).then_some(Incoming::Hello(ticket));
        }
        if self.is_stale(&ticket) {
            return self.memory.greets(&ticket).then_some(Incoming::Answer(ticket));
        }
        match self.memory.admit(&ticket) {
            Admission::New => {
                self.expect(&ticket);
                Some(Incoming::Execute(ticket))
            }
            Admission::Again => Some(Incoming::Execute(ticket)),
            Admission::Known => Some(Incoming::Answer(ticket)),
            Admission::Drop => None,
        }
    }

    /// Makes the worker look for the request after this one from now on.
    #[inline]
    fn expect(&mut self, ticket: &Ticket) {
        if self.dealt.is_empty() {
            return;
        }
        let next = self.memory.newest(ticket.client) + 1;
        let poll = self.poll_addr(self.area.slot_of(ticket.client, next));
        let active = Active { client: ticket.client, seen: self.rounds, next, poll };
        // The usual case: this is the client at which the round stands.
        match self.active.get_mut(self.cursor) {
            Some(known) if known.client == ticket.client => *known = active,
            _ => match self.active.iter_mut().find(|known| known.client == ticket.client) {
                Some(known) => *known = active,
                None => self.active.push(active),
            },
        }
    }

    /// Ends a round with a look at a few slots of any clients, or at all of them.
    fn call_the_roll<F: Fabric>(
        &mut self,
        fabric: &F,
        message: &mut Buf,
    ) -> Result<Option<Incoming>, FabricError> {
        let slots = self.dealt.len() as u64;
        let looks_at_all = self.looks_at_all(fabric)?;
        let looks = if looks_at_all { slots } else { CALLED_SLOTS.min(slots) };
        let bytes = u64::from(self.area.service().request_bytes);
        let mut poll = self.poll_addr(self.called);
        for _ in 0..looks {
            let (slot, word) = (self.called, fabric.load(poll)?);
            (self.called, poll) = match slot + 1 {
                next if next < slots => (next, poll.add(bytes)),
                _ => (0, self.poll_addr(0)),
            };
            if word == self.dealt[slot as usize] {
                continue;
            }
            if let Some(incoming) = self.look(fabric, slot, message)? {
                self.has_found = true;
                // The round goes on after the last active client, here.
                return Ok(Some(incoming));
            }
        }
        // If the bell was disarmed meanwhile, the next round sees that.
        self.has_seen_all |= looks_at_all;
        self.cursor = 0;
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ACTIVE_ROUNDS) {
            let rounds = self.rounds;
            self.active.retain(|active| rounds.wrapping_sub(active.seen) < ACTIVE_ROUNDS);
        }
        Ok(None)
    }

    /// Whether the worker has slept, and a request may be there that the look at active clients did
    /// not find. Between the moment when the bell is disarmed and the moment when the worker arms
    /// it again there is a round, so no disarmed bell goes unnoticed.
    fn looks_at_all<F: Fabric>(&mut self, fabric: &F) -> Result<bool, FabricError> {
        let has_found = std::mem::take(&mut self.has_found);
        let rests = fabric.load(self.bell)? != 0 && !has_found;
        let rested = std::mem::replace(&mut self.was_armed, rests);
        self.has_seen_all &= rests;
        Ok(rested && !has_found && !self.has_seen_all)
    }

    #[inline]
    fn slot_addr(&self, slot: u64) -> RemoteAddr {
        self.base.add(self.area.slot_at(self.id.worker, slot))
    }

    #[inline]
    fn poll_addr(&self, slot: u64) -> RemoteAddr {
        mapped::poll_addr(self.slot_addr(slot), self.area.service().request_bytes)
    }
}
