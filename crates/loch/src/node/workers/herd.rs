//! A worker of herd: one partition, in the memory of the node's process.

use loch_engines::herd::storage::{Partition, Plan};
use loch_engines::herd::{DEPTH_DEFAULT, Settings, Worker};
use loch_fabric::RegionId;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;

use super::control::{Control, Next};
use super::{Station, WorkerError};
use crate::memory::{Mailed, Memory, Parts};
use crate::served::endpoint::{Patient, WorkerMail};
use crate::served::layout::Extra;
use crate::wire::Inspected;

/// Serves until it is told to end.
pub(super) fn serve(station: &Station, control: &mut Control) -> Result<(), WorkerError> {
    let Some(memory) = control.memory() else { return Ok(()) };
    let table = &memory.tables[station.table];
    let Parts::Mailed(mailed) = &table.parts else {
        unreachable!("a table of herd has mailboxes");
    };
    let Extra::Herd { mode, partition_bytes, index_slots } = mailed.extra else {
        unreachable!("it was checked when it was read");
    };
    let plan = Plan::new(mode, partition_bytes, index_slots).expect("it was checked when read");
    // Fresh pages of the system are zeros, and it gives them when they are first used.
    let partition = Partition::new(vec![0u64; plan.words()], &plan);
    let settings = Settings { seed: table.entry.geometry.seed, depth: DEPTH_DEFAULT };
    let fabric = fabric(&memory, station, mailed)?;
    let mut worker = Worker::open(fabric, &mailed.requests, station.id(), partition, settings)?;
    control.opened();
    loop {
        let was_busy = block_on(worker.turn())?;
        match control.after(was_busy) {
            Next::Turn => (),
            Next::Attach(anew) => worker.fabric().messages().reopen(anew.regions())?,
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

/// What a worker with a mailbox works over: its own node's memory, and messages to all.
pub(super) fn fabric(
    memory: &Memory,
    station: &Station,
    mailed: &Mailed,
) -> Result<Patient<WorkerMail>, WorkerError> {
    let home = RegionId(station.home as u8);
    let own = memory.nodes[station.home].as_ref().expect("a node knows itself");
    let mut endpoint = ShmEndpoint::new(home);
    endpoint.attach(home, own.region().clone());
    let messages = WorkerMail::open(memory.regions(), mailed.worker_mailbox(station.id()))?;
    Ok(Patient::new(endpoint, messages))
}
