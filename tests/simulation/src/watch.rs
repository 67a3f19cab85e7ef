//! Who changes which memory, watched at every change: the rules that guard the reuse of memory are
//! rules about stores and CAS of clients, and most of what breaks them does no harm that a history
//! would show.
//!
//! # Rules
//! 1. A processor stores into a slab only for a session that leases it, or puts it together, or takes
//!    it apart, or has lost it to one that still waits for a grace period.
//! 2. A note is WRITTEN only into the notes of a slab, and no atomic changes a slab's header or notes.
//! 3. A descriptor is changed only by the session that it names, while that session lives; but an
//!    abandoned slab may be leased by anybody, and a leased one seized (`lease.rs`, invariant 1).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::slab::{Chunk, Class, SLAB_HEADER_BYTES, Slab};
use loch_fabric::RemoteAddr;
use loch_fabric::sim::{Change, How, ProcessId, World};

/// What became of slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slabs {
    /// Cut out of free chunks.
    pub cut: u64,
    /// Of those, such as had been a slab of another class, or of the same one, before.
    pub cut_anew: u64,
    /// Left behind by their owners, or found after their deaths.
    pub abandoned: u64,
    /// Leased after they were left behind.
    pub adopted: u64,
    /// Taken from owners that live.
    pub seized: u64,
    /// Of those, such as came to be used by who seized them.
    pub taken_over: u64,
    /// Taken apart.
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
    /// The session of each process.
    seats: RefCell<BTreeMap<ProcessId, u32>>,
    live: RefCell<BTreeSet<u32>>,
    slabs: Cell<Slabs>,
    /// Chunks that a slab ever began at.
    used: RefCell<BTreeSet<Slab>>,
    broken: RefCell<Option<String>>,
}

impl Watch {
    /// Watches the data tables of a table.
    pub fn over(world: &World, map: Arc<TableMap>) -> Rc<Self> {
        let watch = Rc::new(Self {
            world: world.clone(),
            map,
            seats: RefCell::default(),
            live: RefCell::default(),
            slabs: Cell::default(),
            used: RefCell::default(),
            broken: RefCell::default(),
        });
        let told = watch.clone();
        world.watch(move |change| told.look(change));
        watch
    }

    /// A session begins.
    pub fn joins(&self, process: ProcessId, incarnation: u64) {
        self.seats.borrow_mut().insert(process, incarnation as u32);
        self.live.borrow_mut().insert(incarnation as u32);
    }

    /// A session has ended, as all can see.
    pub fn leaves(&self, incarnation: u64) {
        self.live.borrow_mut().remove(&(incarnation as u32));
    }

    /// What became of slabs so far.
    pub fn slabs(&self) -> Slabs {
        self.slabs.get()
    }

    /// The first rule that was broken, and how.
    pub fn broken(&self) -> Option<String> {
        self.broken.borrow().clone()
    }

    fn look(&self, change: Change) {
        let Some(&session) = self.seats.borrow().get(&change.by) else { return };
        let Some(dti) = self.map.dti_of(change.at.region()) else { return };
        let offset = change.at.offset();
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
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let now = self.world.now_ns();
            let told = format!("at {now} ns session {session}: {wrong} ({:?})", change.how);
            self.broken.borrow_mut().get_or_insert(told);
        }
    }

    /// What a chunk belongs to, where that begins, and its class if it is cut.
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
                ) if owner == session => {
                    self.count_rested(class, change, into);
                    None
                }
                Some(Chunk::Seized { .. }) => None,
                _ => told("stored"),
            },
            How::Write => {
                let is_note = |class: Class| {
                    (SLAB_HEADER_BYTES..class.note_at(class.entries)).contains(&into)
                };
                if class.is_some_and(is_note) { None } else { told("wrote a note") }
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

    /// Nobody but a client whose entries have rested stores a note that is not zero.
    fn count_rested(&self, class: Option<Class>, change: Change, into: u64) {
        let is_note = |class: Class| {
            change.len == 4 && (SLAB_HEADER_BYTES..class.note_at(class.entries)).contains(&into)
        };
        if class.is_some_and(is_note) {
            let (at, half) = (change.at.offset() & !7, (change.at.offset() & 4) * 8);
            let word = self.world.load(RemoteAddr::new(change.at.region(), at));
            if (word >> half) as u32 != 0 {
                self.count(|slabs| slabs.rested += 1);
            }
        }
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
