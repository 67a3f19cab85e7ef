//! Allocation: how a client gets free entries without asking another process (nessie §4.2.5).
//!
//! A client takes entries from slabs that it leased. It finds the entries that others retired by
//! sweeping the notes of its slabs. The free lists here are only hints in private memory: an entry
//! is free because of its note (see [`crate::nessie::slab`]), so a client that dies loses no free
//! entry.
//!
//! # Invariants
//! 1. An entry is taken only inside an epoch, after its slab's descriptor was seen to be leased by
//!    this session, and only if its note is its generation. So once a grace period has passed since
//!    a slab was seized, its old owner does not allocate from it; and a place that is listed twice
//!    is taken once. An entry that was never used has no note: it is taken only if the slab's
//!    header says, at that moment, that it is the next one. The client's memory of the header may
//!    be older than the slab's last owner, even if the slab is this session's again.
//! 2. A taken entry has a new generation before any other byte of it changes.
//! 3. An entry whose short generation would start over rests for two grace periods first. After
//!    that no operation and no cache holds a word with the generation that it repeats.
//! 4. Notes are stored inside an epoch in which the client saw that its session leases the slab,
//!    and that the slab is cut as it was when the entry was listed. A client may stand still
//!    between that look and the store: until the epoch ends, the slab is not cut anew.
//! 5. An entry that a session has pinned is not taken ([`super::pins`], invariant 2).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use loch_fabric::{Fabric, FabricError, RemoteAddr};

use super::balance::Balance;
use super::pins::is_pinned;
use super::shortlist::Shortlist;
use crate::limits::{QUARANTINE_ENTRIES, QUARANTINE_ENTRY_BYTES_MAX};
use crate::nessie::layout::dte::{next_generation, note_of, unpinned};
use crate::nessie::layout::hash::TableMap;
use crate::nessie::layout::ite::Place;
use crate::nessie::layout::slab::{Chunk, Class, Entry, FORMATTED_OFFSET, LARGE, Slab};
use crate::planted::{self, Bug};

/// An entry that this client owns: taken, and not in the index (or not yet known to be there).
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Own {
    pub entry: Entry,
    pub place: Place,
    pub at: RemoteAddr,
    pub class: Class,
    pub generation: u64,
}

/// Values on a class's shortlist: more than go at a time, because classes do not evict in turn.
const LISTED: usize = 4;

/// The free entries that a client knows of, by class.
#[derive(Debug)]
pub(in crate::nessie) struct Allocator {
    /// The number of freed entries that rest before the first of them is used again, if they are
    /// short.
    pub quarantine: usize,
    /// The lists, by class number.
    classes: Vec<Option<List>>,
    /// The lists of long entries, by the number of chunks of their runs.
    large: BTreeMap<u32, List>,
}

/// One class's slabs and free entries.
#[derive(Debug)]
pub(in crate::nessie) struct List {
    pub class: Class,
    /// Slabs that this session leased.
    pub slabs: Vec<Slab>,
    /// How often a slab with room was closed in vain, and listed anew.
    pub reopened: u64,
    /// The next slab to be swept.
    pub sweep_at: usize,
    /// So many times more it is known that there is no memory but what can be evicted.
    pub known_full: u32,
    /// So many evictions later slabs are swept, while there is no other memory.
    pub sweep_after: u32,
    /// What the class gave up lately, and what it lacks.
    pub balance: Balance,
    /// Values of the class that may be evicted next.
    pub shortlist: Shortlist,
    /// For each slab the entries that were never used, from the next one on.
    fresh: Vec<Fresh>,
    /// Entries that a sweep found free, or that have left the quarantine.
    free: Vec<Entry>,
    /// Entries that were freed a moment ago: readers may be on their way to them, and they may be
    /// in the processor's caches.
    recent: VecDeque<Entry>,
    /// Entries that wait for a grace period to begin: invariant 3.
    pub parked: Vec<Parked>,
    /// Entries that have waited long enough.
    rested: Vec<Parked>,
    /// Free entries that somebody had pinned when they were looked at last. They are tried when
    /// there are no others, so that those that stay pinned cost the others nothing.
    pinned: BTreeSet<Entry>,
}

/// A free entry that rests, with its generation and the floor of its slab. If one of them changes,
/// another client has used the entry meanwhile.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Parked {
    entry: Entry,
    generation: u64,
    floor: u64,
}

/// A slab with entries that were never used, and what its header said at the last look.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    slab: Slab,
    next: u32,
    floor: u64,
}

/// An entry is prefetched when this many others will be taken before it.
const TAKEN_SOON: usize = 8;

/// The parts of a client that taking an entry needs.
pub(in crate::nessie) struct Owner<'a, F> {
    pub fabric: &'a F,
    pub map: &'a TableMap,
    /// The low half of the session's incarnation.
    pub id: u32,
}

impl<F> Clone for Owner<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Owner<'_, F> {}

impl<F: Fabric> Owner<'_, F> {
    #[inline(always)]
    pub fn leases(&self, class: &Class, slab: Slab) -> Result<bool, FabricError> {
        let mine = Chunk::Leased { class: class.id, chunks: class.chunks, owner: self.id };
        let word = self.fabric.load(self.map.chunk_addr(slab.dti, slab.chunk as u64))?;
        Ok(word == mine.to_word())
    }

    /// The generation floor of a slab: no two cuts of its chunks have the same floor.
    #[inline(always)]
    fn floor(&self, slab: Slab) -> Result<u64, FabricError> {
        self.fabric.load(self.map.slab_addr(slab))
    }

    #[inline(always)]
    fn formatted_addr(&self, slab: Slab) -> RemoteAddr {
        self.map.slab_addr(slab).add(FORMATTED_OFFSET)
    }

    #[inline(always)]
    pub fn note_addr(&self, class: &Class, entry: Entry) -> RemoteAddr {
        self.map.slab_addr(entry.slab).add(class.note_at(entry.number))
    }

    #[inline(always)]
    fn note(&self, class: &Class, entry: Entry) -> Result<u32, FabricError> {
        let at = self.note_addr(class, entry);
        let word = self.fabric.load(RemoteAddr::new(at.region(), at.offset() & !7))?;
        Ok((word >> ((at.offset() & 4) * 8)) as u32)
    }

    /// Whether an entry of a mapped slab is in use: it was used before, and is not noted free.
    pub fn is_used(&self, class: &Class, entry: Entry) -> Result<bool, FabricError> {
        let formatted = self.fabric.load(self.formatted_addr(entry.slab))?;
        let generation = unpinned(self.fabric.load(self.at(class, entry))?);
        let is_free = self.note(class, entry)? == note_of(generation);
        Ok(u64::from(entry.number) < formatted && !is_free)
    }

    #[inline(always)]
    fn at(&self, class: &Class, entry: Entry) -> RemoteAddr {
        self.map.slab_addr(entry.slab).add(class.entry_at(entry.number))
    }

    /// Prefetches an entry that will be written shortly: short entries lie in these two lines.
    #[inline(always)]
    fn will_write(&self, class: &Class, entry: Entry) {
        self.fabric.will_store(self.at(class, entry), class.entry_bytes as usize);
    }

    /// Makes a free entry an owned one: clears its note, changes its generation (invariant 2).
    #[inline(always)]
    fn claim(&self, class: &Class, entry: Entry, generation: u64) -> Result<Own, FabricError> {
        let at = self.at(class, entry);
        self.fabric.store(self.note_addr(class, entry), &[&[0; 4]])?;
        self.fabric.store_before(at, generation)?;
        Ok(Own { entry, place: class.place(entry), at, class: *class, generation })
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Self { quarantine: QUARANTINE_ENTRIES, classes: Vec::new(), large: BTreeMap::new() }
    }
}

impl Allocator {
    #[inline(always)]
    pub fn list(&mut self, class: Class) -> &mut List {
        let known = self.classes.get(class.id as usize).is_some_and(Option::is_some);
        if !known {
            return self.rare_list(class);
        }
        self.classes[class.id as usize].as_mut().expect("it was looked at")
    }

    /// The list of a class of long entries, or one that is new.
    #[inline(never)]
    fn rare_list(&mut self, class: Class) -> &mut List {
        if class.id == LARGE {
            return self.large.entry(class.chunks).or_insert_with(|| List::new(class));
        }
        let at = class.id as usize;
        if at >= self.classes.len() {
            self.classes.resize_with(at + 1, || None);
        }
        self.classes[at].get_or_insert_with(|| List::new(class))
    }

    pub fn lists(&mut self) -> impl Iterator<Item = &mut List> {
        self.classes.iter_mut().flatten().chain(self.large.values_mut())
    }

    /// Takes a free entry of the class, if one is known. The caller is inside an epoch.
    #[inline(always)]
    pub fn take<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        class: Class,
    ) -> Result<Option<Own>, FabricError> {
        let rests = class.entry_bytes <= QUARANTINE_ENTRY_BYTES_MAX;
        let quarantine = rests.then_some(self.quarantine);
        self.list(class).take(owner, quarantine)
    }
}

impl List {
    fn new(class: Class) -> Self {
        Self {
            class,
            shortlist: Shortlist::new(LISTED),
            slabs: Vec::new(),
            reopened: 0,
            sweep_at: 0,
            known_full: 0,
            sweep_after: 0,
            balance: Balance::default(),
            fresh: Vec::new(),
            free: Vec::new(),
            recent: VecDeque::new(),
            parked: Vec::new(),
            rested: Vec::new(),
            pinned: BTreeSet::new(),
        }
    }

    /// Takes an entry. With a quarantine, the entries that were freed first come first, and so many
    /// rest; without, those that were freed last.
    #[inline(always)]
    fn take<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        quarantine: Option<usize>,
    ) -> Result<Option<Own>, FabricError> {
        if !self.rested.is_empty()
            && let Some(own) = self.take_rested(owner)?
        {
            return Ok(Some(own));
        }
        loop {
            let last = if quarantine.is_none() { self.recent.pop_back() } else { None };
            let listed = match last.or_else(|| self.free.pop()) {
                None => {
                    let is_to_rest = quarantine.is_none_or(|most| self.recent.len() <= most);
                    if is_to_rest
                        && !self.fresh.is_empty()
                        && let Some(own) = self.take_fresh(owner)?
                    {
                        return Ok(Some(own));
                    }
                    self.pop_recent(owner)
                }
                entry => entry,
            };
            let Some(entry) = listed else { return self.take_unpinned(owner) };
            if let Some(own) = self.take_listed(owner, entry)? {
                return Ok(Some(own));
            }
        }
    }

    /// Takes a listed entry, unless it cannot be taken or has to rest.
    #[inline(always)]
    fn take_listed<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        entry: Entry,
    ) -> Result<Option<Own>, FabricError> {
        let Some(generation) = self.check(owner, entry)? else {
            return Ok(None);
        };
        let next = next_generation(generation);
        let mask = owner.map.codec.gen_mask();
        if next & mask < generation & mask && !planted::is(Bug::NoRestAtWrap) {
            self.park(owner, entry, generation)?;
            return Ok(None);
        }
        owner.claim(&self.class, entry, next).map(Some)
    }

    /// Takes one of the entries that were pinned, if its pins have ended.
    #[cold]
    fn take_unpinned<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
    ) -> Result<Option<Own>, FabricError> {
        let mut pinned = std::mem::take(&mut self.pinned);
        while let Some(entry) = pinned.pop_first() {
            if let Some(own) = self.take_listed(owner, entry)? {
                self.pinned.append(&mut pinned);
                return Ok(Some(own));
            }
        }
        Ok(None)
    }

    /// Takes an entry that has rested for long enough (invariant 3).
    #[cold]
    fn take_rested<F: Fabric>(&mut self, owner: Owner<'_, F>) -> Result<Option<Own>, FabricError> {
        while let Some(Parked { entry, generation, .. }) = self.rested.pop() {
            // With another generation the entry would be one that has not rested.
            if self.check(owner, entry)? == Some(generation) {
                return owner.claim(&self.class, entry, next_generation(generation)).map(Some);
            }
        }
        Ok(None)
    }

    /// Takes an entry off the lists, and its note away, until it has rested (invariant 3).
    #[cold]
    fn park<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        entry: Entry,
        generation: u64,
    ) -> Result<(), FabricError> {
        let floor = owner.floor(entry.slab)?;
        owner.fabric.store(owner.note_addr(&self.class, entry), &[&[0; 4]])?;
        self.parked.push(Parked { entry, generation, floor });
        Ok(())
    }

    /// The entry that was freed first. Another that will be taken soon is prefetched.
    #[inline(always)]
    fn pop_recent<F: Fabric>(&mut self, owner: Owner<'_, F>) -> Option<Entry> {
        if let Some(soon) = self.recent.get(TAKEN_SOON) {
            owner.will_write(&self.class, *soon);
        }
        self.recent.pop_front()
    }

    /// The generation of a listed entry, if the entry is free, not pinned, and its slab is ours
    /// (invariants 1 and 5).
    #[inline(always)]
    fn check<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        entry: Entry,
    ) -> Result<Option<u64>, FabricError> {
        if !owner.leases(&self.class, entry.slab)? {
            return Ok(None);
        }
        let at = owner.at(&self.class, entry);
        let note = owner.note(&self.class, entry)?;
        let word = owner.fabric.load(at)?;
        let generation = unpinned(word);
        // Where an entry was never used in this cut of the slab there may be any bytes, also some
        // whose note would be zero.
        let is_noted = note == note_of(word) || planted::is(Bug::NoteWithoutGeneration);
        let free = note != 0 && is_noted;
        if word != generation && free && self.is_held(owner, entry)? {
            return Ok(None);
        }
        Ok(free.then_some(generation))
    }

    /// Whether somebody pins a free entry that was pinned once (invariant 5). It is put aside then.
    #[cold]
    fn is_held<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        entry: Entry,
    ) -> Result<bool, FabricError> {
        let at = owner.at(&self.class, entry);
        let held = is_pinned(owner.fabric, owner.map, at)? && !planted::is(Bug::PinIgnored);
        if held {
            self.pinned.insert(entry);
        }
        Ok(held)
    }

    /// Takes an entry that was never used (invariant 1).
    #[inline(never)]
    fn take_fresh<F: Fabric>(&mut self, owner: Owner<'_, F>) -> Result<Option<Own>, FabricError> {
        while let Some(fresh) = self.fresh.last_mut() {
            let slab = fresh.slab;
            if !owner.leases(&self.class, slab)? {
                self.fresh.pop();
                continue;
            }
            if !planted::is(Bug::FreshUnchecked) {
                // The slab may have been another session's meanwhile, which may have used entries
                // of it.
                let formatted = owner.fabric.load(owner.formatted_addr(slab))?;
                fresh.next = formatted.min(self.class.entries as u64) as u32;
                fresh.floor = owner.floor(slab)?;
            }
            if fresh.next == self.class.entries {
                self.fresh.pop();
                continue;
            }
            let entry = Entry { slab, number: fresh.next };
            let own = owner.claim(&self.class, entry, next_generation(fresh.floor))?;
            fresh.next += 1;
            // Only now does the entry count as used: if this client dies before, the entry is still
            // fresh.
            let formatted = (fresh.next as u64).to_le_bytes();
            owner.fabric.store(owner.formatted_addr(slab), &[&formatted])?;
            return Ok(Some(own));
        }
        Ok(None)
    }

    /// Adds a slab that this session has just leased.
    pub fn add_slab(&mut self, slab: Slab, formatted: u32, floor: u64) {
        if !planted::is(Bug::FreshUnchecked) {
            // The slab may have been this session's before.
            self.slabs.retain(|known| *known != slab);
            self.fresh.retain(|known| known.slab != slab);
        }
        self.slabs.push(slab);
        if formatted < self.class.entries {
            self.fresh.push(Fresh { slab, next: formatted, floor });
        }
    }

    /// Forgets what is listed of a slab. A lane that comes by while the slab is closed drops some
    /// of it, so it has to be listed anew if the slab stays leased.
    pub fn forget_slab(&mut self, slab: Slab) {
        self.slabs.retain(|known| *known != slab);
        self.fresh.retain(|known| known.slab != slab);
        self.free.retain(|known| known.slab != slab);
        self.recent.retain(|known| known.slab != slab);
    }

    /// Lists an entry whose note is set. Returns false if it is known as pinned: then it is no
    /// entry that can be had.
    pub fn add_free(&mut self, entry: Entry) -> bool {
        let is_new = !self.pinned.contains(&entry);
        if is_new {
            self.free.push(entry);
        }
        is_new
    }

    /// Whether free entries are known that cannot be had because they are pinned.
    pub fn has_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Lists an entry that was freed a moment ago.
    pub fn add_recent(&mut self, entry: Entry) {
        self.recent.push_back(entry);
    }

    /// Lists entries that have rested, and sets their notes again. The scrubber may have set a note
    /// first. In that case, and whenever the generation or the floor says that the entry was used
    /// since, the entry is left alone. The caller is inside an epoch (invariant 4).
    pub fn add_rested<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        rested: &[Parked],
    ) -> Result<(), FabricError> {
        for parked in rested {
            let Parked { entry, generation, floor } = *parked;
            let same_cut = owner.floor(entry.slab)? == floor || planted::is(Bug::RestedAfterCut);
            let unused = unpinned(owner.fabric.load(owner.at(&self.class, entry))?) == generation;
            if same_cut && unused && owner.leases(&self.class, entry.slab)? {
                let note = note_of(generation).to_le_bytes();
                owner.fabric.store(owner.note_addr(&self.class, entry), &[&note])?;
                self.rested.push(*parked);
            }
        }
        Ok(())
    }

    /// For each slab the number of entries that are known to be free.
    pub fn free_counts(&self) -> BTreeMap<Slab, u32> {
        let mut counts: BTreeMap<Slab, u32> = self.slabs.iter().map(|s| (*s, 0)).collect();
        let rested = self.rested.iter().map(|parked| &parked.entry);
        for entry in self.free.iter().chain(&self.recent).chain(rested) {
            *counts.entry(entry.slab).or_default() += 1;
        }
        for fresh in &self.fresh {
            *counts.entry(fresh.slab).or_default() += self.class.entries - fresh.next;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loch_fabric::RegionId;
    use loch_fabric::shm::{Region, ShmEndpoint};

    use super::*;
    use crate::nessie::layout::dte::{HEADER_BYTES, PINNED};
    use crate::nessie::layout::geometry::{Geometry, Options};
    use crate::region::{PINNERS_OFFSET, pins_offset};

    /// The low half of the incarnation of the session under test.
    const MINE: u32 = 5;
    const FLOOR: u64 = 1000;
    const SLAB: Slab = Slab { dti: 0, chunk: 16 };

    /// The memory of one data table.
    struct Table {
        fabric: ShmEndpoint,
        region: Arc<Region>,
        map: TableMap,
    }

    impl Table {
        fn new() -> Self {
            let at = RemoteAddr::new(RegionId(0), 64 << 10);
            let geometry = Geometry::plan(1, 16 << 20, 1 << 10, 3, 4, 64 << 20, Options::default());
            let shape = geometry.unwrap().validate().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let bytes = at.offset() + shape.bytes();
            let region = Arc::new(Region::create(&dir.path().join("region"), bytes).unwrap());
            let mut fabric = ShmEndpoint::new(RegionId(0));
            fabric.attach(RegionId(0), region.clone());
            Self { fabric, region, map: TableMap::new(shape, &[(at, 1)]) }
        }

        fn class(&self, len: usize) -> Class {
            self.map.classes.of(len)
        }

        fn owner(&self) -> Owner<'_, ShmEndpoint> {
            Owner { fabric: &self.fabric, map: &self.map, id: MINE }
        }

        fn set(&self, at: RemoteAddr, bytes: &[u8]) {
            self.region.copy_in(at.offset(), bytes);
        }

        fn lease_to(&self, slab: Slab, class: Class, owner: u32) {
            let lease = Chunk::Leased { class: class.id, chunks: class.chunks, owner };
            let descriptor = self.map.chunk_addr(slab.dti, slab.chunk as u64);
            self.set(descriptor, &lease.to_word().to_le_bytes());
        }

        /// Makes a slab ours, with `formatted` entries that were used and are in use.
        fn lease(&self, slab: Slab, class: Class, floor: u64, formatted: u32) {
            self.lease_to(slab, class, MINE);
            let header = [floor.to_le_bytes(), (formatted as u64).to_le_bytes()].concat();
            self.set(self.map.slab_addr(slab), &header);
            for number in 0..class.entries {
                let entry = Entry { slab, number };
                self.set_generation(class, entry, floor + 1);
                self.set_note(class, entry, 0);
            }
        }

        fn set_generation(&self, class: Class, entry: Entry, generation: u64) {
            self.set(self.owner().at(&class, entry), &generation.to_le_bytes());
        }

        fn set_note(&self, class: Class, entry: Entry, note: u32) {
            self.set(self.owner().note_addr(&class, entry), &note.to_le_bytes());
        }

        /// The generation and the note of an entry, as they are in memory.
        fn entry(&self, class: Class, entry: Entry) -> (u64, u32) {
            let owner = self.owner();
            let (mut generation, mut note) = ([0; 8], [0; 4]);
            self.region.copy_out(owner.at(&class, entry).offset(), &mut generation);
            self.region.copy_out(owner.note_addr(&class, entry).offset(), &mut note);
            (u64::from_le_bytes(generation), u32::from_le_bytes(note))
        }

        fn take(&self, alloc: &mut Allocator, class: Class) -> Option<Own> {
            let taken = alloc.take(self.owner(), class).unwrap();
            if let Some(own) = taken {
                assert_eq!(self.entry(class, own.entry), (own.generation, 0), "invariant 2");
                assert_eq!(own.place, class.place(own.entry));
            }
            taken
        }

        fn numbers(&self, alloc: &mut Allocator, class: Class) -> Vec<u32> {
            std::iter::from_fn(|| self.take(alloc, class)).map(|own| own.entry.number).collect()
        }
    }

    fn entry(number: u32) -> Entry {
        Entry { slab: SLAB, number }
    }

    /// A word for a pin of the only session.
    fn pin_of(number: u64) -> RemoteAddr {
        RemoteAddr::new(RegionId(0), pins_offset(1, 0) + number * 8)
    }

    /// An allocator that knows a slab whose entries are all in use.
    fn used_up(table: &Table, class: Class) -> Allocator {
        table.lease(SLAB, class, FLOOR, class.entries);
        let mut alloc = Allocator::default();
        alloc.list(class).add_slab(SLAB, class.entries, FLOOR);
        assert!(table.numbers(&mut alloc, class).is_empty());
        alloc
    }

    /// The slab was cut anew since, over bytes that were zero.
    #[test]
    fn an_entry_that_was_free_in_an_older_cut_is_not_taken_for_its_zeros() {
        let table = Table::new();
        let class = table.class(100);
        let mut alloc = used_up(&table, class);
        assert!(alloc.list(class).add_free(entry(5)));
        table.lease(SLAB, class, FLOOR + 100, 0);
        table.set_generation(class, entry(5), 0);
        assert!(table.numbers(&mut alloc, class).is_empty());
        alloc.list(class).add_slab(SLAB, 0, FLOOR + 100);
        assert!(alloc.list(class).add_free(entry(5)));
        let taken = table.numbers(&mut alloc, class);
        assert!(taken.iter().copied().eq(0..class.entries), "{taken:?}");
    }

    #[test]
    fn unused_entries_are_taken_in_turn_and_count_as_used_from_then_on() {
        let table = Table::new();
        for len in [HEADER_BYTES, 3000, 500_000] {
            let class = table.class(len);
            table.lease(SLAB, class, FLOOR, 0);
            let mut alloc = Allocator::default();
            alloc.list(class).add_slab(SLAB, 0, FLOOR);
            for number in 0..class.entries {
                let own = table.take(&mut alloc, class).unwrap();
                assert_eq!((own.entry, own.generation), (entry(number), FLOOR + 1));
                let formatted = table.fabric.load(table.owner().formatted_addr(SLAB)).unwrap();
                assert_eq!(formatted, number as u64 + 1);
            }
            assert!(table.take(&mut alloc, class).is_none());
        }
    }

    /// Invariant 1: the lists are hints, and the slab's memory decides.
    #[test]
    fn a_listed_entry_is_taken_once_and_only_if_its_note_is_its_generation_and_its_slab_ours() {
        let table = Table::new();
        let class = table.class(200);
        let mut alloc = used_up(&table, class);
        for number in 0..6 {
            table.set_note(class, entry(number), note_of(FLOOR + 1));
            alloc.list(class).add_free(entry(number));
            alloc.list(class).add_recent(entry(number));
        }
        // A note that came late belongs to an older generation.
        table.set_note(class, entry(0), note_of(FLOOR));
        table.set_note(class, entry(3), 0);
        table.set_generation(class, entry(4), FLOOR + 2);
        assert_eq!(table.numbers(&mut alloc, class), [5, 2, 1]);
        assert_eq!(table.entry(class, entry(2)), (FLOOR + 2, 0));
        // Another session has the slab by now.
        table.set_note(class, entry(2), note_of(FLOOR + 2));
        alloc.list(class).add_free(entry(2));
        table.lease_to(SLAB, class, 9);
        assert!(table.numbers(&mut alloc, class).is_empty());
        assert_eq!(table.entry(class, entry(2)), (FLOOR + 2, note_of(FLOOR + 2)));
    }

    #[test]
    fn freed_entries_rest_while_there_are_others_and_are_taken_in_the_order_they_were_freed_in() {
        let table = Table::new();
        let class = table.class(3000);
        table.lease(SLAB, class, FLOOR, class.entries - 2);
        let mut alloc = Allocator { quarantine: 3, ..Allocator::default() };
        alloc.list(class).add_slab(SLAB, class.entries - 2, FLOOR);
        for number in 0..5 {
            table.set_note(class, entry(number), note_of(FLOOR + 1));
            alloc.list(class).add_recent(entry(number));
        }
        let unused = class.entries - 2;
        assert_eq!(table.numbers(&mut alloc, class), [0, 1, unused, unused + 1, 2, 3, 4]);
    }

    /// They are still in the processor's caches.
    #[test]
    fn of_long_entries_those_that_were_freed_last_are_taken_first() {
        let table = Table::new();
        let class = table.class(QUARANTINE_ENTRY_BYTES_MAX as usize + 1);
        table.lease(SLAB, class, FLOOR, class.entries - 1);
        let mut alloc = Allocator::default();
        alloc.list(class).add_slab(SLAB, class.entries - 1, FLOOR);
        for number in 0..5 {
            table.set_note(class, entry(number), note_of(FLOOR + 1));
        }
        (3..5).for_each(|number| assert!(alloc.list(class).add_free(entry(number))));
        (0..3).for_each(|number| alloc.list(class).add_recent(entry(number)));
        let unused = class.entries - 1;
        assert_eq!(table.numbers(&mut alloc, class), [2, 1, 0, 4, 3, unused]);
    }

    /// Invariant 5.
    #[test]
    fn a_pinned_entry_is_not_taken_and_comes_back_after_all_others() {
        let table = Table::new();
        let class = table.class(200);
        let mut alloc = used_up(&table, class);
        let pin = |number: Option<u32>| {
            let pinned =
                number.map_or(0, |number| table.owner().at(&class, entry(number)).to_word());
            table.set(RemoteAddr::new(RegionId(0), PINNERS_OFFSET), &1u64.to_le_bytes());
            table.set(pin_of(0), &pinned.to_le_bytes());
        };
        for number in 0..3 {
            table.set_generation(class, entry(number), (FLOOR + 1) | PINNED);
            table.set_note(class, entry(number), note_of(FLOOR + 1));
            alloc.list(class).add_free(entry(number));
        }
        table.set_note(class, entry(3), note_of(FLOOR + 1));
        alloc.list(class).add_recent(entry(3));
        // The last of them is the one that would be taken first.
        pin(Some(2));
        assert_eq!(table.take(&mut alloc, class).unwrap().entry, entry(1));
        pin(None);
        assert_eq!(table.numbers(&mut alloc, class), [0, 3, 2]);
        assert!(!alloc.list(class).has_pinned());
        table.set_generation(class, entry(0), (FLOOR + 3) | PINNED);
        table.set_note(class, entry(0), note_of(FLOOR + 3));
        alloc.list(class).add_recent(entry(0));
        pin(Some(0));
        assert!(table.take(&mut alloc, class).is_none() && alloc.list(class).has_pinned());
        assert!(!alloc.list(class).add_free(entry(0)), "a sweep must not count on it");
        assert!(alloc.list(class).add_free(entry(1)));
        assert_eq!(table.entry(class, entry(0)), ((FLOOR + 3) | PINNED, note_of(FLOOR + 3)));
    }

    /// Invariants 3 and 4: an entry whose short generation would start over is off all lists until
    /// it has rested. It is then taken only if it is the same entry of the same cut of a slab that
    /// is still ours.
    #[test]
    fn an_entry_that_has_rested_is_freed_only_if_nothing_has_changed_meanwhile() {
        let table = Table::new();
        let class = table.class(200);
        let last = table.map.codec.gen_mask();
        type Change = fn(&Table, Class);
        let changes: [(Change, bool); 5] = [
            (|_, _| (), true),
            // A pin that came and went is no use of the entry.
            (|t, class| t.set_generation(class, entry(0), t.map.codec.gen_mask() | PINNED), true),
            (|table, class| table.lease_to(SLAB, class, 9), false),
            (|table, class| table.set_generation(class, entry(0), 0x1234), false),
            // The chunks were cut anew, and the bytes at the entry's place happen to be the same.
            (|table, _| table.set(table.map.slab_addr(SLAB), &[7; 8]), false),
        ];
        for (change, freed) in changes {
            let mut alloc = used_up(&table, class);
            table.set_generation(class, entry(0), last);
            table.set_note(class, entry(0), note_of(last));
            alloc.list(class).add_free(entry(0));
            assert!(table.take(&mut alloc, class).is_none(), "it must rest");
            assert_eq!(table.entry(class, entry(0)), (last, 0), "the scrubber finds it");
            let parked = std::mem::take(&mut alloc.list(class).parked);
            assert_eq!(parked.len(), 1);
            change(&table, class);
            alloc.list(class).add_rested(table.owner(), &parked).unwrap();
            let (generation, note) = table.entry(class, entry(0));
            assert_eq!((note == note_of(generation), note != 0), (freed, freed));
            let taken = table.take(&mut alloc, class);
            assert_eq!(taken.map(|own| own.generation), freed.then(|| next_generation(last)));
        }
    }

    /// An entry that has rested is not taken if it was used, and freed again, since.
    #[test]
    fn a_rested_entry_of_another_generation_has_not_rested() {
        let table = Table::new();
        let class = table.class(200);
        let last = table.map.codec.gen_mask();
        let mut alloc = used_up(&table, class);
        table.set_generation(class, entry(0), last);
        let rested = Parked { entry: entry(0), generation: last, floor: FLOOR };
        alloc.list(class).add_rested(table.owner(), &[rested]).unwrap();
        let later = last * 2 + 1;
        table.set_generation(class, entry(0), later);
        table.set_note(class, entry(0), note_of(later));
        assert!(table.take(&mut alloc, class).is_none());
    }

    /// A slab that comes back is listed once, by its newest header; the other slabs stay as they
    /// are.
    #[test]
    fn the_free_entries_of_each_slab_are_counted_however_they_are_listed() {
        let table = Table::new();
        let class = table.class(3000);
        let other = Slab { chunk: SLAB.chunk + class.chunks, ..SLAB };
        let full = Slab { chunk: SLAB.chunk + 2 * class.chunks, ..SLAB };
        let mut alloc = Allocator::default();
        let list = alloc.list(class);
        list.add_slab(SLAB, 1, FLOOR);
        list.add_slab(other, 3, FLOOR);
        list.add_slab(full, class.entries, FLOOR);
        list.add_slab(SLAB, 5, FLOOR);
        assert_eq!(list.slabs, [other, full, SLAB]);
        list.add_free(Entry { slab: other, number: 0 });
        list.add_free(Entry { slab: other, number: 1 });
        list.add_recent(Entry { slab: other, number: 2 });
        list.rested.push(Parked { entry: entry(0), generation: 1, floor: FLOOR });
        let counts: Vec<(Slab, u32)> = list.free_counts().into_iter().collect();
        let entries = class.entries;
        assert_eq!(counts, [(SLAB, entries - 5 + 1), (other, entries - 3 + 3), (full, 0)]);
    }

    /// A session's lists are by class, and lists of long entries by the length of the run.
    #[test]
    fn entries_of_one_size_are_not_handed_out_for_another() {
        let table = Table::new();
        let mut alloc = Allocator::default();
        let classes =
            [table.class(3000), table.class(200), table.class(300_000), table.class(400_000)];
        for (n, class) in classes.into_iter().enumerate() {
            let slab = Slab { dti: 0, chunk: 16 * (n as u32 + 1) };
            table.lease(slab, class, FLOOR, 0);
            alloc.list(class).add_slab(slab, 0, FLOOR);
        }
        for class in classes {
            assert_eq!(alloc.list(class).class, class);
            assert_eq!(table.take(&mut alloc, class).unwrap().class, class);
        }
        let listed: Vec<Class> = alloc.lists().map(|list| list.class).collect();
        assert!(listed.len() == classes.len() && classes.iter().all(|c| listed.contains(c)));
    }
}
