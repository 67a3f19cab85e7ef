//! A result as a row of a table, and how its numbers are shown.

use serde::Deserialize;

/// The fields of a result that the tables show.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    /// The variant of this result, if several have the same workload.
    pub variant: Option<String>,
    pub engine: String,
    /// The name of the engine, if it is measured in several ways.
    #[serde(rename = "as")]
    pub name: Option<String>,
    pub clients: u32,
    pub lanes: usize,
    pub records: u64,
    pub key_size: u64,
    pub value_size: u64,
    pub reads: f64,
    pub dist: String,
    pub seconds: Option<f64>,
    pub ops: Option<f64>,
    pub ops_per_s: f64,
    pub offered_ops_per_s: Option<f64>,
    pub retries: Option<f64>,
    pub goodput_bytes_per_s: f64,
    pub get_us: Quantiles,
    pub verbs_per_get: Option<f64>,
    pub verbs_per_put: Option<f64>,
    pub round_trips_per_get: Option<f64>,
    pub round_trips_per_put: Option<f64>,
    pub bytes_per_get: Option<f64>,
    pub bytes_per_put: Option<f64>,
    pub server_cpu_s: Option<f64>,
    pub client_cpu_s: Option<f64>,
    pub limit_ops_per_s: Option<f64>,
    pub limit_share: Option<f64>,
    pub ops_of_workers: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Quantiles {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

/// From this size on, tables show the throughput in bytes.
const GOODPUT_VALUE_BYTES: u64 = 16 << 10;

impl Row {
    /// The fields that the results of one table share.
    pub fn setting(&self) -> (bool, u64, u64, u64, u32, usize) {
        let is_variant = self.variant.is_some();
        let records = if is_variant { 0 } else { self.records };
        (is_variant, records, self.key_size, self.value_size, self.clients, self.lanes)
    }

    /// The name of the measured system.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.engine)
    }

    pub fn workload(&self) -> (&str, f64) {
        (&self.dist, self.reads)
    }

    pub fn speed(&self) -> String {
        let speed = self.per_s(self.ops_per_s);
        if self.value_size < GOODPUT_VALUE_BYTES {
            return speed;
        }
        format!("{speed}, {} GB/s", rounded(self.goodput_bytes_per_s / 1e9))
    }

    /// Shows operations a second, on values of its size.
    pub fn per_s(&self, ops: f64) -> String {
        match self.value_size < GOODPUT_VALUE_BYTES {
            true => format!("{} M", rounded(ops / 1e6)),
            false => format!("{} k", rounded(ops / 1e3)),
        }
    }

    /// Its share of the bare loop: the median of its turns, if it had turns.
    pub fn share(&self) -> Option<String> {
        let overall = self.limit_ops_per_s.map(|limit| self.ops_per_s / limit);
        self.limit_share.or(overall).map(|share| format!("{:.0} %", 100.0 * share))
    }

    pub fn latency(&self) -> String {
        let of = self.get_us.p50.zip(self.get_us.p99);
        of.map_or_else(missing, |(p50, p99)| format!("{} / {}", rounded(p50), rounded(p99)))
    }
}

/// The text in the place of a missing number.
pub fn missing() -> String {
    "–".into()
}

/// A number with three digits.
pub fn rounded(value: f64) -> String {
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}
