//! Figure 14: the load dispatcher (kv-direct §5.1.4).

use super::Scale;
use crate::bench::kv_direct::report::{Cell, Table};
use crate::bench::kv_direct::run::measure;
use crate::bench::kv_direct::workload::Popularity;

/// The load dispatch ratio of the other figures: the best of this one for PUTs, and no worse than
/// others for GETs. It is below the 0.5 of the paper's equation, which counts one access to the card's
/// memory for each cacheable line: a miss fills its slot too, and a write looks at it before.
pub const RATIO: f64 = 0.4;
/// From PCIe alone to all of host memory behind the card's.
const RATIOS: [f64; 6] = [0.0, 0.2, RATIO, 0.6, 0.8, 1.0];
/// Bytes of the key-values.
const BYTES: usize = 10;

/// Figure 14: throughput by load dispatch ratio.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let title = format!(
        "{BYTES} B key-values by load dispatch ratio, Mops; 0: PCIe only, 1: a plain cache"
    );
    let heads = ["keys".into(), "ratio".into()].into_iter().chain(scale.gets_heads());
    let heads = heads.chain(["limits", "hits %", "merged %"].map(Into::into));
    let mut table = Table::new("14", title, heads);
    let ratios: &[f64] = if scale.is_quick { &[0.0, RATIO, 1.0] } else { &RATIOS };
    for popularity in Popularity::ALL {
        let base = scale.workload(BYTES, popularity);
        for &ratio in ratios {
            let mut setup = scale.setup(base);
            setup.ratio = ratio;
            let measured = measure(&setup, &scale.ycsb(base));
            let limits: Vec<&str> = measured.iter().map(|one| one.limit().name()).collect();
            let mops = measured.iter().map(|one| Cell::tenths(one.mops()));
            let gets = &measured[0];
            table.row(
                [popularity.name().into(), Cell::tenths(ratio)].into_iter().chain(mops).chain([
                    limits.join(", ").into(),
                    Cell::percent(gets.hit_rate()),
                    Cell::percent(gets.merged()),
                ]),
            );
        }
    }
    vec![table]
}
