//! Figure 14: the load dispatcher (kv-direct §5.1.4).

use super::Scale;
use crate::bench::kv_direct::report::{Cell, Table};
use crate::bench::kv_direct::run::measure;
use crate::bench::kv_direct::workload::{Popularity, Workload};

pub const RATIO: f64 = 0.5;

pub fn tables(scale: &Scale) -> Vec<Table> {
    let mut table = Table::new(
        "14",
        "10 B",
        &["keys", "ratio", "GET %", "Mops", "limit", "clock", "net", "pcie", "dram", "hit %", "merged %", "dma"],
    );
    let gets = [1.0, 0.95, 0.5, 0.0];
    for popularity in Popularity::ALL {
        let base = scale.workload(10, popularity);
        for ratio in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0] {
            let mut setup = scale.setup(base);
            setup.ratio = ratio;
            let loads: Vec<_> =
                gets.iter().map(|gets| scale.saturating(Workload { gets: *gets, ..base })).collect();
            for (measured, gets) in measure(&setup, &loads).iter().zip(gets) {
                let [a, b, c, d] = measured.busy().map(|(_, share)| Cell::percent(share));
                table.row([
                    popularity.name().into(),
                    Cell::tenths(ratio),
                    Cell::percent(gets),
                    Cell::tenths(measured.mops()),
                    measured.limit().name().into(),
                    a,b,c,d,
                    Cell::percent(measured.hit_rate()),
                    Cell::percent(measured.merged()),
                    Cell::Number(measured.dma(), 2),
                ]);
            }
        }
    }
    vec![table]
}
