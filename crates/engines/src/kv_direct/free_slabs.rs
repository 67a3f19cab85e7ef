//! The free slabs of the workers of a kv-direct table on one node, and the daemons on the host that
//! split and merge them (kv-direct §3.3.2).
//!
//! # Invariants
//! 1. While a worker looks at its own slabs it holds off their daemon, which then holds none of
//!    them.

use std::sync::{Arc, Mutex, MutexGuard};

use super::slab::{Pools, SlabDaemon};
use super::storage::Plan;
use crate::serve::Housekeeper;

/// The free slabs of the workers of a table on one node.
#[derive(Debug)]
pub struct FreeSlabs {
    /// The pools, by worker.
    pools: Vec<Arc<Pools>>,
    daemons: Vec<Mutex<SlabDaemon>>,
}

impl FreeSlabs {
    /// The free slabs of `workers` workers, each with memory of this kind.
    pub(super) fn new(plan: &Plan, workers: u16) -> Self {
        let pools: Vec<_> = (0..workers).map(|_| plan.pools()).collect();
        let daemons = pools.iter().cloned().map(SlabDaemon::new).map(Mutex::new).collect();
        Self { pools, daemons }
    }

    /// The free slabs of a worker.
    pub(super) fn pools(&self, worker: u16) -> &Arc<Pools> {
        &self.pools[usize::from(worker)]
    }

    /// Holds the daemon off a worker's slabs for as long as the result lives. Before that, the
    /// daemon puts back what it holds. That is for the worker itself: it makes the daemon no work
    /// meanwhile.
    pub(super) fn hold_off(&self, worker: u16) -> MutexGuard<'_, SlabDaemon> {
        let daemon = self.daemons[usize::from(worker)].lock();
        let mut daemon = daemon.expect("nothing panics while it is held");
        daemon.rest();
        daemon
    }
}

impl Housekeeper for FreeSlabs {
    fn turn(&self) -> bool {
        let mut was_busy = false;
        for daemon in &self.daemons {
            was_busy |= daemon.lock().expect("nothing panics while it is held").turn();
        }
        was_busy
    }

    fn has_work(&self) -> bool {
        self.pools.iter().any(|pools| pools.are_unseen())
    }
}
