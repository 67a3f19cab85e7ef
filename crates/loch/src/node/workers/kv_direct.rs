//! A worker of kv-direct: a processor with a partition of its own, in the memory of the node's
//! process.
//!
//! It WRITEs its replies, so where nodes have come back with other memory it begins anew over other
//! connections, with the entries it had. In between it finishes what it has begun: entries outlive
//! their worker only while no operation is under way.

use std::sync::Arc;
use std::time::Instant;

use loch_engines::kv_direct::bucket::SLOTS;
use loch_engines::kv_direct::memory::{LINE_BYTES, Line, Near};
use loch_engines::kv_direct::storage::Storage;
use loch_engines::kv_direct::{Map, Settings, Worker};
use loch_engines::registry;
use loch_engines::requests::Turns;
use loch_fabric::{FabricError, Zeroed};

use super::control::{Control, Next, Order};
use super::ground::Ground;
use super::housekeeper::Housekeeper;
use super::{Station, WorkerError, zeroed};
use crate::limits::{PROCESSOR_IN_FLIGHT, WORKER_DRAIN, WORKER_TURNS};
use crate::memory::Memory;
use crate::node::sessions::{End, Opened};
use crate::plan::WorkerPlan;
use crate::registered::{Callable, Registered};
use crate::wire::Inspected;

/// The entries of a worker.
type Entries = Storage<Near<Zeroed<Line>>>;

/// What goes from one worker to the next, which has other connections.
type Kept = (Entries, Callable);

/// What of the table a worker of kv-direct shares with others on its node.
#[derive(Clone)]
pub(super) struct Shared {
    pub housekeeper: Arc<Housekeeper>,
    functions: Registered,
}

impl Shared {
    /// Of a table of a node.
    pub fn new(name: &str, map: &Map, plan: &WorkerPlan) -> Self {
        let workers = map.requests.area().service().workers;
        let pools = (0..workers).map(|_| map.plan.pools()).collect();
        let functions = plan.functions.iter().find(|(of, _)| of == name);
        let functions = functions.map(|(_, functions)| functions.clone()).unwrap_or_default();
        Self { housekeeper: Arc::new(Housekeeper::new(pools)), functions }
    }
}

/// Serves until it is told to end.
pub(super) fn serve(
    station: &Station,
    ground: &impl Ground,
    control: &mut Control,
) -> Result<(), WorkerError> {
    let slot = station.slot.expect("such a worker has a session slot");
    let shared = station.direct.as_ref().expect("a table of kv-direct has a housekeeper");
    let Some(mut memory) = control.memory() else { return Ok(()) };
    let mut kept = (no_entries(&memory, station, shared)?, shared.functions.callable());
    let mut first = true;
    loop {
        // Over a network that of the worker before is fenced first.
        let Some(session) = control.wait_for(|| station.sessions.open_worker(slot)) else {
            return Ok(());
        };
        let on = On { memory: &memory, station, shared, ground };
        let served = on.serve(control, session, kept, &mut first);
        // It has nothing in memory that anybody would have to clear up.
        station.sessions.close_worker(session, End::Left);
        ground.session_ended();
        let next;
        (next, kept) = served?;
        match next {
            Next::Attach(anew) => memory = anew,
            _ => return Ok(()),
        }
    }
}

/// As [`Turns::turn`].
fn turn(turns: &mut impl Turns) -> Result<bool, FabricError> {
    match turns.turn() {
        // It could not lease versions, and has begun nothing.
        Err(
            FabricError::Unreachable { .. }
            | FabricError::Unattached { .. }
            | FabricError::OutcomeUnknown { .. },
        ) => Ok(false),
        turned => turned,
    }
}

fn no_entries(memory: &Memory, station: &Station, shared: &Shared) -> Result<Entries, WorkerError> {
    let plan = &map(memory, station).plan;
    let lines = zeroed(plan.lines() as usize)?;
    let pools = shared.housekeeper.pools(station.worker).clone();
    Ok(Storage::new(Near::new(lines), plan, pools))
}

/// The table of a worker.
fn map<'a>(memory: &'a Memory, station: &Station) -> &'a Map {
    match &memory.tables[station.table].parts {
        registry::Map::KvDirect(map) => map,
        _ => unreachable!("it is a worker of kv-direct"),
    }
}

/// What a worker works on, until its nodes have other memory.
struct On<'a, G> {
    memory: &'a Arc<Memory>,
    station: &'a Station,
    shared: &'a Shared,
    ground: &'a G,
}

impl<G: Ground> On<'_, G> {
    /// Serves; what is next, and the partition.
    fn serve(
        &self,
        control: &mut Control,
        opened: Opened,
        (entries, functions): Kept,
        first: &mut bool,
    ) -> Result<(Next, Kept), WorkerError> {
        let &Map { partition: options, ref requests, seed, .. } = map(self.memory, self.station);
        let settings = Settings {
            in_flight: PROCESSOR_IN_FLIGHT,
            out_of_order: options.out_of_order,
            versions: options.versions,
            ..Settings::default()
        };
        let (endpoint, mut ties) = self.ground.endpoint(self.memory, self.station.table, opened)?;
        let id = self.station.id();
        let sessions = self.ground.sessions(control.surroundings(), self.station.table);
        let worker =
            Worker::open(endpoint, requests, id, entries, functions, seed, settings, sessions)?;
        if std::mem::take(first) {
            control.opened();
        }
        let next = {
            let mut turns = worker.serve();
            let (mut orders, mut busy_turns) = (Vec::new(), 0);
            let next = loop {
                let was_busy = turn(&mut turns)?;
                self.ground.tend(&mut ties, worker.fabric());
                self.tell_housekeeper(was_busy, &mut busy_turns);
                if !was_busy && !orders.is_empty() {
                    self.tell(worker.storage(), seed, &mut orders);
                    worker.pause(false);
                }
                match control.after(was_busy) {
                    Next::Turn => (),
                    Next::Tell(order) => {
                        orders.push(order);
                        worker.pause(true);
                    }
                    next => break next,
                }
            };
            worker.pause(true);
            // Nothing new is begun, so that it comes to an end. Who is to stop waits no longer.
            let begun = Instant::now();
            let goes_on = || !control.failure().is_stopping() || begun.elapsed() < WORKER_DRAIN;
            while turn(&mut turns)? && goes_on() {
                self.ground.tend(&mut ties, worker.fabric());
                self.shared.housekeeper.wake();
            }
            next
        };
        Ok((next, worker.into_parts()))
    }

    /// Wakes the housekeeper after work, but not after each turn.
    #[inline]
    fn tell_housekeeper(&self, was_busy: bool, busy_turns: &mut u32) {
        if was_busy {
            *busy_turns += 1;
        }
        if *busy_turns >= WORKER_TURNS || (!was_busy && *busy_turns > 0) {
            *busy_turns = 0;
            self.shared.housekeeper.wake();
        }
    }

    /// Tells what the partition has, while no operation is under way.
    fn tell(&self, entries: &Entries, seed: u64, orders: &mut Vec<Order>) {
        let report = {
            let _held = self.shared.housekeeper.hold_off(self.station.worker);
            entries.check(seed)
        };
        let plan = &map(self.memory, self.station).plan;
        let index_bytes = u64::from(plan.buckets()) * LINE_BYTES as u64;
        let told = Inspected {
            slots: u64::from(plan.buckets()) * SLOTS as u64,
            index_bytes,
            data_bytes: report.bytes.saturating_sub(index_bytes),
            entries: report.entries,
            entry_bytes: report.item_bytes,
            broken: report.broken,
        };
        orders.drain(..).for_each(|order| order.tell(told.clone()));
    }
}
