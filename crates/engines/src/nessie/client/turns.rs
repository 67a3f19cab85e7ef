//! The lanes of a client that look for memory when there is little.
//!
//! A lane can fail to find memory because another lane holds the only free entry, or because
//! another lane frees an entry in a place where the first has looked already. A client therefore
//! refuses memory to a lane only if no other lane was at work while it looked. Otherwise the lane
//! looks again. The lanes that look again take turns, because two of them would always find each
//! other at work.

use std::cell::Cell;

use loch_fabric::Fabric;

/// The lanes of a client that look for memory.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Turns {
    /// The number of lanes that look. Lanes that wait for their turns are not counted.
    at_work: Cell<u32>,
    /// Whether a lane has the turn.
    is_taken: Cell<bool>,
}

/// A lane that looks for memory, until it is dropped.
pub(in crate::nessie) struct Lane<'a> {
    turns: &'a Turns,
    has_turn: bool,
    is_at_work: bool,
}

impl<'a> Lane<'a> {
    pub fn of(turns: &'a Turns) -> Self {
        let mut lane = Self { turns, has_turn: false, is_at_work: false };
        lane.set_at_work(true);
        lane
    }

    /// Whether no other lane looks for memory.
    pub fn is_alone(&self) -> bool {
        self.turns.at_work.get() == u32::from(self.is_at_work)
    }

    /// Waits for this lane's turn, which the lane keeps until it is dropped. A lane that has the
    /// turn lets the others go on for a moment.
    pub async fn wait_for_turn<F: Fabric>(&mut self, fabric: &F, poll_us: u64) {
        if self.has_turn {
            return fabric.pause(poll_us).await;
        }
        self.set_at_work(false);
        while self.turns.is_taken.replace(true) {
            fabric.pause(poll_us).await;
        }
        self.has_turn = true;
        self.set_at_work(true);
    }

    fn set_at_work(&mut self, is_at_work: bool) {
        let others = self.turns.at_work.get() - u32::from(self.is_at_work);
        self.is_at_work = is_at_work;
        self.turns.at_work.set(others + u32::from(is_at_work));
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.set_at_work(false);
        if self.has_turn {
            self.turns.is_taken.set(false);
        }
    }
}
