//! The work requests of one queue pair that are under way, in the order in which they were posted.
//!
//! A queue pair completes its requests in order, so the completion of one request says that all
//! before it are over too. Therefore most WRITEs need no completion of their own.
//!
//! # Invariants
//! 1. There are never more requests under way than the send queue has places; two places are left
//!    for requests that no caller posted: a flush and the marker that follows a failure.
//! 2. Of any [`SIGNAL_EVERY`] requests in a row one at least is signaled, so a full queue moves on.

use std::collections::VecDeque;

use crate::RemoteAddr;
use crate::away::ops::OpId;
use crate::limits::SIGNAL_EVERY;

use super::pool::Slot;

/// What happens with a slot when its work request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing: bytes went out.
    Nothing,
    /// Its bytes are the operation's words, from that byte on.
    Words(u16),
    /// Its bytes are appended to the operation's buffer.
    Append,
    /// Its bytes are those of the operation's buffer from that one on, which are there already.
    At(usize),
    /// The request changed nothing: it was posted to learn that those before it are over.
    Flushed,
    /// The queue pair was stopped, and nothing was posted after this.
    Drained,
}

/// A work request that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// The verb's number among all of the endpoint.
    pub number: u64,
    /// It changes the peer's memory.
    pub mutates: bool,
    pub signaled: bool,
    pub op: Option<OpId>,
    pub then: Then,
    pub slot: Option<Slot>,
    pub len: u32,
    pub at: RemoteAddr,
}

/// The requests under way of one queue pair.
#[derive(Debug)]
pub(super) struct Flights {
    all: VecDeque<Flight>,
    /// The sequence number of the first.
    first: u32,
    places: usize,
    since_signaled: u32,
    /// How many of them change memory.
    mutating: usize,
}

/// See invariant 1.
const RESERVED: usize = 2;

impl Flights {
    /// For a send queue with this many places.
    pub fn new(places: u32) -> Self {
        assert!(places > SIGNAL_EVERY + RESERVED as u32, "a send queue of {places}");
        let (all, places) = (VecDeque::with_capacity(places as usize), places as usize);
        Self { all, first: 0, places, since_signaled: 0, mutating: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one more verb may be posted.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.all.len() + RESERVED < self.places
    }

    /// Whether the next request has to be signaled (invariant 2).
    #[inline]
    pub fn must_signal(&self) -> bool {
        self.since_signaled + 1 >= SIGNAL_EVERY
    }

    /// Adds a request; its sequence number.
    #[inline]
    pub fn push(&mut self, flight: Flight) -> u32 {
        assert!(self.all.len() < self.places, "the send queue is full");
        let sequence = self.first.wrapping_add(self.all.len() as u32);
        self.since_signaled = if flight.signaled { 0 } else { self.since_signaled + 1 };
        self.mutating += usize::from(flight.mutates);
        self.all.push_back(flight);
        sequence
    }

    /// Detaches the last request from its operation: nothing waits for it any more.
    #[inline]
    pub fn forget_last(&mut self) {
        if let Some(last) = self.all.back_mut() {
            last.op = None;
        }
    }

    /// Takes the last request back: it was not posted.
    pub fn pop_unposted(&mut self) -> Option<Flight> {
        let flight = self.all.pop_back()?;
        self.mutating -= usize::from(flight.mutates);
        Some(flight)
    }

    /// Takes the first request if its number is `sequence` or earlier; also returns whether it is
    /// `sequence`.
    ///
    /// # Panics
    /// If no request of that number is under way.
    #[inline]
    pub fn pop_to(&mut self, sequence: u32) -> (Flight, bool) {
        let ahead = sequence.wrapping_sub(self.first) as usize;
        assert!(ahead < self.all.len(), "request {sequence} is over, or was never posted");
        let flight = self.all.pop_front().expect("there are more than `ahead`");
        self.first = self.first.wrapping_add(1);
        self.mutating -= usize::from(flight.mutates);
        (flight, ahead == 0)
    }

    /// The sequence number of the first request, if a completion has to come.
    pub fn awaited(&self) -> Option<u32> {
        (self.all.len() > self.since_signaled as usize).then_some(self.first)
    }

    /// The number of the oldest verb under way that changes memory.
    pub fn oldest_mutating(&self) -> Option<u64> {
        if self.mutating == 0 {
            return None;
        }
        self.all.iter().find(|flight| flight.mutates).map(|flight| flight.number)
    }

    /// Whether requests are under way after which no completion comes.
    pub fn ends_unsignaled(&self) -> bool {
        self.all.back().is_some_and(|flight| !flight.signaled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    fn flight(number: u64, mutates: bool, signaled: bool) -> Flight {
        let at = RemoteAddr::new(RegionId(0), number);
        Flight { number, mutates, signaled, op: None, then: Then::Nothing, slot: None, len: 0, at }
    }

    #[test]
    fn a_completion_ends_all_before_it() {
        let mut flights = Flights::new(64);
        flights.first = u32::MAX - 1;
        let sequences: Vec<u32> =
            (0..4).map(|n| flights.push(flight(n, n % 2 == 1, n == 2))).collect();
        assert_eq!(sequences, [u32::MAX - 1, u32::MAX, 0, 1], "the numbers wrap");
        assert_eq!(flights.oldest_mutating(), Some(1));
        assert!(flights.ends_unsignaled());
        let mut over = Vec::new();
        loop {
            let (flight, is_it) = flights.pop_to(0);
            over.push(flight.number);
            if is_it {
                break;
            }
        }
        assert_eq!(over, [0, 1, 2]);
        assert_eq!((flights.all.len(), flights.oldest_mutating()), (1, Some(3)));
    }

    #[test]
    fn a_completion_is_awaited_while_something_signaled_is_under_way() {
        let mut flights = Flights::new(64);
        let first = flights.push(flight(0, true, false));
        assert_eq!(flights.awaited(), None, "of a WRITE for which nobody waits nothing comes");
        let signaled = flights.push(flight(1, true, true));
        flights.push(flight(2, true, false));
        assert_eq!(flights.awaited(), Some(first));
        while !flights.pop_to(signaled).1 {}
        assert_eq!(flights.awaited(), None);
    }

    #[test]
    #[should_panic(expected = "is over, or was never posted")]
    fn a_completion_of_nothing_is_noticed() {
        let mut flights = Flights::new(64);
        let first = flights.push(flight(0, true, true));
        flights.pop_to(first);
        flights.push(flight(1, true, true));
        flights.pop_to(first);
    }

    #[test]
    fn the_queue_never_overflows_and_always_moves() {
        let mut flights = Flights::new(128);
        let (mut number, mut last_signaled) = (0, None);
        for _ in 0..1000 {
            while flights.has_room() {
                let signaled = flights.must_signal();
                let sequence = flights.push(flight(number, true, signaled));
                number += 1;
                if signaled {
                    last_signaled = Some(sequence);
                }
            }
            assert_eq!(flights.all.len(), 126, "a flush and a marker still fit");
            let sequence = last_signaled.take().expect("one of them completes");
            while !flights.pop_to(sequence).1 {}
        }
        flights.push(flight(number, false, true));
        flights.push(flight(number, false, true));
    }

    #[test]
    fn what_was_not_posted_is_taken_back() {
        let mut flights = Flights::new(64);
        flights.push(flight(7, true, false));
        flights.push(flight(8, true, false));
        assert_eq!(flights.pop_unposted().map(|f| f.number), Some(8));
        assert_eq!(flights.oldest_mutating(), Some(7));
        assert_eq!(flights.pop_unposted().map(|f| f.number), Some(7));
        assert!(flights.is_empty() && flights.oldest_mutating().is_none());
    }
}
