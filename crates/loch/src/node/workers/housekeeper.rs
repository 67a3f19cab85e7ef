//! The host's part in a kv-direct table: a thread of the node that splits and merges the free slabs
//! of the table's workers (kv-direct §3.3.2).
//!
//! # Invariants
//! 1. It sleeps while there is nothing to do, and costs nothing then. A worker wakes it that has
//!    been at work: only operations change what is free.
//! 2. A worker that looks at its own slabs holds off the housekeeper's hand meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};

use loch_engines::kv_direct::slab::{Daemon, Pools};

use super::control::Failure;

/// The housekeeper of one table on one node.
pub(super) struct Housekeeper {
    /// By worker.
    pools: Vec<Arc<Pools>>,
    daemons: Vec<Mutex<Daemon>>,
    /// Whether it is to be woken when there may be something to do.
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Housekeeper {
    /// That of workers with these free slabs.
    pub fn new(pools: Vec<Arc<Pools>>) -> Self {
        let daemons = pools.iter().cloned().map(Daemon::new).map(Mutex::new).collect();
        Self { pools, daemons, is_asleep: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// The free slabs of a worker.
    pub fn pools(&self, worker: u16) -> &Arc<Pools> {
        &self.pools[usize::from(worker)]
    }

    /// Works until the workers are told to end. Whoever tells them unparks its thread.
    pub fn run(&self, failure: &Failure) {
        self.thread.set(thread::current()).expect("a table has one housekeeper on a node");
        while !failure.is_stopping() {
            if self.turn() {
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // What was done before somebody could see that it sleeps is found now.
            if !self.turn() {
                thread::park();
            }
            self.is_asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Has it look whether there is something to do. Costs next to nothing if it does so already.
    #[inline]
    pub fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst)
            && self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Holds it off a worker's slabs for as long as the result lives.
    pub fn hold_off(&self, worker: u16) -> MutexGuard<'_, Daemon> {
        self.daemons[usize::from(worker)].lock().expect("nothing panics while it is held")
    }

    fn turn(&self) -> bool {
        let mut was_busy = false;
        for daemon in &self.daemons {
            was_busy |= daemon.lock().expect("nothing panics while it is held").turn();
        }
        was_busy
    }
}
