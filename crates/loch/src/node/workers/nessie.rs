//! A worker of nessie-server or nessie-hybrid: a client of its own node.

use std::sync::Arc;
use std::time::Instant;

use loch_engines::epoch::Session;
use loch_engines::nessie_server::Worker;
use loch_engines::registry::Map;
use loch_engines::requests::Turns;
use loch_engines::{EngineError, nessie};
use loch_fabric::RegionId;
use loch_fabric::lanes::block_on;

use super::control::{Control, Next};
use super::ground::Ground;
use super::{Station, WorkerError};
use crate::CacheLimits;
use crate::limits::{WORKER_DRAIN, WORKER_LANES, WORKER_OPERATION_US};
use crate::memory::Memory;
use crate::node::sessions::{End, Opened};

/// Serves until it is told to end.
pub(super) fn serve(
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
) -> Result<(), WorkerError> {
    let slot = station.slot.expect("such a worker has a session slot");
    let Some(mut memory) = control.memory() else { return Ok(()) };
    let mut first = true;
    loop {
        // Over a network that of the worker before is fenced first.
        let Some(session) = control.wait_for(|| station.sessions.open_worker(slot)) else {
            return Ok(());
        };
        let served = serve_in(&memory, station, ground, control, session, &mut first);
        let how =
            if served.as_ref().is_ok_and(|(_, drained)| *drained) { End::Left } else { End::Died };
        station.sessions.close_worker(session, how);
        ground.session_ended();
        match served?.0 {
            Next::Attach(anew) => memory = anew,
            _ => return Ok(()),
        }
    }
}

/// Serves in this memory; what is next, and whether nothing was left unfinished.
fn serve_in(
    memory: &Arc<Memory>,
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
    opened: Opened,
    first: &mut bool,
) -> Result<(Next, bool), WorkerError> {
    let (Map::NessieServer(map) | Map::NessieHybrid(map)) = &memory.tables[station.table].parts
    else {
        unreachable!("a table of nessie that workers serve");
    };
    let home = RegionId(station.home as u8);
    let session = Session::new(home, opened.slot, opened.incarnation);
    let cache = CacheLimits { lines: 1, entry_bytes_max: 0 };
    let (endpoint, mut ties) = ground.endpoint(memory, station.table, opened)?;
    let client =
        nessie::Client::new(endpoint, map.table.clone(), session, cache, WORKER_OPERATION_US);
    let sessions = ground.sessions(control.surroundings(), station.table);
    let worker = Worker::open(client, map.clone(), station.id(), sessions)?;
    if std::mem::take(first) {
        control.opened();
    }
    let (next, drained) = {
        let mut turns = worker.serve(WORKER_LANES);
        let next = loop {
            let was_busy = turns.turn()?;
            ground.tend(&mut ties, worker.client().fabric());
            match control.after(was_busy) {
                Next::Turn => (),
                // What it has is in memory for all to see.
                Next::Tell(order) => order.tell(Default::default()),
                next => break next,
            }
        };
        (next, drain(&mut turns)?)
    };
    let client = worker.into_client();
    let detached: Result<(), EngineError> = block_on(client.detach());
    Ok((next, drained && detached.is_ok()))
}

/// Goes on with what was begun, for a while; whether nothing is left.
fn drain(turns: &mut impl Turns) -> Result<bool, WorkerError> {
    let begun = Instant::now();
    while begun.elapsed() < WORKER_DRAIN {
        if !turns.turn()? {
            return Ok(true);
        }
    }
    Ok(false)
}
