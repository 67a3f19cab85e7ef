//! Figure 3: PCIe DMA (kv-direct §2.4).

use loch_fabric::sim::CardProfile;

use super::paper;
use super::scale::Scale;
use crate::kv_direct::micro::dma::{latency, throughput};
use crate::kv_direct::report::{Cell, Table};

/// Bytes of each.
const PAYLOADS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Throughput by payload, and the latency of 64 bytes.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let [reads, limit] = paper::DMA_MOPS;
    let mut rates = Table::new(
        "3a",
        format!("random DMA over one link, M/s; paper: READs of 64 B {reads}, limit {limit}"),
        ["payload B", "READ", "WRITE", "the bytes allow"],
    );
    for one in throughput(CardProfile::KV_DIRECT.with_links(1), &PAYLOADS) {
        rates.row([
            (one.payload_bytes as u64).into(),
            Cell::tenths(one.reads_per_us),
            Cell::tenths(one.writes_per_us),
            Cell::tenths(one.limit_per_us),
        ]);
    }
    let [cached, random] = paper::DMA_NS;
    let mut times = Table::new(
        "3b",
        format!("latency of a READ of 64 B, ns; paper: cached {cached}, random {random}"),
        ["memory", "mean", "5 %", "50 %", "95 %", "99 %"],
    );
    let samples = if scale.is_quick { 200 } else { 10_000 };
    for (name, is_cached) in [("cached", true), ("random", false)] {
        let one = latency(CardProfile::KV_DIRECT, 64, is_cached, samples);
        let percentiles = one.percentiles_ns.map(Cell::from);
        times.row([name.into(), Cell::Number(one.mean_ns, 0)].into_iter().chain(percentiles));
    }
    vec![rates, times]
}
