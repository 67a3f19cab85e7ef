//! Victims: the values that a client of a table that evicts chooses to evict (protocol V).
//!
//! They are among the entries of its own slabs, whose memory it can use at once. The client looks
//! at some of them in the index, where their marks are ([`crate::nessie::layout::marks`]), and
//! chooses those that are worth least. A look passes values of all classes, so it fills the
//! shortlists of all (`client/shortlist.rs`). If the index shows too few of a class, the client
//! looks at entries of its slabs, and for their words in the index.
//!
//! The rules for victims are with the eviction (`evict.rs`).

use loch_fabric::{Buf, Fabric, RemoteAddr, lanes};

use crate::error::EngineError;
use crate::limits::{CHUNK_BYTES, EVICTED_FAR, EVICTED_NEAR, SAMPLED_FOR_ONE};
use crate::nessie::client::Client;
use crate::nessie::client::pins::is_pinned;
use crate::nessie::client::shortlist::{Shortlist, Shown};
use crate::nessie::client::uses::Uses;
use crate::nessie::layout::dte::{
    BEFORE_VALUE_BYTES_MAX, EXPIRY_BYTES, HEADER_BYTES, Header, PINNED, unpinned,
};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::{Ite, Place};
use crate::nessie::layout::marks::{Mark, Marks};
use crate::nessie::layout::slab::{Chunk, Class, Entry};

/// Entries that are looked at side by side.
pub(super) const LANES: usize = 16;
/// The most runs of buckets that one search READs: where memory is near, and over a network.
const NEAR_RUNS: usize = 32;
const FAR_RUNS: usize = 2;
/// So many runs are READ where memory is near even if they show few values of the class, and one
/// more for so many bytes of a value: writing them takes as long.
const NEAR_RUNS_MIN: usize = 8;
const BYTES_FOR_NEAR_RUN: u64 = 4096;
/// The buckets of such a run.
const NEAR_RUN_BUCKETS: u64 = 16;
const FAR_RUN_BUCKETS: u64 = 64;
/// Entries of its slabs that a client looks at if the index shows it too few of them.
const SAMPLED_IN_SLABS: usize = EVICTED_NEAR * SAMPLED_FOR_ONE;
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

/// What is in an entry, and where its key's word may be.
struct Value {
    entry: Entry,
    generation: u64,
    has_expired: bool,
    hash: KeyHash,
    candidates: Candidates,
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

    /// The values of a class that are worth least in some places of the index, as far as their
    /// entries are in the client's own slabs; `None` if few are, or none can go. Each pass over
    /// them prefetches what the next one looks at.
    pub(super) async fn victims_in_index(
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
        let (runs, most, mut list) = match self.is_near {
            true => (NEAR_RUNS, EVICTED_NEAR, self.alloc.borrow_mut().list(class).shortlist.take()),
            false => (FAR_RUNS, EVICTED_FAR, Shortlist::new(EVICTED_FAR)),
        };
        let least_runs = NEAR_RUNS_MIN + (class.entry_bytes / BYTES_FOR_NEAR_RUN) as usize;
        for run in 0..runs {
            let is_in_vain = run >= least_runs && list.chosen_after(runs, run) < most;
            if list.chosen() >= most || is_in_vain {
                break;
            }
            self.look_at_run(class, &mut list).await?;
        }
        let least: Vec<_> = list.least(most).collect();
        if self.is_near {
            self.alloc.borrow_mut().list(class).shortlist = list;
        }
        for shown in least {
            // The hand has gone round the whole index.
            if found.iter().any(|other| other.slot == shown.slot) {
                continue;
            }
            let Some(shown) = self.still_shown(&class, shown)? else { continue };
            if let Some((at, _)) = self.entry_at(shown.word) {
                // It is written next.
                let len = class.entry_bytes.min(PREFETCHED_BYTES_MAX);
                self.fabric.will_store(at, len as usize);
            }
            found.push(shown);
        }
        Ok(())
    }

    /// What a slot shows that is on a list, if it still shows it and nobody has used it since.
    fn still_shown(&self, class: &Class, shown: Shown) -> Result<Option<Shown>, EngineError> {
        if !self.is_near {
            // What is far was seen in this operation.
            return Ok(Some(shown));
        }
        let (bucket, position) = self.map.bucket_of(shown.slot);
        let word = Ite(self.fabric.load(shown.slot)?);
        let marks = Marks(self.fabric.load(self.map.marks_addr(bucket))?);
        let is_same = word == shown.word && marks.of(position) == shown.mark;
        let is_still = is_same && self.is_in_own_slab(class, word)?;
        Ok(is_still.then_some(Shown { marks, ..shown }))
    }

    /// Looks at the buckets at the hand, which goes on behind them, and lists the slots that show
    /// an entry in the client's own slabs: those of the class in `list`, the others for the next
    /// evictions of their classes.
    async fn look_at_run(&self, class: Class, list: &mut Shortlist) -> Result<(), EngineError> {
        let geometry = &self.map.shape.geometry;
        let slots = usize::from(geometry.bucket_slots);
        let bucket_bytes = geometry.bucket_bytes() as usize;
        let run = if self.is_near { NEAR_RUN_BUCKETS } else { FAR_RUN_BUCKETS };
        let (first, buckets) = self.hand.next(&self.map, &self.fabric, run);
        let (mut run, bytes) = (self.spare.take(), buckets * bucket_bytes);
        if self.is_near {
            // The next run probably.
            for line in (bytes..2 * bytes).step_by(64) {
                self.fabric.will_read(first.add(line as u64));
            }
            // Other lanes would evict for themselves meanwhile.
            self.fabric.load_bytes(first, bytes, &mut run)?;
        } else {
            let (read, done) = self.fabric.read(first, bytes, run).await;
            run = read;
            match done {
                Err(error) if error.out_of_reach().is_some() => {
                    // Slots of other nodes show values that can go.
                    self.hand.skip(&self.map, first);
                    self.spare.give_back(run);
                    return Ok(());
                }
                done => done?,
            }
        }
        let (mut worth, epoch, codec) = (self.worth.learned(), self.mark_epoch(), self.map.codec);
        let mut alloc = self.alloc.borrow_mut();
        worth.classes.tick(epoch);
        let part_of_epoch = self.part_of_epoch();
        let of_expected = worth.used_of_expected();
        let (mut uses, mut of_class) = (Uses::default(), Uses::default());
        for (number, bucket) in run.chunks_exact(bucket_bytes).enumerate() {
            let at = first.add((number * bucket_bytes) as u64);
            let word =
                |i: usize| u64::from_le_bytes(*bucket[i * 8..].first_chunk().expect("a word"));
            let marks = Marks(word(slots));
            // Where values and empty slots take turns, a branch for each slot is foretold badly.
            let shows = |i: usize| u64::from(codec.is_unmoved(Ite(word(i)))) << i;
            let mut shown = (0..slots).fold(0, |shown, i| shown | shows(i));
            while shown != 0 {
                let position = shown.trailing_zeros() as usize;
                shown &= shown - 1;
                let word = Ite(word(position));
                let (slot, mark) = (at.add(position as u64 * 8), marks.of(position));
                worth.saw(mark, epoch);
                let of_value = worth.uses(mark, epoch, part_of_epoch);
                uses += of_value;
                let of_value = of_value.of_expected(of_expected);
                if self.is_in_own_slab(&class, word)? {
                    of_class += of_value;
                    let mark = self.faded(slot, mark)?;
                    list.pass(worth.of(mark, epoch), Shown { slot, word, mark, marks });
                    continue;
                }
                self.age_on(slot, mark)?;
                let Some((of, is_own)) = self.class_at(word)? else { continue };
                worth.classes.count(of_value, &of, &class);
                if is_own && self.is_near {
                    let listed = &mut alloc.list(of).shortlist;
                    listed.pass(worth.of(mark, epoch), Shown { slot, word, mark, marks });
                }
            }
        }
        worth.classes.count(of_class, &class, &class);
        worth.has_looked_at(self.hand.part(buckets), uses);
        drop((worth, alloc));
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

    /// The class of the value that a word names, if it is in a data table from which this client
    /// may evict, and whether this client leases its slab.
    #[inline(always)]
    fn class_at(&self, word: Ite) -> Result<Option<(Class, bool)>, EngineError> {
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
        let Some((id, chunks)) = chunk.and_then(Chunk::slab) else { return Ok(None) };
        let own = self.owner().id;
        let is_own = matches!(chunk, Some(Chunk::Leased { owner, .. }) if owner == own);
        Ok(self.map.slab_class(head as u32, id, chunks).map(|class| (class, is_own)))
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
    pub(super) async fn victims_in_slabs(&self, class: Class) -> Result<Vec<Victim>, EngineError> {
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

    /// The values among some entries of a class. Each pass over them prefetches what the next one
    /// looks at. The slabs are mapped.
    pub(super) async fn victims(
        &self,
        class: Class,
        entries: Vec<Entry>,
    ) -> Result<Vec<Victim>, EngineError> {
        for entry in &entries {
            self.fabric.will_read(self.entry_addr(&class, *entry));
            self.fabric.will_read(self.owner().note_addr(&class, *entry));
        }
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(value) = self.value_in(&class, entry)? else { continue };
            for bucket in value.candidates.buckets() {
                self.fabric.will_read(*bucket);
            }
            found.push(value);
        }
        let mut victims = Vec::with_capacity(found.len());
        let mut failed = None;
        let looks = found.into_iter().map(|value| self.victim_of_value(class, value));
        lanes::run(LANES, looks, |look| match look {
            Ok(victim) => victims.extend(victim),
            Err(error) => failed = Some(error),
        })
        .await;
        failed.map_or(Ok(victims), Err)
    }

    /// What an entry holds, if it may be the value of a key that may be evicted.
    fn value_in(&self, class: &Class, entry: Entry) -> Result<Option<Value>, EngineError> {
        if !self.owner().is_used(class, entry)? {
            return Ok(None);
        }
        let Some((header, head)) = self.own_head(class, entry)? else { return Ok(None) };
        let hash = KeyHash::of(&self.map, &head[header.key_at()..header.value_at()]);
        if self.is_held(self.entry_addr(class, entry), &header, hash)? {
            return Ok(None);
        }
        let has_expired = self.is_expired(&header, &head);
        self.spare.give_back(head);
        Ok(Some(Value {
            entry,
            generation: unpinned(header.generation),
            has_expired,
            hash,
            candidates: Candidates::from_hash(&self.map, hash),
        }))
    }

    /// What an entry holds as a victim, if it is the value of its key.
    async fn victim_of_value(
        &self,
        class: Class,
        value: Value,
    ) -> Result<Option<Victim>, EngineError> {
        let Value { entry, generation, has_expired, hash, candidates } = value;
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
            has_expired,
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

    /// Any number below `count`, or 0.
    pub(in crate::nessie) fn any(&self, count: usize) -> usize {
        (self.fabric.random() % count.max(1) as u64) as usize
    }
}

#[cfg(test)]
pub(super) mod tests {
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
    pub fn filled() -> (Client<ShmEndpoint>, Class) {
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
        let mut list = Shortlist::new(usize::MAX);
        // The hand goes on by a bucket at least.
        for _ in 0..client.map.buckets() {
            block_on(client.look_at_run(class, &mut list)).unwrap();
        }
        let shown: BTreeSet<Shown> = list.all().collect();
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
                block_on(client.look_at_run(of_class, &mut Shortlist::new(0))).unwrap();
            }
            let marks = Marks(client.fabric.load(client.map.marks_addr(bucket)).unwrap());
            marks.of(position).age(client.mark_epoch())
        };
        assert_eq!(Mark::new(1).age(client.mark_epoch()), 31);
        assert_eq!((age(class), age(client.map.classes.of(5000))), (16, 16));
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

    /// Looks at the whole index as an eviction of values of 3000 B does. Returns what is on the
    /// list of a class by then.
    fn listed(client: &Client<ShmEndpoint>, class: Class) -> Vec<Shown> {
        let _epoch = client.session.pin(&client.fabric).unwrap();
        _ = client.alloc.borrow_mut().list(class).shortlist.take();
        let other = client.map.classes.of(3000);
        for _ in 0..client.map.buckets() {
            block_on(client.look_at_run(other, &mut Shortlist::new(1))).unwrap();
        }
        client.alloc.borrow_mut().list(class).shortlist.all().collect()
    }

    #[test]
    fn a_look_for_values_of_one_size_lists_what_may_go_of_the_others() {
        let (client, class) = filled();
        let in_index = in_index(&client, class);
        let slots: BTreeSet<_> = in_index.iter().map(|victim| victim.slot).collect();
        let all = listed(&client, class);
        assert!(!all.is_empty() && all.iter().all(|shown| slots.contains(&shown.slot)), "{all:?}");
        let slab = in_index[0].entry.slab;
        let theirs = Chunk::Leased { class: class.id, chunks: class.chunks, owner: 99 };
        let descriptor = client.map.chunk_addr(slab.dti, slab.chunk.into());
        let seen = with_word(&client, descriptor, theirs.to_word(), || listed(&client, class));
        assert_eq!(seen, [], "another client's");
    }

    /// A list may be as old as the client's last eviction of the class.
    #[test]
    fn what_is_listed_goes_only_if_nothing_has_happened_to_it() {
        let (client, class) = filled();
        let shown = listed(&client, class)[0];
        let _epoch = client.session.pin(&client.fabric).unwrap();
        let Shown { slot, word, mark, .. } = shown;
        let still = || client.still_shown(&class, shown).unwrap().map(|still| still.slot);
        assert_eq!(still(), Some(slot));
        let codec = client.map.codec;
        let (bucket, position) = client.map.bucket_of(slot);
        let marks = client.map.marks_addr(bucket);
        let of_bucket = client.fabric.load(marks).unwrap();
        let used = mark.used(client.mark_epoch()).expect("it is new");
        client.write_mark(slot, used).unwrap();
        let of_used = client.fabric.load(marks).unwrap();
        client.write_mark(slot, mark).unwrap();
        assert_eq!((Marks(of_used).of(position), still()), (used, Some(slot)));
        let entry = class.entry(codec.place(word)).unwrap();
        let slab = client.map.chunk_addr(entry.slab.dti, entry.slab.chunk.into());
        let theirs = Chunk::Leased { class: class.id, chunks: class.chunks, owner: 99 };
        for (at, changed) in [
            (marks, of_used),
            (slot, 0),
            (slot, codec.entry(State::Visible { hop: 0 }, 0, codec.place(word), 6).0),
            (slot, codec.with_state(word, State::Frozen { hop: 1, to: 0 }).0),
            (slab, theirs.to_word()),
            (slab, Chunk::Free.to_word()),
        ] {
            assert_eq!(with_word(&client, at, changed, still), None, "{changed:#x} at {at:?}");
        }
        assert_eq!((client.fabric.load(marks).unwrap(), still()), (of_bucket, Some(slot)));
    }

    #[test]
    fn the_class_of_an_entry_is_known_in_every_chunk_of_its_slab() {
        let (client, _) = filled();
        let mut chunks = BTreeSet::new();
        for number in 0..40 {
            block_on(client.put(&[99, number], &[7; 5000], PutOptions::default())).unwrap();
        }
        let class = client.map.classes.of(HEADER_BYTES + 2 + 5000);
        for Victim { word, entry, .. } in in_index(&client, class) {
            let offset = client.map.codec.place(word).offset;
            chunks.insert(offset / CHUNK_BYTES - u64::from(entry.slab.chunk));
            let (found, is_own) = client.class_at(word).unwrap().expect("there is a value");
            assert_eq!((found.id, found.chunks, is_own), (class.id, class.chunks, true));
        }
        assert!(chunks.len() > 1, "{chunks:?} of {class:?}");
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
