//! A watch over every change of memory. The rules that guard the reuse of memory are rules about
//! the stores and CASes of clients, and most violations do no harm that a history would show.
//!
//! # Rules
//! 1. A processor stores into a slab only for a session that leases it, puts it together, or takes
//!    it apart, or that has lost it to a session that still waits for a grace period.
//! 2. A note is WRITTEN only into the notes of a slab, and no atomic changes a slab's header or
//!    notes.
//! 3. Only the session that a descriptor names changes it, while that session lives. But any
//!    session may lease an abandoned slab, and seize a leased one (`lease.rs`, invariant 1).
//! 4. Between the seizure of a slab and its first use for allocation, every operation that was
//!    under way has ended. Between the closing of a slab and the freeing of its chunks, that has
//!    happened twice, and every node has begun two epochs (`reclaim.rs`, invariants 1 and 2).
//! 5. The count of a slab's entries that were ever used grows by one at a time. A used entry is
//!    taken only if its note is its generation, and it then gets a greater generation. An entry
//!    whose short generation starts over has rested before it was noted free again, for as long as
//!    a closed slab does by rule 4 (`alloc.rs`, invariants 1 to 3).
//! 6. An entry that was never used since its slab was cut is not noted free (`alloc.rs`, invariant
//!    4; `scrub.rs`).
//! 7. When an entry gets a generation, no client would still use a remembered word that names the
//!    entry by that generation (`alloc.rs`, invariant 3; `reclaim.rs`, invariant 2). The watch asks
//!    the clients, because no other code sees into a cache: only with the feature `planted`.
//! 8. A word is put into a slot of the index at most once, as long as no generation starts over
//!    and no memory is cut anew (rule U of the protocol). The entries of memory that was cut anew
//!    have generations of which nobody remembers a word after two grace periods.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::dte::unpinned;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::slab::{Chunk, Class, FORMATTED_OFFSET, SLAB_HEADER_BYTES, Slab};
use loch_engines::region::{EPOCH_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, session_addr};
use loch_fabric::sim::{Change, How, ProcessId, World};
use loch_fabric::{RegionId, RemoteAddr};

use crate::Client;

/// The fates of slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slabs {
    /// Slabs that were cut out of free chunks.
    pub cut: u64,
    /// Of those, slabs whose chunks had been a slab before, of another or the same class.
    pub cut_anew: u64,
    /// Slabs that their owners abandoned, or that were found after their owners' deaths.
    pub abandoned: u64,
    /// Slabs that were leased after they were abandoned.
    pub adopted: u64,
    /// Slabs that were taken from living owners.
    pub seized: u64,
    /// Of those, slabs that came to be used by the session that seized them.
    pub taken_over: u64,
    /// Slabs that were taken apart.
    pub taken_apart: u64,
    /// Entries that rested before their generation started over.
    pub rested: u64,
}

impl Slabs {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Slabs) {
        self.cut += other.cut;
        self.cut_anew += other.cut_anew;
        self.abandoned += other.abandoned;
        self.adopted += other.adopted;
        self.seized += other.seized;
        self.taken_over += other.taken_over;
        self.taken_apart += other.taken_apart;
        self.rested += other.rested;
    }
}

/// Looks at every change of memory.
pub struct Watch {
    world: World,
    map: Arc<TableMap>,
    /// Whether generations are so short that they start over in a run.
    starts_over: bool,
    /// The session of each process.
    seats: RefCell<BTreeMap<ProcessId, u32>>,
    live: RefCell<BTreeSet<u32>>,
    /// Clients that may remember words, and the nodes of their sessions.
    remembering: RefCell<Vec<(RegionId, Weak<Client>)>>,
    slabs: Cell<Slabs>,
    /// Chunks at which a slab ever began.
    used: RefCell<BTreeSet<Slab>>,
    /// The last announcement of each session slot, if an operation is under way, and its number.
    active: RefCell<BTreeMap<u64, (u64, u64)>>,
    /// Announcements so far.
    announcements: Cell<u64>,
    /// The grace periods since a slab was seized or closed, by its descriptor.
    slabs_wait: RefCell<BTreeMap<u64, Wait>>,
    /// The grace periods since a note was cleared, by the note, until its entry has a new
    /// generation.
    notes_wait: RefCell<BTreeMap<u64, Wait>>,
    /// The former content of cleared notes, until the entry has a new generation.
    cleared: RefCell<BTreeMap<u64, u32>>,
    /// Notes whose former content says nothing when they are cleared next: their entries got a new
    /// generation before the store that clears them reached memory, or a client whose sweep was
    /// slow has noted a generation before over the one for which the entry is taken. With a note
    /// and a generation: that entry was taken wrongly if the note that is cleared is this one.
    late: RefCell<BTreeMap<u64, Option<(u32, u64)>>>,
    /// Entries whose generation may start over, by their notes.
    rested: RefCell<BTreeSet<u64>>,
    /// The words that were ever put into the slots of the index, each with its slot.
    words: RefCell<BTreeSet<(u64, u64)>>,
    broken: RefCell<Option<String>>,
}

/// The grace periods that really pass, independent of the clients that wait for them.
#[derive(Clone, Debug)]
struct Wait {
    /// How often all operations that were under way have ended.
    passed: u32,
    /// The operations that were under way at the last beginning: slots and their announcements.
    under_way: BTreeSet<(u64, u64)>,
    /// The epochs of the nodes at the beginning.
    epochs: Vec<u64>,
}

fn taken_wrongly(number: u32, slab: Slab, generation: u64, said: u32) -> String {
    let told = format!("entry {number} of {slab:?}, of generation {generation}, was taken");
    format!("{told} for a note that said {said}")
}

impl Watch {
    /// Watches the data tables of a table.
    pub fn over(world: &World, map: Arc<TableMap>) -> Rc<Self> {
        let watch = Rc::new(Self {
            world: world.clone(),
            starts_over: map.codec.gen_mask() < 1 << 10,
            map,
            seats: RefCell::default(),
            live: RefCell::default(),
            remembering: RefCell::default(),
            slabs: Cell::default(),
            used: RefCell::default(),
            active: RefCell::default(),
            announcements: Cell::default(),
            slabs_wait: RefCell::default(),
            notes_wait: RefCell::default(),
            cleared: RefCell::default(),
            late: RefCell::default(),
            rested: RefCell::default(),
            words: RefCell::default(),
            broken: RefCell::default(),
        });
        let told = watch.clone();
        world.watch(move |change| told.look(change));
        watch
    }

    /// Takes note that a session begins.
    pub fn joins(&self, process: ProcessId, incarnation: u64) {
        self.seats.borrow_mut().insert(process, incarnation as u32);
        self.live.borrow_mut().insert(incarnation as u32);
    }

    /// Takes note that a client with a session at a node begins, and will remember words.
    pub fn remembers(&self, home: RegionId, client: &Rc<Client>) {
        self.remembering.borrow_mut().push((home, Rc::downgrade(client)));
    }

    /// Takes note that a session has ended, as all clients can see.
    pub fn leaves(&self, incarnation: u64, slot: RemoteAddr) {
        self.live.borrow_mut().remove(&(incarnation as u32));
        // The words that the client remembers, and will never use, live as long as its process.
        let is_other = |client: Rc<Client>| client.base().incarnation() != incarnation;
        self.remembering.borrow_mut().retain(|(_, client)| client.upgrade().is_some_and(is_other));
        self.ended(slot.add(8).to_word());
    }

    /// Takes note that the announced operation of a slot has ended.
    fn ended(&self, slot: u64) {
        let Some((_, serial)) = self.active.borrow_mut().remove(&slot) else { return };
        let (mut slabs, mut notes) = (self.slabs_wait.borrow_mut(), self.notes_wait.borrow_mut());
        for wait in slabs.values_mut().chain(notes.values_mut()) {
            if wait.passed < 2 && wait.under_way.remove(&(slot, serial)) {
                self.pass(wait);
            }
        }
    }

    /// Counts a grace period for a wait that has no operation left to wait for.
    fn pass(&self, wait: &mut Wait) {
        while wait.under_way.is_empty() && wait.passed < 2 {
            wait.passed += 1;
            if wait.passed < 2 {
                wait.under_way = self.under_way();
            }
        }
    }

    fn under_way(&self) -> BTreeSet<(u64, u64)> {
        self.active.borrow().iter().map(|(slot, (_, serial))| (*slot, *serial)).collect()
    }

    fn wait(&self) -> Wait {
        let (under_way, epochs) = (self.under_way(), self.epochs());
        let mut wait = Wait { passed: 0, under_way, epochs };
        self.pass(&mut wait);
        wait
    }

    fn epochs(&self) -> Vec<u64> {
        let nodes = (0..self.map.data_tables()).map(|node| RegionId(node as u8));
        nodes.map(|node| self.world.load(RemoteAddr::new(node, EPOCH_OFFSET))).collect()
    }

    /// Whether two grace periods have passed, for operations under way and for remembered words.
    fn is_rested(&self, wait: &Wait) -> bool {
        let begun = |(now, then): (u64, &u64)| now >= then + 2;
        wait.passed >= 2 && self.epochs().into_iter().zip(&wait.epochs).all(begun)
    }

    /// Takes note of a session's announcement whether an operation is under way.
    fn announced(&self, slot: u64, word: u64) {
        let before = self.active.borrow().get(&slot).copied();
        if before.map(|(word, _)| word) == Some(word) {
            return;
        }
        self.ended(slot);
        if word & 1 == 1 {
            self.announcements.set(self.announcements.get() + 1);
            self.active.borrow_mut().insert(slot, (word, self.announcements.get()));
        }
    }

    /// The fates of slabs so far.
    pub fn slabs(&self) -> Slabs {
        self.slabs.get()
    }

    /// The first rule that was broken, with a description.
    pub fn broken(&self) -> Option<String> {
        self.broken.borrow().clone()
    }

    fn look(&self, change: Change) {
        let Some(&session) = self.seats.borrow().get(&change.by) else { return };
        let Some(dti) = self.map.dti_of(change.at.region()) else { return };
        let offset = change.at.offset();
        let slots = self.map.sessions()[dti as usize].1;
        if (SESSIONS_OFFSET..session_addr(change.at.region(), slots).offset()).contains(&offset) {
            if (offset - SESSIONS_OFFSET) % SESSION_BYTES == 8 {
                self.announced(change.at.to_word(), self.world.load(change.at));
            }
            return;
        }
        let base = self.map.data_base(dti).expect("there is such a data table").offset();
        let chunks = self.map.shape.geometry.chunks;
        let descriptors = self.map.chunk_addr(dti, 0).offset();
        let wrong = if (base..base + chunks * CHUNK_BYTES).contains(&offset) {
            self.in_slab(session, change, dti, offset - base)
        } else if let How::Atomic { from, to } = change.how
            && (descriptors..descriptors + chunks * 8).contains(&offset)
            && from != to
        {
            let chunk = ((offset - descriptors) / 8) as u32;
            self.of_descriptor(session, Slab { dti, chunk }, from, to)
        } else if let How::Atomic { from, to } = change.how
            && from != to
            && self.is_in_index(change.at)
        {
            self.of_index(change.at, to)
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let now = self.world.now_ns();
            let told = format!("at {now} ns session {session}: {wrong} ({:?})", change.how);
            self.broken.borrow_mut().get_or_insert(told);
        }
    }

    fn is_in_index(&self, at: RemoteAddr) -> bool {
        let geometry = &self.map.shape.geometry;
        let bytes = u64::from(geometry.buckets_per_shard) * geometry.bucket_bytes();
        self.map.shards().iter().any(|shard| {
            let into = at.offset().checked_sub(shard.offset());
            shard.region() == at.region() && into.is_some_and(|into| into < bytes)
        })
    }

    /// Rule 8, for a word that was just put into a slot.
    fn of_index(&self, slot: RemoteAddr, word: u64) -> Option<String> {
        let is_new = self.words.borrow_mut().insert((slot.to_word(), word));
        let may_repeat = self.starts_over || self.slabs.get().taken_apart > 0;
        (!is_new && !may_repeat).then(|| format!("put {word:#x} into slot {slot:?} again"))
    }

    /// The use of a chunk, the first chunk of its run, and its class if it is cut.
    fn run_at(&self, dti: u8, chunk: u32) -> (Option<Chunk>, u32, Option<Class>) {
        let word = |chunk: u32| self.world.load(self.map.chunk_addr(dti, u64::from(chunk)));
        let (head, at) = match Chunk::from_word(word(chunk)) {
            Some(Chunk::Tail { back }) if back <= chunk => {
                (Chunk::from_word(word(chunk - back)), chunk - back)
            }
            head => (head, chunk),
        };
        let class = match head {
            Some(
                Chunk::Leased { class, chunks, .. }
                | Chunk::Seized { class, chunks, .. }
                | Chunk::Abandoned { class, chunks, .. }
                | Chunk::Closing { class, chunks, .. },
            ) => self.map.slab_class(at, class, chunks),
            _ => None,
        };
        (head, at, class)
    }

    fn in_slab(&self, session: u32, change: Change, dti: u8, into: u64) -> Option<String> {
        let chunk = (into / CHUNK_BYTES) as u32;
        let (head, at, class) = self.run_at(dti, chunk);
        let into = into - u64::from(at) * CHUNK_BYTES;
        let told = |what: &str| {
            Some(format!(
                "{what} {into} bytes into the slab at chunk {at} of {dti}, which is {head:?}"
            ))
        };
        match change.how {
            How::Store => match head {
                Some(
                    Chunk::Leased { owner, .. }
                    | Chunk::Forming { owner, .. }
                    | Chunk::Closing { owner, .. },
                ) if owner == session => class
                    .and_then(|class| self.of_entry(class, Slab { dti, chunk: at }, change, into)),
                // The store is by the slab's last owner, in the middle of an operation.
                Some(Chunk::Seized { .. }) => class
                    .and_then(|class| self.of_entry(class, Slab { dti, chunk: at }, change, into)),
                _ => told("stored"),
            },
            How::Write => {
                let is_note = |class: Class| {
                    (SLAB_HEADER_BYTES..class.note_at(class.entries)).contains(&into)
                };
                match class {
                    Some(class) if is_note(class) => {
                        self.noted(class, Slab { dti, chunk: at }, change, into)
                    }
                    _ => told("wrote a note"),
                }
            }
            How::Atomic { .. } => {
                if class.is_some_and(|class| into >= class.data_at) {
                    None
                } else {
                    told("swapped")
                }
            }
        }
    }

    /// Rule 6, for bytes that were just stored or WRITTEN into a slab's notes.
    fn noted(&self, class: Class, slab: Slab, change: Change, into: u64) -> Option<String> {
        let at = RemoteAddr::new(change.at.region(), change.at.offset() & !7);
        let half = (change.at.offset() & 4) * 8;
        let (note, before) = ((self.world.load(at) >> half) as u32, (change.before >> half) as u32);
        if before != 0 && before != note {
            self.late.borrow_mut().insert(change.at.to_word(), None);
        }
        let number = (into - SLAB_HEADER_BYTES) / 4;
        let used = self.world.load(self.map.slab_addr(slab).add(FORMATTED_OFFSET));
        (note != 0 && number >= used.min(u64::from(class.entries))).then(|| {
            format!("noted entry {number} of {slab:?} free, of which {used} were ever used")
        })
    }

    /// Rule 7, for an entry that has just got a generation.
    #[cfg(feature = "planted")]
    fn remembered(&self, class: Class, slab: Slab, number: u32) -> Option<String> {
        if !self.starts_over {
            return None;
        }
        use loch_engines::nessie::slab::Entry;
        let place = class.place(Entry { slab, number });
        let generation = self.world.load(self.map.slab_addr(slab).add(class.entry_at(number)));
        let remembering = self.remembering.borrow();
        let stale = remembering.iter().find(|(home, client)| {
            let epoch = self.world.load(RemoteAddr::new(*home, EPOCH_OFFSET));
            client.upgrade().is_some_and(|client| client.base().remembers(place, generation, epoch))
        });
        stale.map(|(home, _)| {
            let told = format!("entry {number} of {slab:?} got generation {generation}, by which");
            format!("{told} a client at {home:?} still remembers another use of it")
        })
    }

    #[cfg(not(feature = "planted"))]
    fn remembered(&self, _: Class, _: Slab, _: u32) -> Option<String> {
        None
    }

    /// Rule 5, for a store into a slab of this session.
    fn of_entry(&self, class: Class, slab: Slab, change: Change, into: u64) -> Option<String> {
        let base = self.map.slab_addr(slab);
        if (SLAB_HEADER_BYTES..class.note_at(class.entries)).contains(&into) && change.len == 4 {
            return self.of_note(class, slab, change, into);
        }
        let (now, before) = (self.world.load(base.add(FORMATTED_OFFSET)), change.before);
        if change.at == base.add(FORMATTED_OFFSET) && now != before + 1 {
            return Some(format!("{now} entries of {slab:?} were ever used, after {before}"));
        }
        let number = into.checked_sub(class.data_at)? / class.entry_bytes;
        let formatted = self.world.load(base.add(FORMATTED_OFFSET));
        let is_generation = change.at == base.add(class.entry_at(number as u32)) && change.len == 8;
        let note = base.add(class.note_at(number as u32)).to_word();
        // The entry's note was cleared because the entry is taken, unless the entry has rested and
        // the stores that note it free again are still on their way.
        let has_rested = is_generation && {
            let mut waits = self.notes_wait.borrow_mut();
            let has_rested = waits.get(&note).is_some_and(|wait| self.is_rested(wait));
            if !has_rested {
                waits.remove(&note);
            }
            has_rested
        };
        if !is_generation {
            return None;
        }
        // A generation may say that its entry was pinned.
        let (now, before) = (unpinned(self.world.load(change.at)), unpinned(change.before));
        if now != before {
            let wrong = self.remembered(class, slab, number as u32);
            if wrong.is_some() {
                return wrong;
            }
        }
        if number >= formatted.min(u64::from(class.entries)) {
            // The entry was never used in this cut: its former note belonged to another cut.
            self.cleared.borrow_mut().remove(&note);
            return None;
        }
        let mask = self.map.codec.gen_mask();
        if now < before {
            return Some(format!(
                "gave entry {number} of {slab:?} generation {now} after {before}"
            ));
        }
        if now == before {
            return None;
        }
        let mut cleared = self.cleared.borrow_mut().remove(&note);
        let at = RemoteAddr::from_word(note);
        let half = (at.offset() & 4) * 8;
        let word = self.world.load(RemoteAddr::new(at.region(), at.offset() & !7));
        let said = (word >> half) as u32;
        if said != 0 {
            // The note is the one that the owner took the entry for if it clears it. Otherwise it
            // renewed an entry that it has in use, and a client whose sweep was slow has noted the
            // generation before.
            cleared = None;
            let suspect = said != before as u32 && !self.starts_over;
            self.late.borrow_mut().insert(note, suspect.then_some((said, before)));
        }
        if let Some(said) = cleared.filter(|said| *said != before as u32) {
            return Some(taken_wrongly(number as u32, slab, before, said));
        }
        let is_noted = self.rested.borrow_mut().remove(&note);
        if has_rested && !is_noted && said == 0 {
            // The owner's stores that note the entry free and take it are still on their way: the
            // note that the second of them clears is no news.
            self.late.borrow_mut().insert(note, None);
        }
        let rested = is_noted || has_rested;
        if now & mask < before & mask && !rested {
            let told = format!("entry {number} of {slab:?} starts over: {now} after {before}");
            return Some(format!("{told}, without a rest"));
        }
        None
    }

    /// Rule 5, for a store into the note of an entry.
    fn of_note(&self, class: Class, slab: Slab, change: Change, into: u64) -> Option<String> {
        let (at, half) = (change.at.offset() & !7, (change.at.offset() & 4) * 8);
        let word = self.world.load(RemoteAddr::new(change.at.region(), at));
        if (word >> half) as u32 == 0 {
            let before = (change.before >> half) as u32;
            let late = self.late.borrow_mut().remove(&change.at.to_word());
            match late {
                Some(Some((said, generation))) if said == before => {
                    let number = (into - SLAB_HEADER_BYTES) / 4;
                    return Some(taken_wrongly(number as u32, slab, generation, said));
                }
                Some(None) => (),
                _ if before != 0 => {
                    self.cleared.borrow_mut().insert(change.at.to_word(), before);
                }
                _ => (),
            }
            if self.starts_over {
                // The scrubber may free the entry while it rests; it is then parked again, as
                // unused.
                let mut waits = self.notes_wait.borrow_mut();
                waits.entry(change.at.to_word()).or_insert_with(|| self.wait());
            }
            return None;
        }
        // Only a client whose entries have rested stores a note that is not zero.
        self.count(|slabs| slabs.rested += 1);
        let wrong = self.noted(class, slab, change, into);
        if wrong.is_some() {
            return wrong;
        }
        let waits = self.notes_wait.borrow();
        if !waits.get(&change.at.to_word()).is_some_and(|wait| self.is_rested(wait)) {
            return Some(format!("noted an entry free that has not rested, at {:?}", change.at));
        }
        self.rested.borrow_mut().insert(change.at.to_word());
        None
    }

    fn count(&self, add: impl FnOnce(&mut Slabs)) {
        let mut slabs = self.slabs.get();
        add(&mut slabs);
        self.slabs.set(slabs);
    }

    fn of_descriptor(&self, session: u32, slab: Slab, from: u64, to: u64) -> Option<String> {
        let (from, to) = (Chunk::from_word(from), Chunk::from_word(to));
        self.count(|slabs| match (from, to) {
            (Some(Chunk::Forming { .. }), Some(Chunk::Leased { .. })) => {
                slabs.cut += 1;
                slabs.cut_anew += u64::from(!self.used.borrow_mut().insert(slab));
            }
            (Some(Chunk::Abandoned { .. }), Some(Chunk::Leased { .. })) => slabs.adopted += 1,
            (_, Some(Chunk::Abandoned { .. })) => slabs.abandoned += 1,
            (_, Some(Chunk::Seized { .. })) => slabs.seized += 1,
            (Some(Chunk::Seized { .. }), Some(Chunk::Leased { .. })) => slabs.taken_over += 1,
            (Some(Chunk::Closing { .. }), Some(Chunk::Free)) => slabs.taken_apart += 1,
            _ => (),
        });
        let descriptor = self.map.chunk_addr(slab.dti, u64::from(slab.chunk)).to_word();
        let hasty = {
            let waits = self.slabs_wait.borrow();
            let wait = waits.get(&descriptor);
            match (from, to) {
                (Some(Chunk::Seized { .. }), _) => wait.is_some_and(|wait| wait.passed == 0),
                (Some(Chunk::Closing { .. }), Some(Chunk::Free)) => {
                    wait.is_some_and(|wait| !self.is_rested(wait))
                }
                _ => false,
            }
        };
        if matches!(to, Some(Chunk::Seized { .. } | Chunk::Closing { .. })) {
            self.slabs_wait.borrow_mut().insert(descriptor, self.wait());
        } else {
            self.slabs_wait.borrow_mut().remove(&descriptor);
        }
        if hasty {
            return Some(format!("made {to:?} of {from:?} too soon, at {slab:?}"));
        }
        let owner = match from {
            Some(
                Chunk::Leased { owner, .. }
                | Chunk::Forming { owner, .. }
                | Chunk::Seized { owner, .. }
                | Chunk::Closing { owner, .. },
            ) => owner,
            _ => return None,
        };
        let seizes = matches!(
            (from, to),
            (Some(Chunk::Leased { .. }), Some(Chunk::Seized { owner, .. })) if owner == session
        );
        let is_live = self.live.borrow().contains(&owner);
        (owner != session && is_live && !seizes).then(|| {
            format!(
                "made {to:?} of {from:?}, whose session lives, at chunk {} of {}",
                slab.chunk, slab.dti
            )
        })
    }
}
