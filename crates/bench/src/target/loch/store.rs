//! Storing the records of a workload.

use std::cell::Cell;
use std::ops::Range;

use loch::lanes;
use loch_engines::operation::PutOptions;
use loch_engines::{EngineError, Kv};

use super::lane::Lane;
use crate::measure::Op;
use crate::workload::Workload;

/// Stores records in several lanes.
pub async fn load_batch(
    store: &impl Kv,
    workload: &Workload,
    records: Range<u64>,
    lanes: usize,
) -> Result<(), EngineError> {
    let next = Cell::new(records.start);
    let lane = |_| async {
        let mut lane = Lane::new(workload);
        while next.get() < records.end {
            let record = next.replace(next.get() + 1);
            let (key, value) = lane.pair(workload, &Op::load(record));
            store.put(key, value, PutOptions::default()).await?;
        }
        Ok(())
    };
    let mut result = Ok(());
    lanes::run(lanes, (0..lanes).map(lane), |ended: Result<(), EngineError>| {
        if let Err(error) = ended {
            // The other lanes have nothing more to do either.
            next.set(records.end);
            result = Err(error);
        }
    })
    .await;
    result
}
