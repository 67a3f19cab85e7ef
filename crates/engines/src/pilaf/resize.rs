//! A larger index when the old one has no room (pilaf §3.3, §3.4), and why no client takes a stale
//! answer from the old one.
//!
//! The paper resets all connections, so that clients come back and ask for the new root. Here a
//! word is the same fence: the **state** at the start of the root, which contains the generation of
//! the index. The server
//!
//! 1. builds the new index in a block of its own, while clients go on reading the old one. It
//!    serves no requests meanwhile, so both hold the same keys;
//! 2. writes the root: first the state, closed, then the rest, then the state with the new
//!    generation;
//! 3. gives the old array back to the arena, and goes on serving.
//!
//! **A client that has not noticed cannot take a stale answer.** A client gives an answer only
//! after it has READ the state *after* all entries on which the answer rests, and found it
//! unchanged (`get.rs`). Suppose it was unchanged at moment *t*. The old index was replaced later
//! than *t*, and changes are made to the new index only after that. So at *t*, and when the entries
//! were READ before it, the old index was the table. A client that finds another state forgets
//! everything, reads the root again, and starts over: that corresponds to the paper's reconnection.
//!
//! **Extents** need no such step. The paper's server registers more memory when extents are full. A
//! region of Loch is registered whole, with its table's declared size, and index and extents are
//! blocks of one arena. So extents grow into the memory that the index has not taken, addresses
//! that clients know stay valid, and when no block is left a PUT is refused with
//! [`EngineError::OutOfMemory`].

use loch_fabric::Fabric;

use super::buddy::order_of;
use super::index::Index;
use super::store::Store;
use crate::error::EngineError;

impl Store {
    /// Replaces the index by one with twice as many slots. Returns whether there was memory for it.
    ///
    /// # Errors
    /// The fabric's.
    ///
    /// # Panics
    /// If a change is prepared: a staged change refers to its slot.
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

    /// Puts every key into another index. Returns whether there was room for all: half of the slots
    /// stay free, so only keys with the same hash can lack room.
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
