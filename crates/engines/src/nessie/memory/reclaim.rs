//! Reclaiming: the last means of an allocation when memory is short, and the clean-up of a client
//! that ends.
//!
//! These things make room after grace periods. A slab that another client holds without using it is
//! **seized**. Entries whose short generation would start over have **rested**. Slabs without an
//! entry in use are **taken apart**, so that other classes can have their chunks. In a table that
//! evicts, slabs are first **emptied** (`empty.rs`).
//!
//! # Invariants
//! 1. A client that seizes a slab allocates from it only after a grace period: until then the last
//!    owner may be in the middle of taking an entry.
//! 2. A run changes its class only after two grace periods without an entry in use, so no reader
//!    takes its bytes for the old entries, neither from the index nor from a cache; and only if no
//!    entry of it is pinned.

use loch_fabric::Fabric;

use super::lease::{Kind, SEARCHES_OF_ALL};
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::claims::Claim;
use crate::nessie::client::waits::{InHand, Then, unless_out_of_reach};
use crate::nessie::layout::slab::{Chunk, Class, Slab};
use crate::planted::{self, Bug};

/// How long an allocation waits for grace periods when it has no other means left.
const GRACE_WAIT_US: u64 = 500_000;
/// How long a client of a table that evicts waits for grace periods when it ends.
const DETACH_WAIT_US: u64 = 5_000;
/// The pause between two looks at a grace period.
const GRACE_POLL_US: u64 = 50;
/// Slabs seized or taken apart at a time.
const SLABS_AT_A_TIME: usize = 16;

impl<F: Fabric> Client<F> {
    /// The last resort: the sources that need grace periods. `rooms` is the value of
    /// [`Client::rooms_of`] before the caller looked for room elsewhere.
    pub(super) async fn wait_for_room(
        &self,
        class: Class,
        rooms: (u64, u64),
    ) -> Result<(), EngineError> {
        if !self.is_waiting() {
            self.rest_parked(class, 1).await?;
            self.empty_slabs(class).await?;
            for dti in &self.tables {
                self.seize(*dti, class).await?;
                self.take_apart(*dti, class).await?;
            }
        }
        if self.wait_for_grace(self.fabric.now_us() + GRACE_WAIT_US).await? {
            return Ok(());
        }
        if self.rooms_of(class) != rooms {
            // Another lane has made room in a place where we had looked already.
            return Ok(());
        }
        Err(self.out_of_memory(class))
    }

    pub(super) fn out_of_memory(&self, class: Class) -> EngineError {
        let capacity = self.map.shape.geometry.data_bytes() * self.tables.len() as u64;
        EngineError::OutOfMemory { bytes: class.entry_bytes, capacity }
    }

    /// Starts the rest of parked entries, if there are at least `least` of them.
    pub(super) async fn rest_parked(&self, class: Class, least: usize) -> Result<(), EngineError> {
        let parked = {
            let mut alloc = self.alloc.borrow_mut();
            let list = alloc.list(class);
            if list.parked.len() < least { Vec::new() } else { std::mem::take(&mut list.parked) }
        };
        if !parked.is_empty() {
            self.gather(1, Then::Rested(class, parked)).begin().await?;
        }
        Ok(())
    }

    /// Whether a grace period is under way, including those that a lane is looking at.
    fn is_waiting(&self) -> bool {
        self.looking.get() > 0 || !self.waits.borrow().is_empty()
    }

    /// Waits until one of the grace periods that are under way has made room, or none is left; not
    /// if that takes until `until`, in microseconds. Returns whether it waited for that. Another
    /// lane may be the one that looks at them, and that makes the room.
    async fn wait_for_grace(&self, until: u64) -> Result<bool, EngineError> {
        while self.is_waiting() && self.fabric.now_us() < until {
            let (has_room, lost) = self.look_at_waits().await?;
            if has_room || !self.is_waiting() {
                return Ok(true);
            }
            if let Some(error) = lost {
                return Err(error);
            }
            self.fabric.pause(GRACE_POLL_US).await;
        }
        Ok(false)
    }

    /// Seizes slabs of the class that other sessions hold with much room in them (invariant 1).
    async fn seize(&self, dti: u8, class: Class) -> Result<(), EngineError> {
        let words = self.read_chunk_table(dti).await?;
        let (mut seized, mut count) = (self.gather(0, Then::Seize(Vec::new())), 0);
        for (chunk, word) in words.into_iter().enumerate() {
            let Some(Chunk::Leased { class: id, chunks, owner }) = Chunk::from_word(word) else {
                continue;
            };
            let other = self.map.slab_class(chunk as u32, id, chunks) != Some(class);
            if other || owner == self.owner().id {
                continue;
            }
            let slab = Slab { dti, chunk: chunk as u32 };
            if !self.is_roomy(slab, class).await? {
                continue;
            }
            count += usize::from(self.seize_into(&mut seized, (slab, class, word)).await?);
            if count == SLABS_AT_A_TIME {
                break;
            }
        }
        seized.begin().await?;
        Ok(())
    }

    async fn is_roomy(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let (formatted, notes) = self.read_notes(slab, class).await?;
        let noted = notes.iter().filter(|n| **n != 0).count() as u32;
        let fresh = class.entries - formatted;
        Ok(noted + fresh >= (class.entries / 8).max(1))
    }

    /// Begins to take apart slabs without entries, both own and abandoned ones (invariant 2).
    async fn take_apart(&self, dti: u8, wanted: Class) -> Result<(), EngineError> {
        let words = self.read_chunk_table(dti).await?;
        let more = if planted::is(Bug::RecutAfterOne) { 0 } else { 1 };
        let (mut empty, mut count) = (self.gather(more, Then::TakeApart(wanted, Vec::new())), 0);
        for (chunk, word) in words.into_iter().enumerate() {
            let (id, chunks) = match Chunk::from_word(word) {
                Some(Chunk::Leased { class, chunks, owner }) if owner == self.owner().id => {
                    (class, chunks)
                }
                Some(Chunk::Abandoned { class, chunks, .. }) => (class, chunks),
                _ => continue,
            };
            let Some(class) = self.map.slab_class(chunk as u32, id, chunks) else {
                continue;
            };
            let slab = Slab { dti, chunk: chunk as u32 };
            if !self.is_roomy(slab, class).await? {
                continue;
            }
            if let Some(claim) = self.close_if_unused(slab, class, word).await? {
                empty.add(claim, class);
                count += 1;
            }
            if count == SLABS_AT_A_TIME * 64 {
                break;
            }
        }
        empty.begin().await?;
        Ok(())
    }

    /// Closes a slab whose descriptor was this word, unless an entry of it is in use.
    async fn close_if_unused(
        &self,
        slab: Slab,
        class: Class,
        word: u64,
    ) -> Result<Option<Claim<'_, F>>, EngineError> {
        let Some(claim) = self.claim(slab) else { return Ok(None) };
        // Allocation from the slab is stopped first, and then its entries are looked at; never in
        // the other order.
        let closing = self.closing(class);
        if !self.cas_chunk(slab, 0, word, closing).await? {
            claim.end();
            return Ok(None);
        }
        if self.is_unused(slab, class).await? {
            return Ok(Some(claim));
        }
        let back = Chunk::from_word(word).expect("it was parsed before");
        let is_back = self.cas_chunk(slab, 0, closing.to_word(), back).await?;
        match is_back && back == self.leased(&class) {
            true => _ = self.relist(claim, class).await?,
            false => claim.end(),
        }
        Ok(None)
    }

    /// Looks at all grace periods. Returns whether one of them made room.
    pub(super) async fn poll_waits(&self) -> Result<bool, EngineError> {
        Ok(self.look_at_waits().await?.0)
    }

    /// The same, with the error if a node could not be reached.
    async fn look_at_waits(&self) -> Result<(bool, Option<EngineError>), EngineError> {
        // Other clients wait for us as we wait for them.
        self.session.settle(&self.fabric)?;
        let (mut room, mut lost) = unless_out_of_reach(self.put_right().await)?;
        let count = self.waits.borrow().len();
        for _ in 0..count {
            let Some(mut wait) = InHand::next(self) else { break };
            let look = async {
                Ok(wait.has_passed().await? && self.after_grace(&mut wait.wait().then).await?)
            };
            let (has_room, error) = unless_out_of_reach(look.await)?;
            room |= has_room;
            lost = lost.or(error);
        }
        Ok((room, lost))
    }

    /// Does the actions that became possible, one after the other, and leaves those in `then` that
    /// were not begun. A slab that another lane looks at in vain comes later.
    async fn after_grace(&self, then: &mut Then) -> Result<bool, EngineError> {
        let mut room = false;
        match then {
            Then::Rested(class, places) => {
                // Invariant 4 of `alloc.rs`. The code waits for nothing inside this epoch.
                let epoch = self.session.pin(&self.fabric)?;
                if planted::is(Bug::NoteOutsideEpoch) {
                    drop(epoch);
                }
                self.alloc.borrow_mut().list(*class).add_rested(self.owner(), places)?;
                places.clear();
                self.count_room();
                room = true;
            }
            Then::Seize(slabs) => {
                for at in (0..slabs.len()).rev() {
                    let (slab, class) = slabs[at];
                    let Some(claim) = self.claim(slab) else { continue };
                    slabs.swap_remove(at);
                    let seized = self.seized(&class).to_word();
                    room |= self.lease_claimed(claim, class, seized).await?;
                }
            }
            Then::TakeApart(wanted, slabs) => {
                for at in (0..slabs.len()).rev() {
                    let (slab, class) = slabs[at];
                    let Some(claim) = self.claim(slab) else { continue };
                    slabs.swap_remove(at);
                    self.free_run(slab, class.chunks, self.closing(class)).await?;
                    claim.end();
                    self.count_room();
                    room = true;
                }
                // A client that evicts does not look for free memory.
                while self.is_short_of(*wanted)
                    && self.lease_any(*wanted, Kind::Free, SEARCHES_OF_ALL).await?
                {}
            }
            Then::Empty(wanted, slabs) => {
                let mut empty = self.gather(1, Then::TakeApart(*wanted, Vec::new()));
                for at in (0..slabs.len()).rev() {
                    let (slab, class) = slabs[at];
                    // Values that were evicted are gone: this may begin anew.
                    self.evict_values(slab, class).await?;
                    let Some(claim) = self.claim(slab) else { continue };
                    slabs.swap_remove(at);
                    match self.is_emptied(slab, class).await? {
                        true => empty.add(claim, class),
                        false => {
                            let closed = self.closing(class).to_word();
                            room |= self.lease_claimed(claim, class, closed).await?;
                        }
                    }
                }
                empty.begin().await?;
            }
        }
        Ok(room)
    }

    /// Abandons all slabs so that others can lease them. If the client dies before, its node does
    /// that instead.
    pub async fn detach(&self) -> Result<(), EngineError> {
        if self.evicts() {
            // Memory would not follow the sizes of values where each client comes for one
            // operation, if none of them went on with what it has begun to empty.
            let until = self.fabric.now_us() + DETACH_WAIT_US;
            while self.wait_for_grace(until).await? {}
            self.tell_clock().await?;
        }
        self.session.quiesce(&self.fabric).await?;
        self.put_right().await?;
        for wait in self.waits.borrow_mut().iter_mut() {
            if let Then::Rested(class, places) = &mut wait.then {
                self.alloc.borrow_mut().list(*class).parked.append(places);
            }
        }
        // Invariant 1: seized slabs may not be leased yet. The node's scrubber waits in our place.
        while let Some((slab, class)) = self.next_closed() {
            let Some(claim) = self.claim(slab) else { continue };
            self.abandon(slab, class, self.closing(class), class.entries).await?;
            claim.end();
        }
        let leased: Vec<(Class, Slab, u32)> = {
            let mut alloc = self.alloc.borrow_mut();
            let lists = alloc.lists();
            lists.flat_map(|l| l.free_counts().into_iter().map(|(s, n)| (l.class, s, n))).collect()
        };
        for (class, slab, free) in leased {
            self.abandon(slab, class, self.leased(&class), free).await?;
        }
        Ok(())
    }

    /// Takes a slab that is closed off the waits.
    fn next_closed(&self) -> Option<(Slab, Class)> {
        self.waits.borrow_mut().iter_mut().find_map(|wait| match &mut wait.then {
            Then::TakeApart(_, slabs) => slabs.pop(),
            _ => None,
        })
    }

    async fn abandon(
        &self,
        slab: Slab,
        class: Class,
        from: Chunk,
        free_hint: u32,
    ) -> Result<(), EngineError> {
        let to = Chunk::Abandoned { class: class.id, chunks: class.chunks, free_hint };
        self.cas_chunk(slab, 0, from.to_word(), to).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::{client, clients_with};
    use crate::nessie::layout::geometry::Options;
    use crate::nessie::layout::ledger::epoch_of;
    use crate::operation::PutOptions;

    #[test]
    fn a_wait_that_a_lane_looks_at_is_one_and_comes_back_unless_it_is_over() {
        let client = client(16 << 20);
        let waits = || (client.is_waiting(), client.waits.borrow().len());
        assert_eq!(waits(), (false, 0));
        let class = client.map.classes.of(100);
        let slabs = vec![(Slab { dti: 0, chunk: 0 }, class)];
        assert!(block_on(client.gather(0, Then::Seize(slabs)).begin()).unwrap());
        assert_eq!(waits(), (true, 1));
        let mut wait = InHand::next(&client).unwrap();
        assert_eq!(waits(), (true, 0));
        drop(wait);
        assert_eq!(waits(), (true, 1));
        wait = InHand::next(&client).unwrap();
        wait.wait().then = Then::Seize(Vec::new());
        drop(wait);
        assert_eq!(waits(), (false, 0));
        assert!(!block_on(client.gather(0, Then::Seize(Vec::new())).begin()).unwrap());
        assert_eq!(waits(), (false, 0));
    }

    /// A new client knows the time before it marks or evicts anything, and one that ends tells what
    /// it has evicted, however little.
    #[test]
    fn clients_of_one_operation_keep_the_clock_of_the_marks() {
        let evicting = Options { evicts: true, ..Options::default() };
        let [client, next] = clients_with(4 << 20, evicting);
        let put = |client: &Client<_>, key: u64| {
            block_on(client.put(&key.to_le_bytes(), &[7; 1000], PutOptions::default())).unwrap();
        };
        for key in 0..40_000 {
            put(&client, key);
        }
        let at = client.map.ledger(0).turned_over();
        let told = || client.fabric.load(at).unwrap();
        block_on(client.tell_clock()).unwrap();
        assert!(client.mark_epoch() > 0);
        // It may lease a slab, which counts.
        put(&next, 40_001);
        let before = told();
        assert_eq!(next.mark_epoch(), epoch_of(before, client.map.data_bytes()));
        block_on(next.turn_over(1)).unwrap();
        assert_eq!(told(), before);
        block_on(next.detach()).unwrap();
        assert!(told() > before);
    }
}
