//! Tables 5 and 6: the paper's equation of the load dispatch ratio, solved (kv-direct §6.3).

use crate::kv_direct::ratio::{self, PAPER_SIZES, PAPER_SPEEDS};
use crate::kv_direct::report::{Cell, Table};

/// Table 5, which is `which` 0, or Table 6.
pub fn tables(which: usize) -> Vec<Table> {
    let (figure, what, digits) = [
        ("Table 5", "the best load dispatch ratio", 3),
        ("Table 6", "throughput over that of simple partitioning", 2),
    ][which];
    let mut table = Table::new(
        figure,
        format!(
            "{what}, by the speed (r) and size (k) of memory on the card: as printed / by the paper's \
             definitions / what can be had"
        ),
        ["r".to_owned()].into_iter().chain(PAPER_SIZES.map(|size| format!("k = 1/{size}"))),
    );
    for (speed, row) in PAPER_SPEEDS.into_iter().zip(ratio::tables()[which]) {
        let cells = row.map(|ratio::Cell { printed, paper, real }| {
            Cell::from(format!("{printed:.digits$} / {paper:.digits$} / {real:.digits$}"))
        });
        table.row([Cell::tenths(speed)].into_iter().chain(cells));
    }
    vec![table]
}
