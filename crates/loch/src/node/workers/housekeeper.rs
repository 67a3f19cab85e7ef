//! The housekeeper's thread: it does for a table on this node what its engine needs done besides
//! requests.
//!
//! # Invariants
//! 1. The thread sleeps while there is nothing to do, and costs nothing then. Only operations make
//!    work for it: a worker that was busy wakes it if there may be some.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use loch_engines::serve::Housekeeper;

use super::WorkersStatus;

/// The thread's state, by which it sleeps and is woken.
#[derive(Default)]
pub(super) struct HousekeeperThread {
    /// Whether the thread has to be woken when there may be work.
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl HousekeeperThread {
    /// Works until the workers are told to end. Their end unparks the thread.
    pub fn run(&self, housekeeper: &dyn Housekeeper, status: &WorkersStatus) {
        self.thread.set(thread::current()).expect("a table has one housekeeper on a node");
        while !status.is_stopping() {
            if housekeeper.turn() {
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // Work that came before `is_asleep` could be seen is found now.
            if !housekeeper.turn() {
                thread::park();
            }
            self.is_asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Wakes the thread if it sleeps and there may be work. The call costs next to nothing
    /// otherwise.
    #[inline]
    pub fn wake(&self, housekeeper: &dyn Housekeeper) {
        if self.is_asleep.load(Ordering::SeqCst)
            && housekeeper.has_work()
            && self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}
