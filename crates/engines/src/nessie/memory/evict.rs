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
//! 2. An entry that a session has pinned when it is looked at is no victim, and neither is the
//!    value of a key whose next value an operation of this client is about to make of it.
//! 3. A victim's class is known: its slab is seen to be leased by this client, or to be seized by
//!    it, in the epoch in which it is evicted, so until then the slab is not cut anew; or the class
//!    follows from the entry's length, as with a DELETE.
//! 4. Only a table that evicts has victims.

use std::cell::RefCell;

use arrayvec::ArrayVec;
use loch_fabric::{Buf, Fabric, RemoteAddr, lanes};

use crate::error::EngineError;
use crate::limits::{CHUNK_BYTES, EVICTED_FAR, EVICTED_NEAR, SAMPLED_FOR_ONE};
use crate::nessie::client::Client;
use crate::nessie::client::pins::is_pinned;
use crate::nessie::client::uses::Uses;
use crate::nessie::layout::dte::{
    BEFORE_VALUE_BYTES_MAX, EXPIRY_BYTES, HEADER_BYTES, Header, PINNED, unpinned,
};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::{Ite, Place};
use crate::nessie::layout::ledger::Forgotten;
use crate::nessie::layout::marks::{GHOSTS_AT, Mark, Marks};
use crate::nessie::layout::slab::{Chunk, Class, Entry, LARGE};
use crate::planted::{self, Bug};

/// Entries that are looked at side by side.
const LANES: usize = 16;
/// The most runs of buckets that one search READs: where memory is near, and over a network.
const NEAR_RUNS: usize = 64;
const FAR_RUNS: usize = 2;
/// The buckets of such a run.
const NEAR_RUN_BUCKETS: u64 = 16;
const FAR_RUN_BUCKETS: u64 = 64;
/// Of so many buckets of a run, one is counted, to learn which marks values have.
const COUNTED_BUCKETS: usize = 4;
/// Entries of its slabs that a client looks at if the index shows it too few of them.
const SAMPLED_IN_SLABS: usize = 64;
/// A value that was never used counts for this part of its bytes when it is evicted.
const UNUSED_COUNTS: f32 = 0.25;
/// A value that fills memory counts for this part of its bytes.
const FILLED_COUNTS: f32 = 0.5;
/// Bytes of a victim that are prefetched.
const PREFETCHED_BYTES_MAX: u64 = 256;
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
    /// The hash of the key, whose first bucket gets the key's ghost, and the marks of that bucket
    /// if they are known.
    pub hash: KeyHash,
    pub first_marks: Option<Marks>,
}

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

/// A slot that shows an entry in one of the client's own slabs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    slot: RemoteAddr,
    word: Ite,
    mark: Mark,
    /// The marks of its bucket.
    marks: Marks,
}

impl<F: Fabric> Client<F> {
    /// What a value with this mark is worth.
    pub(in crate::nessie) fn worth_of_mark(&self, mark: Mark) -> u32 {
        self.worth.of(mark, self.mark_epoch())
    }

    /// The victim that is worth least is evicted first.
    pub(super) fn worth_of_victim(&self, victim: &Victim) -> u32 {
        if victim.has_expired { 0 } else { self.worth_of_mark(victim.mark) }
    }

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

    /// The values of a class that are worth least in some places of the index, as far as their
    /// entries are in the client's own slabs; `None` if few are, or none can go. Each pass over
    /// them prefetches what the next one looks at.
    async fn victims_in_index(
        &self,
        class: Class,
        wanted: usize,
    ) -> Result<Option<Vec<Victim>>, EngineError> {
        let mut least = Vec::with_capacity(wanted.max(EVICTED_NEAR));
        loop {
            let before = least.len();
            self.least_in_index(class, &mut least).await?;
            if least.len() == before || least.len() >= wanted {
                break;
            }
        }
        let mut victims = Vec::with_capacity(least.len());
        for shown in least {
            victims.extend(self.victim_shown(class, shown)?);
        }
        // The ghost of a key in a far bucket is not worth a round trip.
        if self.is_near {
            for victim in victims.iter_mut().filter(|victim| victim.first_marks.is_none()) {
                let first = victim.hash.first_bucket(&self.map);
                victim.first_marks = Some(Marks(self.fabric.load(self.map.marks_addr(first))?));
            }
        }
        // If all that are worth least are pinned, others have to go.
        Ok((!victims.is_empty()).then_some(victims))
    }

    /// Adds the values that are worth least in one place of the index, of so many as it takes to
    /// choose well. Adds none if there are few.
    async fn least_in_index(
        &self,
        class: Class,
        found: &mut Vec<Shown>,
    ) -> Result<(), EngineError> {
        let mut seen = 0;
        let mut least: ArrayVec<(u32, Shown), EVICTED_FAR> = ArrayVec::new();
        let (runs, most) = match self.is_near {
            true => (NEAR_RUNS, EVICTED_NEAR),
            false => (FAR_RUNS, EVICTED_FAR),
        };
        for _ in 0..runs {
            self.look_at_run(class, |worth, shown| {
                seen += 1;
                if least.len() == most {
                    if least.last().is_some_and(|dearest| worth >= dearest.0) {
                        return;
                    }
                    least.pop();
                }
                let at = least.partition_point(|other| other.0 <= worth);
                least.insert(at, (worth, shown));
            })
            .await?;
            if seen >= most * SAMPLED_FOR_ONE {
                break;
            }
        }
        least.truncate(seen / SAMPLED_FOR_ONE);
        for (_, shown) in least {
            // The hand has gone round the whole index.
            if found.iter().any(|other| other.slot == shown.slot) {
                continue;
            }
            if let Some((at, _)) = self.entry_at(shown.word) {
                // It is written next.
                let len = class.entry_bytes.min(PREFETCHED_BYTES_MAX);
                self.fabric.will_store(at, len as usize);
            }
            found.push(shown);
        }
        Ok(())
    }

    /// Looks at the buckets at the hand, which goes on behind them, and hands on the slots that
    /// show an entry of the class in the client's own slabs.
    async fn look_at_run(
        &self,
        class: Class,
        mut shows: impl FnMut(u32, Shown),
    ) -> Result<(), EngineError> {
        let geometry = &self.map.shape.geometry;
        let slots = usize::from(geometry.bucket_slots);
        let bucket_bytes = geometry.bucket_bytes() as usize;
        let run = if self.is_near { NEAR_RUN_BUCKETS } else { FAR_RUN_BUCKETS };
        let (first, buckets) = self.hand.next(&self.map, &self.fabric, run);
        let (mut run, bytes) = (self.spare.take(), buckets * bucket_bytes);
        if self.is_near {
            // Other lanes would evict for themselves meanwhile.
            self.fabric.load_bytes(first, bytes, &mut run)?;
        } else {
            let (read, done) = self.fabric.read(first, bytes, run).await;
            (run, _) = (read, done?);
        }
        let (mut worth, epoch) = (self.worth.learned(), self.mark_epoch());
        worth.classes.tick(epoch);
        let part_of_epoch = self.part_of_epoch();
        let (mut uses, of_expected) = (Uses::default(), worth.used_of_expected());
        for (number, bucket) in run.chunks_exact(bucket_bytes).enumerate() {
            let at = first.add((number * bucket_bytes) as u64);
            let word =
                |i: usize| u64::from_le_bytes(*bucket[i * 8..].first_chunk().expect("a word"));
            let marks = Marks(word(slots));
            for position in 0..slots {
                let word = Ite(word(position));
                if !self.map.codec.is_unmoved(word) {
                    continue;
                }
                let (slot, mark) = (at.add(position as u64 * 8), marks.of(position));
                if number % COUNTED_BUCKETS == 0 {
                    worth.saw(mark, epoch);
                    let of_value = worth.uses(mark, epoch, part_of_epoch);
                    uses += of_value;
                    if let Some(of) = self.class_at(word)? {
                        let expected = of_value.expected * of_expected;
                        worth.classes.count(Uses { expected, ..of_value }, &of, &class);
                    }
                }
                if !self.is_in_own_slab(&class, word)? {
                    self.age_on(slot, mark)?;
                    continue;
                }
                let mark = self.faded(slot, mark)?;
                shows(worth.of(mark, epoch), Shown { slot, word, mark, marks });
            }
        }
        worth.has_looked_at(self.hand.part(buckets.div_ceil(COUNTED_BUCKETS)), uses);
        drop(worth);
        self.spare.give_back(run);
        Ok(())
    }

    /// Whether a word names a place in a slab of the class that this client leases.
    #[inline]
    fn is_in_own_slab(&self, class: &Class, word: Ite) -> Result<bool, EngineError> {
        let Some(slab) = self.own_place(word).and_then(|place| class.slab(place)) else {
            return Ok(false);
        };
        Ok(self.owner().leases(class, slab)?)
    }

    /// The place that a word names, if it is in a data table from which this client may evict.
    #[inline(always)]
    fn own_place(&self, word: Ite) -> Option<Place> {
        let place = self.map.codec.place(word);
        let is_own = self.tables.contains(&place.dti) && place.offset < self.map.data_bytes();
        is_own.then_some(place)
    }

    /// The class of the value that a word names, if this client may evict it. Of long values there
    /// are too few to tell anything.
    fn class_at(&self, word: Ite) -> Result<Option<Class>, EngineError> {
        let Some(place) = self.own_place(word) else { return Ok(None) };
        let descriptor = |chunk| {
            let word = self.fabric.load(self.map.chunk_addr(place.dti, chunk))?;
            Ok::<_, EngineError>(Chunk::from_word(word))
        };
        let mut head = place.offset / CHUNK_BYTES;
        let mut chunk = descriptor(head)?;
        if let Some(Chunk::Tail { back }) = chunk {
            let Some(before) = head.checked_sub(back.into()) else { return Ok(None) };
            (head, chunk) = (before, descriptor(before)?);
        }
        let slab = chunk.and_then(Chunk::slab);
        let class = slab.and_then(|(id, chunks)| self.map.slab_class(head as u32, id, chunks));
        Ok(class.filter(|class| class.id != LARGE))
    }

    pub(in crate::nessie) fn entry_addr(&self, class: &Class, entry: Entry) -> RemoteAddr {
        self.map.slab_addr(entry.slab).add(class.entry_at(entry.number))
    }

    /// What a slot shows as a victim, if the entry is still the one. The marks of the key's first
    /// bucket are known only if it is the slot's.
    fn victim_shown(&self, class: Class, shown: Shown) -> Result<Option<Victim>, EngineError> {
        let Shown { slot, word, mark, marks } = shown;
        let Some(entry) = class.entry(self.map.codec.place(word)) else { return Ok(None) };
        let Some((header, head)) = self.own_head(&class, entry)? else { return Ok(None) };
        let generation = unpinned(header.generation);
        let mask = self.map.codec.gen_mask();
        if generation & mask != self.map.codec.generation(word) {
            return Ok(None);
        }
        let hash = KeyHash::of(&self.map, &head[header.key_at()..header.value_at()]);
        if self.is_held(self.entry_addr(&class, entry), &header, hash)? {
            return Ok(None);
        }
        self.will_retire(word, &class);
        let (first, (bucket, _)) = (hash.first_bucket(&self.map), self.map.bucket_of(slot));
        let first_marks = (first == bucket).then_some(marks);
        if first_marks.is_none() && self.is_near {
            self.fabric.will_store(first, 8);
        }
        let has_expired = self.is_expired(&header, &head);
        self.spare.give_back(head);
        Ok(Some(Victim {
            slot,
            word,
            entry,
            class,
            generation,
            mark,
            has_expired,
            hash,
            first_marks,
        }))
    }

    /// The values that are worth least among some entries of the client's slabs.
    async fn victims_in_slabs(&self, class: Class) -> Result<Vec<Victim>, EngineError> {
        let places: Vec<Entry> = {
            let mut alloc = self.alloc.borrow_mut();
            let slabs = &alloc.list(class).slabs;
            let count = if slabs.is_empty() { 0 } else { SAMPLED_IN_SLABS };
            let one = |_| {
                let slab = slabs[self.any(slabs.len())];
                Entry { slab, number: self.any(class.entries as usize) as u32 }
            };
            (0..count).map(one).collect()
        };
        // What is listed may be another client's by now, and cut in another way.
        let mut own = Vec::with_capacity(places.len());
        for entry in places {
            if self.owner().leases(&class, entry.slab)? {
                own.push(entry);
            }
        }
        let mut victims = self.victims(class, own).await?;
        victims.sort_by_key(|victim| victim.entry);
        victims.dedup_by_key(|victim| victim.entry);
        // Of values that are worth as little, any: otherwise clients that come for one operation
        // would always evict the same place.
        victims.sort_by_cached_key(|victim| (self.worth_of_victim(victim), self.fabric.random()));
        victims.truncate(victims.len().div_ceil(SAMPLED_FOR_ONE));
        Ok(victims)
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

    /// The values among some entries of a class.
    pub(super) async fn victims(
        &self,
        class: Class,
        entries: Vec<Entry>,
    ) -> Result<Vec<Victim>, EngineError> {
        for entry in &entries {
            self.fabric.will_read(self.entry_addr(&class, *entry));
        }
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
        let Some((header, head)) = self.own_head(&class, entry)? else { return Ok(None) };
        let generation = unpinned(header.generation);
        let hash = KeyHash::of(&self.map, &head[header.key_at()..header.value_at()]);
        if self.is_held(self.entry_addr(&class, entry), &header, hash)? {
            return Ok(None);
        }
        let candidates = Candidates::from_hash(&self.map, hash);
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
        let mark = self.faded(candidates.slot(slot), candidates.mark_in(&marks, slot))?;
        Ok(Some(Victim {
            slot: candidates.slot(slot),
            word: words[slot],
            entry,
            class,
            generation,
            mark,
            has_expired: self.is_expired(&header, &head),
            hash,
            first_marks: Some(marks[0]),
        }))
    }

    /// The header and the key of an entry of a mapped slab; `None` if it cannot have them. If the
    /// entry is used anew meanwhile, they may be of both uses: then no slot shows what an eviction
    /// would expect.
    fn own_head(&self, class: &Class, entry: Entry) -> Result<Option<(Header, Buf)>, EngineError> {
        let at = self.entry_addr(class, entry);
        let most = (class.entry_bytes as usize).min(BEFORE_VALUE_BYTES_MAX);
        let first = (HEADER_BYTES + EXPIRY_BYTES + KEY_GUESS_BYTES).min(most);
        let mut head = self.spare.take();
        self.fabric.load_bytes(at, first, &mut head)?;
        let Some(header) = Header::read(&head).filter(|header| header.value_at() <= most) else {
            return Ok(None);
        };
        if header.value_at() > head.len() {
            let (have, rest) = (head.len(), header.value_at() - head.len());
            self.fabric.load_bytes(at.add(have as u64), rest, &mut head)?;
        }
        Ok(Some((header, head)))
    }

    /// Any number below `count`, or 0.
    pub(in crate::nessie) fn any(&self, count: usize) -> usize {
        (self.fabric.random() % count.max(1) as u64) as usize
    }

    /// Keeps the value of a key from being evicted by this client, if the table evicts.
    pub(in crate::nessie) fn spare(&self, key: KeyHash) -> Option<Spared<'_>> {
        self.evicts().then(|| {
            self.spared.borrow_mut().push(key);
            Spared { keys: &self.spared, key }
        })
    }

    /// Whether the entry of a key is no victim (invariant 2).
    pub(in crate::nessie) fn is_held(
        &self,
        at: RemoteAddr,
        header: &Header,
        key: KeyHash,
    ) -> Result<bool, EngineError> {
        if self.spared.borrow().contains(&key) {
            return Ok(true);
        }
        let was_pinned = header.generation & PINNED != 0;
        Ok(was_pinned && is_pinned(&self.fabric, &self.map, at)?)
    }

    /// Evicts a value, whose slot gets another word. Returns whether it did: not if the slot has
    /// changed.
    async fn evict_victim(&self, victim: &Victim, to: Ite) -> Result<bool, EngineError> {
        let Victim { slot, word, entry, class, generation, .. } = victim;
        if planted::is(Bug::FreedBeforeEvicted) {
            self.retire(*entry, class, *generation)?;
        }
        // Linearization point of an eviction (protocol V3).
        let is_out = self.fabric.compare_swap(*slot, word.0, to.0).await? == word.0;
        if !is_out && !planted::is(Bug::EvictedAnyway) {
            return Ok(false);
        }
        self.retire(*entry, class, *generation)?;
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
    use std::collections::BTreeSet;

    use loch_fabric::lanes::block_on;
    use loch_fabric::shm::ShmEndpoint;

    use super::*;
    use crate::nessie::client::tests::client_with;
    use crate::nessie::layout::dte::next_generation;
    use crate::nessie::layout::geometry::Options;
    use crate::nessie::layout::ite::State;
    use crate::nessie::layout::slab::Slab;
    use crate::operation::PutOptions;

    const KEYS: usize = 60;
    const VALUE: &[u8] = &[7; 100];

    /// A client of a table that evicts and has some values, and their class. They are all in one
    /// slab.
    fn filled() -> (Client<ShmEndpoint>, Class) {
        let client = client_with(3 << 20, Options { evicts: true, ..Options::default() });
        for number in 0..KEYS {
            block_on(client.put(&[number as u8; 8], VALUE, PutOptions::default())).unwrap();
        }
        let class = client.map.classes.of(HEADER_BYTES + 8 + VALUE.len());
        assert_eq!(client.alloc.borrow_mut().list(class).slabs.len(), 1);
        (client, class)
    }

    /// What a turn of the hand over the index shows as victims.
    fn in_index(client: &Client<ShmEndpoint>, class: Class) -> Vec<Victim> {
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let mut shown = BTreeSet::new();
        // The hand goes on by a bucket at least.
        for _ in 0..client.map.buckets() {
            block_on(client.look_at_run(class, |_, one| _ = shown.insert(one))).unwrap();
        }
        let victims = shown.into_iter().map(|one| client.victim_shown(class, one));
        victims.filter_map(Result::unwrap).collect()
    }

    /// What a look at all entries of the client's slab shows as victims.
    fn in_slab(client: &Client<ShmEndpoint>, class: Class) -> Vec<Victim> {
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let slab = client.alloc.borrow_mut().list(class).slabs[0];
        let entries = (0..class.entries).map(|number| Entry { slab, number });
        block_on(client.victims(class, entries.collect())).unwrap()
    }

    /// What the slots of all keys show as victims for another key that has the same slots.
    fn in_slots(client: &Client<ShmEndpoint>) -> Vec<Victim> {
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let of_key = |number| client.candidates(&[number as u8; 8]).unwrap();
        let slots = |candidates: Candidates| {
            (0..candidates.count()).map(|slot| candidates.slot(slot)).collect::<Vec<_>>()
        };
        let all: BTreeSet<RemoteAddr> = (0..KEYS).map(of_key).flat_map(slots).collect();
        let look = |slot| {
            let word = Ite(client.fabric.load(slot).unwrap());
            block_on(client.victim_of(slot, word, Mark::default())).unwrap()
        };
        all.into_iter().filter_map(look).collect()
    }

    /// The numbers of the entries that the looks of all kinds show as victims.
    fn shown(client: &Client<ShmEndpoint>, class: Class) -> [BTreeSet<u32>; 3] {
        [in_index(client, class), in_slab(client, class), in_slots(client)]
            .map(|victims| victims.iter().map(|victim| victim.entry.number).collect())
    }

    /// Sets a word for as long as something is looked at.
    fn with_word<T>(
        client: &Client<ShmEndpoint>,
        at: RemoteAddr,
        word: u64,
        look: impl FnOnce() -> T,
    ) -> T {
        let before = client.fabric.load(at).unwrap();
        client.fabric.store(at, &[&word.to_le_bytes()]).unwrap();
        let seen = look();
        client.fabric.store(at, &[&before.to_le_bytes()]).unwrap();
        seen
    }

    #[test]
    fn what_is_moving_or_not_decided_or_used_anew_is_no_victim() {
        let (client, class) = filled();
        let (all, codec) = (shown(&client, class), client.map.codec);
        assert_eq!(all.each_ref().map(BTreeSet::len), [KEYS; 3]);
        let Victim { slot, word, entry, generation, .. } = in_slab(&client, class).remove(7);
        let in_state = |state| (slot, codec.with_state(word, state).0);
        for (at, word) in [
            in_state(State::Tentative),
            in_state(State::Frozen { hop: 1, to: 0 }),
            in_state(State::Copy { hop: 1, from: 0 }),
            (client.entry_addr(&class, entry), next_generation(generation)),
        ] {
            let mut others = all.clone();
            others.iter_mut().for_each(|numbers| _ = numbers.remove(&entry.number));
            let seen = with_word(&client, at, word, || shown(&client, class));
            assert_eq!(seen, others, "{word:#x} at {at:?}");
        }
        assert_eq!(shown(&client, class), all);
    }

    #[test]
    fn what_is_pinned_or_spared_is_no_victim() {
        let (client, class) = filled();
        let all = shown(&client, class);
        let pinned = block_on(client.pin(&[7; 8])).unwrap().expect("it was put");
        let others = shown(&client, class);
        assert_eq!(others.each_ref().map(BTreeSet::len), [KEYS - 1; 3]);
        drop(pinned);
        let spared = client.spare(client.hash(&[7; 8]).unwrap());
        assert_eq!(shown(&client, class), others);
        drop(spared);
        assert_eq!(shown(&client, class), all);
    }

    #[test]
    fn what_has_expired_is_worth_less_than_anything_else() {
        let (client, class) = filled();
        let expired = PutOptions { expires_at_ms: Some(1) };
        block_on(client.put(&[99; 8], &VALUE[EXPIRY_BYTES..], expired)).unwrap();
        let worth = |victim: &Victim| (client.worth_of_victim(victim), victim.has_expired);
        let mut worths: Vec<_> = in_slab(&client, class).iter().map(worth).collect();
        worths.sort_unstable();
        assert_eq!(worths[0], (0, true));
        assert!(worths[1..].iter().all(|(worth, expired)| *worth > 0 && !expired), "{worths:?}");
    }

    /// Five bits of an epoch start over.
    #[test]
    fn what_is_passed_over_stays_as_old_as_it_looks() {
        let (client, class) = filled();
        let Victim { slot, .. } = in_index(&client, class).remove(5);
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let (bucket, position) = client.map.bucket_of(slot);
        let age = |of_class| {
            client.write_mark(slot, Mark::new(1)).unwrap();
            for _ in 0..client.map.buckets() {
                block_on(client.look_at_run(of_class, |_, _| ())).unwrap();
            }
            let marks = Marks(client.fabric.load(client.map.marks_addr(bucket)).unwrap());
            marks.of(position).age(client.mark_epoch())
        };
        assert_eq!(Mark::new(1).age(client.mark_epoch()), 31);
        assert_eq!((age(class), age(client.map.classes.of(5000))), (16, 16));
    }

    #[test]
    fn a_clock_that_shows_anything_is_no_harm() {
        let (client, _) = filled();
        client.fabric.store(client.map.ledger(0).turned_over(), &[&[0xff; 8]]).unwrap();
        block_on(client.turn_over(client.epoch_bytes())).unwrap();
        assert!(client.mark_epoch() < 32 && client.part_of_epoch() < 1.0);
    }

    #[test]
    fn a_value_that_is_evicted_leaves_a_ghost_in_the_first_bucket_of_its_key() {
        let (client, class) = filled();
        // So many that some are not in their first buckets.
        for number in 0..900u16 {
            let key = [&number.to_le_bytes()[..], &[0xff; 6]].concat();
            block_on(client.put(&key, VALUE, PutOptions::default())).unwrap();
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

    #[test]
    fn of_values_that_are_worth_as_little_any_is_evicted() {
        let (client, class) = filled();
        let first = |_| {
            let _epoch = client.session.pin(&client.fabric).unwrap();
            block_on(client.victims_in_slabs(class)).unwrap()[0].entry
        };
        let seen: BTreeSet<Entry> = (0..20).map(first).collect();
        assert!(seen.len() > 5, "{seen:?}");
    }

    #[test]
    fn entries_of_a_slab_that_another_client_leases_by_now_are_no_victims() {
        let (client, class) = filled();
        let slab = client.alloc.borrow_mut().list(class).slabs[0];
        let look = || {
            let _epoch = client.session.pin(&client.fabric).unwrap();
            let in_slabs = block_on(client.victims_in_slabs(class)).unwrap();
            (in_index(&client, class).len(), in_slabs.len())
        };
        let (in_all, some) = look();
        assert!(in_all == KEYS && some > 0, "{in_all}, {some}");
        let theirs = Chunk::Leased { class: class.id, chunks: class.chunks, owner: 99 };
        let descriptor = client.map.chunk_addr(slab.dti, slab.chunk.into());
        assert_eq!(with_word(&client, descriptor, theirs.to_word(), look), (0, 0));
    }

    /// Behind the descriptors are the data: there may be anything.
    #[test]
    fn a_damaged_word_that_names_no_entry_of_the_table_shows_no_victim() {
        let (client, class) = filled();
        let Victim { slot, generation, .. } = in_slab(&client, class).remove(0);
        let chunk = client.map.shape.geometry.chunks.next_multiple_of(class.chunks.into());
        let entry = Entry { slab: Slab { dti: 0, chunk: chunk as u32 }, number: 3 };
        let place = class.place(entry);
        assert!(place.offset >= client.map.data_bytes() && place.offset >= chunk * CHUNK_BYTES);
        let word = client.map.codec.entry(State::Visible { hop: 0 }, 0, place, generation);
        assert_eq!(client.map.codec.place(word), Place { dti: 0, ..place });
        let mine = client.leased(&class).to_word();
        let shown = with_word(&client, client.map.chunk_addr(0, chunk), mine, || {
            with_word(&client, slot, word.0, || in_index(&client, class).len())
        });
        assert_eq!(shown, KEYS - 1);
    }
}
