//! Leasing: where a client's slabs come from and go to, all by CAS on chunk descriptors.
//!
//! In order of preference: what others retired in the client's own slabs; a slab that somebody left
//! behind with room in it; free chunks; any slab left behind; and, when memory is short, what needs
//! a grace period: a slab that another client holds without using it (**seized**), entries that
//! rest, and empty slabs of other classes, taken apart. The grace periods are waited for a bounded
//! time; then memory is out.
//!
//! # Invariants
//! 1. Only the session named in a descriptor changes it; the exceptions are an abandoned slab, which
//!    anybody may lease, and a leased one, which anybody may seize.
//! 2. Who seizes a slab allocates from it only after a grace period: until then its last owner may
//!    be in the middle of taking an entry.
//! 3. A run changes its class only after two grace periods without an entry in use, so no reader
//!    takes its bytes for what they were, neither from the index nor from a cache.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::alloc::{Own, Parked};
use super::client::Client;
use super::dte::note_of;
use super::slab::{Chunk, Class, Entry, SLAB_HEADER_BYTES, Slab};
use crate::epoch::{Grace, Pin};
use crate::error::EngineError;
use crate::limits::SWEEP_SLABS;

/// Something that becomes possible after grace periods.
#[derive(Debug)]
pub(super) struct Wait {
    grace: Grace,
    /// Grace periods to come after this one.
    more: u32,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Rested(Class, Vec<Parked>),
    Seize(Class, Vec<Slab>),
    TakeApart(Vec<(Slab, Class)>),
}

/// How long an allocation waits for grace periods when nothing else is left.
const GRACE_WAIT_US: u64 = 50_000;
/// Pause between two looks at a grace period.
const GRACE_POLL_US: u64 = 50;
/// Slabs seized or taken apart at a time.
const SLABS_AT_A_TIME: usize = 16;
/// Resting entries that are worth a grace period while there is still memory.
const PARKED_ENTRIES: usize = 256;

impl<F: Fabric> Client<F> {
    /// Takes an entry for `entry_len` bytes, and begins the operation that needs it: nothing but
    /// that operation's epoch keeps the scrubber from taking the entry for a leaked one.
    ///
    /// Not to be called inside an epoch: it may have to wait for others, and they for it.
    pub(super) async fn allocate(
        &self,
        entry_len: usize,
    ) -> Result<(Own, Pin<'_, F>), EngineError> {
        let class = self.map.classes.of(entry_len);
        loop {
            let epoch = self.session.pin(&self.fabric)?;
            let taken = self.alloc.borrow_mut().take(self.owner(), class)?;
            if let Some(own) = taken {
                return Ok((own, epoch));
            }
            drop(epoch);
            self.make_room(class).await?;
        }
    }

    /// Gives back an entry that was never in the index, or whose tentative word was removed.
    pub(super) fn release(&self, own: Own) -> Result<(), EngineError> {
        self.retire(own.entry, own.class, own.generation)
    }

    /// Notes that an entry is out of the index; the caller is who took it out, by CAS. One small
    /// WRITE that nobody waits for.
    pub(super) fn retire(
        &self,
        entry: Entry,
        class: Class,
        generation: u64,
    ) -> Result<(), EngineError> {
        let note = self.map.slab_addr(entry.slab).add(class.note_at(entry.number));
        self.fabric.write_unsignaled(note, &note_of(generation).to_le_bytes())?;
        if self.is_mine(class, entry.slab)? {
            self.alloc.borrow_mut().list(class).add_recent(entry);
        }
        Ok(())
    }

    fn is_mine(&self, class: Class, slab: Slab) -> Result<bool, EngineError> {
        if !self.fabric.is_mapped(self.map.region_of(slab.dti)) {
            return Ok(false);
        }
        let at = self.map.chunk_addr(slab.dti, slab.chunk as u64);
        Ok(self.fabric.load(at)? == self.leased(class).to_word())
    }

    fn leased(&self, class: Class) -> Chunk {
        Chunk::Leased { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    fn forming(&self, class: Class) -> Chunk {
        Chunk::Forming { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    fn closing(&self, class: Class) -> Chunk {
        Chunk::Closing { class: class.id, chunks: class.chunks, owner: self.owner().id }
    }

    /// Finds room for entries of a class, or says that there is none.
    async fn make_room(&self, class: Class) -> Result<(), EngineError> {
        let enough = (class.entries / 16).max(1);
        if self.sweep_some(class, SWEEP_SLABS, enough).await? >= enough {
            return Ok(());
        }
        if self.poll_waits().await? {
            return Ok(());
        }
        self.rest_parked(class, PARKED_ENTRIES).await?;
        for dti in &self.tables {
            if self.lease(*dti, class, Kind::Roomy).await?
                || self.lease(*dti, class, Kind::Free).await?
            {
                return Ok(());
            }
        }
        let all = self.alloc.borrow_mut().list(class).slabs.len();
        if self.sweep_some(class, all, 1).await? > 0 {
            return Ok(());
        }
        for dti in &self.tables {
            if self.lease(*dti, class, Kind::Abandoned).await? {
                return Ok(());
            }
        }
        self.wait_for_room(class).await
    }

    /// The last resort: what needs grace periods.
    async fn wait_for_room(&self, class: Class) -> Result<(), EngineError> {
        if self.waits.borrow().is_empty() {
            self.rest_parked(class, 1).await?;
            for dti in &self.tables {
                self.seize(*dti, class).await?;
                self.take_apart(*dti).await?;
            }
        }
        let until = self.fabric.now_us() + GRACE_WAIT_US;
        while !self.waits.borrow().is_empty() && self.fabric.now_us() < until {
            if self.poll_waits().await? {
                return Ok(());
            }
            self.fabric.pause(GRACE_POLL_US).await;
        }
        Err(EngineError::OutOfMemory {
            bytes: class.entry_bytes,
            capacity: self.map.shape.geometry.data_bytes() * self.tables.len() as u64,
        })
    }

    /// Reads the notes of up to `slabs` of the class's slabs and lists what is free.
    async fn sweep_some(
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
            if !self.is_mine(class, slab)? {
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

    /// Lists the entries of a slab whose notes are set; whether they are free is checked when they
    /// are taken.
    async fn sweep(&self, class: Class, slab: Slab) -> Result<u32, EngineError> {
        let at = self.map.slab_addr(slab).add(SLAB_HEADER_BYTES);
        let (notes, done) = self.fabric.read(at, class.entries as usize * 4, Buf::new()).await;
        done?;
        let mut alloc = self.alloc.borrow_mut();
        let list = alloc.list(class);
        let mut found = 0;
        for (number, note) in notes.chunks_exact(4).enumerate() {
            if note != [0; 4] {
                list.add_free(Entry { slab, number: number as u32 });
                found += 1;
            }
        }
        Ok(found)
    }

    /// Leases one slab of a kind in a data table, if there is one with room in it.
    async fn lease(&self, dti: u8, class: Class, kind: Kind) -> Result<bool, EngineError> {
        let mut words = self.read_chunk_table(dti).await?;
        while let Some(chunk) = kind.find(class, &words) {
            let slab = Slab { dti, chunk };
            let leased = match kind {
                Kind::Free => self.lease_free(slab, class).await?,
                _ => self.adopt(slab, class, words[chunk as usize]).await?,
            };
            if leased {
                return Ok(true);
            }
            // Somebody was faster, or there was no room in it: look at the others.
            words[chunk as usize] = u64::MAX;
        }
        Ok(false)
    }

    pub(super) async fn read_chunk_table(&self, dti: u8) -> Result<Vec<u64>, EngineError> {
        let bytes = self.map.shape.geometry.chunks as usize * 8;
        let (buf, done) =
            self.fabric.read(self.map.chunk_addr(dti, 0), bytes, Buf::with_capacity(bytes)).await;
        done?;
        let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("eight bytes"));
        Ok(buf.chunks_exact(8).map(word).collect())
    }

    async fn cas_chunk(
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
    async fn lease_free(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let (free, forming) = (Chunk::Free.to_word(), self.forming(class));
        if !self.cas_chunk(slab, 0, free, forming).await? {
            return Ok(false);
        }
        for back in 1..class.chunks {
            if !self.cas_chunk(slab, back, free, Chunk::Tail { back }).await? {
                self.free_run(slab, back).await?;
                return Ok(false);
            }
        }
        // Generations of a run that was used before start above a stamp: any will do, because two
        // grace periods have passed, but different ones make a mistake visible.
        let floor = self.stamp().await?;
        let at = self.map.slab_addr(slab);
        let mut header = vec![0; (SLAB_HEADER_BYTES + class.entries as u64 * 4) as usize];
        header[..8].copy_from_slice(&floor.to_le_bytes());
        self.fabric.store(at, &[&header])?;
        if !self.cas_chunk(slab, 0, forming.to_word(), self.leased(class)).await? {
            return Ok(false);
        }
        self.alloc.borrow_mut().list(class).add_slab(slab, 0, floor);
        Ok(true)
    }

    /// Gives the first `chunks` of a run back, the first one last: until then the run is ours.
    async fn free_run(&self, slab: Slab, chunks: u32) -> Result<(), EngineError> {
        for back in (1..chunks).rev() {
            self.cas_chunk(slab, back, Chunk::Tail { back }.to_word(), Chunk::Free).await?;
        }
        let head = self.fabric.load(self.map.chunk_addr(slab.dti, slab.chunk as u64))?;
        self.cas_chunk(slab, 0, head, Chunk::Free).await?;
        Ok(())
    }

    /// Leases a slab that somebody left behind; whether there was room in it.
    async fn adopt(&self, slab: Slab, class: Class, word: u64) -> Result<bool, EngineError> {
        if !self.cas_chunk(slab, 0, word, self.leased(class)).await? {
            return Ok(false);
        }
        self.add_slab(slab, class).await
    }

    async fn add_slab(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let mut header = [0; 2];
        self.fabric.read_words(&[self.map.slab_addr(slab)], &mut header).await?;
        let [floor, formatted] = header;
        let formatted = formatted.min(class.entries as u64) as u32;
        self.alloc.borrow_mut().list(class).add_slab(slab, formatted, floor);
        Ok(self.sweep(class, slab).await? > 0 || formatted < class.entries)
    }

    /// Begins to let parked entries rest, if there are `least`.
    async fn rest_parked(&self, class: Class, least: usize) -> Result<(), EngineError> {
        let parked = {
            let mut alloc = self.alloc.borrow_mut();
            let list = alloc.list(class);
            if list.parked.len() < least { Vec::new() } else { std::mem::take(&mut list.parked) }
        };
        if !parked.is_empty() {
            self.wait_then(1, Then::Rested(class, parked)).await?;
        }
        Ok(())
    }

    async fn wait_then(&self, more: u32, then: Then) -> Result<(), EngineError> {
        let grace = Grace::begin(&self.fabric, self.map.sessions()).await?;
        self.waits.borrow_mut().push(Wait { grace, more, then });
        Ok(())
    }

    /// Seizes slabs of the class that others hold with much room in them (invariant 2).
    async fn seize(&self, dti: u8, class: Class) -> Result<(), EngineError> {
        let words = self.read_chunk_table(dti).await?;
        let mut seized = Vec::new();
        for (chunk, word) in words.into_iter().enumerate() {
            let Some(Chunk::Leased { class: id, chunks, owner }) = Chunk::from_word(word) else {
                continue;
            };
            if (id, chunks) != (class.id, class.chunks) || owner == self.owner().id {
                continue;
            }
            let slab = Slab { dti, chunk: chunk as u32 };
            if !self.is_roomy(slab, class).await? {
                continue;
            }
            let to = Chunk::Seized { class: class.id, chunks, owner: self.owner().id };
            if self.cas_chunk(slab, 0, word, to).await? {
                seized.push(slab);
            }
            if seized.len() == SLABS_AT_A_TIME {
                break;
            }
        }
        if !seized.is_empty() {
            self.wait_then(0, Then::Seize(class, seized)).await?;
        }
        Ok(())
    }

    async fn is_roomy(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let len = SLAB_HEADER_BYTES as usize + class.entries as usize * 4;
        let (slab_head, done) = self.fabric.read(self.map.slab_addr(slab), len, Buf::new()).await;
        done?;
        let notes = slab_head[SLAB_HEADER_BYTES as usize..].chunks_exact(4);
        let noted = notes.filter(|n| **n != [0; 4]).count() as u32;
        let formatted = u64::from_le_bytes(slab_head[8..16].try_into().expect("eight bytes"));
        let fresh = (class.entries as u64).saturating_sub(formatted) as u32;
        Ok(noted + fresh >= (class.entries / 8).max(1))
    }

    /// Begins to take slabs apart that hold no entry, own ones or abandoned (invariant 3).
    async fn take_apart(&self, dti: u8) -> Result<(), EngineError> {
        let words = self.read_chunk_table(dti).await?;
        let mut empty = Vec::new();
        for (chunk, word) in words.into_iter().enumerate() {
            let (id, chunks) = match Chunk::from_word(word) {
                Some(Chunk::Leased { class, chunks, owner }) if owner == self.owner().id => {
                    (class, chunks)
                }
                Some(Chunk::Abandoned { class, chunks, .. }) => (class, chunks),
                _ => continue,
            };
            let Some(class) = self.map.classes.by_id(id, chunks) else {
                continue;
            };
            let slab = Slab { dti, chunk: chunk as u32 };
            if !self.is_roomy(slab, class).await? {
                continue;
            }
            // First nobody may allocate from it, then it is looked at, not the other way round.
            let closing = self.closing(class);
            if !self.cas_chunk(slab, 0, word, closing).await? {
                continue;
            }
            if self.is_unused(slab, class).await? {
                empty.push((slab, class));
            } else {
                let back = Chunk::from_word(word).expect("it was parsed above");
                self.cas_chunk(slab, 0, closing.to_word(), back).await?;
            }
            if empty.len() == SLABS_AT_A_TIME * 64 {
                break;
            }
        }
        if !empty.is_empty() {
            self.wait_then(1, Then::TakeApart(empty)).await?;
        }
        Ok(())
    }

    /// Whether no entry of a slab is in use.
    pub(super) async fn is_unused(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let base = self.map.slab_addr(slab);
        let len = SLAB_HEADER_BYTES as usize + class.entries as usize * 4;
        let (slab_head, done) = self.fabric.read(base, len, Buf::new()).await;
        done?;
        let formatted = u64::from_le_bytes(slab_head[8..16].try_into().expect("eight bytes"));
        let notes = slab_head[SLAB_HEADER_BYTES as usize..].chunks_exact(4);
        let notes = notes.map(|n| u32::from_le_bytes(n.try_into().expect("four bytes")));
        for (number, note) in notes.enumerate().take(formatted as usize) {
            let at = base.add(class.entry_at(number as u32));
            if note == 0 || note != note_of(self.read_word(at).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks at all grace periods; whether one of them made room.
    async fn poll_waits(&self) -> Result<bool, EngineError> {
        let waits = std::mem::take(&mut *self.waits.borrow_mut());
        let mut room = false;
        for mut wait in waits {
            if !wait.grace.has_passed(&self.fabric).await? {
                self.waits.borrow_mut().push(wait);
            } else if wait.more > 0 {
                self.wait_then(wait.more - 1, wait.then).await?;
            } else {
                room |= self.after_grace(wait.then).await?;
            }
        }
        Ok(room)
    }

    async fn after_grace(&self, then: Then) -> Result<bool, EngineError> {
        match then {
            Then::Rested(class, places) => {
                self.alloc.borrow_mut().list(class).add_rested(self.owner(), &places)?;
                Ok(true)
            }
            Then::Seize(class, slabs) => {
                let mut room = false;
                for slab in slabs {
                    let seized = Chunk::Seized {
                        class: class.id,
                        chunks: class.chunks,
                        owner: self.owner().id,
                    };
                    if self.cas_chunk(slab, 0, seized.to_word(), self.leased(class)).await? {
                        room |= self.add_slab(slab, class).await?;
                    }
                }
                Ok(room)
            }
            Then::TakeApart(slabs) => {
                for (slab, class) in slabs {
                    self.free_run(slab, class.chunks).await?;
                }
                Ok(true)
            }
        }
    }

    /// Leaves all slabs behind for others. What is not left behind in order, because the client
    /// dies, is found by its node.
    pub async fn detach(&self) -> Result<(), EngineError> {
        let waits = std::mem::take(&mut *self.waits.borrow_mut());
        for wait in waits {
            match wait.then {
                Then::Rested(class, places) => {
                    self.alloc.borrow_mut().list(class).parked.extend(places);
                }
                // Invariant 2: nobody may adopt them yet. The node's scrubber waits in our place.
                Then::Seize(..) => (),
                Then::TakeApart(slabs) => {
                    for (slab, class) in slabs {
                        self.abandon(slab, class, self.closing(class), class.entries).await?;
                    }
                }
            }
        }
        let leased: Vec<(Class, Slab, u32)> = {
            let mut alloc = self.alloc.borrow_mut();
            let lists = alloc.lists();
            lists.flat_map(|l| l.free_counts().into_iter().map(|(s, n)| (l.class, s, n))).collect()
        };
        for (class, slab, free) in leased {
            self.abandon(slab, class, self.leased(class), free).await?;
        }
        Ok(())
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

    pub(super) async fn read_word(&self, at: RemoteAddr) -> Result<u64, EngineError> {
        let mut word = [0];
        self.fabric.read_words(&[at], &mut word).await?;
        Ok(word[0])
    }
}

/// Which slabs a search is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Abandoned with a sixteenth free or more.
    Roomy,
    /// Free chunks.
    Free,
    /// Abandoned.
    Abandoned,
}

impl Kind {
    fn find(self, class: Class, words: &[u64]) -> Option<u32> {
        let run = class.chunks as usize;
        if self != Self::Free {
            let least = if self == Self::Roomy { (class.entries / 16).max(1) } else { 0 };
            let fits = |word: &u64| {
                matches!(Chunk::from_word(*word), Some(Chunk::Abandoned { class: id, chunks, free_hint })
                    if (id, chunks) == (class.id, class.chunks) && free_hint >= least)
            };
            return words.iter().position(fits).map(|c| c as u32);
        }
        let is_free = |at: usize| words[at..at + run].iter().all(|w| *w == Chunk::Free.to_word());
        let last = words.len().checked_sub(run)?;
        if class.id == super::slab::LARGE {
            // Long runs from the far end, so that slabs do not break up the room they need.
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
