//! Lanes of a client that look for memory where there is little.
//!
//! A lane that found none may have looked while another lane held the only free entry, or may have
//! passed a place before another lane freed an entry there. So it is refused only if no other lane
//! was at work while it looked, and looks again otherwise. Lanes that look again do so by turns:
//! two of them would always find each other at work.

use std::cell::Cell;

use loch_fabric::Fabric;

/// The lanes of a client that look for room.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Turns {
    lanes: Cell<u32>,
    /// Those that wait for their turn.
    waiting: Cell<u32>,
    is_taken: Cell<bool>,
}

/// One of them.
pub(in crate::nessie) struct Lane<'a> {
    turns: &'a Turns,
    has_turn: Cell<bool>,
}

impl<'a> Lane<'a> {
    pub fn of(turns: &'a Turns) -> Self {
        turns.lanes.set(turns.lanes.get() + 1);
        Self { turns, has_turn: Cell::new(false) }
    }

    /// Whether all other lanes wait for their turns.
    pub fn is_alone(&self) -> bool {
        self.turns.lanes.get() - self.turns.waiting.get() == 1
    }

    /// Waits for this lane's turn, which lasts until the lane ends. If it has come before, the lane
    /// only lets others go on for a moment.
    pub async fn wait_for_turn<F: Fabric>(&self, fabric: &F, poll_us: u64) {
        if self.has_turn.get() {
            return fabric.pause(poll_us).await;
        }
        let _waiting = Waiting::of(self.turns);
        while self.turns.is_taken.replace(true) {
            fabric.pause(poll_us).await;
        }
        self.has_turn.set(true);
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.turns.lanes.set(self.turns.lanes.get() - 1);
        if self.has_turn.get() {
            self.turns.is_taken.set(false);
        }
    }
}

struct Waiting<'a>(&'a Turns);

impl<'a> Waiting<'a> {
    fn of(turns: &'a Turns) -> Self {
        turns.waiting.set(turns.waiting.get() + 1);
        Self(turns)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}
