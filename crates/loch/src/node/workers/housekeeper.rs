//! The thread of a node that keeps house for a table: what its engine has to do there beside
//! requests.
//!
//! # Invariants
//! 1. It sleeps while there is nothing to do, and costs nothing then. A worker wakes it that has
//!    been at work: only operations make more to do.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use loch_engines::serve::Housekeeper;

use super::WorkersStatus;

/// What wakes the thread, and lets it sleep.
#[derive(Default)]
pub(super) struct HousekeeperThread {
    /// Whether it is to be woken when there may be something to do.
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl HousekeeperThread {
    /// Works until the workers are told to end. Whoever tells them unparks its thread.
    pub fn run(&self, housekeeper: &dyn Housekeeper, status: &WorkersStatus) {
        self.thread.set(thread::current()).expect("a table has one housekeeper on a node");
        while !status.is_stopping() {
            if housekeeper.turn() {
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // What was done before somebody could see that it sleeps is found now.
            if !housekeeper.turn() {
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
}
