//! How a client of a table that evicts marks what it uses, and tells time by what was evicted.
//!
//! The clock of the marks is a count of bytes in the first node's ledger, or, for a worker that
//! reaches no other node's memory, in its own node's. A client looks at it only now and then: to
//! tell a use from an earlier one, a coarse time is enough.

use std::cell::Cell;

use loch_fabric::{Fabric, RemoteAddr};

use super::Client;
use crate::error::EngineError;
use crate::nessie::layout::hash::TableMap;
use crate::nessie::layout::ledger::{Forgotten, epoch_bytes, epoch_of};
use crate::nessie::layout::marks::{Mark, Marks};
use crate::nessie::layout::slab::Class;

/// The marks' clock, as a client knows it.
#[derive(Debug)]
pub(in crate::nessie) struct Clock {
    /// Where the clock is.
    at: RemoteAddr,
    /// Bytes of the data tables whose values it tells the ages of.
    bytes: u64,
    epoch: Cell<u8>,
    /// The count that the clock showed.
    turned_over: Cell<u64>,
    /// Uses between the last look at the clock and the next.
    uses: Cell<u32>,
    /// Uses until the client looks at the clock again.
    uses_left: Cell<u32>,
    /// Bytes that the client has turned over and not yet told the clock.
    untold: Cell<u64>,
}

/// Uses between two looks at the clock, where the clock's memory is mapped and where it is not.
const NEAR_USES: u32 = 64;
const FAR_USES: u32 = 1024;
/// The client tells the clock when it has turned over this part of an epoch.
const TOLD_PARTS: u64 = 64;

impl Clock {
    /// The clock of a client at the node with data table `home`: the one in the first node's
    /// ledger. A worker that reaches its own node's memory only has a clock of its own there: the
    /// marks of a coupled table's shard are those of its node's keys, which nobody else uses.
    pub fn of<F: Fabric>(map: &TableMap, home: u8, fabric: &F) -> Self {
        let mut all = (0..map.data_tables()).map(|dti| map.region_of(dti as u8));
        let is_apart = map.shape.coupled && !all.all(|region| fabric.is_mapped(region));
        let (dti, tables) = if is_apart { (home, 1) } else { (0, map.data_tables() as u64) };
        Self {
            at: map.ledger(dti).turned_over(),
            bytes: map.data_bytes() * tables,
            epoch: Cell::default(),
            turned_over: Cell::default(),
            uses: Cell::default(),
            uses_left: Cell::default(),
            untold: Cell::default(),
        }
    }
}

impl<F: Fabric> Client<F> {
    /// The epoch of the marks.
    #[inline(always)]
    pub(in crate::nessie) fn mark_epoch(&self) -> u8 {
        self.clock.epoch.get()
    }

    /// The part of the epoch that was over at the last look at the clock.
    pub(in crate::nessie) fn part_of_epoch(&self) -> f32 {
        let epoch_bytes = self.epoch_bytes();
        (self.clock.turned_over.get() % epoch_bytes) as f32 / epoch_bytes as f32
    }

    /// Whether the table evicts.
    #[inline(always)]
    pub(in crate::nessie) fn evicts(&self) -> bool {
        self.map.shape.options.evicts
    }

    /// Takes note that a value was used, whose slot had this mark when it was read.
    #[inline(always)]
    pub(in crate::nessie) fn used(&self, slot: RemoteAddr, mark: Mark) -> Result<(), EngineError> {
        match self.evicts() {
            true => self.mark_used(slot, mark),
            false => Ok(()),
        }
    }

    #[inline(always)]
    fn mark_used(&self, slot: RemoteAddr, mark: Mark) -> Result<(), EngineError> {
        self.clock.uses_left.set(self.clock.uses_left.get().saturating_sub(1));
        if self.clock.uses_left.get() == 0 {
            self.look_at_near_clock()?;
        }
        match mark.used(self.mark_epoch()) {
            Some(used) if !self.session.is_observer() => self.write_use(slot, mark, used),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn write_use(&self, slot: RemoteAddr, mark: Mark, used: Mark) -> Result<(), EngineError> {
        self.worth.was_used(mark, self.mark_epoch());
        self.write_mark(slot, used)
    }

    /// Takes note of a GET that found no value.
    #[inline]
    pub(in crate::nessie) fn missed(&self) {
        if self.evicts() {
            self.worth.looked(1);
        }
    }

    /// Marks a slot. A mark that gets lost is no harm.
    pub(in crate::nessie) fn write_mark(
        &self,
        slot: RemoteAddr,
        mark: Mark,
    ) -> Result<(), EngineError> {
        self.hint(self.map.mark_addr(slot), &[mark.0])
    }

    /// A mark that fades before it looks young. If it does now, it is written into its slot.
    pub(in crate::nessie) fn faded(
        &self,
        slot: RemoteAddr,
        mark: Mark,
    ) -> Result<Mark, EngineError> {
        let Some(faded) = mark.kept_old(self.mark_epoch()) else { return Ok(mark) };
        self.write_mark(slot, faded)?;
        Ok(faded)
    }

    /// Keeps the mark of a value of another size or client from looking young one day.
    pub(in crate::nessie) fn age_on(
        &self,
        slot: RemoteAddr,
        mark: Mark,
    ) -> Result<(), EngineError> {
        match mark.still_old(self.mark_epoch()) {
            Some(mark) => self.write_mark(slot, mark),
            None => Ok(()),
        }
    }

    /// Gives a slot the mark of the one from which its value was moved.
    pub(in crate::nessie) async fn move_mark(
        &self,
        from: RemoteAddr,
        to: RemoteAddr,
    ) -> Result<(), EngineError> {
        if !self.evicts() {
            return Ok(());
        }
        let (bucket, position) = self.map.bucket_of(from);
        let marks = Marks(self.read_word(self.map.marks_addr(bucket)).await?);
        self.write_mark(to, marks.of(position))
    }

    /// WRITEs bytes of marks, which nothing depends on.
    pub(in crate::nessie) fn hint(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), EngineError> {
        debug_assert!(self.session.is_working(), "what a session posts, its operations announce");
        self.session.posts();
        match self.fabric.write_unsignaled(at, bytes) {
            Err(error) if error.out_of_reach().is_some() => Ok(()),
            written => Ok(written?),
        }
    }

    #[cold]
    fn look_at_near_clock(&self) -> Result<(), EngineError> {
        let at = self.clock.at;
        if self.fabric.is_mapped(at.region()) {
            self.set_clock(self.fabric.load(at)?, NEAR_USES);
        }
        Ok(())
    }

    /// Looks at the clock, if the client never has, or if it is time and its memory is far.
    #[inline(always)]
    pub(in crate::nessie) async fn look_at_clock(&self) -> Result<(), EngineError> {
        if self.evicts() && self.clock.uses_left.get() == 0 {
            let at = self.clock.at;
            let uses = if self.is_near { NEAR_USES } else { FAR_USES };
            self.set_clock(Box::pin(self.read_word(at)).await?, uses);
        }
        Ok(())
    }

    fn set_clock(&self, turned_over: u64, uses: u32) {
        let epoch = epoch_of(turned_over, self.clock.bytes);
        self.clock.epoch.set(epoch);
        self.clock.turned_over.set(turned_over);
        self.worth.looked(self.clock.uses.get() - self.clock.uses_left.get());
        self.worth.tick(epoch);
        self.clock.uses.set(uses);
        self.clock.uses_left.set(uses);
    }

    /// Bytes that are turned over in an epoch.
    pub(in crate::nessie) fn epoch_bytes(&self) -> u64 {
        epoch_bytes(self.clock.bytes)
    }

    /// Counts bytes that have made room for others, or that new values fill.
    pub(in crate::nessie) async fn turn_over(&self, bytes: u64) -> Result<(), EngineError> {
        let untold = self.clock.untold.get() + bytes;
        self.clock.untold.set(untold);
        if untold * TOLD_PARTS >= self.epoch_bytes() {
            self.tell_clock().await?;
        }
        Ok(())
    }

    /// Tells the clock what it was not told yet.
    pub(in crate::nessie) async fn tell_clock(&self) -> Result<(), EngineError> {
        let untold = self.clock.untold.take();
        if untold > 0 {
            let at = self.clock.at;
            let before = self.fabric.fetch_add(at, untold).await?;
            // The word is in shared memory, where there may be anything.
            self.set_clock(before.wrapping_add(untold), NEAR_USES);
        }
        Ok(())
    }

    /// Counts values of a class that were evicted or have expired.
    pub(in crate::nessie) async fn count_forgotten(
        &self,
        class: &Class,
        forgotten: Forgotten,
    ) -> Result<(), EngineError> {
        self.counts.expired.set(self.counts.expired.get() + forgotten.expired);
        let Some(home) = self.tables.first() else { return Ok(()) };
        let counts = self.map.ledger(*home).counts(class);
        for (at, count) in counts.into_iter().zip([forgotten.evicted, forgotten.expired]) {
            if count > 0 {
                self.fabric.fetch_add(at, count).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::Buf;
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::clients_with;
    use crate::nessie::layout::geometry::Options;
    use crate::operation::PutOptions;

    /// Otherwise what it uses would look old to those who evict.
    #[test]
    fn a_client_that_only_reads_learns_the_time() {
        let options = Options { evicts: true, ..Options::default() };
        let [others, client] = clients_with(3 << 20, options);
        block_on(others.put(b"k", b"v", PutOptions::default())).unwrap();
        for _ in 0..2 {
            block_on(others.turn_over(3 * others.epoch_bytes())).unwrap();
            for _ in 0..NEAR_USES {
                assert!(block_on(client.get(b"k", Buf::new())).unwrap().is_some());
            }
            assert_eq!(client.mark_epoch(), others.mark_epoch());
        }
        assert!(client.mark_epoch() >= 6);
    }
}
