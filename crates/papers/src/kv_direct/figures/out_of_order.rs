//! Figure 13: the out-of-order engine against a pipeline that stalls (kv-direct §5.1.3).

use super::paper;
use super::scale::{Scale, measure_one};
use crate::kv_direct::clients::Pace;
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::measure;
use crate::kv_direct::workload::{Kind, Popularity, Workload};

/// A stalled pipeline is much slower, so fewer operations are enough.
const STALLED_SHARE: u64 = 10;
/// Operations that clients have under way while the pipeline stalls, and operations in a packet:
/// more of them would only wait.
const STALLED_WINDOW: usize = 512;
const STALLED_BATCH: usize = 16;

/// Figures 13a and 13b.
pub fn tables(scale: &Scale) -> Vec<Table> {
    vec![atomics(scale), long_tail(scale)]
}

/// Atomics by the number of keys. The load is not dispatched: the key is in host memory, as in the
/// paper, whose 0.94 Mops follow from PCIe's latency.
fn atomics(scale: &Scale) -> Table {
    let mut table = Table::new(
        "13a",
        "atomics by the number of keys, Mops",
        ["keys", "out of order", "stalled", "ratio", "paper"],
    );
    let powers: &[u32] = if scale.is_quick { &[0, 3] } else { &[0, 1, 2, 3, 4, 5, 6] };
    for keys in powers.iter().map(|power| 10u64.pow(*power)) {
        let uniform = scale.workload(16, Popularity::Uniform);
        let workload = Workload { keys, gets: 0.0, other: Kind::FetchAdd, ..uniform };
        let [out_of_order, stalled] = [true, false].map(|out_of_order| {
            let mut setup = scale.setup(workload);
            (setup.ratio, setup.out_of_order) = (0.0, out_of_order);
            let mut load = scale.saturating(workload);
            if !out_of_order {
                load.pace = Some(Pace::Window(STALLED_WINDOW));
                load.batch = STALLED_BATCH;
                load.count /= STALLED_SHARE;
            }
            measure_one(&setup, load).mops()
        });
        let paper = match keys {
            1 => {
                let [fast, slow, gain] =
                    [paper::CLOCK_MOPS, paper::STALLED_MOPS, paper::OUT_OF_ORDER_GAIN];
                format!("{fast:.0}, {slow}, {gain:.0} x; RDMA NIC {}", paper::RDMA_MOPS).into()
            }
            _ => Cell::Empty,
        };
        table.row([
            keys.into(),
            Cell::tenths(out_of_order),
            Cell::Number(stalled, 2),
            Cell::tenths(out_of_order / stalled),
            paper,
        ]);
    }
    table
}

/// The long-tail workload by its share of PUTs.
fn long_tail(scale: &Scale) -> Table {
    let mut table = Table::new(
        "13b",
        "long-tail workload of 10 B key-values by its share of PUTs, Mops",
        ["PUT %", "out of order", "stalled", "ratio", "merged %"],
    );
    let shares: &[f64] =
        if scale.is_quick { &[0.0, 0.5] } else { &[0.0, 0.05, 0.25, 0.5, 0.75, 1.0] };
    let base = scale.workload(10, Popularity::LongTail);
    let [out_of_order, stalled] = [true, false].map(|out_of_order| {
        let mut setup = scale.setup(base);
        setup.out_of_order = out_of_order;
        let load = |share: &f64| scale.saturating(Workload { gets: 1.0 - share, ..base });
        measure(&setup, &shares.iter().map(load).collect::<Vec<_>>())
    });
    for (share, (fast, slow)) in shares.iter().zip(out_of_order.iter().zip(&stalled)) {
        table.row([
            Cell::percent(*share),
            Cell::tenths(fast.mops()),
            Cell::tenths(slow.mops()),
            Cell::tenths(fast.mops() / slow.mops()),
            Cell::percent(fast.merged()),
        ]);
    }
    table
}
