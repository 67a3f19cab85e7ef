//! Compaction of a server's log: a snapshot of the table, written a few slots a turn.
//!
//! The server goes on meanwhile. The log has every change that the server makes after the beginning
//! of the snapshot, so it does not matter whether the snapshot has it too (`log/snapshot.rs`). But
//! the snapshot must have every key that is *not* changed: the scan goes through the slots in
//! order, and a move may carry a key from a slot after the cursor to one before it. Such a key is
//! added at once ([`Server::note_moves`]). A larger index has other slots: the scan then starts
//! anew.

use loch_fabric::{Fabric, Messages};

use super::worker::{Compaction, Worker};
use crate::log::{Op, Storage};
use crate::serve::WorkerError;

/// Slots looked at in one turn.
const TURN_SLOTS: u64 = 64;

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// Does a turn's part of a compaction, if one is under way or due. Returns whether one is under
    /// way.
    pub(super) fn compact(&mut self) -> Result<bool, WorkerError> {
        if self.compaction.is_none() && !self.begin_if_due()? {
            return Ok(false);
        }
        let compaction = self.compaction.as_ref().expect("it is under way");
        if compaction.generation != self.store.generation() {
            self.abandon()?;
            return Ok(true);
        }
        let from = compaction.cursor;
        let to = (from + TURN_SLOTS).min(self.store.slots());
        for slot in from..to {
            self.add(slot)?;
        }
        let compaction = self.compaction.as_mut().expect("it is under way");
        compaction.cursor = to;
        self.store.watch_moves(Some(to));
        if to == self.store.slots() {
            self.finish()?;
        }
        Ok(true)
    }

    /// Adds the keys that were just moved from a slot after the cursor to one before it.
    pub(super) fn note_moves(&mut self) -> Result<(), WorkerError> {
        while let Some(slot) = self.store.take_moved() {
            self.add(slot)?;
        }
        Ok(())
    }

    /// Whether a compaction has to begin: then the server takes no request until all logged changes
    /// are made.
    pub(super) fn compaction_is_due(&self) -> bool {
        let Some(log) = &self.log else { return false };
        self.compaction.is_none()
            && log.grown_bytes() >= self.compact_bytes.max(log.snapshot_bytes())
    }

    fn begin_if_due(&mut self) -> Result<bool, WorkerError> {
        if !self.compaction_is_due() || !self.is_idle() {
            return Ok(false);
        }
        let log = self.log.as_mut().expect("it is due");
        let mut snapshot = log.begin_snapshot(self.requests.fabric().now_us())?;
        log.add(&mut snapshot, Op::Lease { end: self.leased })?;
        let generation = self.store.generation();
        self.compaction = Some(Compaction { snapshot, cursor: 0, generation });
        self.store.watch_moves(Some(0));
        Ok(true)
    }

    fn add(&mut self, slot: u64) -> Result<(), WorkerError> {
        let (Some(log), Some(compaction)) = (&mut self.log, &mut self.compaction) else {
            return Ok(());
        };
        if let Some((key, change)) = self.store.state_of(self.requests.fabric(), slot)? {
            log.add(&mut compaction.snapshot, Op::Change { key, change })?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), WorkerError> {
        let (Some(log), Some(done)) = (&mut self.log, self.compaction.take()) else {
            return Ok(());
        };
        self.store.watch_moves(None);
        log.finish_snapshot(done.snapshot, self.requests.fabric().now_us())?;
        self.counts.snapshots += 1;
        Ok(())
    }

    fn abandon(&mut self) -> Result<(), WorkerError> {
        let (Some(log), Some(given_up)) = (&mut self.log, self.compaction.take()) else {
            return Ok(());
        };
        self.store.watch_moves(None);
        Ok(log.abandon_snapshot(given_up.snapshot)?)
    }
}
