//! Lists the keys of a table, slot after slot.
//!
//! A key may be moved from a slot before the scan to one behind it, so each step first looks at the
//! slots to which keys were moved since the step before. Nothing changes during a step. A step that
//! no longer knows all those slots begins the scan again, and so does one that finds a larger index
//! than the step before.

use loch_fabric::{Fabric, Messages};

use super::store::Store;
use super::worker::Worker;
use crate::error::EngineError;
use crate::log::{Change, Storage};
use crate::scan::{Cursor, Listed, Listing, Page, Step};

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// The keys of a step of a scan.
    ///
    /// # Errors
    /// The fabric's.
    pub fn scan(&mut self, step: &Step) -> Result<Page, EngineError> {
        self.store.scan(self.requests.fabric(), step)
    }
}

impl Store {
    /// As [`Worker::scan`].
    ///
    /// # Errors
    /// The fabric's.
    pub fn scan<F: Fabric>(&mut self, fabric: &F, step: &Step) -> Result<Page, EngineError> {
        let (generation, moves) = (self.index.generation, self.index.moves());
        let known = match step.from.noted[..] {
            [of, seen] if of == generation && seen <= moves => Some((step.from.place, seen)),
            _ => None,
        };
        let knows_all = |seen| seen == moves || self.index.moved_to(seen).is_some();
        let known = known.filter(|(_, seen)| knows_all(*seen));
        let (mut place, mut seen) = known.unwrap_or((0, moves));
        let mut listing = step.listing(fabric.wall_ms());
        while seen < moves && listing.looks_on() {
            let slot = self.index.moved_to(seen).expect("later moves are known too");
            self.list(fabric, slot, &mut listing)?;
            seen += 1;
        }
        while place < self.index.slots && listing.looks_on() {
            self.list(fabric, place, &mut listing)?;
            place += 1;
        }
        let goes_on = place < self.index.slots || seen < moves;
        let next = Cursor { place, noted: vec![generation, seen], waited: 0 };
        Ok(listing.page(goes_on.then_some(next)))
    }

    fn list<F: Fabric>(
        &mut self,
        fabric: &F,
        slot: u64,
        listing: &mut Listing<'_>,
    ) -> Result<(), EngineError> {
        if let Some((key, Change::Put { value, version, expires_at_ms })) =
            self.state_of(fabric, slot)?
        {
            listing.add(Listed { key, value_bytes: value.len() as u64, version, expires_at_ms });
        }
        Ok(())
    }
}
