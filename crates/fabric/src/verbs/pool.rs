//! The registered memory that an endpoint's verbs read into and write from: slots of three sizes.
//!
//! # Invariants
//! 1. A slot is either free, or owned by one work request, until the completion of that request (or
//!    of a later one on the same queue pair) was polled. Nothing else reaches its bytes.
//! 2. The memory is unmapped after it was deregistered, when no card reaches it any more.

use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::limits::{SLOT_BYTES, SLOT_COUNTS};

use super::sys::{Local, Mr, Pd, Registration};

/// A piece of the pool: its class and its number in the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    class: u8,
    index: u16,
}

/// Bytes of all slots: a huge page.
const POOL_BYTES: usize = 2 << 20;

const CLASSES: usize = SLOT_BYTES.len();

const _: () = {
    let (mut class, mut sum) = (0, 0);
    while class < CLASSES {
        sum += SLOT_BYTES[class] * SLOT_COUNTS[class];
        assert!(SLOT_BYTES[class].is_multiple_of(64) && SLOT_COUNTS[class] <= 1 << 16);
        assert!(class == 0 || SLOT_BYTES[class] > SLOT_BYTES[class - 1]);
        class += 1;
    }
    assert!(sum == POOL_BYTES);
};

/// Which slots are free.
#[derive(Debug)]
pub(super) struct Slots {
    free: [Vec<u16>; CLASSES],
}

impl Slots {
    pub fn new() -> Self {
        // The first to be taken is number 0.
        Self { free: SLOT_COUNTS.map(|count| (0..count).rev().map(|i| i as u16).collect()) }
    }

    /// The smallest slot for `len` bytes, or for as many of them as fit into the largest slot.
    pub fn take(&mut self, len: usize) -> Option<Slot> {
        let class = SLOT_BYTES.iter().position(|bytes| *bytes >= len).unwrap_or(CLASSES - 1);
        let index = self.free[class].pop()?;
        Some(Slot { class: class as u8, index })
    }

    /// Takes a slot back.
    pub fn give(&mut self, slot: Slot) {
        self.free[usize::from(slot.class)].push(slot.index);
    }

    /// Whether none is in use.
    #[cfg(test)]
    fn is_whole(&self) -> bool {
        self.free.iter().zip(SLOT_COUNTS).all(|(free, count)| free.len() == count)
    }
}

impl Slot {
    /// Bytes of the slot.
    pub fn len(self) -> usize {
        SLOT_BYTES[usize::from(self.class)]
    }

    /// Bytes from the pool's start.
    fn offset(self) -> usize {
        let class = usize::from(self.class);
        let before: usize = (0..class).map(|c| SLOT_BYTES[c] * SLOT_COUNTS[c]).sum();
        before + usize::from(self.index) * SLOT_BYTES[class]
    }
}

/// Anonymous memory of this process, on a huge page where there is one.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; its holder decides which thread
// reaches it.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: nothing here reaches the mapped bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes, a multiple of a huge page where one is wanted; a multiple of a page in any
    /// case.
    pub fn new(len: usize) -> io::Result<Self> {
        let map = |flags| {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh private mapping at an address that the kernel chooses touches no
            // memory of this process; it is unmapped once, in Drop.
            unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, flags) }
        };
        // The size is fixed, whatever the host's default is: a larger page would map more than
        // `len`.
        let huge = (libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) as u32;
        let huge = MapFlags::PRIVATE | MapFlags::from_bits_retain(huge);
        let is_huge = len.is_multiple_of(2 << 20);
        let start = if is_huge { map(huge) } else { Err(rustix::io::Errno::NOMEM) };
        let start = start.or_else(|_| map(MapFlags::PRIVATE))?;
        let start = NonNull::new(start).expect("mmap never returns null");
        let mapping = Self { start, len };
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork] {
            // SAFETY: the range is our own mapping. Neither advice changes its contents here; a
            // child does not get it, so that copy-on-write never moves a page from under the card.
            if let Err(error) = unsafe { rustix::mm::madvise(start.as_ptr(), len, advice) } {
                tracing::debug!(%error, ?advice, "not taken");
            }
        }
        Ok(mapping)
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; code that reaches its bytes holds the mapping, so none does now.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// The slots and their memory.
pub(super) struct Pool {
    mr: Mr<Mapping>,
    slots: Slots,
}

impl Pool {
    pub fn new(pd: &Arc<Pd>) -> io::Result<Self> {
        let mapping = Mapping::new(POOL_BYTES)?;
        let start = mapping.start();
        // SAFETY: the mapping is held by the registration and so stays mapped as long as that; its
        // bytes are reached by copies through pointers only, in `fill` and `copy_out`.
        let mr = unsafe { Mr::new(pd, start, POOL_BYTES, Registration::Local, mapping)? };
        Ok(Self { mr, slots: Slots::new() })
    }

    /// See [`Slots::take`].
    pub fn take(&mut self, len: usize) -> Option<Slot> {
        self.slots.take(len)
    }

    /// Takes back a slot that no work request owns any more.
    pub fn give(&mut self, slot: Slot) {
        self.slots.give(slot);
    }

    /// The first `len` bytes of a slot, for a work request.
    pub fn local(&self, slot: Slot, len: usize) -> Local {
        Local { start: self.place(slot, len), len: len as u32, lkey: self.mr.lkey() }
    }

    fn place(&self, slot: Slot, len: usize) -> *mut u8 {
        assert!(len <= slot.len(), "{len} bytes in a slot of {}", slot.len());
        // SAFETY: every slot lies inside the mapping: the constants above add up to its length.
        unsafe { self.mr.memory().start().add(slot.offset()) }
    }

    /// Copies bytes into a slot that no work request has yet.
    pub fn fill(&mut self, slot: Slot, bytes: &[u8]) {
        let place = self.place(slot, bytes.len());
        // SAFETY: `place` has room for them, is not in a card's hands yet (invariant 1), and does
        // not overlap `bytes`: no code can borrow from the pool.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Copies the first `len` bytes of a slot to `into`.
    ///
    /// # Safety
    /// The slot's work request must be over, and `into` must have room for `len` bytes.
    pub unsafe fn copy_out(&self, slot: Slot, len: usize, into: *mut u8) {
        let place = self.place(slot, len);
        // SAFETY: the card has written the slot and is done (this function's contract), anonymous
        // memory is initialised from the start, and `into` is not in the pool.
        unsafe { std::ptr::copy_nonoverlapping(place, into, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_fit() {
        let mut slots = Slots::new();
        let mut all = Vec::new();
        for len in SLOT_BYTES {
            while let Some(slot) = slots.take(len) {
                all.push((slot.offset(), slot.len()));
            }
        }
        all.sort_unstable();
        assert_eq!(all.len(), SLOT_COUNTS.iter().sum::<usize>());
        let mut end = 0;
        for (offset, len) in all {
            assert_eq!(offset, end, "no gap and no overlap");
            assert!(offset.is_multiple_of(64), "words are aligned");
            end = offset + len;
        }
        assert_eq!(end, POOL_BYTES);
    }

    #[test]
    fn a_slot_is_as_large_as_need_be() {
        let mut slots = Slots::new();
        let mut len = |bytes| slots.take(bytes).map(Slot::len);
        assert_eq!((len(0), len(8), len(64)), (Some(64), Some(64), Some(64)));
        assert_eq!((len(65), len(4096)), (Some(4096), Some(4096)));
        assert_eq!((len(4097), len(1 << 30)), (Some(65536), Some(65536)));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut slots = Slots::new();
        let taken: Vec<_> = std::iter::from_fn(|| slots.take(5000)).collect();
        assert_eq!(taken.len(), SLOT_COUNTS[2]);
        assert!(slots.take(5000).is_none() && slots.take(8).is_some(), "other sizes are left");
        assert!(!slots.is_whole());
        let first = taken[0];
        slots.give(first);
        assert_eq!(slots.take(1 << 20), Some(first));
    }
}
