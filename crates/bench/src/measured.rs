//! Results of one system: the report of each client, and all of them merged.

use serde::{Deserialize, Serialize};

use crate::tally::{Latencies, Tally, Traffic, latencies, unpack_into};
use crate::tuning::Tuning;

/// The results of one system under the workload, all clients together.
#[derive(Debug)]
pub struct Measured {
    /// Length of the measured phase: the longest client's.
    pub seconds: f64,
    /// Counts.
    pub tally: Tally,
    /// Latencies of GETs; a sample of them if there are very many.
    pub gets: Latencies,
    /// Latencies of PUTs, likewise.
    pub puts: Latencies,
    /// Traffic over the fabric; only Loch has a fabric.
    pub traffic: Option<Traffic>,
    /// Why operations were refused, if some were.
    pub refusal: Option<String>,
    /// CPU seconds of all servers; `None` if there are none.
    pub server_cpu_s: Option<f64>,
    /// CPU seconds of all clients.
    pub client_cpu_s: f64,
    /// Operations a second of a bare loop over the same memory.
    pub limit_ops_per_s: Option<f64>,
    /// The best of the tried ways to share cores.
    pub tuning: Option<Tuning>,
    /// Operations a second that should have begun, in an open loop.
    pub offered_ops_per_s: Option<f64>,
    /// Requests that each worker answered; known of simulated ones.
    pub ops_of_workers: Option<Vec<u64>>,
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

/// All clients together.
pub fn merge(reports: &[ClientReport]) -> Measured {
    let mut measured = Measured {
        seconds: 0.0,
        tally: Tally::default(),
        gets: latencies(),
        puts: latencies(),
        traffic: None,
        refusal: None,
        server_cpu_s: None,
        client_cpu_s: 0.0,
        limit_ops_per_s: None,
        tuning: None,
        offered_ops_per_s: None,
        ops_of_workers: None,
    };
    for report in reports {
        measured.seconds = measured.seconds.max(report.seconds);
        measured.client_cpu_s += report.cpu_s;
        measured.tally += report.tally;
        unpack_into(&mut measured.gets, &report.get_ns);
        unpack_into(&mut measured.puts, &report.put_ns);
        measured.refusal = measured.refusal.or_else(|| report.refusal.clone());
    }
    measured
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
        let measured = merge(&[report(1.0, 10), report(1.5, 20)]);
        assert_eq!((measured.seconds, measured.client_cpu_s), (1.5, 1.0));
        assert_eq!((measured.tally.gets, measured.gets.len(), measured.puts.len()), (30, 30, 0));
        assert_eq!(measured.refusal.as_deref(), Some("full"));
    }
}
