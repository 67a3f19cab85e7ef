//! Allocating: how a client gets an entry of its own.
//!
//! A client tries these sources in order: entries that others retired in the client's own slabs; an
//! abandoned slab with room in it; free chunks; any abandoned slab; and, when memory is short, the
//! entries that `reclaim.rs` can make available. In a table that evicts (`evict.rs`), the client's
//! own values come before those, and for a while before all others.

use loch_fabric::Fabric;
use loch_fabric::limits::LANES_PAUSE_US_MAX;

use super::lease::{Kind, SEARCHES_OF_ALL};
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::limits::{BATCH_PUTS, SEARCHES_FOR_ROOM, SWEEP_SLABS};
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::turns::Lane;
use crate::nessie::layout::slab::Class;

/// The number of resting entries that is worth a grace period while there is still memory.
const PARKED_ENTRIES: usize = 256;
/// The pause between two looks when the free entries are pinned or held by other lanes. The other
/// lanes go on meanwhile.
const HELD_POLL_US: u64 = 50;
/// The longest such pause of a client that has looked at all memory several times.
const HELD_PAUSE_US_MAX: u64 = 64 * HELD_POLL_US;
/// How often a client evicts before it looks again for memory that nobody uses: the most, the
/// least, and in between so often for each entry of a slab. It may evict for a whole batch at a
/// time: looks that came as often for each value would be in the way of one batch in 30.
const EVICTIONS_WITHOUT_LOOK: u32 = 1024;
const EVICTIONS_WITHOUT_LOOK_MIN: u32 = 64;
const EVICTIONS_FOR_ENTRY: u32 = 16;
/// A client that evicts sweeps some of its slabs after as many evictions as this part of a slab's
/// entries, so that after a few per cent of a turnover it has swept all.
const SWEPT_PARTS: u32 = 16;
/// It sweeps one slab, and where memory is near, so many that they have this number of entries:
/// where slabs have few, one without a free entry says little about the next.
const SWEPT_ENTRIES: u32 = 16;
/// If more than this part of a slab was retired by others, the next slab is swept at once.
const MUCH_PARTS: u32 = 64;
/// A client evicts values of no more than so many bytes at a time for what may come: of long values
/// it would have few left.
const EVICTED_BYTES_MAX: u64 = 16 << 10;
const _: () = assert!(HELD_POLL_US <= LANES_PAUSE_US_MAX);

impl<F: Fabric> Client<F> {
    /// Takes an entry for `entry_len` bytes, and begins the operation that needs it: only that
    /// operation's epoch keeps the scrubber from taking the entry for a leaked one. The operation
    /// [owes](Pin::owe) the entry.
    ///
    /// Must not be called inside an epoch: it may have to wait for other clients, while they wait
    /// for the epoch.
    pub(in crate::nessie) async fn allocate(
        &self,
        entry_len: usize,
    ) -> Result<(Own, Pin<'_, F>), EngineError> {
        let class = self.map.classes.of(entry_len);
        // Written out instead of a call of `take`: its result would go through memory, which costs
        // a PUT five per cent.
        let mut epoch = self.session.pin(&self.fabric)?;
        let taken = self.alloc.borrow_mut().take(self.owner(), class)?;
        if let Some(own) = taken {
            epoch.owe();
            return Ok((own, epoch));
        }
        drop(epoch);
        // The rare future is boxed, so that the future of every other operation is small.
        Box::pin(self.take_later(class)).await.map_err(EngineError::without_effect)
    }

    /// Takes one of the entries that the client knows to be free, inside an epoch.
    pub(in crate::nessie) fn take(
        &self,
        class: Class,
    ) -> Result<Option<(Own, Pin<'_, F>)>, EngineError> {
        let mut epoch = self.session.pin(&self.fabric)?;
        let taken = self.alloc.borrow_mut().take(self.owner(), class)?;
        if taken.is_some() {
            epoch.owe();
        }
        Ok(taken.map(|own| (own, epoch)))
    }

    /// Makes room for an entry, and takes it.
    async fn take_later(&self, class: Class) -> Result<(Own, Pin<'_, F>), EngineError> {
        let mut lane = Lane::of(&self.turns);
        let until = self.fabric.now_us() + self.timeout_us;
        let (mut sweep, mut waits_for_pin, mut pause_us) = (true, false, HELD_POLL_US);
        loop {
            let now = self.fabric.now_us();
            let is_late = now > until;
            if waits_for_pin && !is_late {
                // To look for other memory again and again would close slabs that others use.
                self.fabric.pause(HELD_POLL_US).await;
                self.sweep_some(class, SWEEP_SLABS, 1).await?;
                if let Some(held) = self.take(class)? {
                    return Ok(held);
                }
                continue;
            }
            let is_disturbed = || !lane.is_alone() || self.session.is_working();
            let was_disturbed = is_disturbed();
            let made = self.make_room(class, sweep, self.wanted_of(class)).await;
            if let Some(held) = self.take(class)? {
                return Ok(held);
            }
            match made {
                // Pins mostly end soon.
                Err(EngineError::OutOfMemory { .. }) if !is_late && self.has_pinned(class) => {
                    waits_for_pin = true;
                }
                // Clients that empty slabs for others may be in each other's way.
                Err(EngineError::OutOfMemory { .. }) if !is_late && self.evicts() => {
                    self.fabric.pause(pause_us).await;
                    // In a longer pause the thread sleeps, with all its lanes.
                    let most = match lane.is_alone() {
                        true => HELD_PAUSE_US_MAX,
                        false => LANES_PAUSE_US_MAX,
                    };
                    pause_us = (2 * pause_us).min(most);
                }
                // Another lane may have held or freed the entry that this lane did not find.
                Err(EngineError::OutOfMemory { .. })
                    if !is_late && (was_disturbed || is_disturbed()) =>
                {
                    lane.wait_for_turn(&self.fabric, HELD_POLL_US).await;
                }
                // Other clients always take the room first, or damaged notes promise room that does
                // not exist.
                Ok(()) if is_late => {
                    return Err(match waits_for_pin {
                        true => self.out_of_memory(class),
                        false => EngineError::Timeout { timeout_us: self.timeout_us },
                    });
                }
                made => made?,
            }
            // If a sweep finds entries that cannot be taken, the next round does not sweep.
            sweep = !sweep;
        }
    }

    fn has_pinned(&self, class: Class) -> bool {
        self.alloc.borrow_mut().list(class).has_pinned()
    }

    /// Makes room for entries of a class, or fails if there is no room. With `sweep` it tries the
    /// client's own slabs first.
    ///
    /// An eviction, and what is rare, have futures of their own: the allocator hands out blocks of
    /// up to a kilobyte much faster than longer ones.
    async fn make_room(&self, class: Class, sweep: bool, wanted: usize) -> Result<(), EngineError> {
        let rooms = self.rooms_of(class);
        // In a table that evicts there is usually no other memory, and to look for it is dear.
        if self.is_known_full(class) && self.make_room_here(class, sweep, wanted).await? {
            return Ok(());
        }
        // What a sweep finds may just have been evicted by other lanes.
        let is_short = self.is_short_of(class);
        if is_short && Box::pin(self.lease_any(class, Kind::Abandoned, SEARCHES_FOR_ROOM)).await? {
            return Ok(());
        }
        let enough = (class.entries / 16).max(1);
        if sweep && self.sweep_some(class, SWEEP_SLABS, enough).await? >= enough {
            return Ok(());
        }
        if Box::pin(self.poll_waits()).await? {
            return Ok(());
        }
        self.rest_parked(class, PARKED_ENTRIES).await?;
        // A client that evicts will look again soon.
        let searches = match is_short {
            true => SEARCHES_FOR_ROOM,
            false => SEARCHES_OF_ALL,
        };
        for dti in &self.tables {
            if Box::pin(self.lease(*dti, class, Kind::Roomy, SEARCHES_FOR_ROOM)).await?
                || Box::pin(self.lease(*dti, class, Kind::Free, searches)).await?
            {
                return Ok(());
            }
        }
        let all = self.alloc.borrow_mut().list(class).slabs.len();
        if self.sweep_some(class, all, 1).await? > 0 {
            return Ok(());
        }
        if Box::pin(self.lease_any(class, Kind::Abandoned, searches)).await? {
            return Ok(());
        }
        if Box::pin(self.evict_in_balance(class, wanted)).await? {
            self.set_known_full(class);
            return Ok(());
        }
        Box::pin(self.wait_for_room(class, rooms)).await
    }

    /// Makes room in the client's own slabs, of which it is known that there is no other memory.
    /// Returns whether there is room now. Does not wait for other clients.
    async fn make_room_here(
        &self,
        class: Class,
        sweep: bool,
        wanted: usize,
    ) -> Result<bool, EngineError> {
        Ok(self.has_grown().await?
            || sweep && self.has_got_back(class).await?
            || Box::pin(self.evict_in_balance(class, wanted)).await?)
    }

    /// Makes room for a batch of entries, inside its epoch, if the client evicts to get them.
    /// Returns whether there is room for one at least.
    pub(in crate::nessie) async fn make_room_for(
        &self,
        class: Class,
        entries: usize,
    ) -> Result<bool, EngineError> {
        let wanted = wanted(class, entries);
        // When it is time to look for other memory, an allocation does that.
        let is_full =
            self.alloc.borrow_mut().list(class).known_full > 1 && self.is_known_full(class);
        Ok(is_full && self.make_room_here(class, true, wanted).await?)
    }

    /// The number of entries that the lanes of this client may want. Where memory is near, the
    /// lane that evicts makes room for the others too: nothing that it does gives them a turn.
    fn wanted_of(&self, class: Class) -> usize {
        wanted(class, if self.is_near { 1 + self.session.under_way() } else { 1 })
    }

    /// Looks now and then whether other clients have retired entries in this client's slabs, as
    /// all do that put a value anew. As long as it finds many in one slab, it looks at the next:
    /// what is free is used before anything is evicted.
    async fn has_got_back(&self, class: Class) -> Result<bool, EngineError> {
        {
            let mut alloc = self.alloc.borrow_mut();
            let wait = &mut alloc.list(class).sweep_after;
            if *wait > 0 {
                *wait -= 1;
                return Ok(false);
            }
        }
        let slabs = if self.is_near { (SWEPT_ENTRIES / class.entries).max(1) } else { 1 };
        let found = self.sweep_some(class, slabs as usize, 1).await?;
        let is_much = found > class.entries / MUCH_PARTS;
        let wait = if is_much { 0 } else { class.entries / SWEPT_PARTS };
        self.alloc.borrow_mut().list(class).sweep_after = wait;
        Ok(found > 0)
    }

    /// Whether it is a short time since a look for memory that nobody uses was in vain. While a
    /// lane looks again, the others go on evicting.
    fn is_known_full(&self, class: Class) -> bool {
        let mut alloc = self.alloc.borrow_mut();
        let list = alloc.list(class);
        if list.known_full == 1 {
            list.known_full = evictions_without_look(class);
            return false;
        }
        list.known_full = list.known_full.saturating_sub(1);
        list.known_full > 0
    }

    /// Whether this client evicts to get entries of a class.
    pub(in crate::nessie) fn is_short_of(&self, class: Class) -> bool {
        self.alloc.borrow_mut().list(class).known_full > 0
    }

    fn set_known_full(&self, class: Class) {
        self.alloc.borrow_mut().list(class).known_full = evictions_without_look(class);
    }
}

/// The number of entries for which room is made at a time, if so many could be used.
fn wanted(class: Class, entries: usize) -> usize {
    let few = (EVICTED_BYTES_MAX / class.entry_bytes) as usize;
    entries.min(BATCH_PUTS).min(few.max(1))
}

/// How often a client evicts entries of a class before it looks again for memory that nobody uses.
fn evictions_without_look(class: Class) -> u32 {
    let for_slab = class.entries.saturating_mul(EVICTIONS_FOR_ENTRY);
    for_slab.clamp(EVICTIONS_WITHOUT_LOOK_MIN, EVICTIONS_WITHOUT_LOOK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nessie::layout::slab::Classes;

    /// A cache of few long values would have hardly any left.
    #[test]
    fn as_many_are_evicted_for_others_as_are_few_bytes() {
        let classes = Classes::new(64 << 20, 16);
        for (len, entries, is) in
            [(100, 1, 1), (100, 20, 20), (100, 500, BATCH_PUTS), (3000, 20, 5), (50_000, 20, 1)]
        {
            assert_eq!(wanted(classes.of(len), entries), is, "{entries} of {len} B");
        }
    }
}
