//! Figure 15: network batching (kv-direct §5.1.5).

use super::paper;
use super::scale::{FULL, Scale};
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::{Load, PEAK_SHARE, measure};
use crate::kv_direct::workload::Popularity;

/// Bytes of the key-values.
const BYTES: usize = 15;

/// Figure 15: throughput by the operations of a packet, and latency at that throughput.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let mut table = Table::new(
        "15",
        format!(
            "GETs of {BYTES} B key-values by operations in a packet, long-tail workload; latency at \
             {} % of that throughput; paper: up to {} x, below {} us",
            PEAK_SHARE * 100.0,
            paper::BATCHING_GAIN,
            paper::BATCHING_US
        ),
        ["batch", "Mops", "gain", "limit", "network us", "network 95 %", "all us", "all 95 %"],
    );
    let batches: &[usize] =
        if scale.is_quick { &[1, FULL] } else { &[1, 2, 4, 8, 16, 32, 64, FULL] };
    let workload = scale.workload(BYTES, Popularity::LongTail);
    let peak = scale.saturating(workload);
    let loads = batches.iter().flat_map(|batch| {
        [Load { batch: *batch, ..peak }, Load { batch: *batch, pace: None, ..peak }]
    });
    let measured = measure(&scale.setup(workload), &loads.collect::<Vec<_>>());
    let alone = measured[0].mops();
    for (batch, both) in batches.iter().zip(measured.chunks(2)) {
        let [peak, close] = both else { continue };
        let us = |ns: u64| Cell::Number(ns as f64 / 1e3, 2);
        table.row([
            if *batch == FULL { "full".into() } else { (*batch as u64).into() },
            Cell::tenths(peak.mops()),
            Cell::tenths(peak.mops() / alone),
            peak.limit().name().into(),
            us(close.network.value_at_quantile(0.5)),
            us(close.network.value_at_quantile(0.95)),
            us(close.latency.value_at_quantile(0.5)),
            us(close.latency.value_at_quantile(0.95)),
        ]);
    }
    vec![table]
}
