//! A larger index when the old one has no room (pilaf §3.3, §3.4), and why nobody takes a stale
//! answer from the old one.
//!
//! The paper resets all connections, so that clients come back and ask for the new root. Here the
//! same fence is a word: the **state** at the start of the root, which is the generation of the
//! index. The server
//!
//! 1. builds the new index in a block of its own, while clients go on reading the old one. It
//!    serves nobody else meanwhile, so both hold the same keys;
//! 2. writes the root: first the state, closed, then the rest, then the state with the new
//!    generation;
//! 3. gives the old array back to the arena, and goes on serving.
//!
//! **A client that has not noticed cannot take a stale answer.** No answer is given before the
//! state was READ *after* all entries that the answer rests on, and found unchanged (`get.rs`).
//! Suppose it was, at moment *t*. The old index was replaced later than *t*; changes are made to
//! the new one only after that; so at *t*, and when the entries were READ before it, the old index
//! was the table. If the client finds another state it forgets everything, reads the root again,
//! and starts over: that is its reconnection.
//!
//! **Extents** need no such step. The paper's server registers more memory when extents are full; a
//! region of Loch is registered whole, with its table's declared size, and index and extents are
//! blocks of one arena. So extents grow into whatever the index has not taken, addresses that
//! clients know stay valid, and when no block is left a PUT is refused with
//! [`EngineError::OutOfMemory`].

use loch_fabric::Fabric;

use super::buddy::order_of;
use super::index::Index;
use super::store::Store;
use crate::error::EngineError;

impl Store {
    /// Replaces the index by one of twice as many slots. Whether there was memory for it.
    ///
    /// # Errors
    /// The fabric's.
    ///
    /// # Panics
    /// Nothing may be prepared: a staged change knows its slot.
    pub(super) fn grow<F: Fabric>(&mut self, fabric: &F) -> Result<bool, EngineError> {
        let slots = self.index.slots * 2;
        let order = order_of(Index::bytes(slots));
        let Some(grain) = self.buddy.allocate(order) else {
            return Ok(false);
        };
        let mut larger = Index::new(self.index.root, grain, slots, self.index.generation + 1);
        if !self.fill(fabric, &mut larger)? {
            self.buddy.free(grain, order);
            return Ok(false);
        }
        let old = std::mem::replace(&mut self.index, larger);
        self.publish(fabric)?;
        self.buddy.free(old.grain(), order_of(Index::bytes(old.slots)));
        self.counts.resizes += 1;
        Ok(true)
    }

    /// Puts every key into another index. Whether there was room for all: half of its slots stay
    /// free, so only for keys of one hash there is not.
    fn fill<F: Fabric>(&mut self, fabric: &F, larger: &mut Index) -> Result<bool, EngineError> {
        larger.clear(fabric)?;
        for slot in 0..self.index.slots {
            let entry = self.index.entry(fabric, slot)?;
            if entry.is_empty() {
                continue;
            }
            let Some((room, moves)) = larger.make_room(fabric, entry.hash, |_| false)? else {
                return Ok(false);
            };
            self.counts.moves += moves;
            larger.write(fabric, room, entry)?;
        }
        Ok(true)
    }
}
