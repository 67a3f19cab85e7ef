//! Figure 18: CPU-assisted scatter-gather (kv-direct §6.1).

use super::paper;
use super::scale::Scale;
use crate::kv_direct::micro::gather::{CoreCosts, PAYLOADS, figure_18};
use crate::kv_direct::report::{Cell, Table};

/// READs and WRITEs by payload and cores that gather, and the latency of the shortest.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let cores_max = if scale.is_quick { 1 } else { 4 };
    let (gain, latency_us) = paper::GATHERING;
    let of = |(figure, name, is_write)| {
        let heads = ["cores".to_owned()].into_iter();
        let heads = heads.chain(PAYLOADS.map(|payload| format!("{payload} B")));
        let mut table = Table::new(
            figure,
            format!(
                "{name} over one link, M/s, by the card alone (0 cores) and gathered; paper: up to \
                 {gain} % more, {latency_us} us"
            ),
            heads.chain([format!("us at {} B", PAYLOADS[0])]),
        );
        for row in figure_18(CoreCosts::PAPER, cores_max, is_write).chunks(PAYLOADS.len()) {
            let rates = row.iter().map(|one| Cell::tenths(one.accesses_per_us));
            table.row(
                [(row[0].cores as u64).into()]
                    .into_iter()
                    .chain(rates)
                    .chain([Cell::tenths(row[0].latency_us)]),
            );
        }
        table
    };
    [("18a", "READs", false), ("18b", "WRITEs", true)].map(of).into()
}
