//! Leasing: how a client gets and gives up slabs, by CAS on chunk descriptors.
//!
//! # Invariants
//! 1. Only the session named in a descriptor changes it, with two exceptions: any session may lease
//!    an abandoned slab, and any session may seize a leased slab.
//! 2. A slab is formatted before it is leased, so a client that finds it leased or abandoned can
//!    trust its notes.

use std::ops::Range;

use loch_fabric::{Buf, Fabric, RemoteAddr};

use crate::error::EngineError;
use crate::limits::SEARCH_CHUNKS;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::claims::Claim;
use crate::nessie::client::pins::is_pinned;
use crate::nessie::layout::dte::{PINNED, note_of};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::slab::{Chunk, Class, Entry, LARGE, SLAB_HEADER_BYTES, Slab};
use crate::planted::{self, Bug};

/// As many searches as it takes to look at the whole data table.
pub(super) const SEARCHES_OF_ALL: u64 = u64::MAX;

impl<F: Fabric> Client<F> {
    /// Gives back an entry that was never in the index, or whose tentative word was removed.
    pub(in crate::nessie) fn release(&self, own: Own) -> Result<(), EngineError> {
        self.retire(own.entry, &own.class, own.generation)
    }

    /// Notes that an entry is out of the index. The caller is the client that took it out, by CAS.
    /// The note is one small WRITE that the client does not wait for. The operation has had its
    /// effect by now, so an unreachable node is no reason to report failure: the scrubber finds
    /// entries without a note.
    #[inline(always)]
    pub(in crate::nessie) fn retire(
        &self,
        entry: Entry,
        class: &Class,
        generation: u64,
    ) -> Result<(), EngineError> {
        // Outside an operation the scrubber may have noted it free, and another client use it.
        debug_assert!(self.session.is_working());
        self.session.posts();
        let note = self.map.slab_addr(entry.slab).add(class.note_at(entry.number));
        match self.fabric.write_unsignaled(note, &note_of(generation).to_le_bytes()) {
            Err(error) if error.out_of_reach().is_some() => self.session.leaves(&self.fabric),
            noted => noted?,
        }
        if self.is_mine(class, entry.slab)? {
            self.alloc.borrow_mut().list(*class).add_recent(entry);
        }
        Ok(())
    }

    /// Prefetches the note of the entry of `word`, which will be retired if it is of this class: a
    /// CAS waits for all stores before it, also for those of other lanes.
    #[inline(always)]
    pub(in crate::nessie) fn will_retire(&self, word: Ite, class: &Class) {
        if let Some(entry) = class.entry(self.map.codec.place(word)) {
            let note = self.map.slab_addr(entry.slab).add(class.note_at(entry.number));
            self.fabric.will_store(note, 4);
        }
    }

    #[inline(always)]
    fn is_mine(&self, class: &Class, slab: Slab) -> Result<bool, EngineError> {
        if !self.fabric.is_mapped(self.map.region_of(slab.dti)) {
            return Ok(false);
        }
        let at = self.map.chunk_addr(slab.dti, slab.chunk as u64);
        Ok(self.fabric.load(at)? == self.leased(class).to_word())
    }

    #[inline(always)]
    pub(super) fn leased(&self, class: &Class) -> Chunk {
        Chunk::Leased { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    fn forming(&self, class: Class) -> Chunk {
        Chunk::Forming { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    pub(super) fn closing(&self, class: Class) -> Chunk {
        Chunk::Closing { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    pub(super) fn seized(&self, class: &Class) -> Chunk {
        Chunk::Seized { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    /// Tells the other lanes that there is room now.
    pub(super) fn count_room(&self) {
        self.rooms.set(self.rooms.get() + 1);
    }

    /// How often lanes have made room, for any class and for this one alone. A lane that finds no
    /// memory has to look again if that has changed meanwhile.
    pub(super) fn rooms_of(&self, class: Class) -> (u64, u64) {
        (self.rooms.get(), self.alloc.borrow_mut().list(class).reopened)
    }

    /// Reads the notes of up to `slabs` of the class's slabs and lists the free entries.
    pub(super) async fn sweep_some(
        &self,
        class: Class,
        slabs: usize,
        enough: u32,
    ) -> Result<u32, EngineError> {
        let mut found = 0;
        for _ in 0..slabs {
            let slab = {
                let mut alloc = self.alloc.borrow_mut();
                let list = alloc.list(class);
                if list.slabs.is_empty() {
                    return Ok(found);
                }
                let at = list.sweep_at % list.slabs.len();
                list.sweep_at = at + 1;
                list.slabs[at]
            };
            if !self.is_mine(&class, slab)? {
                self.alloc.borrow_mut().list(class).slabs.retain(|s| *s != slab);
                continue;
            }
            found += self.sweep(class, slab).await?;
            if found >= enough {
                break;
            }
        }
        Ok(found)
    }

    /// Lists the entries of a slab whose notes are set. Whether they are free is checked when they
    /// are taken.
    async fn sweep(&self, class: Class, slab: Slab) -> Result<u32, EngineError> {
        let at = self.map.slab_addr(slab).add(SLAB_HEADER_BYTES);
        let len = class.entries as usize * 4;
        let (notes, done) = self.fabric.read_whole_words(at, len, self.spare.take()).await;
        done?;
        let mut alloc = self.alloc.borrow_mut();
        let list = alloc.list(class);
        let mut found = 0;
        for (number, note) in notes.chunks_exact(4).enumerate() {
            if note != [0; 4] {
                found += u32::from(list.add_free(Entry { slab, number: number as u32 }));
            }
        }
        self.spare.give_back(notes);
        Ok(found)
    }

    /// Leases one slab of the wanted kind in any of this client's data tables.
    pub(super) async fn lease_any(
        &self,
        class: Class,
        kind: Kind,
        searches: u64,
    ) -> Result<bool, EngineError> {
        for dti in &self.tables {
            if self.lease(*dti, class, kind, searches).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Leases one slab of the wanted kind in a data table, if there is one with room in it. The
    /// next search goes on where this one, of so many parts of the table at most, has ended.
    pub(super) async fn lease(
        &self,
        dti: u8,
        class: Class,
        kind: Kind,
        searches: u64,
    ) -> Result<bool, EngineError> {
        let parts = self.map.shape.geometry.chunks.div_ceil(SEARCH_CHUNKS);
        let next = &self.search_at[kind as usize][usize::from(class.id == LARGE)];
        let begin = next.get();
        let most = parts.min(searches);
        for looked_at in 0..most {
            let part = (begin + looked_at) % parts;
            next.set(part);
            // Long runs come from the far end, so that slabs do not break up the room that they
            // need.
            let part = if class.id == LARGE { parts - 1 - part } else { part };
            if self.lease_in(dti, part * SEARCH_CHUNKS, class, kind).await? {
                return Ok(true);
            }
        }
        next.set((begin + most) % parts);
        Ok(false)
    }

    /// Leases such a slab if it starts at one of [`SEARCH_CHUNKS`] chunks from `first` on.
    async fn lease_in(
        &self,
        dti: u8,
        first: u64,
        class: Class,
        kind: Kind,
    ) -> Result<bool, EngineError> {
        // Slabs lie at multiples of their size, but a long run may end in the next part.
        let beyond = if class.id == LARGE { u64::from(class.chunks) - 1 } else { 0 };
        let end = (first + SEARCH_CHUNKS + beyond).min(self.map.shape.geometry.chunks);
        let mut words = self.read_chunks(dti, first..end).await?;
        while let Some(found) = kind.find(class, &words) {
            let slab = Slab { dti, chunk: first as u32 + found };
            if let Some(claim) = self.claim(slab)
                && match kind {
                    Kind::Free => self.lease_free(claim, class).await?,
                    _ => self.lease_claimed(claim, class, words[found as usize]).await?,
                }
            {
                return Ok(true);
            }
            // Another client was faster, or there was no room in the slab: look at the other slabs.
            words[found as usize] = u64::MAX;
        }
        Ok(false)
    }

    pub(in crate::nessie) async fn read_chunk_table(
        &self,
        dti: u8,
    ) -> Result<Vec<u64>, EngineError> {
        self.read_chunks(dti, 0..self.map.shape.geometry.chunks).await
    }

    pub(super) async fn read_chunks(
        &self,
        dti: u8,
        chunks: Range<u64>,
    ) -> Result<Vec<u64>, EngineError> {
        let bytes = (chunks.end - chunks.start) as usize * 8;
        let at = self.map.chunk_addr(dti, chunks.start);
        let buf = Buf::with_capacity(bytes);
        let (buf, done) = self.fabric.read_whole_words(at, bytes, buf).await;
        done?;
        let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("eight bytes"));
        Ok(buf.chunks_exact(8).map(word).collect())
    }

    pub(super) async fn cas_chunk(
        &self,
        slab: Slab,
        add: u32,
        from: u64,
        to: Chunk,
    ) -> Result<bool, EngineError> {
        let at = self.map.chunk_addr(slab.dti, (slab.chunk + add) as u64);
        Ok(self.fabric.compare_swap(at, from, to.to_word()).await? == from)
    }

    /// Puts a run of free chunks together and formats it.
    async fn lease_free(&self, claim: Claim<'_, F>, class: Class) -> Result<bool, EngineError> {
        let slab = claim.slab();
        let (free, forming) = (Chunk::Free.to_word(), self.forming(class));
        if !self.cas_chunk(slab, 0, free, forming).await? {
            claim.end();
            return Ok(false);
        }
        for back in 1..class.chunks {
            if !self.cas_chunk(slab, back, free, Chunk::Tail { back }).await? {
                self.free_run(slab, back, forming).await?;
                claim.end();
                return Ok(false);
            }
        }
        // The generations of a run that was used before start above a stamp. Any start would do,
        // because two grace periods have passed, but different ones make a mistake visible.
        let floor = self.stamp().await?;
        let at = self.map.slab_addr(slab);
        let mut header = vec![0; (SLAB_HEADER_BYTES + class.entries as u64 * 4) as usize];
        header[..8].copy_from_slice(&floor.to_le_bytes());
        self.fabric.store(at, &[&header])?;
        if !self.cas_chunk(slab, 0, forming.to_word(), self.leased(&class)).await? {
            return Ok(false);
        }
        self.alloc.borrow_mut().list(class).add_slab(slab, 0, floor);
        claim.end();
        self.count_room();
        self.count_filled(&class).await?;
        Ok(true)
    }

    /// Gives back the first `chunks` chunks of a run, whose first chunk we hold as `head`. The
    /// first chunk goes last: until then the run is ours.
    pub(super) async fn free_run(
        &self,
        slab: Slab,
        chunks: u32,
        head: Chunk,
    ) -> Result<(), EngineError> {
        for back in (1..chunks).rev() {
            self.cas_chunk(slab, back, Chunk::Tail { back }.to_word(), Chunk::Free).await?;
        }
        self.cas_chunk(slab, 0, head.to_word(), Chunk::Free).await?;
        Ok(())
    }

    /// Leases a slab whose descriptor is `from`, and lists it. Returns whether there is room in it.
    pub(super) async fn lease_claimed(
        &self,
        claim: Claim<'_, F>,
        class: Class,
        from: u64,
    ) -> Result<bool, EngineError> {
        let slab = claim.slab();
        let is_leased = self.cas_chunk(slab, 0, from, self.leased(&class)).await?;
        let has_room = is_leased && self.list_slab(slab, class).await?;
        claim.end();
        if has_room {
            self.count_room();
        }
        Ok(has_room)
    }

    /// Lists a leased slab and its free entries. Returns whether it has any.
    pub(super) async fn list_slab(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let mut header = [0; 2];
        self.fabric.read_words(&[self.map.slab_addr(slab)], &mut header).await?;
        let [floor, formatted] = header;
        let formatted = formatted.min(class.entries as u64) as u32;
        self.alloc.borrow_mut().list(class).add_slab(slab, formatted, floor);
        Ok(self.sweep(class, slab).await? > 0 || formatted < class.entries)
    }

    /// The number of a slab's entries that were ever used, and the notes of all entries.
    pub(in crate::nessie) async fn read_notes(
        &self,
        slab: Slab,
        class: Class,
    ) -> Result<(u32, Vec<u32>), EngineError> {
        let len = SLAB_HEADER_BYTES as usize + class.entries as usize * 4;
        let at = self.map.slab_addr(slab);
        let (head, done) = self.fabric.read_whole_words(at, len, Buf::with_capacity(len)).await;
        done?;
        let (header, notes) = head.split_at(SLAB_HEADER_BYTES as usize);
        let formatted = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
        let note = |n: &[u8]| u32::from_le_bytes(n.try_into().expect("four bytes"));
        let formatted = formatted.min(class.entries as u64) as u32;
        Ok((formatted, notes.chunks_exact(4).map(note).collect()))
    }

    /// Whether no entry of a slab is in use or pinned.
    pub(super) async fn is_unused(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let base = self.map.slab_addr(slab);
        let (formatted, notes) = self.read_notes(slab, class).await?;
        for (number, note) in notes.into_iter().enumerate().take(formatted as usize) {
            let at = base.add(class.entry_at(number as u32));
            let generation = self.read_word(at).await?;
            if note == 0 || note != note_of(generation) {
                return Ok(false);
            }
            if generation & PINNED != 0
                && is_pinned(&self.fabric, &self.map, at)?
                && !planted::is(Bug::PinRecut)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The note of one entry: half of a word.
    pub(in crate::nessie) async fn read_note(
        &self,
        class: Class,
        entry: Entry,
    ) -> Result<u32, EngineError> {
        let at = self.map.slab_addr(entry.slab).add(class.note_at(entry.number));
        let word = self.read_word(RemoteAddr::new(at.region(), at.offset() & !7)).await?;
        Ok((word >> ((at.offset() & 4) * 8)) as u32)
    }
}

/// The kind of slab that a search is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Abandoned slabs with at least a sixteenth of their entries free.
    Roomy,
    /// Free chunks.
    Free,
    /// Abandoned slabs.
    Abandoned,
}

impl Kind {
    fn find(self, class: Class, words: &[u64]) -> Option<u32> {
        let run = class.chunks as usize;
        if self != Self::Free {
            let least = if self == Self::Roomy { (class.entries / 16).max(1) } else { 0 };
            let fits = |(at, word): (usize, &u64)| {
                let Some(Chunk::Abandoned { class: id, chunks, free_hint }) =
                    Chunk::from_word(*word)
                else {
                    return false;
                };
                (id, chunks) == (class.id, class.chunks)
                    && free_hint >= least
                    && class.may_start_at(at as u32, words.len() as u64)
            };
            return words.iter().enumerate().position(fits).map(|c| c as u32);
        }
        let is_free = |at: usize| words[at..at + run].iter().all(|w| *w == Chunk::Free.to_word());
        let last = words.len().checked_sub(run)?;
        if class.id == LARGE {
            // From the far end on, as the parts are searched.
            let mut at = last;
            loop {
                match words[at..at + run].iter().position(|w| *w != Chunk::Free.to_word()) {
                    None => return Some(at as u32),
                    // No run can start at or before the chunk in the way.
                    Some(taken) => at = (at + taken).checked_sub(run)?,
                }
            }
        }
        (0..=last).step_by(run).find(|at| is_free(*at)).map(|c| c as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nessie::layout::slab::Classes;

    /// A class of one chunk, one of several, and one with a single long entry.
    fn class() -> impl Strategy<Value = Class> {
        let classes = Classes::new(1 << 30, 16);
        prop_oneof![Just(64), Just(4000), Just(100_000), Just(700_000)]
            .prop_map(move |len| classes.of(len))
    }

    /// Runs of words: free chunks, an abandoned slab of the class, and other uses in the way.
    fn words(class: Class) -> impl Strategy<Value = Vec<u64>> {
        let (id, chunks) = (class.id, class.chunks);
        let hint = 0..class.entries + 1;
        let abandoned = move |class, chunks| {
            move |free_hint| Chunk::Abandoned { class, chunks, free_hint }.to_word()
        };
        let sixteenth = (class.entries / 16).max(1);
        let hint = prop_oneof![hint, Just(sixteenth), Just(sixteenth - 1)].boxed();
        let run = prop_oneof![
            4 => Just(Chunk::Free.to_word()).boxed(),
            2 => hint.clone().prop_map(abandoned(id, chunks)).boxed(),
            1 => hint.clone().prop_map(abandoned(id, chunks + 1)).boxed(),
            1 => hint.prop_map(abandoned(id ^ 1, chunks)).boxed(),
            1 => Just(Chunk::Leased { class: id, chunks, owner: 9 }.to_word()).boxed(),
            1 => Just(u64::MAX).boxed(),
        ];
        prop::collection::vec((run, 1..20usize), 0..12).prop_map(|runs| {
            let times = |(word, times)| std::iter::repeat_n(word, times);
            runs.into_iter().flat_map(times).collect()
        })
    }

    proptest! {
        /// A lease starts at the first possible chunk; for long entries, at the last possible one.
        #[test]
        fn a_search_finds_what_a_look_at_every_chunk_finds(
            (class, words) in class().prop_flat_map(|c| (Just(c), words(c))),
        ) {
            let len = words.len() as u64;
            let starts = (0..words.len()).filter(|at| class.may_start_at(*at as u32, len));
            let starts: Vec<usize> = starts.collect();
            let run = class.chunks as usize;
            let is_free = |at: &&usize| words[**at..**at + run].iter().all(|word| *word == 0);
            let mut free = starts.iter().filter(is_free).map(|at| *at as u32);
            let free = if class.id == LARGE { free.next_back() } else { free.next() };
            prop_assert_eq!(Kind::Free.find(class, &words), free);
            let roomy = (class.entries / 16).max(1);
            for (kind, least) in [(Kind::Roomy, roomy), (Kind::Abandoned, 0)] {
                let fits = |at: &&usize| match Chunk::from_word(words[**at]) {
                    Some(Chunk::Abandoned { class: id, chunks, free_hint }) => {
                        (id, chunks) == (class.id, class.chunks) && free_hint >= least
                    }
                    _ => false,
                };
                let found = starts.iter().find(fits).map(|at| *at as u32);
                prop_assert_eq!(kind.find(class, &words), found);
            }
        }
    }
}
