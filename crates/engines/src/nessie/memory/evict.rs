//! Evicting: how a client of a table that evicts makes room for entries of its own (protocol V).
//!
//! An eviction is a DELETE that nobody asked for: one CAS takes the value's word out of the index,
//! and only then is the entry noted free. So nothing can go wrong that cannot with a DELETE. The
//! client chooses the victims among the entries of its own slabs, whose memory it can use at once:
//! it looks at some of them, and at their marks in the index ([`crate::nessie::layout::marks`]),
//! and takes out those that are worth least.
//!
//! # Invariants
//! 1. A victim's word was read in this operation, and shows a value that nobody moves. The CAS
//!    expects it.
//! 2. An entry that a session has pinned when it is looked at is no victim.
//! 3. Only a table that evicts has victims.

use loch_fabric::{Buf, Fabric, RemoteAddr, lanes};

use crate::error::EngineError;
use crate::limits::{EVICTED_AT_A_TIME, SAMPLED_AT_A_TIME};
use crate::nessie::client::Client;
use crate::nessie::client::pins::is_pinned;
use crate::nessie::layout::dte::{
    BEFORE_VALUE_BYTES_MAX, EXPIRY_BYTES, HEADER_BYTES, Header, PINNED, unpinned,
};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::ledger::Forgotten;
use crate::nessie::layout::marks::{GHOSTS_AT, Mark, Marks};
use crate::nessie::layout::slab::{Class, Entry};
use crate::planted::{self, Bug};

/// Entries that are looked at side by side.
const LANES: usize = 16;
/// Bytes of the key that are read with an entry's header.
const KEY_GUESS_BYTES: usize = 64;

/// A value that may be evicted: the slot that shows it, and the entry.
pub(in crate::nessie) struct Victim {
    pub slot: RemoteAddr,
    pub word: Ite,
    pub entry: Entry,
    pub class: Class,
    pub generation: u64,
    pub mark: Mark,
    pub has_expired: bool,
    /// The hash of the key, whose first bucket gets the key's ghost, and the marks of that bucket.
    pub hash: KeyHash,
    pub first_marks: Marks,
}

impl Victim {
    /// What is evicted first is worth least.
    pub fn worth(&self, epoch: u8) -> u32 {
        if self.has_expired { 0 } else { self.mark.worth(epoch) }
    }
}

impl<F: Fabric> Client<F> {
    /// Makes room for entries of a class in the client's own slabs. Returns whether there is some
    /// now.
    pub(super) async fn evict(&self, class: Class) -> Result<bool, EngineError> {
        if !self.evicts() && !planted::is(Bug::StoringTableEvicts) {
            return Ok(false);
        }
        let places: Vec<Entry> = {
            let mut alloc = self.alloc.borrow_mut();
            let slabs = &alloc.list(class).slabs;
            let count = if slabs.is_empty() { 0 } else { SAMPLED_AT_A_TIME };
            let any = |count: usize| (self.fabric.random() % count as u64) as usize;
            let one = |_| {
                let slab = slabs[any(slabs.len())];
                Entry { slab, number: any(class.entries as usize) as u32 }
            };
            (0..count).map(one).collect()
        };
        let epoch = self.session.pin(&self.fabric)?;
        let mut victims = self.victims(class, places).await?;
        let now = self.mark_epoch();
        victims.sort_by_key(|victim| (victim.worth(now), victim.entry));
        victims.dedup_by_key(|victim| victim.entry);
        let few = (victims.len() * EVICTED_AT_A_TIME).div_ceil(SAMPLED_AT_A_TIME);
        let mut evicted = 0;
        for victim in &victims {
            evicted += usize::from(self.evict_victim(victim).await?);
            if evicted >= few {
                break;
            }
        }
        drop(epoch);
        Ok(evicted > 0)
    }

    /// The values among some entries of a class.
    pub(super) async fn victims(
        &self,
        class: Class,
        entries: Vec<Entry>,
    ) -> Result<Vec<Victim>, EngineError> {
        let mut victims = Vec::with_capacity(entries.len());
        let mut failed = None;
        let looks = entries.into_iter().map(|entry| self.victim_at(class, entry));
        lanes::run(LANES, looks, |look| match look {
            Ok(victim) => victims.extend(victim),
            Err(error) => failed = Some(error),
        })
        .await;
        failed.map_or(Ok(victims), Err)
    }

    /// An entry as a victim, if it is the value of a key. The slab is mapped.
    async fn victim_at(&self, class: Class, entry: Entry) -> Result<Option<Victim>, EngineError> {
        let owner = self.owner();
        if !owner.is_used(&class, entry)? {
            return Ok(None);
        }
        let at = self.map.slab_addr(entry.slab).add(class.entry_at(entry.number));
        let most = (class.entry_bytes as usize).min(BEFORE_VALUE_BYTES_MAX);
        let first = (HEADER_BYTES + EXPIRY_BYTES + KEY_GUESS_BYTES).min(most);
        let (mut head, done) = self.fabric.read(at, first, Buf::with_capacity(first)).await;
        done?;
        let Some(header) = Header::read(&head).filter(|header| header.value_at() <= most) else {
            return Ok(None);
        };
        if header.value_at() > head.len() {
            let (have, rest) = (head.len(), header.value_at() - head.len());
            let (filled, done) = self.fabric.read(at.add(have as u64), rest, head).await;
            done?;
            head = filled;
        }
        // Entries of mapped memory do not change as long as they have their generation.
        let generation = unpinned(header.generation);
        if unpinned(self.fabric.load(at)?) != generation {
            return Ok(None);
        }
        if self.is_held(at, &header)? {
            return Ok(None);
        }
        let candidates = Candidates::of(&self.map, &head[header.key_at()..header.value_at()]);
        let (words, marks) = self.collect_marked(&candidates).await?;
        let place = class.place(entry);
        let codec = &self.map.codec;
        let shows = |word: &Ite| {
            codec.is_unmoved(*word)
                && codec.place(*word) == place
                && codec.generation(*word) == generation & codec.gen_mask()
        };
        let Some(slot) = words[..candidates.count()].iter().position(shows) else {
            return Ok(None);
        };
        let mut mark = candidates.mark_in(&marks, slot);
        if let Some(faded) = mark.kept_old(self.mark_epoch()) {
            self.write_mark(candidates.slot(slot), faded)?;
            mark = faded;
        }
        let expires_at_ms = header.expires_at_ms(&head);
        Ok(Some(Victim {
            slot: candidates.slot(slot),
            word: words[slot],
            entry,
            class,
            generation,
            mark,
            has_expired: expires_at_ms.is_some_and(|at| at <= self.fabric.wall_ms()),
            hash: candidates.hash,
            first_marks: marks[0],
        }))
    }

    /// Whether an entry is pinned by a session, so that it is no victim (invariant 2).
    pub(in crate::nessie) fn is_held(
        &self,
        at: RemoteAddr,
        header: &Header,
    ) -> Result<bool, EngineError> {
        let was_pinned = header.generation & PINNED != 0;
        Ok(was_pinned && is_pinned(&self.fabric, &self.map, at)?)
    }

    /// Evicts a value. Returns whether it did: not if the slot has changed.
    pub(in crate::nessie) async fn evict_victim(
        &self,
        victim: &Victim,
    ) -> Result<bool, EngineError> {
        let Victim { slot, word, entry, class, generation, .. } = victim;
        if planted::is(Bug::FreedBeforeEvicted) {
            self.retire(*entry, class, *generation)?;
        }
        let empty = self.fresh_empty().await?;
        // Linearization point of an eviction (protocol V3).
        let is_out = self.fabric.compare_swap(*slot, word.0, empty.0).await? == word.0;
        if !is_out && !planted::is(Bug::EvictedAnyway) {
            return Ok(false);
        }
        self.retire(*entry, class, *generation)?;
        if !victim.has_expired {
            self.counts.evicted.set(self.counts.evicted.get() + 1);
            let at = self.map.marks_addr(victim.hash.first_bucket(&self.map)).add(GHOSTS_AT);
            self.hint(at, &victim.first_marks.with_ghost(victim.hash.print()))?;
        }
        let (evicted, expired) = (u64::from(!victim.has_expired), u64::from(victim.has_expired));
        self.count_forgotten(class, Forgotten { evicted, expired }).await?;
        self.turn_over(class.entry_bytes).await?;
        Ok(true)
    }
}
