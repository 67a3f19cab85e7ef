//! Figure 17: latency of the YCSB workloads close to their highest throughput (kv-direct §5.2.4).

use super::scale::Scale;
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::{Load, PEAK_SHARE, measure};
use crate::kv_direct::totals::Measured;
use crate::kv_direct::workload::{Popularity, Workload};

/// Operations of a packet: as few as reach the clock's rate (Figure 15).
const BATCH: usize = 16;
/// Bytes of key-values.
const SIZES: [usize; 3] = [10, 62, 254];

/// Figure 17.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let mut table = Table::new(
        "17",
        format!(
            "latency in us, 5th, 50th and 95th percentile, at {} % of the highest throughput; paper: \
             tails of 3 to 9 us without batching, and with it less than 1 us more; batches of {BATCH}",
            PEAK_SHARE * 100.0
        ),
        ["bytes", "keys", "kind", "alone Mops", "alone us", "batched Mops", "batched us"],
    );
    let sizes: &[usize] = if scale.is_quick { &SIZES[..1] } else { &SIZES };
    for &bytes in sizes {
        let popularities = if scale.is_quick { &Popularity::ALL[1..] } else { &Popularity::ALL };
        for &popularity in popularities {
            let base = scale.workload(bytes, popularity);
            let peak_and_close = |(gets, batch)| {
                let peak = scale.saturating(Workload { gets, ..base });
                [Load { batch, ..peak }, Load { batch, pace: None, ..peak }]
            };
            let loads = [(1.0, 1), (1.0, BATCH), (0.0, 1), (0.0, BATCH)].map(peak_and_close);
            let measured = measure(&scale.setup(base), loads.as_flattened());
            for (kind, of_kind) in ["GET", "PUT"].into_iter().zip(measured.chunks(4)) {
                let [_, alone, _, batched] = of_kind else { continue };
                table.row([
                    (bytes as u64).into(),
                    popularity.name().into(),
                    kind.into(),
                    Cell::tenths(alone.mops()),
                    quantiles(alone),
                    Cell::tenths(batched.mops()),
                    quantiles(batched),
                ]);
            }
        }
    }
    vec![table]
}

fn quantiles(measured: &Measured) -> Cell {
    let us = |quantile| measured.latency.value_at_quantile(quantile) as f64 / 1e3;
    format!("{:.1} / {:.1} / {:.1}", us(0.05), us(0.5), us(0.95)).into()
}
