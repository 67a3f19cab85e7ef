//! Table 2: vector operations against one key for each element and against fetching (kv-direct
//! §5.1.5).

use super::paper;
use super::scale::{FULL, Scale, measure_one};
use crate::kv_direct::clients::Pace;
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::Load;
use crate::kv_direct::workload::{Kind, Popularity, Workload};

/// Bytes of an element that has a key of its own and is sent alone. With this size the paper's
/// number comes out; its clients send each element in a packet.
const ELEMENT_BYTES: usize = 64;
/// The number of vectors that are updated: one, as in the paper, whose 11.52 GB/s are 64 bytes a
/// clock. Many vectors would all have to be read and written over PCIe.
const VECTORS: u64 = 1;
/// The ends of the paper's range.
const QUICK: [usize; 2] = [64, 1024];

/// Table 2.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let mut table = Table::new(
        "Table 2",
        "vectors by their bytes, GB/s; in brackets the paper",
        [
            "bytes",
            "update",
            "update with return",
            "key an element",
            "fetched",
            "8 B elements, packed",
            "fetched, pipelined",
        ],
    );
    let element = gbyte_s(elementwise(scale), ELEMENT_BYTES);
    let packed = gbyte_s(saturated(scale, small_elements(scale)), size_of::<u64>());
    let sizes = paper::VECTORS.iter();
    for (bytes, [update, returns, elements, fetched]) in
        sizes.filter(|(bytes, _)| !scale.is_quick || QUICK.contains(bytes))
    {
        let bytes = *bytes;
        let vector = |kind| one_vector(scale, bytes, kind);
        let measured = [
            gbyte_s(saturated(scale, vector(Kind::AddAll { returns: false })), bytes),
            gbyte_s(saturated(scale, vector(Kind::AddAll { returns: true })), bytes),
            element,
            gbyte_s(fetching(scale, vector(Kind::Get)), bytes),
        ];
        let papers = [*update, *returns, *elements, *fetched];
        let cells = measured.iter().zip(papers);
        let cells = cells.map(|(measured, paper)| format!("{measured:.2} ({paper:.2})").into());
        let pipelined = gbyte_s(saturated(scale, vector(Kind::Get)), bytes);
        let more = [packed, pipelined].map(|measured| Cell::Number(measured, 2));
        table.row([Cell::from(bytes as u64)].into_iter().chain(cells).chain(more));
    }
    vec![table]
}

fn gbyte_s(mops: f64, bytes: usize) -> f64 {
    mops * bytes as f64 / 1e3
}

fn one_vector(scale: &Scale, bytes: usize, kind: Kind) -> Workload {
    let base = scale.workload(8 + bytes, Popularity::Uniform);
    Workload { keys: VECTORS, gets: 0.0, other: kind, ..base }
}

fn saturated(scale: &Scale, workload: Workload) -> f64 {
    measure_one(&scale.setup(workload), scale.saturating(workload)).mops()
}

/// Numbers with keys of their own, in full packets.
fn small_elements(scale: &Scale) -> Workload {
    let base = scale.workload(16, Popularity::Uniform);
    // Each takes four slots, so they cannot fill half of memory.
    Workload { keys: base.keys / 2, gets: 0.0, other: Kind::FetchAdd, ..base }
}

/// Elements with keys of their own, one in a packet.
fn elementwise(scale: &Scale) -> f64 {
    let base = scale.workload(8 + ELEMENT_BYTES, Popularity::Uniform);
    let workload = Workload { gets: 0.0, other: Kind::AddAll { returns: true }, ..base };
    let load = Load { batch: 1, ..scale.saturating(workload) };
    measure_one(&scale.setup(workload), load).mops()
}

/// One client, which waits for a vector before it asks for the next.
fn fetching(scale: &Scale, workload: Workload) -> f64 {
    let load = Load { pace: Some(Pace::Window(1)), batch: 1, ..scale.saturating(workload) };
    let load = Load { count: load.count / FULL as u64, ..load };
    measure_one(&scale.setup(workload), load).mops()
}
