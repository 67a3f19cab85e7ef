//! A worker's memory of its clients' requests. It makes the worker execute a request once, however
//! often the request comes.
//!
//! # Invariants
//! 1. Of all requests with one session and one number, at most one is admitted as new. Each of the
//!    last *window* numbers has a record. The number in a record only grows while the session
//!    lasts, and a request is new if its number is greater.
//! 2. The memory takes in a session when the worker's node says that this session holds the slot of
//!    its client. The session then replaces the one before. Requests of other sessions are dropped:
//!    their clients are gone, or lie. So no client can take the place of another, whatever number
//!    it writes.
//! 3. A datagram counts only with the seal of the session's secret. A client introduces itself
//!    under growing numbers, so a greeting that an adversary repeats does not count.

use std::fmt;

use super::layout::{Area, remainder};
use super::message::Ticket;
use super::seal::Seal;
use super::sessions::{Holder, Sessions};
use crate::planted::{self, Bug};

/// What the worker does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The request has never been seen.
    New,
    /// The request was executed and changed nothing: it is executed again.
    Again,
    /// The request was executed, and its answer is [kept](Memory::kept).
    Known,
    /// The request is being executed, or its client does not wait for it any more.
    Drop,
}

/// A request that was admitted.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    number: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No request so far, or a read.
    #[default]
    Repeatable,
    /// A mutation that is being executed.
    UnderWay,
    /// A mutation that was executed.
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// The session that holds the client's slot; `None` so far.
    holder: Option<Holder>,
    /// The greatest number that was admitted.
    newest: u64,
    /// The number of the client's last greeting by datagram.
    greeting: u64,
}

impl Client {
    #[inline]
    fn is(&self, session: u64) -> bool {
        self.holder.is_some_and(|holder| holder.session == session)
    }
}

/// One worker's memory.
pub(super) struct Memory {
    area: Area,
    sessions: Sessions,
    window: u64,
    clients: Vec<Client>,
    /// For each client as many records as the window is wide; a number's record is at its
    /// remainder.
    records: Vec<Record>,
    /// The packet of outcomes of each record that is [done](State::Done).
    kept: Vec<Vec<u8>>,
}

impl Memory {
    /// The memory for the clients of an area. `sessions` tells which sessions they have.
    pub fn new(area: Area, sessions: Sessions) -> Self {
        let (clients, window) = (area.clients() as usize, area.service().window);
        Self {
            area,
            sessions,
            window: u64::from(window),
            clients: vec![Client::default(); clients],
            records: vec![Record::default(); clients * usize::from(window)],
            kept: vec![Vec::new(); clients * usize::from(window)],
        }
    }

    /// The greatest number admitted for a client's session.
    #[inline]
    pub fn newest(&self, client: u32) -> u64 {
        self.clients[client as usize].newest
    }

    /// Takes note of the session that sent a message. Returns whether the session is its client's.
    #[inline]
    pub fn greets(&mut self, ticket: &Ticket) -> bool {
        self.clients[ticket.client as usize].is(ticket.session) || self.takes_in(ticket)
    }

    /// Invariant 2.
    #[cold]
    fn takes_in(&mut self, ticket: &Ticket) -> bool {
        let holder = match planted::is(Bug::LargerSessionBelieved) {
            true => self.believed(ticket),
            false => self.asked(ticket),
        };
        let Some(holder) = holder else { return false };
        let client = ticket.client as usize;
        self.clients[client] = Client { holder: Some(holder), ..Client::default() };
        let first = client * self.window as usize;
        self.records[first..first + self.window as usize].fill(Record::default());
        true
    }

    /// With this planted bug a worker takes any session for the holder of a slot whose number is
    /// larger than the last one's.
    #[cold]
    fn believed(&self, ticket: &Ticket) -> Option<Holder> {
        let known = self.clients[ticket.client as usize].holder;
        let is_larger = known.is_none_or(|holder| holder.session < ticket.session);
        let secret = self.asked(ticket).and_then(|holder| holder.secret);
        is_larger.then_some(Holder { session: ticket.session, secret })
    }

    /// The session that sent a message, if it holds its client's slot now.
    #[cold]
    fn asked(&self, ticket: &Ticket) -> Option<Holder> {
        let (node, slot) = self.area.seat(ticket.client);
        (self.sessions)(node, slot).filter(|holder| holder.session == ticket.session)
    }

    /// Whether a datagram comes from its client (invariant 3).
    #[inline]
    pub fn is_sealed(&self, ticket: &Ticket, message: &[u8]) -> bool {
        let known = self.clients[ticket.client as usize].holder;
        let known = known.filter(|holder| holder.session == ticket.session);
        known.or_else(|| self.asked(ticket)).is_some_and(|holder| {
            let seal = Seal::of_request(holder.secret);
            planted::is(Bug::SealUnchecked) || seal.holds(message)
        })
    }

    /// Whether a greeting that came as a datagram was never seen before. Its session is known.
    pub fn is_first_greeting(&mut self, ticket: &Ticket) -> bool {
        let last = &mut self.clients[ticket.client as usize].greeting;
        let is_first = ticket.number > *last;
        *last = ticket.number.max(*last);
        is_first
    }

    /// The seal of a datagram to a client. A session that is not its client's any more gets a seal
    /// that it would not believe.
    #[inline]
    pub fn reply_seal(&self, ticket: &Ticket) -> Seal {
        let holder = self.clients[ticket.client as usize].holder;
        let holder = holder.filter(|holder| holder.session == ticket.session);
        Seal::of_reply(holder.and_then(|holder| holder.secret))
    }

    #[inline]
    pub fn admit(&mut self, ticket: &Ticket) -> Admission {
        if !self.greets(ticket) {
            return Admission::Drop;
        }
        let record = &mut self.records[index(self.window, ticket)];
        if ticket.number < record.number {
            return Admission::Drop;
        }
        if ticket.number == record.number {
            return match record.state {
                State::Repeatable => Admission::Again,
                State::UnderWay => Admission::Drop,
                State::Done if planted::is(Bug::ExecutesAgain) => Admission::Again,
                State::Done => Admission::Known,
            };
        }
        let state = if ticket.is_read() { State::Repeatable } else { State::UnderWay };
        *record = Record { number: ticket.number, state };
        let client = &mut self.clients[ticket.client as usize];
        client.newest = client.newest.max(ticket.number);
        Admission::New
    }

    /// Remembers the outcomes of a request, unless its client has gone on since. Returns whether it
    /// did.
    #[inline]
    pub fn keep(&mut self, ticket: &Ticket, outcomes: &[u8]) -> bool {
        if ticket.is_read() || !self.clients[ticket.client as usize].is(ticket.session) {
            return false;
        }
        let index = index(self.window, ticket);
        let record = &mut self.records[index];
        let is_it = record.number == ticket.number;
        if is_it {
            record.state = State::Done;
            let kept = &mut self.kept[index];
            if !planted::is(Bug::ResultsNotKept) || kept.is_empty() {
                kept.clear();
                kept.extend_from_slice(outcomes);
            }
        }
        is_it
    }

    /// The outcomes of a request that was executed before.
    pub fn kept(&self, ticket: &Ticket) -> &[u8] {
        &self.kept[index(self.window, ticket)]
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}

#[inline]
fn index(window: u64, ticket: &Ticket) -> usize {
    (u64::from(ticket.client) * window + remainder(ticket.number, window)) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::operation::{Operation, PutOptions};
    use crate::region::Service;
    use crate::requests::message::Body;
    use crate::secret::Secret;

    fn ticket(session: u64, number: u64, operation: Operation<'_>) -> Ticket {
        let mut ticket = Ticket::new(1, session, &Body::one(b"key", operation));
        ticket.number = number;
        ticket
    }

    /// The memory for two clients with a window of three. Session 9 holds the second client's slot.
    fn memory() -> (Memory, Rc<Cell<Option<Holder>>>) {
        let service = Service {
            workers: 1,
            window: 3,
            replies: 1,
            sessions_per_node: 2,
            ..Service::default()
        };
        let holder = Rc::new(Cell::new(Some(Holder::new(9, None))));
        let held = holder.clone();
        let sessions = move |node: u16, slot: u32| held.get().filter(|_| (node, slot) == (0, 1));
        (Memory::new(Area::new(service, 1).unwrap(), Box::new(sessions)), holder)
    }

    const PUT: Operation<'_> =
        Operation::Put { value: b"", options: PutOptions { expires_at_ms: None } };

    #[test]
    fn a_mutation_is_executed_once_and_answered_again() {
        let (mut memory, _) = memory();
        let put = ticket(9, 1, PUT);
        assert_eq!(memory.admit(&put), Admission::New);
        assert_eq!(memory.admit(&put), Admission::Drop);
        assert!(memory.keep(&put, b"outcomes"));
        assert_eq!(memory.admit(&put), Admission::Known);
        assert_eq!(memory.kept(&put), b"outcomes");
        // The record counts until the slot is used again.
        assert_eq!(memory.admit(&ticket(9, 4, PUT)), Admission::New);
        assert_eq!(memory.admit(&put), Admission::Drop);
        assert_eq!(memory.newest(1), 4);
    }

    #[test]
    fn a_read_is_executed_again() {
        let (mut memory, _) = memory();
        let get = ticket(9, 1, Operation::Get);
        assert_eq!(memory.admit(&get), Admission::New);
        assert_eq!(memory.admit(&get), Admission::Again);
    }

    #[test]
    fn requests_may_overtake_each_other_inside_the_window() {
        let (mut memory, _) = memory();
        assert_eq!(memory.admit(&ticket(9, 3, PUT)), Admission::New);
        assert_eq!(memory.admit(&ticket(9, 2, PUT)), Admission::New);
        assert_eq!(memory.newest(1), 3);
    }

    #[test]
    fn the_next_session_of_a_slot_starts_over_and_the_one_before_is_gone() {
        let (mut memory, holder) = memory();
        let old = ticket(9, 1, PUT);
        assert_eq!(memory.admit(&old), Admission::New);
        assert_eq!(memory.admit(&ticket(10, 1, PUT)), Admission::Drop, "it does not hold the slot");
        holder.set(Some(Holder::new(10, None)));
        assert_eq!(memory.admit(&ticket(10, 1, PUT)), Admission::New);
        assert_eq!(memory.admit(&ticket(9, 2, PUT)), Admission::Drop);
        // The outcome of the old session's request is not the answer to the new session's.
        assert!(!memory.keep(&old, b"outcomes"));
        assert_eq!(memory.admit(&ticket(10, 1, PUT)), Admission::Drop);
    }

    #[test]
    fn no_number_is_believed_for_its_size() {
        let (mut memory, holder) = memory();
        assert_eq!(memory.admit(&ticket(9, 1, PUT)), Admission::New);
        let last = (1 << crate::requests::message::SESSION_BITS) - 1;
        assert_eq!(memory.admit(&ticket(last, 1, PUT)), Admission::Drop);
        // The session goes on, and so does the next session, whatever its number.
        assert_eq!(memory.admit(&ticket(9, 2, PUT)), Admission::New);
        holder.set(Some(Holder::new(3, None)));
        assert_eq!(memory.admit(&ticket(3, 1, PUT)), Admission::New);
        holder.set(None);
        assert_eq!(memory.admit(&ticket(4, 1, PUT)), Admission::Drop, "the slot is free");
    }

    #[test]
    fn a_datagram_counts_with_the_secret_of_the_session_that_holds_the_slot() {
        let (mut memory, holder) = memory();
        let secret = |word| Some(Secret::new([word, 5]));
        let sealed = |ticket: &Ticket, secret| {
            let mut message = loch_fabric::Buf::new();
            ticket.write(&Body::one(b"key", PUT), Seal::of_request(secret), &mut message);
            message
        };
        holder.set(Some(Holder::new(9, secret(1))));
        let own = ticket(9, 1, PUT);
        assert!(memory.is_sealed(&own, &sealed(&own, secret(1))));
        assert!(!memory.is_sealed(&own, &sealed(&own, secret(2))));
        assert!(!memory.is_sealed(&own, &sealed(&own, None)), "a checksum proves nothing");
        assert!(memory.greets(&own));
        // The next session, from which nothing came yet.
        holder.set(Some(Holder::new(10, secret(2))));
        let (next, other) = (ticket(10, 1, PUT), ticket(11, 1, PUT));
        assert!(memory.is_sealed(&next, &sealed(&next, secret(2))));
        assert!(!memory.is_sealed(&next, &sealed(&next, secret(1))));
        assert!(!memory.is_sealed(&other, &sealed(&other, secret(2))));
        assert_eq!(memory.reply_seal(&own), Seal::of_reply(secret(1)));
        assert!(memory.greets(&next));
        assert_eq!(memory.reply_seal(&own), Seal::CHECKSUM, "its client is gone");
        assert_eq!(memory.reply_seal(&next), Seal::of_reply(secret(2)));
    }

    #[test]
    fn a_greeting_that_is_repeated_does_not_count() {
        let (mut memory, _) = memory();
        let greeting = |number| {
            let mut ticket = Ticket::new(1, 9, &Body::Hello);
            ticket.number = number;
            ticket
        };
        assert!(memory.greets(&greeting(1)));
        assert!(memory.is_first_greeting(&greeting(1)) && !memory.is_first_greeting(&greeting(1)));
        assert!(memory.is_first_greeting(&greeting(3)) && !memory.is_first_greeting(&greeting(2)));
    }
}
