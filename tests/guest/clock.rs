//! Two hosts' moments on one clock.
//!
//! Each guest counts its monotonic clock from a moment of its own. Host 1 asks host 2 for the time,
//! over the wire: the answer was stamped between the question and its arrival, so the difference of
//! the clocks lies in an interval as long as that exchange took. The shortest of many exchanges is
//! taken.
//!
//! # Why it is sound
//! 1. Between two measurements the difference changes in one direction, as it does where both
//!    clocks run at constant rates, whatever those are. So it never leaves the hull of the
//!    intervals that were measured at the two ends, and during a round not that of all of them.
//! 2. A moment of host 2 is an interval on the clock of host 1. An operation there is taken to have
//!    been called at the earliest moment that is possible, and to have returned at the latest.
//!    So the operation's true interval lies in the one that is checked, and every order that is
//!    possible for the true ones is possible for those: what is found to be no order of
//!    the widened history is none of the true one. A violation that is shorter than the uncertainty
//!    may be missed.

use std::net::UdpSocket;
use std::time::Duration;

use loch_history::{Operation, Outcome};

use super::config::address;
use crate::recorded::now;
use crate::support::wait_for;

/// Exchanges of a measurement.
const EXCHANGES: u64 = 60;
/// A datagram that is not there by then is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const PORT: u16 = 7500;

/// By how many nanoseconds the clock of host 2 is ahead of that of host 1: from `least` to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    least: i64,
    most: i64,
}

impl Offset {
    /// The bounds from an exchange that was `asked` and `answered` at these moments of host 1, and
    /// `stamped` between them by host 2.
    pub fn of_exchange(asked: u64, stamped: u64, answered: u64) -> Self {
        assert!(asked <= answered, "a monotonic clock");
        let [asked, stamped, answered] = [asked, stamped, answered].map(u64::cast_signed);
        Self { least: stamped - answered, most: stamped - asked }
    }

    /// The bounds that hold for two measurements and the time between them.
    pub fn hull(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// By how much an operation is widened at each end, at most.
    pub fn uncertainty(self) -> Duration {
        Duration::from_nanos(self.most.abs_diff(self.least))
    }

    /// The earliest that a moment of host 2 can have been, by the clock of host 1.
    pub fn earliest(self, theirs: u64) -> u64 {
        own(theirs.cast_signed() - self.most)
    }

    /// The latest.
    pub fn latest(self, theirs: u64) -> u64 {
        own(theirs.cast_signed() - self.least)
    }

    /// An operation of host 2 on the clock of host 1, as long as it can have been.
    pub fn widened(self, operation: Operation) -> Operation {
        let latest = |theirs| if theirs == u64::MAX { theirs } else { self.latest(theirs) };
        Operation {
            called: self.earliest(operation.called),
            returned: latest(operation.returned),
            outcome: match operation.outcome {
                Outcome::UnknownUntil(moment) => Outcome::UnknownUntil(latest(moment)),
                outcome => outcome,
            },
            ..operation
        }
    }
}

fn own(moment: i64) -> u64 {
    u64::try_from(moment).expect("both hosts were up when the test began")
}

/// Stamps what host 1 sends, on host 2 and as long as this process lives.
pub fn answer() {
    let socket = UdpSocket::bind(address(2, PORT)).expect("the port is free");
    std::thread::spawn(move || {
        let mut question = [0; 8];
        loop {
            // A wire that is down is no reason to end.
            if let Ok((8, from)) = socket.recv_from(&mut question) {
                let stamped = now();
                let answer = [question, stamped.to_le_bytes()].concat();
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

/// Host 1's side.
pub struct Asker {
    socket: UdpSocket,
    exchanges: u64,
}

impl Asker {
    pub fn new() -> Self {
        let socket = UdpSocket::bind(address(1, PORT)).expect("the port is free");
        socket.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a timeout");
        Self { socket, exchanges: 0 }
    }

    /// Measures, while the wire is whole.
    pub fn measure(&mut self) -> Offset {
        let exchange = || wait_for("an answer over the wire", || self.exchange());
        let all = std::iter::repeat_with(exchange).take(EXCHANGES as usize);
        all.min_by_key(|offset| offset.uncertainty()).expect("there is more than one")
    }

    /// One exchange, unless it is lost.
    fn exchange(&mut self) -> Option<Offset> {
        self.exchanges += 1;
        let question = self.exchanges.to_le_bytes();
        let mut answer = [0; 16];
        let asked = now();
        self.socket.send_to(&question, address(2, PORT)).ok()?;
        // A late answer belongs to an earlier question.
        while answer[..8] != question {
            self.socket.recv_from(&mut answer).ok()?;
        }
        let stamped = u64::from_le_bytes(answer[8..].try_into().expect("eight bytes"));
        Some(Offset::of_exchange(asked, stamped, now()))
    }
}

#[cfg(test)]
mod tests {
    use loch_history::{Answer, Ask};

    use super::*;

    const PUT: Operation = Operation {
        client: 2,
        key: 1,
        ask: Ask::Put(7),
        called: 5_000,
        returned: 6_000,
        outcome: Outcome::Known(Answer::Stored(1)),
    };

    #[test]
    fn an_exchange_bounds_the_difference_of_the_clocks() {
        for ahead in [-700i64, 0, 900] {
            for (there, back) in [(0, 0), (10, 0), (0, 10), (40, 60)] {
                let theirs = (1_000i64 + there + ahead).cast_unsigned();
                let answered = (1_000i64 + there + back).cast_unsigned();
                let offset = Offset::of_exchange(1_000, theirs, answered);
                assert!((offset.least..=offset.most).contains(&ahead), "{offset:?}, {ahead}");
                let took = Duration::from_nanos((there + back).cast_unsigned());
                assert_eq!(offset.uncertainty(), took);
            }
        }
    }

    /// Whatever the rates of the clocks are, the true moment is between the bounds.
    #[test]
    fn a_clock_that_drifts_is_bounded_by_what_was_measured_before_and_after() {
        // Host 2 gains or loses a thousandth, and begins ahead of or behind host 1.
        for (rate, start) in [(1, 400_000), (0, 5), (-1, 3_000), (-1, 700_000)] {
            let theirs = |own: i64| (own + own * rate / 1_000 + start).cast_unsigned();
            let measured = |asked: i64, stamped: i64, answered: i64| {
                let [asked, answered] = [asked, answered].map(i64::cast_unsigned);
                Offset::of_exchange(asked, theirs(stamped), answered)
            };
            // Stamped right after the question, and right before the answer.
            let offset =
                measured(100_000, 100_001, 100_050).hull(measured(900_000, 900_069, 900_070));
            for own in (100_000..900_000).step_by(9_973) {
                let (moment, own) = (theirs(own), own.cast_unsigned());
                let bounds = offset.earliest(moment)..=offset.latest(moment);
                assert!(bounds.contains(&own), "{own} is not in {bounds:?}");
            }
            let drift = (800 * rate).unsigned_abs();
            assert!(offset.uncertainty() <= Duration::from_nanos(drift + 120), "{offset:?}");
        }
    }

    #[test]
    fn an_operation_is_widened_at_both_ends() {
        let offset = Offset { least: 900, most: 1_100 };
        let widened = offset.widened(PUT);
        assert_eq!((widened.called, widened.returned), (3_900, 5_100));
        assert_eq!(Operation { called: 5_000, returned: 6_000, ..widened }, PUT);
        let behind = Offset { least: -1_100, most: -900 };
        let widened = behind.widened(PUT);
        assert_eq!((widened.called, widened.returned), (5_900, 7_100));
    }

    #[test]
    fn what_has_no_end_gets_none() {
        let offset = Offset { least: 900, most: 1_100 };
        let cut_off = Operation { returned: u64::MAX, outcome: Outcome::Unknown, ..PUT };
        let widened = offset.widened(cut_off);
        assert_eq!((widened.called, widened.returned), (3_900, u64::MAX));
        assert_eq!(widened.outcome, Outcome::Unknown);
        let known_later = Operation { outcome: Outcome::UnknownUntil(8_000), ..PUT };
        assert_eq!(offset.widened(known_later).outcome, Outcome::UnknownUntil(7_100));
    }

    /// A stale read across hosts is found where it is longer than the uncertainty, and what only
    /// the uncertainty makes possible is no violation.
    #[test]
    fn widening_forgives_what_the_clocks_cannot_tell_and_no_more() {
        let get = |called, returned| Operation {
            client: 1,
            ask: Ask::Get,
            called,
            returned,
            outcome: Outcome::Known(Answer::Found(None)),
            ..PUT
        };
        let offset = Offset { least: 900, most: 1_100 };
        let is_linearizable = |read| {
            let history = loch_history::History::from(vec![offset.widened(PUT), read]);
            loch_history::check(&history, 1_000).is_linearizable()
        };
        // The PUT returned between 4,900 and 5,100 by the clock of the reader.
        assert!(is_linearizable(get(4_950, 5_300)));
        assert!(!is_linearizable(get(5_101, 5_300)));
    }
}
