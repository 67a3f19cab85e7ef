//! The sums of a run: counts, and latencies in histograms that travel from the clients to the
//! bench.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is recorded; longer ones count as this.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// The counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// GETs answered, found or not.
    pub gets: u64,
    /// GETs that found a value.
    pub get_hits: u64,
    /// PUTs acknowledged.
    pub puts: u64,
    /// Bytes of the values that were found.
    pub hit_bytes: u64,
    /// Bytes that the values would have had that were not found.
    pub miss_bytes: u64,
    /// Bytes of the values that were stored.
    pub put_bytes: u64,
    /// Attempts repeated inside operations.
    pub retries: u64,
    /// Operations refused.
    pub errors: u64,
    /// Values that differ from the value written for their key.
    pub wrong_values: u64,
}

/// Latencies in nanoseconds.
pub type Latencies = Histogram<u64>;

/// An empty histogram: 1 ns to 100 s at three digits.
pub fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are constants and valid")
}

/// A histogram as it travels between processes: latency and count of every
/// bucket that is not empty.
pub fn pack(latencies: &Latencies) -> Vec<(u64, u64)> {
    latencies.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
}

/// Adds a packed histogram to `latencies`.
pub fn unpack_into(latencies: &mut Latencies, packed: &[(u64, u64)]) {
    for (ns, count) in packed {
        latencies.saturating_record_n(*ns, *count);
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.gets += other.gets;
        self.get_hits += other.get_hits;
        self.puts += other.puts;
        self.hit_bytes += other.hit_bytes;
        self.miss_bytes += other.miss_bytes;
        self.put_bytes += other.put_bytes;
        self.retries += other.retries;
        self.errors += other.errors;
        self.wrong_values += other.wrong_values;
    }
}

/// What a store that evicts holds, and what it has evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Values that it holds.
    pub values: u64,
    /// Values that it has evicted since it was started.
    pub evicted: u64,
    /// Bytes of its values with their keys and headers, if it says so.
    pub bytes: Option<u64>,
}

/// The traffic of operations over the fabric, of GETs and PUTs separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Of GETs.
    pub get: OpTraffic,
    /// Of PUTs.
    pub put: OpTraffic,
}

/// Totals over a number of operations of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpTraffic {
    /// Operations in the totals.
    pub ops: u64,
    /// Verbs posted.
    pub verbs: u64,
    /// Doorbells that had to be waited for.
    pub round_trips: u64,
    /// Bytes in and out.
    pub bytes: u64,
}

impl Traffic {
    /// Adds another client's totals.
    pub fn add(&mut self, other: Traffic) {
        self.get.add(other.get);
        self.put.add(other.put);
    }
}

impl OpTraffic {
    /// Adds other totals.
    pub fn add(&mut self, other: OpTraffic) {
        self.ops += other.ops;
        self.verbs += other.verbs;
        self.round_trips += other.round_trips;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_packing() {
        let mut original = latencies();
        for ns in [1, 2, 999, 80_000, 80_001, 7_000_000_000, u64::MAX] {
            original.saturating_record(ns);
        }
        let mut copy = latencies();
        unpack_into(&mut copy, &pack(&original));
        assert_eq!(copy, original);
    }
}
