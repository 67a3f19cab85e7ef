//! A worker of herd: one partition, in the memory of the node's process.

use loch_engines::EngineError;
use loch_engines::herd::storage::{Partition, Plan};
use loch_engines::herd::{DEPTH_DEFAULT, Settings, Worker};
use loch_fabric::FabricError;
use loch_fabric::lanes::block_on;

use super::control::{Control, Next};
use super::ground::Ground;
use super::{Station, WorkerError, zeroed};
use crate::memory::Parts;
use crate::served::layout::Extra;
use crate::wire::Inspected;

/// Serves until it is told to end.
pub(super) fn serve(
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
) -> Result<(), WorkerError> {
    let Some(memory) = control.memory() else { return Ok(()) };
    let table = &memory.tables[station.table];
    let Parts::Mailed(mailed) = &table.parts else {
        unreachable!("a table of herd has mailboxes");
    };
    let Extra::Herd { mode, partition_bytes, index_slots } = mailed.extra else {
        unreachable!("it was checked when it was read");
    };
    let plan = Plan::new(mode, partition_bytes, index_slots).expect("it was checked when read");
    let geometry = &table.entry.geometry;
    let partition = Partition::new(zeroed::<u64>(plan.words())?, &plan)
        .with_value_max(geometry.value_bytes_max);
    let settings = Settings { seed: geometry.seed, depth: DEPTH_DEFAULT };
    let fabric = ground.mail(&memory, table, mailed, station.id())?;
    let sessions = ground.sessions(control.surroundings(), station.table);
    let (map, id) = (&mailed.requests, station.id());
    let mut worker = Worker::open(fabric, map, id, partition, settings, sessions)?;
    control.opened();
    loop {
        ground.tend_mail(worker.fabric());
        let was_busy = match block_on(worker.turn()) {
            // It could not lease versions, and has begun nothing.
            Err(EngineError::Fabric(
                FabricError::Unreachable { .. }
                | FabricError::Unattached { .. }
                | FabricError::OutcomeUnknown { .. },
            )) => false,
            turned => turned?,
        };
        match control.after(was_busy) {
            Next::Turn => (),
            Next::Attach(anew) => ground.attach(worker.fabric(), &anew)?,
            Next::Tell(order) => {
                let report = worker.partition().check(settings.seed);
                order.tell(Inspected {
                    slots: index_slots,
                    index_bytes: partition_bytes.saturating_sub(report.data_bytes),
                    data_bytes: report.data_bytes,
                    entries: report.entries,
                    entry_bytes: report.entry_bytes,
                    broken: report.broken,
                });
            }
            Next::Stop => return Ok(()),
        }
    }
}
