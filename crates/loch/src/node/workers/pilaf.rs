//! The worker of a pilaf table on one node: the only one that writes it.

use std::fs::File;

use loch_engines::checksum::checksum;
use loch_engines::engine::LogConfig;
use loch_engines::log::Policy;
use loch_engines::pilaf::{Logging, Worker};
use loch_engines::registry::Map;
use loch_fabric::{Fabric, Messages};

use super::control::{Control, Next, Order};
use super::ground::Ground;
use super::{Station, WorkerError};
use crate::limits::{PILAF_COMPACT_BYTES, REGION_LOCK_TIMEOUT};
use crate::node::lock::lock_within;
use crate::private;
use crate::storage::FileStorage;
use crate::wire::Inspected;

/// Serves until it is told to end.
pub(super) fn serve(
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
) -> Result<(), WorkerError> {
    let Some(memory) = control.memory() else { return Ok(()) };
    let table = &memory.tables[station.table];
    let Map::Pilaf(map) = &table.parts else {
        unreachable!("it is a worker of pilaf");
    };
    let (node, id) = (station.home as u16, station.id());
    let (_lock, logging) = open_log(station)?.unzip();
    let mailbox = map.mailboxes.of_worker(&map.requests, id);
    let fabric = ground.mail(&memory, table, mailbox, id)?;
    let sessions = ground.sessions(control.surroundings(), station.table);
    let mut server = Worker::open(fabric, &map.requests, node, map.shape(node), logging, sessions)?;
    let recovered = server.recovered();
    tracing::info!(table = station.name, ?recovered, "the table is open");
    control.opened();
    let mut orders: Vec<Order> = Vec::new();
    loop {
        ground.tend_mail(server.fabric());
        let was_busy = server.turn()?;
        // What is prepared and not committed is neither there nor not there.
        if !was_busy && !orders.is_empty() {
            let told = inspect(&server)?;
            orders.drain(..).for_each(|order| order.tell(told.clone()));
        }
        match control.after(was_busy) {
            Next::Turn => (),
            Next::Attach(anew) => ground.attach(server.fabric(), &anew)?,
            Next::Tell(order) => orders.push(order),
            Next::Stop => break,
        }
    }
    Ok(server.close()?)
}

fn inspect<F: Fabric + Messages>(
    server: &Worker<F, FileStorage>,
) -> Result<Inspected, WorkerError> {
    let report = server.store().check(server.fabric())?;
    let slots = server.store().slots();
    let index_bytes = slots * loch_engines::pilaf::layout::LINE_BYTES;
    Ok(Inspected {
        slots,
        index_bytes,
        data_bytes: server.store().shape().arena_bytes.saturating_sub(index_bytes),
        entries: report.keys,
        entry_bytes: report.block_bytes,
        broken: report.broken,
    })
}

/// The node's log of the table, if it has one, and what keeps other processes away from it.
fn open_log(station: &Station) -> Result<Option<(File, Logging<FileStorage>)>, WorkerError> {
    let Some(LogConfig { folder, sync }) = &station.log else { return Ok(None) };
    let path = folder.join(format!("node-{}", station.home));
    let failed = |cause: String| WorkerError::Log { path: path.clone(), cause };
    // Nobody else may read the values, nor hold the lock; and before it is checked nothing is
    // opened by a name that somebody else may have made.
    private::make_folders(folder).map_err(|e| failed(e.to_string()))?;
    private::make_folder(&path, "log").map_err(|e| failed(e.to_string()))?;
    let storage = FileStorage::open(&path).map_err(|e| failed(e.to_string()))?;
    let lock = private::open_lock(&path.join("lock"), "log").map_err(|e| failed(e.to_string()))?;
    if !lock_within(&lock, REGION_LOCK_TIMEOUT).map_err(|e| failed(e.to_string()))? {
        return Err(failed("another process has it".into()));
    }
    let logging = Logging {
        storage,
        // What another table or node has left in the folder is an error.
        table: checksum(format!("{} {}", station.home, station.name).as_bytes()),
        policy: Policy { sync: *sync, ..Policy::default() },
        compact_bytes: PILAF_COMPACT_BYTES,
    };
    Ok(Some((lock, logging)))
}
