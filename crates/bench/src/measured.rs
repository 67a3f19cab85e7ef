//! Results of one system: the report of each client, and all of them merged.

use serde::{Deserialize, Serialize};

use crate::tally::{Latencies, Tally, Traffic, Usage, latencies, unpack_into};
use crate::tuning::Tuning;

/// The results of one system under the workload, all clients together.
#[derive(Debug)]
pub struct Measured {
    /// Length of the measured phase: the sum of its turns, each as long as its longest client's.
    pub seconds: f64,
    /// Counts.
    pub tally: Tally,
    /// Latencies of GETs; a sample of them if there are very many.
    pub gets: Latencies,
    /// Latencies of PUTs, likewise.
    pub puts: Latencies,
    /// Traffic over the fabric; only Loch has a fabric.
    pub traffic: Option<Traffic>,
    /// What the store held in the end, and has evicted in the measured phase; `None` unless the
    /// workload is a cache's.
    pub usage: Option<Usage>,
    /// Whether a client's outstanding operations were batches.
    pub batches: bool,
    /// Why operations were refused, if some were.
    pub refusal: Option<String>,
    /// CPU seconds of all servers; `None` if there are none.
    pub server_cpu_s: Option<f64>,
    /// CPU seconds of all clients.
    pub client_cpu_s: f64,
    /// The turns of the measured phase, in order.
    pub turns: Vec<Turn>,
    /// The best of the tried ways to share cores.
    pub tuning: Option<Tuning>,
    /// Operations a second that should have begun, in an open loop.
    pub offered_ops_per_s: Option<f64>,
    /// Requests that each worker answered; known of simulated ones.
    pub ops_of_workers: Option<Vec<u64>>,
}

/// One turn of the measured phase: a part of the workload, and then the bare loops.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn {
    /// Operations a second of the workload, all clients together.
    pub ops_per_s: f64,
    /// The rates of the bare loops, if there are any.
    pub limits: Option<Limits>,
}

/// Operations a second of bare loops: single-thread loops of the memory accesses that GETs cannot
/// avoid, or over TCP loops of messages like those of the workload's operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Of the best loop: the bound of operations in batches and lanes.
    pub ops_per_s: f64,
    /// Of the loop without prefetching, or with one message at a time: the bound of one operation
    /// at a time.
    pub one_ops_per_s: f64,
}

impl Limits {
    /// Of two loops that ran at the same time.
    pub fn plus(self, other: Self) -> Self {
        Self {
            ops_per_s: self.ops_per_s + other.ops_per_s,
            one_ops_per_s: self.one_ops_per_s + other.one_ops_per_s,
        }
    }
}

/// The median of a number that was measured several times, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the measurements are not above it.
    pub median: f64,
    /// The smallest one.
    pub min: f64,
    /// The largest one.
    pub max: f64,
}

impl Spread {
    /// Of these measurements; `None` if there are none, or one that is no number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = values[values.len() / 2];
        [min, max].into_iter().all(f64::is_finite).then_some(Self { median, min, max })
    }
}

impl Default for Measured {
    fn default() -> Self {
        Measured {
            seconds: 0.0,
            tally: Tally::default(),
            gets: latencies(),
            puts: latencies(),
            traffic: None,
            usage: None,
            batches: false,
            refusal: None,
            server_cpu_s: None,
            client_cpu_s: 0.0,
            turns: Vec::new(),
            tuning: None,
            offered_ops_per_s: None,
            ops_of_workers: None,
        }
    }
}

impl Measured {
    /// Adds a turn: what all clients have measured at the same time.
    pub fn add_turn(&mut self, reports: &[ClientReport], limits: Option<Limits>) {
        let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
        let mut tally = Tally::default();
        for report in reports {
            self.client_cpu_s += report.cpu_s;
            tally += report.tally;
            unpack_into(&mut self.gets, &report.get_ns);
            unpack_into(&mut self.puts, &report.put_ns);
            self.refusal = self.refusal.take().or_else(|| report.refusal.clone());
        }
        let ops_per_s = (tally.gets + tally.puts) as f64 / seconds;
        self.seconds += seconds;
        self.tally += tally;
        self.turns.push(Turn { ops_per_s, limits });
    }

    /// The best rate of the bare loops, turn by turn.
    pub fn limit_ops_per_s(&self) -> Option<Spread> {
        self.of_limits(|_, limits| limits.ops_per_s)
    }

    /// The rate of the bare loop without prefetching, turn by turn.
    pub fn limit_one_ops_per_s(&self) -> Option<Spread> {
        self.of_limits(|_, limits| limits.one_ops_per_s)
    }

    /// The workload's share of the best bare loop, turn by turn.
    pub fn limit_share(&self) -> Option<Spread> {
        self.of_limits(|turn, limits| turn.ops_per_s / limits.ops_per_s)
    }

    /// The workload's share of the bare loop without prefetching, turn by turn.
    pub fn limit_one_share(&self) -> Option<Spread> {
        self.of_limits(|turn, limits| turn.ops_per_s / limits.one_ops_per_s)
    }

    /// How many times as fast as `other` it was, turn by turn; `None` if the two did not take
    /// turns.
    pub fn times(&self, other: &Self) -> Option<Spread> {
        let pairs = self.turns.iter().zip(&other.turns);
        Spread::of(pairs.map(|(turn, other)| turn.ops_per_s / other.ops_per_s))
    }

    fn of_limits(&self, value: impl Fn(&Turn, &Limits) -> f64) -> Option<Spread> {
        Spread::of(
            self.turns.iter().filter_map(|turn| turn.limits.map(|limits| value(turn, &limits))),
        )
    }
}

/// The measurements of one client.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// Length of its measured phase.
    pub seconds: f64,
    /// CPU seconds its process used in that time.
    pub cpu_s: f64,
    /// Counts.
    pub tally: Tally,
    /// Packed latencies of GETs.
    pub get_ns: Vec<(u64, u64)>,
    /// Packed latencies of PUTs.
    pub put_ns: Vec<(u64, u64)>,
    /// Why the store refused operations, if it did.
    pub refusal: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_summed_and_the_longest_counts() {
        let report = |seconds, gets| ClientReport {
            seconds,
            cpu_s: 0.5,
            tally: Tally { gets, get_hits: gets, ..Tally::default() },
            get_ns: vec![(1000, gets)],
            put_ns: Vec::new(),
            refusal: (gets == 20).then(|| "full".into()),
        };
        let mut measured = Measured::default();
        measured.add_turn(&[report(1.0, 10), report(1.5, 20)], None);
        assert_eq!((measured.seconds, measured.client_cpu_s), (1.5, 1.0));
        assert_eq!((measured.tally.gets, measured.gets.len(), measured.puts.len()), (30, 30, 0));
        assert_eq!(measured.refusal.as_deref(), Some("full"));
        measured.add_turn(&[report(0.5, 4), report(0.25, 6)], None);
        assert_eq!((measured.seconds, measured.tally.gets), (2.0, 40));
        let rates: Vec<_> = measured.turns.iter().map(|turn| turn.ops_per_s).collect();
        assert_eq!(rates, [20.0, 20.0]);
    }

    fn turns(turns: &[(f64, f64)]) -> Measured {
        let turn = |(ops_per_s, limit): &(f64, f64)| Turn {
            ops_per_s: *ops_per_s,
            limits: Some(Limits { ops_per_s: *limit, one_ops_per_s: limit / 2.0 }),
        };
        Measured { turns: turns.iter().map(turn).collect(), ..Measured::default() }
    }

    #[test]
    fn ratios_are_taken_within_a_turn() {
        // A machine whose speed doubles and halves between turns.
        let measured = turns(&[(10.0, 20.0), (20.0, 40.0), (5.0, 8.0)]);
        let share = measured.limit_share().unwrap();
        assert_eq!((share.median, share.min, share.max), (0.5, 0.5, 0.625));
        assert_eq!(measured.limit_one_share().unwrap().median, 1.0);
        assert_eq!(measured.limit_ops_per_s().unwrap().median, 20.0);
        assert_eq!(measured.limit_one_ops_per_s().unwrap().max, 20.0);
        let other = turns(&[(5.0, 20.0), (10.0, 40.0)]);
        assert_eq!(measured.times(&other).unwrap(), Spread { median: 2.0, min: 2.0, max: 2.0 });
        assert_eq!(measured.times(&Measured::default()), None);
        assert_eq!(other.times(&turns(&[(0.0, 1.0)])), None);
    }
}
