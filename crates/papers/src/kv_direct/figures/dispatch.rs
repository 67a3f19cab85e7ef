//! Figure 14: the load dispatcher (kv-direct §5.1.4).

use loch_fabric::sim::CardProfile;

use super::scale::{RATIO, Scale};
use crate::kv_direct::micro::dispatch::{Setup, figure_14};
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::measure;
use crate::kv_direct::workload::Popularity;

/// The ratios: from PCIe alone to all of host memory behind the card's memory.
const RATIOS: [f64; 6] = [0.0, 0.2, RATIO, 0.6, 0.8, 1.0];
/// The ratios for accesses without hashing and slabs.
const ALONE: [f64; 3] = [0.3, 0.5, 0.6];
/// Bytes of the key-values.
const BYTES: usize = 10;

/// Figure 14: throughput by load dispatch ratio, and the throughput of accesses alone.
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
    if scale.is_quick { vec![table] } else { vec![table, accesses()] }
}

/// Reads of random lines, or reads and writes of them, without hashing and slabs.
fn accesses() -> Table {
    let heads = ["lines".into(), "GET %".into(), "PCIe alone".into()].into_iter();
    let heads = heads.chain(ALONE.map(|ratio| format!("{ratio}"))).chain(["a cache of all".into()]);
    let mut table = Table::new(
        "14 alone",
        "the load dispatcher alone, operations on random lines by load dispatch ratio, M/s",
        heads,
    );
    for row in figure_14(CardProfile::KV_DIRECT, &ALONE).chunks(ALONE.len() + 2) {
        let Setup { zipf, gets, .. } = row[0].setup;
        let lines = if zipf.is_some() { "long-tail" } else { "uniform" };
        let rates = row.iter().map(|one| Cell::tenths(one.operations_per_us));
        table.row([lines.into(), Cell::percent(gets)].into_iter().chain(rates));
    }
    table
}
