//! Allocation: a client's free entries, without asking anybody (nessie §4.2.5).
//!
//! A client takes entries from slabs it leased, and finds the ones that others retired by sweeping
//! the notes of its slabs. The free lists here are only hints in private memory: what makes an entry
//! free is its note (see [`super::slab`]), so a client that dies loses none of them.
//!
//! # Invariants
//! 1. An entry is taken only inside an epoch, after its slab's descriptor was seen to be leased by
//!    this session, and only if its note is its generation. So a slab that was seized is not
//!    allocated from once a grace period has passed, and a place that is listed twice is taken once.
//!    An entry that was never used has no note: it is taken only if the slab's header says, at that
//!    moment, that it is the next one. What the client remembers of the header may be older than the
//!    slab's last owner, even if the slab is this session's again.
//! 2. A taken entry has a new generation before any other byte of it changes.
//! 3. An entry whose short generation would start over rests for two grace periods first: then no
//!    operation and no cache holds a word with the generation it repeats.
//! 4. Notes are stored inside an epoch, in which the slab was seen to be leased by this session and
//!    cut as it was when the entry was listed. A client may stand still between that look and the
//!    store: until the epoch ends, the slab is not cut anew.

use std::collections::{BTreeMap, VecDeque};

use loch_fabric::{Fabric, FabricError, RemoteAddr};

use super::dte::{next_generation, note_of};
use super::hash::TableMap;
use super::ite::Place;
use super::slab::{Chunk, Class, Entry, FORMATTED_OFFSET, LARGE, Slab};
use crate::limits::{QUARANTINE_BYTES, QUARANTINE_ENTRIES};
use crate::planted::{self, Bug};

/// An entry this client owns: taken, and not in the index (or not yet known to be).
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub entry: Entry,
    pub place: Place,
    pub at: RemoteAddr,
    pub class: Class,
    pub generation: u64,
}

/// The free entries a client knows of, by class.
#[derive(Debug)]
pub(super) struct Allocator {
    /// Freed entries that rest before one of them is used again.
    pub quarantine: usize,
    /// By class number.
    classes: Vec<Option<List>>,
    /// Long entries, by the chunks of their runs.
    large: BTreeMap<u32, List>,
}

/// One class's slabs and free entries.
#[derive(Debug)]
pub(super) struct List {
    pub class: Class,
    /// Slabs this session leased.
    pub slabs: Vec<Slab>,
    /// The next slab to be swept.
    pub sweep_at: usize,
    /// Entries of a slab that were never used, from the next one on.
    fresh: Vec<Fresh>,
    /// Found free by a sweep, or out of quarantine.
    free: Vec<Entry>,
    /// Freed a moment ago: readers may be on their way to them.
    recent: VecDeque<Entry>,
    /// Waiting for a grace period to begin: invariant 3.
    pub parked: Vec<Parked>,
    /// Waited long enough.
    rested: Vec<Parked>,
}

/// A free entry that rests, its generation, and the floor of its slab: should one of them change,
/// somebody else has had it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    entry: Entry,
    generation: u64,
    floor: u64,
}

/// A slab with entries that were never used, and what its header said last.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    slab: Slab,
    next: u32,
    floor: u64,
}

/// How many entries are taken before one that is asked to come near.
const TAKEN_SOON: usize = 8;

/// What taking an entry needs to know of its client.
pub(super) struct Owner<'a, F> {
    pub fabric: &'a F,
    pub map: &'a TableMap,
    /// Low half of the session's incarnation.
    pub id: u32,
}

impl<F> Clone for Owner<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Owner<'_, F> {}

impl<F: Fabric> Owner<'_, F> {
    fn leases(&self, class: Class, slab: Slab) -> Result<bool, FabricError> {
        let mine = Chunk::Leased { class: class.id, chunks: class.chunks, owner: self.id };
        let word = self.fabric.load(self.map.chunk_addr(slab.dti, slab.chunk as u64))?;
        Ok(word == mine.to_word())
    }

    /// The generation floor of a slab: no two cuts of its chunks have the same.
    fn floor(&self, slab: Slab) -> Result<u64, FabricError> {
        self.fabric.load(self.map.slab_addr(slab))
    }

    fn formatted_addr(&self, slab: Slab) -> RemoteAddr {
        self.map.slab_addr(slab).add(FORMATTED_OFFSET)
    }

    fn note_addr(&self, class: Class, entry: Entry) -> RemoteAddr {
        self.map.slab_addr(entry.slab).add(class.note_at(entry.number))
    }

    fn note(&self, class: Class, entry: Entry) -> Result<u32, FabricError> {
        let at = self.note_addr(class, entry);
        let word = self.fabric.load(RemoteAddr::new(at.region(), at.offset() & !7))?;
        Ok((word >> ((at.offset() & 4) * 8)) as u32)
    }

    fn at(&self, class: Class, entry: Entry) -> RemoteAddr {
        self.map.slab_addr(entry.slab).add(class.entry_at(entry.number))
    }

    /// Says that an entry will be written shortly: short ones lie in these two lines.
    fn will_write(&self, class: Class, entry: Entry) {
        let at = self.at(class, entry);
        self.fabric.will_store(at);
        self.fabric.will_store(at.add(class.entry_bytes - 1));
    }

    /// Makes a free entry an owned one: clears its note, changes its generation (invariant 2).
    fn claim(&self, class: Class, entry: Entry, generation: u64) -> Result<Own, FabricError> {
        let at = self.at(class, entry);
        self.fabric.store(self.note_addr(class, entry), &[&[0; 4]])?;
        self.fabric.store_before(at, generation)?;
        Ok(Own { entry, place: class.place(entry), at, class, generation })
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Self { quarantine: QUARANTINE_ENTRIES, classes: Vec::new(), large: BTreeMap::new() }
    }
}

impl Allocator {
    pub fn list(&mut self, class: Class) -> &mut List {
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
    pub fn take<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        class: Class,
    ) -> Result<Option<Own>, FabricError> {
        let quarantine = self.quarantine.min((QUARANTINE_BYTES / class.entry_bytes) as usize);
        self.list(class).take(owner, quarantine)
    }
}

impl List {
    fn new(class: Class) -> Self {
        Self {
            class,
            slabs: Vec::new(),
            sweep_at: 0,
            fresh: Vec::new(),
            free: Vec::new(),
            recent: VecDeque::new(),
            parked: Vec::new(),
            rested: Vec::new(),
        }
    }

    fn take<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        quarantine: usize,
    ) -> Result<Option<Own>, FabricError> {
        while let Some(Parked { entry, generation, .. }) = self.rested.pop() {
            // Of another generation it would be an entry that has not rested.
            if self.check(owner, entry)? == Some(generation) {
                return owner.claim(self.class, entry, next_generation(generation)).map(Some);
            }
        }
        loop {
            let entry = match self.free.pop() {
                Some(entry) => entry,
                None if self.recent.len() > quarantine => {
                    if let Some(soon) = self.recent.get(TAKEN_SOON) {
                        owner.will_write(self.class, *soon);
                    }
                    self.pop_recent()
                }
                None => match self.take_fresh(owner)? {
                    Some(own) => return Ok(Some(own)),
                    None if self.recent.is_empty() => return Ok(None),
                    None => self.pop_recent(),
                },
            };
            let Some(generation) = self.check(owner, entry)? else {
                continue;
            };
            let next = next_generation(generation);
            let mask = owner.map.codec.gen_mask();
            if next & mask < generation & mask && !planted::is(Bug::NoRestAtWrap) {
                // Off the lists and out of the notes until it has rested (invariant 3).
                let floor = owner.floor(entry.slab)?;
                owner.fabric.store(owner.note_addr(self.class, entry), &[&[0; 4]])?;
                self.parked.push(Parked { entry, generation, floor });
                continue;
            }
            return owner.claim(self.class, entry, next).map(Some);
        }
    }

    fn pop_recent(&mut self) -> Entry {
        self.recent.pop_front().expect("its length was just looked at")
    }

    /// The generation of a listed entry, if it is free and ours (invariant 1).
    fn check<F: Fabric>(
        &self,
        owner: Owner<'_, F>,
        entry: Entry,
    ) -> Result<Option<u64>, FabricError> {
        if !owner.leases(self.class, entry.slab)? {
            return Ok(None);
        }
        let generation = owner.fabric.load(owner.at(self.class, entry))?;
        let note = owner.note(self.class, entry)?;
        let free =
            note == note_of(generation) || note != 0 && planted::is(Bug::NoteWithoutGeneration);
        Ok(free.then_some(generation))
    }

    /// Takes an entry that was never used (invariant 1).
    fn take_fresh<F: Fabric>(&mut self, owner: Owner<'_, F>) -> Result<Option<Own>, FabricError> {
        while let Some(fresh) = self.fresh.last_mut() {
            let slab = fresh.slab;
            if !owner.leases(self.class, slab)? {
                self.fresh.pop();
                continue;
            }
            if !planted::is(Bug::FreshUnchecked) {
                // The slab may have been somebody else's meanwhile, who has used entries of it.
                let formatted = owner.fabric.load(owner.formatted_addr(slab))?;
                fresh.next = formatted.min(self.class.entries as u64) as u32;
                fresh.floor = owner.floor(slab)?;
            }
            if fresh.next == self.class.entries {
                self.fresh.pop();
                continue;
            }
            let entry = Entry { slab, number: fresh.next };
            let own = owner.claim(self.class, entry, next_generation(fresh.floor))?;
            fresh.next += 1;
            // Only now does it count as used: if this client dies before, it is still fresh.
            let formatted = (fresh.next as u64).to_le_bytes();
            owner.fabric.store(owner.formatted_addr(slab), &[&formatted])?;
            return Ok(Some(own));
        }
        Ok(None)
    }

    /// Adds a slab that this session has just leased.
    pub fn add_slab(&mut self, slab: Slab, formatted: u32, floor: u64) {
        if !planted::is(Bug::FreshUnchecked) {
            // It may have been this session's before.
            self.slabs.retain(|known| *known != slab);
            self.fresh.retain(|known| known.slab != slab);
        }
        self.slabs.push(slab);
        if formatted < self.class.entries {
            self.fresh.push(Fresh { slab, next: formatted, floor });
        }
    }

    /// Lists an entry whose note is set.
    pub fn add_free(&mut self, entry: Entry) {
        self.free.push(entry);
    }

    /// Lists an entry that was freed a moment ago.
    pub fn add_recent(&mut self, entry: Entry) {
        self.recent.push_back(entry);
    }

    /// Lists entries that have rested, with their notes set again. The scrubber may have set them
    /// first: then, and whenever generation or floor say that the entry was used since, it is left
    /// alone. The caller is inside an epoch (invariant 4).
    pub fn add_rested<F: Fabric>(
        &mut self,
        owner: Owner<'_, F>,
        rested: &[Parked],
    ) -> Result<(), FabricError> {
        for parked in rested {
            let Parked { entry, generation, floor } = *parked;
            let same_cut = owner.floor(entry.slab)? == floor || planted::is(Bug::RestedAfterCut);
            let unused = owner.fabric.load(owner.at(self.class, entry))? == generation;
            if same_cut && unused && owner.leases(self.class, entry.slab)? {
                let note = note_of(generation).to_le_bytes();
                owner.fabric.store(owner.note_addr(self.class, entry), &[&note])?;
                self.rested.push(*parked);
            }
        }
        Ok(())
    }

    /// Entries of each slab that are known to be free.
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
