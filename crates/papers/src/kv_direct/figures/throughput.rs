//! Figure 16: throughput of the YCSB workloads, and Table 3's row of one card (kv-direct §5.2.2).

use super::paper;
use super::scale::Scale;
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::measure;
use crate::kv_direct::totals::Measured;
use crate::kv_direct::workload::Popularity;

/// Bytes of key-values: multiples of a slot, and powers of two less two (kv-direct §5.2.1).
const SIZES: [usize; 7] = [5, 10, 15, 25, 62, 126, 254];
/// The size of Table 3.
const TINY: usize = 10;

/// Figure 16, and the paper's numbers for the long-tail workload.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let sizes: &[usize] = if scale.is_quick { &[TINY, 62] } else { &SIZES };
    let heads = ["bytes".into(), "keys".into()].into_iter().chain(scale.gets_heads());
    let mut table = Table::new(
        "16",
        "throughput by bytes of a key-value, Mops, and what limits it",
        heads.chain(["limits".into()]),
    );
    let mut tiny = Vec::new();
    for &bytes in sizes {
        for popularity in Popularity::ALL {
            let base = scale.workload(bytes, popularity);
            let measured = measure(&scale.setup(base), &scale.ycsb(base));
            let mops = measured.iter().map(|one| Cell::tenths(one.mops()));
            let limits: Vec<&str> = measured.iter().map(|one| one.limit().name()).collect();
            let row = [(bytes as u64).into(), popularity.name().into()];
            table.row(row.into_iter().chain(mops).chain([limits.join(", ").into()]));
            if bytes == TINY {
                tiny.push(measured);
            }
        }
    }
    vec![table, long_tail(scale, &tiny)]
}

/// The numbers of §5.2.2 and Table 3 for 10-byte key-values.
fn long_tail(scale: &Scale, tiny: &[Vec<Measured>]) -> Table {
    let mut table = Table::new(
        "Table 3",
        "10 B key-values, long-tail workload",
        ["GET %", "Mops", "paper", "x uniform", "merged %", "hits %", "DMA/op"],
    );
    let [uniform, long_tail] = tiny else { return table };
    let [get, put] = paper::LONG_TAIL_MOPS;
    for ((gets, one), uniform) in scale.gets().iter().zip(long_tail).zip(uniform) {
        table.row([
            Cell::percent(*gets),
            Cell::tenths(one.mops()),
            match *gets {
                1.0 => Cell::Number(get, 0),
                0.0 => Cell::Number(put, 0),
                _ => Cell::Empty,
            },
            Cell::Number(one.mops() / uniform.mops(), 2),
            Cell::percent(one.merged()),
            Cell::percent(one.hit_rate()),
            Cell::Number(one.dma(), 2),
        ]);
    }
    table
}
