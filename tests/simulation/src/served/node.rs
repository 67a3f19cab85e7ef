//! A simulated node, as its workers know it.
//!
//! The workers of a table on a node are threads of one process, and share the state that the
//! process made for the table. So they live and die together: a process that is killed takes all of
//! them along, and after a worker has failed the others end in order. When all have ended the node
//! starts anew, with a new [`Shared`].

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use loch_engines::registry::{Map, Shared};
use loch_engines::requests::WorkerId;
use loch_fabric::sim::ProcessId;

use super::sessions::SessionEnd;

/// A simulated worker, as the run steers it.
pub struct SimWorker {
    pub id: WorkerId,
    pub process: Cell<ProcessId>,
    /// Goes up when the program in the process has to be dropped.
    pub crashes: Cell<u32>,
    /// The worker's session, if it has one.
    pub slot: Cell<Option<u32>>,
    /// The session that the worker has ended and that is not fenced yet, and how it has ended.
    pub dying: Cell<Option<(u32, SessionEnd)>>,
    /// Whether the worker has to report.
    pub reports: Cell<bool>,
    /// Whether the worker has not ended since its node started.
    pub runs: Cell<bool>,
}

impl SimWorker {
    pub fn new(id: WorkerId, process: ProcessId) -> Self {
        Self {
            id,
            process: Cell::new(process),
            crashes: Cell::new(0),
            slot: Cell::new(None),
            dying: Cell::new(None),
            reports: Cell::new(false),
            runs: Cell::new(true),
        }
    }
}

/// A node with its workers.
pub struct SimNode {
    map: Map,
    shared: RefCell<Shared>,
    pub workers: Vec<Rc<SimWorker>>,
    /// The time until which no worker starts.
    pub down_until_ns: Cell<u64>,
    /// Whether the workers have to end in order.
    pub stops: Cell<bool>,
}

impl SimNode {
    pub fn new(map: &Map, workers: Vec<Rc<SimWorker>>) -> Self {
        Self {
            map: map.clone(),
            shared: RefCell::new(Shared::of(map)),
            workers,
            down_until_ns: Cell::new(0),
            stops: Cell::new(false),
        }
    }

    /// The state that the workers share until the node starts anew.
    pub fn shared(&self) -> Ref<'_, Shared> {
        self.shared.borrow()
    }

    /// The workers that have not ended since the node started.
    pub fn running(&self) -> Vec<Rc<SimWorker>> {
        self.workers.iter().filter(|worker| worker.runs.get()).cloned().collect()
    }

    /// Takes note that a worker has ended. After the last one the node starts anew.
    pub fn ended(&self, worker: &SimWorker) {
        worker.runs.set(false);
        if self.workers.iter().any(|worker| worker.runs.get()) {
            return;
        }
        self.stops.set(false);
        self.shared.replace(Shared::of(&self.map));
        self.workers.iter().for_each(|worker| worker.runs.set(true));
    }
}
