//! Evicting: how a client of a table that evicts makes room for entries of its own (protocol V).
//!
//! An eviction is a DELETE that nobody asked for: one CAS takes the value's word out of the index,
//! and only then is the entry noted free. So nothing can go wrong that cannot with a DELETE. The
//! client chooses its victims by what they are worth (`victims.rs`).
//!
//! # Invariants
//! 1. A victim's word was read in this operation, and shows a value that nobody moves. The CAS
//!    expects it.
//! 2. An entry that a session has pinned when it is looked at is no victim, and neither is the
//!    value of a key whose next value an operation of this client is about to make of it.
//! 3. A victim's class is known: its slab is seen to be leased by this client, or to be seized by
//!    it, in the epoch in which it is evicted, so until then the slab is not cut anew; or the class
//!    follows from the entry's length, as with a DELETE.
//! 4. Only a table that evicts has victims.

use std::cell::RefCell;

use loch_fabric::{Fabric, lanes};

use super::victims::{LANES, Victim};
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::ledger::Forgotten;
use crate::nessie::layout::marks::GHOSTS_AT;
use crate::nessie::layout::slab::Class;
use crate::planted::{self, Bug};

/// A value that was never used counts for this part of its bytes when it is evicted.
const UNUSED_COUNTS: f32 = 0.25;
/// A value that fills memory counts for this part of its bytes.
const FILLED_COUNTS: f32 = 0.5;

impl Victim {
    /// As how much of a value its eviction counts on the clock of the marks. A stream of values
    /// that nobody uses goes through a table fast, and does not make those look old that are used.
    fn counts(&self) -> f32 {
        if self.mark.is_used() { 1.0 } else { UNUSED_COUNTS }
    }
}

/// A key whose value the client does not evict until this is dropped.
pub(in crate::nessie) struct Spared<'a> {
    keys: &'a RefCell<Vec<KeyHash>>,
    key: KeyHash,
}

impl Drop for Spared<'_> {
    fn drop(&mut self) {
        let mut keys = self.keys.borrow_mut();
        let at = keys.iter().position(|key| *key == self.key).expect("it was put there");
        keys.swap_remove(at);
    }
}

impl<F: Fabric> Client<F> {
    /// Makes room for entries of a class in the client's own slabs, for as many as are wanted or
    /// for a few. Returns the victims, if there is some now.
    pub(super) async fn evict(
        &self,
        class: Class,
        wanted: usize,
    ) -> Result<Option<Vec<Victim>>, EngineError> {
        if !self.evicts() && !planted::is(Bug::StoringTableEvicts) {
            return Ok(None);
        }
        self.look_at_clock().await?;
        let _epoch = self.session.pin(&self.fabric)?;
        let in_index = match self.evicts() {
            true => self.victims_in_index(class, wanted).await?,
            false => None,
        };
        let victims = match in_index {
            Some(victims) => victims,
            None => self.victims_in_slabs(class).await?,
        };
        let evicted = self.evict_all(&victims).await?;
        Ok((evicted > 0).then_some(victims))
    }

    /// Evicts values of a class. Returns how many.
    pub(in crate::nessie) async fn evict_all(
        &self,
        victims: &[Victim],
    ) -> Result<u64, EngineError> {
        let mut evicted = Vec::with_capacity(victims.len());
        let mut failed = None;
        let evictions = victims.iter().map(|victim| async move {
            let empty = self.fresh_empty().await?;
            Ok(self.evict_victim(victim, empty).await?.then_some(victim))
        });
        let mut seen = |seen: Result<Option<_>, _>| match seen {
            Ok(victim) => evicted.extend(victim),
            Err(error) => failed = Some(error),
        };
        match self.is_near {
            true => {
                for eviction in evictions {
                    seen(eviction.await);
                }
            }
            false => lanes::run(LANES, evictions, seen).await,
        }
        self.count_evicted(&evicted).await?;
        failed.map_or(Ok(evicted.len() as u64), Err)
    }

    /// Puts a word into the slot of a victim, which is evicted by that. Returns whether it did.
    pub(in crate::nessie) async fn evict_for(
        &self,
        victim: &Victim,
        word: Ite,
    ) -> Result<bool, EngineError> {
        let is_out = self.evict_victim(victim, word).await?;
        if is_out {
            self.count_evicted(&[victim]).await?;
        }
        Ok(is_out)
    }

    /// Counts values of a class that were evicted.
    async fn count_evicted(&self, victims: &[&Victim]) -> Result<(), EngineError> {
        let Some(Victim { class, .. }) = victims.first() else { return Ok(()) };
        let mut forgotten = Forgotten::default();
        let mut turned_over = 0.0;
        for victim in victims {
            let count = match victim.has_expired {
                true => &mut forgotten.expired,
                false => &mut forgotten.evicted,
            };
            *count += 1;
            turned_over += victim.counts();
        }
        self.count_forgotten(class, forgotten).await?;
        self.turn_over((turned_over * self.bytes_on_clock(class)) as u64).await
    }

    /// Counts a slab that the client has taken from memory that had no values, on the clock of the
    /// marks: values that come while the table fills have different ages when it is full.
    pub(super) async fn count_filled(&self, class: &Class) -> Result<(), EngineError> {
        // What a client that evicts finds empty was full of values that others evicted.
        if !self.evicts() || self.counts.evicted.get() > 0 {
            return Ok(());
        }
        let values = class.entries as f32 * FILLED_COUNTS;
        self.turn_over((values * self.bytes_on_clock(class)) as u64).await
    }

    /// As how many bytes a value of a class counts on the clock of the marks. It takes up a slot as
    /// well. If there are few slots for the memory, they turn over, and not the memory.
    fn bytes_on_clock(&self, class: &Class) -> f32 {
        class.entry_bytes.max(self.map.shape.geometry.bytes_a_slot()) as f32
    }

    /// Keeps the value of a key from being evicted by this client, if the table evicts.
    pub(in crate::nessie) fn spare(&self, key: KeyHash) -> Option<Spared<'_>> {
        self.evicts().then(|| {
            self.spared.borrow_mut().push(key);
            Spared { keys: &self.spared, key }
        })
    }

    /// Evicts a value, whose slot gets another word. Returns whether it did: not if the slot has
    /// changed.
    async fn evict_victim(&self, victim: &Victim, to: Ite) -> Result<bool, EngineError> {
        let Victim { slot, word, entry, class, generation, .. } = victim;
        if planted::is(Bug::FreedBeforeEvicted) {
            self.retire(*entry, class, *generation)?;
        }
        let mut epoch = self.session.pin(&self.fabric)?;
        epoch.owe();
        // Linearization point of an eviction (protocol V3).
        let is_out = self.fabric.compare_swap(*slot, word.0, to.0).await? == word.0;
        if !is_out && !planted::is(Bug::EvictedAnyway) {
            epoch.paid();
            return Ok(false);
        }
        self.retire(*entry, class, *generation)?;
        epoch.paid();
        if !victim.has_expired {
            self.counts.evicted.set(self.counts.evicted.get() + 1);
            let epochs = class.entry_bytes as f32 / self.epoch_bytes() as f32;
            self.worth.is_gone(victim.counts(), epochs);
            if let Some(marks) = victim.first_marks.filter(|_| self.evicts()) {
                let at = self.map.marks_addr(victim.hash.first_bucket(&self.map)).add(GHOSTS_AT);
                self.hint(at, &marks.with_ghost(victim.hash.print()))?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::super::victims::tests::filled;
    use super::*;
    use crate::nessie::layout::marks::Marks;
    use crate::operation::PutOptions;

    #[test]
    fn a_clock_that_shows_anything_is_no_harm() {
        let (client, _) = filled();
        client.fabric.store(client.map.ledger(0).turned_over(), &[&[0xff; 8]]).unwrap();
        block_on(client.turn_over(client.epoch_bytes())).unwrap();
        assert!(client.mark_epoch() < 32 && client.part_of_epoch() < 1.0);
    }

    #[test]
    fn the_clock_counts_a_part_of_what_nobody_used_and_of_what_fills_memory() {
        let (client, class) = filled();
        let bytes = client.bytes_on_clock(&class);
        let told = || {
            block_on(client.tell_clock()).unwrap();
            client.fabric.load(client.map.ledger(0).turned_over()).unwrap()
        };
        let before = told();
        let victims = block_on(client.evict(class, 20)).unwrap().expect("they can go");
        let used = victims.iter().filter(|victim| victim.mark.is_used()).count();
        let counted = used as f32 + UNUSED_COUNTS * (victims.len() - used) as f32;
        assert!(used < victims.len());
        assert_eq!(told() - before, (counted * bytes) as u64);
        let before = told();
        block_on(client.count_filled(&class)).unwrap();
        assert_eq!(told(), before, "others have emptied what a client that evicts finds empty");
        client.counts.evicted.set(0);
        block_on(client.count_filled(&class)).unwrap();
        let filled = (class.entries as f32 * FILLED_COUNTS * bytes) as u64;
        assert_eq!(told() - before, filled);
    }

    #[test]
    fn a_value_that_is_evicted_leaves_a_ghost_in_the_first_bucket_of_its_key() {
        let (client, class) = filled();
        // So many that some are not in their first buckets.
        for number in 0..900u16 {
            let key = [&number.to_le_bytes()[..], &[0xff; 6]].concat();
            block_on(client.put(&key, &[7; 100], PutOptions::default())).unwrap();
        }
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let victims = block_on(client.evict(class, 300)).unwrap().expect("they can go");
        let bucket = |victim: &Victim| victim.hash.first_bucket(&client.map);
        let elsewhere = |victim: &&Victim| client.map.bucket_of(victim.slot).0 != bucket(victim);
        assert!(victims.iter().filter(elsewhere).count() > 0);
        for victim in &victims {
            let of_bucket = victims.iter().filter(|other| bucket(other) == bucket(victim)).count();
            let marks = client.fabric.load(client.map.marks_addr(bucket(victim))).unwrap();
            assert!(of_bucket > 1 || Marks(marks).has_ghost(victim.hash.print()));
        }
    }
}
