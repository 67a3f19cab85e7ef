//! The counts of a client's requests.

use std::cell::Cell;

use loch_fabric::VerbCount;

use super::message::{ReplyHead, Ticket};
use super::path::Sent;

/// A client's counts besides verbs.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests that were answered.
    pub answered: Cell<u64>,
    /// Requests that were sent again.
    pub resent: Cell<u64>,
    /// Requests that met a worker which had started anew.
    pub stale: Cell<u64>,
    /// The verbs that the fabric's counters do not know: replies, and round trips that the client
    /// did not wait for.
    beside: Cell<VerbCount>,
}

/// How a request and its reply travelled.
#[derive(Clone, Copy)]
pub(super) struct Paths {
    pub request: Sent,
    pub reply_by_send: bool,
    /// Whether the worker is on another node.
    pub is_remote: bool,
}

impl Counts {
    /// Requests that were sent again, to the same worker or to one that had started anew.
    pub fn repeated(&self) -> u64 {
        self.resent.get() + self.stale.get()
    }

    /// The verbs that the fabric's counters do not know.
    pub(super) fn beside(&self) -> VerbCount {
        self.beside.get()
    }

    /// Counts the verbs that the fabric did not: SENDs, the reply, and the round trip if the client
    /// did not wait for the request to arrive. A store into the node's own memory is not a verb.
    #[inline]
    pub(super) fn count(&self, ticket: &Ticket, head: &ReplyHead, ways: Paths) {
        self.answered.set(self.answered.get() + 1);
        let was_sent = ways.request == Sent::Datagram;
        let is_stored = !ways.is_remote;
        let request = if was_sent { ticket.message_len() } else { 0 };
        let reply = if ways.reply_by_send || !is_stored { head.message_len() } else { 0 };
        let verbs = u64::from(was_sent) + u64::from(reply > 0);
        if verbs == 0 {
            return;
        }
        let bytes = (request + reply) as u64;
        let is_remote = u64::from(ways.is_remote);
        let beside = VerbCount {
            verbs,
            remote_verbs: verbs * is_remote,
            round_trips: u64::from(ways.request != Sent::Awaited),
            writes: u64::from(!ways.reply_by_send),
            bytes,
            remote_bytes: bytes * is_remote,
            ..VerbCount::default()
        };
        self.beside.set(self.beside.get() + beside);
    }
}
