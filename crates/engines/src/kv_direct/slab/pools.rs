//! All free slabs on the host: a stack for each class, and the messages between processor and
//! daemon.
//!
//! # Invariants
//! 1. The stack of class `n` holds slabs of class `n`, and larger ones that are cut when they are
//!    taken out (kv-direct §3.3.2). They do not overlap, so no stack can hold more entries than all
//!    places divided by the class's size: its ring has room for that many.
//! 2. A processor that runs out *asks* for a merge of everything. After its answer the daemon takes
//!    no slab out of the stacks before the processor has seen the answer: so a slab that the
//!    processor does not find then does not exist.

use std::ops::Range;
use std::sync::Arc;

use super::merge::cover;
use super::stack::{ENTRIES_PER_LINE, MIDDLE, Stack};
use super::{Class, PLACES_MAX, Slab};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The most stacks that there can be.
const CLASSES: usize = Class::LARGEST.index() + 1;

/// The positions that one side stores, and its word to the other side, in separate lines.
#[derive(Debug)]
#[repr(align(64))]
struct Side {
    ends: [AtomicU64; CLASSES],
    word: AtomicU64,
}

const _: () = assert!(cfg!(feature = "loom") || size_of::<Side>() == Side::LINES * 64);

impl Side {
    /// Lines that are read at once.
    const LINES: usize = 4;

    fn new() -> Self {
        Self { ends: std::array::from_fn(|_| AtomicU64::new(MIDDLE)), word: AtomicU64::new(0) }
    }
}

/// The free slabs of one processor that are not in the processor's hands: shared by its [`Slabs`]
/// and its [`SlabDaemon`].
///
/// It takes 4 bytes of host memory for each free slab, out of an address range of a quarter of the
/// managed memory. The operating system provides the bytes at their first use.
///
/// [`Slabs`]: super::Slabs
/// [`SlabDaemon`]: super::SlabDaemon
#[derive(Debug)]
pub struct Pools {
    processor: Side,
    daemon: Side,
    rings: Vec<Box<[AtomicU32]>>,
    places: u32,
    /// Counts what the processor has done to the stacks, and its questions.
    changes: AtomicU64,
    /// The changes that the daemon's last turn began with.
    seen: AtomicU64,
}

impl Pools {
    /// All places of `places` are free, as slabs up to class `largest`.
    ///
    /// # Panics
    /// If one of them is place 0 or has more than 31 bits; or if there is no address range left.
    pub fn new(places: Range<u32>, largest: Class) -> Arc<Self> {
        assert!(places.start > 0, "place 0 is nobody's");
        assert!(places.end <= PLACES_MAX, "places have 31 bits, and {} has more", places.end);
        let count = places.end.saturating_sub(places.start);
        let rings = Class::between(Class::SMALLEST, largest).map(|class| {
            let entries = (count / class.places()) as usize;
            ring(entries.max(1).next_multiple_of(ENTRIES_PER_LINE))
        });
        let rings = rings.collect();
        let [processor, daemon] = [Side::new(), Side::new()];
        let [changes, seen] = [AtomicU64::new(1), AtomicU64::new(0)];
        let pools = Self { processor, daemon, rings, places: count, changes, seen };
        cover(places, largest).for_each(|slab| pools.stack(slab.class()).put_right(&[slab]));
        Arc::new(pools)
    }

    /// The largest class that is allocated.
    pub fn largest(&self) -> Class {
        Class::new(self.rings.len() as u8 - 1).expect("there are no more rings than classes")
    }

    /// Places that are managed, free or not.
    pub fn places(&self) -> u32 {
        self.places
    }

    /// The stack of a class.
    ///
    /// # Panics
    /// If the class is above the largest.
    #[inline]
    pub(super) fn stack(&self, class: Class) -> Stack<'_> {
        let index = class.index();
        Stack {
            left: &self.processor.ends[index],
            right: &self.daemon.ends[index],
            ring: &self.rings[index],
        }
    }

    /// The number of lines with the daemon's positions and its word, which one access reads.
    pub(super) fn daemon_lines(&self) -> usize {
        Side::LINES
    }

    /// The processor asks for everything to be merged.
    pub(super) fn ask(&self) {
        let question = self.processor.word.load(Ordering::Relaxed);
        // The word is odd while the processor wants an answer, and differs each time.
        self.processor.word.store((question + 1) | 1, Ordering::Release);
        self.has_changed();
    }

    /// The processor has seen the answer and looked for what it wanted.
    pub(super) fn thank(&self) {
        let question = self.processor.word.load(Ordering::Relaxed);
        debug_assert!(question & 1 == 1, "nothing was asked");
        self.processor.word.store(question + 1, Ordering::Release);
        self.has_changed();
    }

    /// The processor has changed a stack, or its word: there may be work for the daemon.
    pub(super) fn has_changed(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Release);
    }

    /// The daemon begins a turn, which sees all changes up to now.
    pub(super) fn look(&self) {
        self.seen.store(self.changes.load(Ordering::Acquire), Ordering::Relaxed);
    }

    /// Whether the processor has changed anything since the daemon's last turn began.
    pub fn are_unseen(&self) -> bool {
        self.seen.load(Ordering::Relaxed) != self.changes.load(Ordering::Relaxed)
    }

    /// Whether a question is open, and whether it was answered.
    pub(super) fn question(&self) -> Question {
        let question = self.processor.word.load(Ordering::Acquire);
        match question & 1 {
            0 => Question::None,
            _ if self.daemon.word.load(Ordering::Acquire) == question => Question::Answered,
            _ => Question::Open(question),
        }
    }

    /// The daemon has merged all slabs that were free when the question was asked.
    pub(super) fn answer(&self, question: u64) {
        self.daemon.word.store(question, Ordering::Release);
    }

    /// The number of slabs in the stacks. It may be out of date at once.
    pub(super) fn len(&self) -> u64 {
        Class::between(Class::SMALLEST, self.largest()).map(|class| self.stack(class).len()).sum()
    }

    /// All slabs in the stacks, while neither side is at work.
    pub(super) fn slabs(&self) -> impl Iterator<Item = Slab> {
        let classes = Class::between(Class::SMALLEST, self.largest());
        classes.flat_map(|class| self.stack(class).all())
    }
}

/// The state of the processor's question to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// There is no question.
    None,
    /// The daemon has yet to answer this one.
    Open(u64),
    /// The daemon has answered, and the processor has not yet looked.
    Answered,
}

/// An empty ring. Its memory is not touched.
#[cfg(not(feature = "loom"))]
fn ring(entries: usize) -> Box<[AtomicU32]> {
    use zerocopy::FromZeros;
    <[AtomicU32]>::new_box_zeroed_with_elems(entries).expect("addresses are not scarce")
}

#[cfg(feature = "loom")]
fn ring(entries: usize) -> Box<[AtomicU32]> {
    (0..entries).map(|_| AtomicU32::new(0)).collect()
}
