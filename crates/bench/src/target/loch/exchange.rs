//! The bare loop for tables over TCP: the highest rate at which messages like those of the
//! workload's operations are exchanged over one connection of each client.
//!
//! The messages are not assumed: the client does some of the workload's operations in its lanes,
//! and counts their round trips, and the bytes that its connections have sent and received. These
//! are the bytes of the stream: headers of requests and answers, what they carry, WRITEs that
//! nobody waits for and replies of workers. On average an operation takes so many round trips, and
//! each of them sends and receives so many bytes. The bare loop exchanges requests and replies of
//! these two lengths ([`echo`](crate::echo)), and its rate, divided by the round trips of an
//! operation, is the bound.

use std::io;
use std::net::SocketAddr;

use loch::Table;

use crate::echo::{Exchange, Lengths};
use crate::measure::Budget;
use crate::measured::Limits;

/// The operations that are counted.
pub const COUNTED: Budget = Budget { ops: 20_000, ns: 200_000_000 };

/// The counts of a client's traffic so far.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Round trips, also those to the client's own memory.
    trips: u64,
    verbs: u64,
    remote_verbs: u64,
    /// Bytes that were sent, and received.
    bytes: [u64; 2],
}

/// The average traffic of an operation on its client's connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    trips: f64,
    sent: f64,
    received: f64,
}

impl Counts {
    /// Of a table; `None` if it is not reached over TCP.
    pub fn of(table: &Table) -> Option<Self> {
        let (bytes, count) = (table.bytes_carried()?, table.counters().verbs);
        let (verbs, remote_verbs) = (count.verbs, count.remote_verbs);
        Some(Self { trips: count.round_trips, verbs, remote_verbs, bytes })
    }
}

impl Traffic {
    /// Of `ops` operations that were done between two counts; `None` if they needed no connection.
    /// Where some verbs were local, so was the same share of round trips.
    pub fn between(before: Counts, after: Counts, ops: u64) -> Option<Self> {
        let trips = (after.trips - before.trips) as f64;
        let verbs = (after.verbs - before.verbs) as f64;
        let remote = (after.remote_verbs - before.remote_verbs) as f64;
        if ops == 0 || trips * remote == 0.0 {
            return None;
        }
        let each = |way: usize| (after.bytes[way] - before.bytes[way]) as f64 / ops as f64;
        Some(Self { trips: trips * remote / verbs / ops as f64, sent: each(0), received: each(1) })
    }

    /// The messages of a round trip.
    fn lengths(&self) -> Lengths {
        let each = |bytes: f64| (bytes / self.trips).round().max(1.0) as u64;
        Lengths { request: each(self.sent), reply: each(self.received) }
    }

    /// How many requests `lanes` operations have under way: fewer than they are, if several share a
    /// request.
    fn depth(&self, lanes: usize) -> u64 {
        (lanes as f64 * self.trips.min(1.0)).ceil().max(1.0) as u64
    }

    /// The rates of the bare loop for a client of `lanes` lanes, against the echo at `address`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn limits(&self, lanes: usize, address: SocketAddr) -> io::Result<Limits> {
        let mut exchange = Exchange::connect(address, self.lengths())?;
        let one_ops_per_s = exchange.rate(1)? / self.trips;
        let ops_per_s = match self.depth(lanes) {
            1 => one_ops_per_s,
            depth => exchange.rate(depth)? / self.trips,
        };
        Ok(Limits { ops_per_s: ops_per_s.max(one_ops_per_s), one_ops_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_takes_the_average_of_those_that_were_counted() {
        let before = Counts { trips: 10, verbs: 20, remote_verbs: 5, bytes: [1000, 2000] };
        let after = Counts { trips: 30, verbs: 60, remote_verbs: 25, bytes: [1480, 4000] };
        let traffic = Traffic::between(before, after, 5).unwrap();
        assert_eq!(traffic, Traffic { trips: 2.0, sent: 96.0, received: 400.0 });
        assert_eq!(traffic.lengths(), Lengths { request: 48, reply: 200 });
        assert_eq!((traffic.depth(1), traffic.depth(32)), (1, 32));
        let packed = Traffic { trips: 0.1, ..traffic };
        assert_eq!((packed.depth(1), packed.depth(32)), (1, 4));
        assert_eq!(packed.lengths(), Lengths { request: 960, reply: 4000 });
        let local = Counts { remote_verbs: 5, ..after };
        assert_eq!(Traffic::between(before, local, 5), None, "it needs no connection");
        assert_eq!(Traffic::between(before, after, 0), None);
    }
}
