//! A worker of herd: one partition, in the memory of the node's process.

use loch_engines::EngineError;
use loch_engines::herd::storage::Partition;
use loch_engines::herd::{DEPTH_DEFAULT, Settings, Worker};
use loch_engines::registry::Map;
use loch_fabric::FabricError;
use loch_fabric::lanes::block_on;

use super::control::{Control, Next};
use super::ground::Ground;
use super::{Station, WorkerError, zeroed};
use crate::wire::Inspected;

/// Serves until it is told to end.
pub(super) fn serve(
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
) -> Result<(), WorkerError> {
    let Some(memory) = control.memory() else { return Ok(()) };
    let table = &memory.tables[station.table];
    let Map::Herd(map) = &table.parts else {
        unreachable!("it is a worker of herd");
    };
    let (plan, id) = (map.partition.plan().expect("it was checked when read"), station.id());
    let partition = Partition::new(zeroed::<u64>(plan.words())?, &plan)
        .with_value_max(table.entry.params.value_bytes_max);
    let settings = Settings { seed: map.seed, depth: DEPTH_DEFAULT };
    let mailbox = map.mailboxes.of_worker(&map.requests, id);
    let fabric = ground.mail(&memory, table, mailbox, id)?;
    let sessions = ground.sessions(control.surroundings(), station.table);
    let mut worker = Worker::open(fabric, &map.requests, id, partition, settings, sessions)?;
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
                    slots: map.partition.index_slots,
                    index_bytes: map.partition.bytes.saturating_sub(report.data_bytes),
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
