//! A double-ended stack of free slabs on the host: the left end belongs to the processor, the right
//! end to the daemon (kv-direct §4, Figure 8).
//!
//! The entries are those of a ring from position `left` up to, but not including, position `right`.
//! Only one side stores each position. A side that puts entries writes them and then moves its
//! position. A side that takes entries *claims* them first, as a worker and a thief do in Cilk's
//! THE protocol: it moves its position over the wanted entries, and then looks at the other side's
//! position. It owns the entries that the other side does not claim, and moves its position back
//! over the rest.
//!
//! # Invariants
//! 1. No entry is taken twice. Between storing its claim and loading the other's position each side
//!    has a fence of sequential consistency, so of two claims under way at least one is seen by the
//!    other side. A side that sees the other's claim takes no entry inside that claim, whether or
//!    not the other side gives way as well. Moving back makes a claim smaller, so the claim that
//!    was seen was large enough.
//! 2. No entry is lost: the entries that neither side took lie between their positions after both
//!    moved back. But a side may get no entry although there was one, if the other side was at it.
//! 3. An entry is written before it can be read (release and acquire of the position), and read
//!    before it is written anew. A ring has room for all slabs that its pool can ever hold,
//!    including those that are just being taken. So a side returns to a slot only when it has been
//!    handed the slot's slab since, through a chain of such releases.

use std::ops::Range;

use super::Slab;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Entries of a line.
pub(super) const ENTRIES_PER_LINE: usize = 16;

/// The first position: far from 0, since the left one may move down.
pub(super) const MIDDLE: u64 = 1 << 62;

/// A stack, wherever its parts lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack<'a> {
    pub(super) left: &'a AtomicU64,
    pub(super) right: &'a AtomicU64,
    pub(super) ring: &'a [AtomicU32],
}

impl Stack<'_> {
    /// The number of entries. For either side it may be out of date at once.
    #[inline]
    pub(super) fn len(self) -> u64 {
        let left = self.left.load(Ordering::Acquire);
        self.right.load(Ordering::Acquire).saturating_sub(left)
    }

    /// The processor takes up to `want` entries. Returns their positions.
    pub(super) fn take_left(self, want: usize, into: impl FnMut(Slab)) -> Range<u64> {
        let left = self.left.load(Ordering::Relaxed);
        let claim = left + want as u64;
        self.left.store(claim, Ordering::Release);
        fence(Ordering::SeqCst);
        let end = self.right.load(Ordering::Acquire).clamp(left, claim);
        if end < claim {
            self.left.store(end, Ordering::Release);
        }
        self.entries(left..end).for_each(into);
        left..end
    }

    /// The processor puts entries. Returns their positions.
    pub(super) fn put_left(self, slabs: &[Slab]) -> Range<u64> {
        let end = self.left.load(Ordering::Relaxed);
        let left = end - slabs.len() as u64;
        self.write(left..end, slabs);
        self.left.store(left, Ordering::Release);
        left..end
    }

    /// The daemon takes up to `want` entries, but leaves `keep` of the entries that it sees.
    pub(super) fn take_right(self, want: usize, keep: u64, into: impl FnMut(Slab)) -> usize {
        let right = self.right.load(Ordering::Relaxed);
        let spare = right.saturating_sub(self.left.load(Ordering::Acquire)).saturating_sub(keep);
        let claim = right - spare.min(want as u64);
        if claim == right {
            return 0;
        }
        self.right.store(claim, Ordering::Release);
        fence(Ordering::SeqCst);
        let start = self.left.load(Ordering::Acquire).clamp(claim, right);
        if start > claim {
            self.right.store(start, Ordering::Release);
        }
        self.entries(start..right).for_each(into);
        (right - start) as usize
    }

    /// The daemon puts entries.
    pub(super) fn put_right(self, slabs: &[Slab]) {
        let right = self.right.load(Ordering::Relaxed);
        let end = right + slabs.len() as u64;
        self.write(right..end, slabs);
        self.right.store(end, Ordering::Release);
    }

    /// All entries, while neither side is at work.
    pub(super) fn all(self) -> impl Iterator<Item = Slab> {
        self.entries(self.left.load(Ordering::Acquire)..self.right.load(Ordering::Acquire))
    }

    /// The accesses to the ring that reach these positions, each as its number of lines.
    pub(super) fn accesses(self, positions: Range<u64>) -> impl Iterator<Item = usize> {
        let lines = |part: Range<usize>| match part.end {
            end if end == part.start => None,
            end => Some((end - 1) / ENTRIES_PER_LINE - part.start / ENTRIES_PER_LINE + 1),
        };
        self.parts(positions).into_iter().filter_map(lines)
    }

    /// Positions as slots: first up to the ring's end, then from its start on.
    fn parts(self, positions: Range<u64>) -> [Range<usize>; 2] {
        let count = (positions.end - positions.start) as usize;
        debug_assert!(count <= self.ring.len(), "{count} entries of {}", self.ring.len());
        let first = (positions.start % self.ring.len() as u64) as usize;
        let end = (first + count).min(self.ring.len());
        [first..end, 0..count - (end - first)]
    }

    fn entries(self, positions: Range<u64>) -> impl Iterator<Item = Slab> {
        let [upper, lower] = self.parts(positions);
        self.ring[upper].iter().chain(&self.ring[lower]).map(|slot| {
            Slab::of_word(slot.load(Ordering::Relaxed)).expect("a slot in use holds a slab")
        })
    }

    fn write(self, positions: Range<u64>, slabs: &[Slab]) {
        let [upper, lower] = self.parts(positions);
        for (slot, slab) in self.ring[upper].iter().chain(&self.ring[lower]).zip(slabs) {
            slot.store(slab.word(), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::kv_direct::slab::{Class, Place};

    fn slabs(numbers: Range<u32>) -> Vec<Slab> {
        let slab = |number| Slab::new(Place::new(number).expect("not 0"), Class::SMALLEST);
        numbers.map(slab).collect()
    }

    #[test]
    fn each_end_is_a_stack() {
        let (left, right) = (AtomicU64::new(MIDDLE), AtomicU64::new(MIDDLE));
        let ring: Vec<_> = (0..48).map(|_| AtomicU32::new(0)).collect();
        let stack = Stack { left: &left, right: &right, ring: &ring };
        let take_left = |want| {
            let mut taken = Vec::new();
            stack.take_left(want, |slab| taken.push(slab));
            taken
        };
        let take_right = |want, keep| {
            let mut taken = Vec::new();
            stack.take_right(want, keep, |slab| taken.push(slab));
            taken
        };
        for _ in 0..100 {
            stack.put_right(&slabs(11..31));
            stack.put_left(&slabs(1..11));
            assert_eq!((stack.len(), stack.all().collect()), (30, slabs(1..31)));
            assert_eq!(take_left(4), slabs(1..5));
            assert_eq!(take_right(7, 0), slabs(24..31));
            assert_eq!(take_right(7, 15), slabs(20..24));
            assert_eq!(take_right(7, 15), [], "they were to be kept");
            assert_eq!(take_left(99), slabs(5..20));
            assert_eq!((take_left(1), take_right(1, 0), stack.len()), (vec![], vec![], 0));
        }
    }

    #[test]
    fn an_access_ends_where_the_ring_does() {
        let (left, right) = (AtomicU64::new(MIDDLE), AtomicU64::new(MIDDLE));
        let ring: Vec<_> = (0..48).map(|_| AtomicU32::new(0)).collect();
        let stack = Stack { left: &left, right: &right, ring: &ring };
        let lines = |from: u64, count: u64| -> Vec<usize> {
            let start = MIDDLE.next_multiple_of(48) + from;
            stack.accesses(start..start + count).collect()
        };
        assert_eq!((lines(0, 16), lines(0, 17), lines(15, 2)), (vec![1], vec![2], vec![2]));
        assert_eq!((lines(40, 8), lines(40, 9), lines(32, 48)), (vec![1], vec![1, 1], vec![1, 2]));
        assert_eq!(lines(7, 0), Vec::<usize>::new());
    }
}

/// Every interleaving, and every order of memory that the language allows, of the two sides of a
/// stack. Budget: 20 seconds for all together in a release build.
#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use crate::kv_direct::slab::{Class, Place};
    use loom::sync::Arc;
    use loom::thread;

    /// Two stacks, each with a ring for as many slabs as there are in the model.
    struct Shared {
        ends: [[AtomicU64; 2]; 2],
        rings: [Vec<AtomicU32>; 2],
    }

    impl Shared {
        /// The stacks, with slabs 1 to `slabs` in the first one.
        fn new(slabs: u32) -> Arc<Self> {
            let end = || AtomicU64::new(MIDDLE);
            let ring = || (0..slabs).map(|_| AtomicU32::new(0)).collect();
            let ends = [[end(), end()], [end(), end()]];
            let shared = Self { ends, rings: [ring(), ring()] };
            shared.stack(0).put_right(&(1..=slabs).map(slab).collect::<Vec<_>>());
            Arc::new(shared)
        }

        fn stack(&self, number: usize) -> Stack<'_> {
            let [left, right] = &self.ends[number];
            Stack { left, right, ring: &self.rings[number] }
        }

        fn take_left(&self, number: usize, want: usize) -> Vec<Slab> {
            let mut slabs = Vec::new();
            self.stack(number).take_left(want, |slab| slabs.push(slab));
            slabs
        }

        fn take_right(&self, number: usize, want: usize) -> Vec<Slab> {
            let mut slabs = Vec::new();
            self.stack(number).take_right(want, 0, |slab| slabs.push(slab));
            slabs
        }

        /// Whichever side has them, every slab is there once.
        fn complete(&self, slabs: u32, hands: [Vec<Slab>; 2]) {
            let stacks = self.stack(0).all().chain(self.stack(1).all());
            let mut found: Vec<Slab> = hands.into_iter().flatten().chain(stacks).collect();
            found.sort_unstable();
            assert_eq!(found, (1..=slabs).map(slab).collect::<Vec<_>>());
        }
    }

    fn slab(number: u32) -> Slab {
        Slab::new(Place::new(number).expect("not 0"), Class::SMALLEST)
    }

    #[test]
    fn loom_no_slab_is_taken_twice_or_lost() {
        for (slabs, wants) in [(1, [1, 1]), (2, [1, 2]), (3, [2, 2]), (2, [3, 3])] {
            loom::model(move || {
                let shared = Shared::new(slabs);
                let daemon = shared.clone();
                let taking = thread::spawn(move || daemon.take_right(0, wants[1]));
                let mut first = shared.take_left(0, wants[0]);
                first.extend(shared.take_left(0, 1));
                let second = taking.join().expect("the daemon does not panic");
                shared.complete(slabs, [first, second]);
            });
        }
    }

    #[test]
    fn loom_slabs_are_put_and_taken_again() {
        loom::model(|| {
            let shared = Shared::new(2);
            let daemon = shared.clone();
            let turning = thread::spawn(move || {
                let slabs = daemon.take_right(0, 1);
                daemon.stack(0).put_right(&slabs);
                daemon.take_right(0, 2)
            });
            let slabs = shared.take_left(0, 1);
            shared.stack(0).put_left(&slabs);
            let first = shared.take_left(0, 2);
            let second = turning.join().expect("the daemon does not panic");
            shared.complete(2, [first, second]);
        });
    }

    /// Invariant 3: each side writes slots anew that the other has read, because it was handed
    /// slabs through the other stack.
    #[test]
    fn loom_slabs_go_round_through_two_stacks() {
        loom::model(|| {
            let shared = Shared::new(2);
            let daemon = shared.clone();
            let turning = thread::spawn(move || {
                let kept = daemon.take_right(0, 1);
                let slabs = daemon.take_right(1, 2);
                daemon.stack(0).put_right(&slabs);
                kept
            });
            let slabs = shared.take_left(0, 1);
            shared.stack(1).put_left(&slabs);
            let first = shared.take_left(0, 2);
            let second = turning.join().expect("the daemon does not panic");
            shared.complete(2, [first, second]);
        });
    }
}
