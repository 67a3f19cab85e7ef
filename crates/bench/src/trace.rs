//! Operation traces, generated before anything is timed.
//!
//! Unless a user's file is replayed ([`replay`](crate::replay)),
//! a trace is a bounded list of operations that a run cycles through. It is a
//! function of the seed and the client's number alone. All clients share one
//! hot set: popularity ranks are scrambled over the records by the seed, not
//! by the client.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::mix::mix;
use crate::spec::{Dist, Spec, Stop};
use crate::zipf::Zipf;

/// Longest trace: 16 MiB of 4-byte entries.
pub const TRACE_OPS_MAX: u64 = 4 << 20;

/// Records that a 4-byte entry can name beside its operation.
const NARROW_RECORDS_MAX: u64 = 1 << 31;

/// The operations of a client, in order, repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// The record's number; the top bit says PUT.
    Narrow(Vec<u32>),
    /// The same for more than 2^31 records.
    Wide(Vec<u64>),
    /// GETs of values of different sizes, from a user's file.
    Replayed(Vec<Request>),
}

/// A GET of a user's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The number of its key, in the order of their first requests.
    pub record: u32,
    /// Bytes of the value.
    pub size: u32,
}

/// One operation of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The record it is about.
    pub record: u64,
    /// PUT rather than GET.
    pub is_put: bool,
    /// Bytes of its value, if that is not the workload's size.
    pub size: Option<u32>,
}

impl Trace {
    /// The trace of one client of `spec`.
    pub fn generate(spec: &Spec, client: u32) -> Self {
        Self::of_length(spec, client, TRACE_OPS_MAX)
    }

    /// The same, with at most `most` operations.
    pub fn of_length(spec: &Spec, client: u32, most: u64) -> Self {
        let len = match spec.stop {
            Stop::Ops(ops) => ops.min(most),
            Stop::Seconds(_) => most,
        };
        let mut source = Source::new(spec, client);
        if spec.records <= NARROW_RECORDS_MAX {
            let narrow = |entry: Entry| entry.record as u32 | (u32::from(entry.is_put) << 31);
            Trace::Narrow((0..len).map(|_| narrow(source.draw())).collect())
        } else {
            let wide = |entry: Entry| entry.record | (u64::from(entry.is_put) << 63);
            Trace::Wide((0..len).map(|_| wide(source.draw())).collect())
        }
    }

    /// Entries before the trace repeats.
    pub fn len(&self) -> usize {
        match self {
            Trace::Narrow(entries) => entries.len(),
            Trace::Wide(entries) => entries.len(),
            Trace::Replayed(requests) => requests.len(),
        }
    }

    /// The entry at `position`, which is below [`Self::len`].
    #[inline]
    pub fn at(&self, position: usize) -> Entry {
        match self {
            Trace::Narrow(entries) => {
                let entry = entries[position];
                let (record, is_put) = ((entry & (u32::MAX >> 1)).into(), entry >> 31 == 1);
                Entry { record, is_put, size: None }
            }
            Trace::Wide(entries) => {
                let entry = entries[position];
                Entry { record: entry & (u64::MAX >> 1), is_put: entry >> 63 == 1, size: None }
            }
            Trace::Replayed(requests) => {
                let Request { record, size } = requests[position];
                Entry { record: record.into(), is_put: false, size: Some(size) }
            }
        }
    }
}

/// Draws operations.
struct Source {
    rng: ChaCha8Rng,
    reads: f64,
    records: u64,
    /// Absent for the uniform distribution.
    skew: Option<(Zipf, Scatter)>,
}

impl Source {
    fn new(spec: &Spec, client: u32) -> Self {
        Source {
            rng: ChaCha8Rng::seed_from_u64(mix(spec.seed) ^ mix(u64::from(client) << 32 | 1)),
            reads: spec.reads,
            records: spec.records,
            skew: match spec.dist {
                Dist::Uniform => None,
                Dist::Zipf(theta) => Some((
                    Zipf::new(spec.records, theta),
                    Scatter::new(spec.records, mix(spec.seed)),
                )),
            },
        }
    }

    fn draw(&mut self) -> Entry {
        let is_put = self.rng.random::<f64>() >= self.reads;
        let record = match &self.skew {
            None => self.rng.random_range(0..self.records),
            Some((zipf, scatter)) => scatter.record(zipf.rank(self.rng.random())),
        };
        Entry { record, is_put, size: None }
    }
}

/// A seeded bijection of `0..records`, so that popular records do not lie side
/// by side: a bijection of the next power of two, walked until it falls in range.
struct Scatter {
    records: u64,
    mask: u64,
    shift: u32,
    key: u64,
}

impl Scatter {
    fn new(records: u64, key: u64) -> Self {
        let bits = records.next_power_of_two().trailing_zeros().max(1);
        Scatter { records, mask: u64::MAX >> (64 - bits), shift: bits.div_ceil(2), key }
    }

    fn record(&self, rank: u64) -> u64 {
        let mut x = rank;
        // Less than half of the power of two lies outside, so a step or two do;
        // the walk ends because a bijection's cycle returns to `rank` at the latest.
        loop {
            x = self.step(x);
            if x < self.records {
                return x;
            }
        }
    }

    fn step(&self, x: u64) -> u64 {
        let mut x = (x ^ self.key) & self.mask;
        for factor in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
            x = x.wrapping_mul(factor) & self.mask;
            x ^= x >> self.shift;
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;

    fn trace(line: &str, client: u32) -> Trace {
        Trace::generate(&spec(line).unwrap(), client)
    }

    fn entries(trace: &Trace) -> impl Iterator<Item = Entry> {
        (0..trace.len()).map(|position| trace.at(position))
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_seed_or_client_does_not() {
        let first = trace("--ops 1000 --seed 5", 0);
        assert_eq!(first, trace("--ops 1000 --seed 5", 0));
        assert_ne!(first, trace("--ops 1000 --seed 6", 0));
        assert_ne!(first, trace("--ops 1000 --seed 5", 1));
    }

    /// Pinned, so that results of different builds are about the same operations.
    #[test]
    fn a_trace_stays_what_it_was() {
        let records: Vec<u64> =
            entries(&trace("--ops 6 --seed 1", 0)).map(|entry| entry.record).collect();
        assert_eq!(records, PINNED);
    }
    const PINNED: [u64; 6] = [663_834, 533_647, 820_170, 582_680, 228_912, 43_935];

    #[test]
    fn scattering_is_a_bijection() {
        for records in [1, 2, 3, 64, 1000, 1025] {
            let scatter = Scatter::new(records, mix(records));
            let mut seen: Vec<u64> = (0..records).map(|rank| scatter.record(rank)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..records), "{records} records");
        }
    }

    #[test]
    fn clients_share_the_hot_record_and_it_has_its_share() {
        let hottest = |client| {
            let trace = trace("--ops 100000 --records 10000 --dist zipf:0.99", client);
            let mut hits = vec![0u32; 10_000];
            entries(&trace).for_each(|entry| hits[entry.record as usize] += 1);
            hits.into_iter().enumerate().max_by_key(|(_, hits)| *hits).unwrap()
        };
        let ((record, hits), (other, _)) = (hottest(0), hottest(1));
        assert_eq!(record, other);
        // 1 / zeta(10 000, 0.99) of all draws.
        assert!((9_500..10_900).contains(&hits), "{hits}");
    }

    #[test]
    fn the_mix_follows_reads() {
        for (reads, puts) in [("1", 0..=0), ("0", 100_000..=100_000), ("0.95", 4_700..=5_300)] {
            let trace = trace(&format!("--ops 100000 --reads {reads} --dist uniform"), 0);
            let found = entries(&trace).filter(|entry| entry.is_put).count();
            assert!(puts.contains(&found), "--reads {reads}: {found} puts");
        }
    }

    #[test]
    fn many_records_take_wide_entries() {
        let trace = trace("--ops 1000 --records 8589934592 --dist uniform", 0);
        assert!(matches!(trace, Trace::Wide(_)));
        assert!(entries(&trace).any(|entry| entry.record > u32::MAX.into()));
        assert!(entries(&trace).all(|entry| entry.record < 1 << 33));
    }

    #[test]
    fn a_timed_run_cycles_a_bounded_trace() {
        assert_eq!(trace("--records 100 --dist uniform", 0).len() as u64, TRACE_OPS_MAX);
    }
}
