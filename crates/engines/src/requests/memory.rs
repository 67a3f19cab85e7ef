//! What a worker remembers of its clients, so that a request is executed once however often it comes.
//!
//! # Invariants
//! 1. Of one session and number at most one request is admitted as new. For each of the last
//!    *window* numbers there is a record; the number in it only grows while the session lasts, and a
//!    request is new if its number is greater.
//! 2. A request of a session that is older than one which was seen is dropped: its client is gone.

use super::layout::remainder;
use super::message::Ticket;
use super::reply::Short;
use crate::planted::{self, Bug};

/// What is to be done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It has never been seen.
    New,
    /// It was executed and changed nothing: to be executed again.
    Again,
    /// It was executed, and this came of it.
    Known(Short),
    /// It is being executed, or nobody waits for it any more.
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
    /// There was none so far, or a read.
    #[default]
    Repeatable,
    /// A mutation that is being executed.
    UnderWay,
    /// A mutation that was executed.
    Done(Short),
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// The newest incarnation of its session that was seen; 0: none.
    session: u64,
    /// The greatest number that was admitted.
    newest: u64,
}

/// One worker's memory.
#[derive(Debug)]
pub(super) struct Memory {
    window: u64,
    clients: Vec<Client>,
    /// For each client as many as the window is wide, the one of a number at its remainder.
    records: Vec<Record>,
}

impl Memory {
    pub fn new(clients: u32, window: u16) -> Self {
        let records = clients as usize * usize::from(window);
        Self {
            window: u64::from(window),
            clients: vec![Client::default(); clients as usize],
            records: vec![Record::default(); records],
        }
    }

    /// The greatest number that a client's session had admitted.
    #[inline]
    pub fn newest(&self, client: u32) -> u64 {
        self.clients[client as usize].newest
    }

    /// Takes note of the session that sent something; whether it is not an old one.
    #[inline]
    pub fn greets(&mut self, ticket: &Ticket) -> bool {
        let client = &mut self.clients[ticket.client as usize];
        if ticket.session > client.session {
            *client = Client { session: ticket.session, newest: 0 };
            let first = ticket.client as usize * self.window as usize;
            self.records[first..first + self.window as usize].fill(Record::default());
        }
        ticket.session == self.clients[ticket.client as usize].session
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
                State::Done(_) if planted::is(Bug::ExecutesAgain) => Admission::Again,
                State::Done(short) => Admission::Known(short),
            };
        }
        let state = if ticket.is_read() { State::Repeatable } else { State::UnderWay };
        *record = Record { number: ticket.number, state };
        let client = &mut self.clients[ticket.client as usize];
        client.newest = client.newest.max(ticket.number);
        Admission::New
    }

    /// Remembers what a request came to, unless its client has gone on since; whether it did.
    #[inline]
    pub fn keep(&mut self, ticket: &Ticket, short: Short) -> bool {
        if ticket.is_read() || self.clients[ticket.client as usize].session != ticket.session {
            return false;
        }
        let record = &mut self.records[index(self.window, ticket)];
        let is_it = record.number == ticket.number;
        if is_it {
            record.state = State::Done(short);
        }
        is_it
    }
}

#[inline]
fn index(window: u64, ticket: &Ticket) -> usize {
    (u64::from(ticket.client) * window + remainder(ticket.number, window)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Operation, Outcome, PutOptions};
    use crate::requests::reply::Answer;

    fn ticket(session: u64, number: u64, operation: Operation<'_>) -> Ticket {
        let mut ticket = Ticket::new(1, session, b"key", Some(&operation));
        ticket.number = number;
        ticket
    }

    const PUT: Operation<'_> =
        Operation::Put { value: b"", options: PutOptions { expires_at_ms: None } };

    #[test]
    fn a_mutation_is_executed_once_and_answered_again() {
        let mut memory = Memory::new(2, 3);
        let (put, short) = (ticket(9, 1, PUT), Answer::Done(Outcome::Stored(5)).short());
        assert_eq!(memory.admit(&put), Admission::New);
        assert_eq!(memory.admit(&put), Admission::Drop);
        memory.keep(&put, short);
        assert_eq!(memory.admit(&put), Admission::Known(short));
        // Until the slot is used again.
        assert_eq!(memory.admit(&ticket(9, 4, PUT)), Admission::New);
        assert_eq!(memory.admit(&put), Admission::Drop);
        assert_eq!(memory.newest(1), 4);
    }

    #[test]
    fn a_read_is_executed_again() {
        let mut memory = Memory::new(2, 3);
        let get = ticket(9, 1, Operation::Get);
        assert_eq!(memory.admit(&get), Admission::New);
        assert_eq!(memory.admit(&get), Admission::Again);
    }

    #[test]
    fn requests_may_overtake_each_other_inside_the_window() {
        let mut memory = Memory::new(2, 3);
        assert_eq!(memory.admit(&ticket(9, 3, PUT)), Admission::New);
        assert_eq!(memory.admit(&ticket(9, 2, PUT)), Admission::New);
        assert_eq!(memory.newest(1), 3);
    }

    #[test]
    fn a_newer_session_starts_over_and_the_older_one_is_gone() {
        let mut memory = Memory::new(2, 3);
        let old = ticket(9, 1, PUT);
        assert_eq!(memory.admit(&old), Admission::New);
        assert_eq!(memory.admit(&ticket(10, 1, PUT)), Admission::New);
        assert_eq!(memory.admit(&ticket(9, 2, PUT)), Admission::Drop);
        // What the old one's request came to is not the new one's answer.
        memory.keep(&old, Answer::Done(Outcome::Stored(5)).short());
        assert_eq!(memory.admit(&ticket(10, 1, PUT)), Admission::Drop);
    }
}
