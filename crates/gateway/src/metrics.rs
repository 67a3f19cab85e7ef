//! A gateway's figures for Prometheus.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hdrhistogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::context::Shared;
use crate::figures::Counters;

/// The ends of the buckets in which times are counted, in nanoseconds.
const BUCKETS_NS: [u64; 17] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    5_000_000_000,
];

type Counter = fn(&Counters) -> &AtomicU64;

/// The counters of [`Counters`], with their names and what they count.
const COUNTERS: [(&str, &str, Counter); 10] = [
    ("connections", "Connections that clients have made", |c| &c.connections),
    ("connections_rejected", "Connections beyond the most clients", |c| &c.rejected),
    ("hits", "Keys that were read and found", |c| &c.hits),
    ("misses", "Keys that were read and not found", |c| &c.misses),
    ("sets", "Values that were put", |c| &c.sets),
    ("touches", "Keys whose expiry was set anew", |c| &c.touches),
    ("errors", "Answers that are errors", |c| &c.errors),
    ("wrong_passwords", "Passwords that were given and are wrong", |c| &c.wrong_passwords),
    ("received_bytes", "Bytes that came from clients", |c| &c.bytes_in),
    ("sent_bytes", "Bytes that went to clients", |c| &c.bytes_out),
];

/// The text that Prometheus reads.
pub(crate) fn text(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("loch_gateway");
    registry.register_collector(Box::new(Metrics(Arc::clone(shared))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Metrics(Arc<Shared>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(shared) = self;
        let info = [("table", shared.table.as_str()), ("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("build", "The table and the gateway", None, MetricType::Info)?
            .encode_info(&info)?;
        let now = [
            ("clients", "Clients that are connected", shared.clients.count() as u64),
            ("threads", "Threads that serve clients", shared.threads.len() as u64),
            ("copied_bytes", "Bytes kept for slow clients", shared.copies.bytes()),
        ];
        for (name, help, value) in now {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        for (name, help, counter) in COUNTERS {
            let value = shared.sum(counter);
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(counter)?;
        }
        let (name, help) = ("command", "Time that commands took, by command; in batches each");
        let unit = Unit::Seconds;
        let mut family =
            encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        for (command, calls) in shared.calls() {
            let labels = [("command", command)];
            let mut of_command = family.encode_family(&labels)?;
            let seconds = calls.total_ns as f64 / 1e9;
            let buckets = buckets(&calls.times_ns);
            of_command.encode_histogram::<NoLabelSet>(seconds, calls.count, &buckets, None)?;
        }
        Ok(())
    }
}

/// How many of these times are in each bucket, which ends at so many seconds.
fn buckets(times_ns: &Histogram<u64>) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> =
        BUCKETS_NS.iter().map(|end| (*end as f64 / 1e9, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for recorded in times_ns.iter_recorded() {
        let time = recorded.value_iterated_to();
        let bucket = BUCKETS_NS.iter().position(|end| time <= *end).unwrap_or(BUCKETS_NS.len());
        buckets[bucket].1 += recorded.count_since_last_iteration();
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_ends_behind_it() {
        let mut times = Histogram::new(2).unwrap();
        for time in [1, 990, 1_500, 84_434_000, 60_000_000_000] {
            times.record(time).unwrap();
        }
        let full: Vec<_> = buckets(&times).into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(full, [(1e-6, 2), (2e-6, 1), (0.1, 1), (f64::INFINITY, 1)]);
    }
}
