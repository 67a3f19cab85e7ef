//! The card's own memory as a cache of host memory: lines, each with a mark.
//!
//! The paper keeps a mark of 5 bits with each line in spare bits of its ECC: 4 bits of the address,
//! because host memory is 16 times as large, and one bit that says that the line is dirty
//! (kv-direct §4). Here a mark has 32 bits, so that host memory may be larger, and one of them says
//! that the slot is empty.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::DerefMut;
use std::task::Poll;

use loch_fabric::prefetch_read;

use crate::lines::Line;

/// The line of host memory that a slot holds, and whether host memory has an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    /// The mark of an empty slot.
    pub const EMPTY: Self = Self(0);

    /// The mark of a slot that holds the line with this tag.
    ///
    /// # Panics
    /// If the tag has more than 30 bits.
    #[inline]
    pub fn of(tag: u32, dirty: bool) -> Self {
        assert!(tag < 1 << 30, "a tag of 30 bits");
        Self((tag + 1) << 1 | u32::from(dirty))
    }

    /// The tag of the line.
    #[inline]
    pub fn tag(self) -> Option<u32> {
        (self.0 >> 1).checked_sub(1)
    }

    /// Whether host memory has an older line.
    #[inline]
    pub fn is_dirty(self) -> bool {
        self.0 & 1 != 0
    }
}

/// Memory of the card.
///
/// A line and its mark are read and written together, at one moment of the access, in one burst. A
/// write is visible to every read that begins after it.
///
/// # Panics
/// All methods, if there is no such slot.
#[expect(async_fn_in_trait, reason = "a processor and its memory stay on one thread")]
pub trait NicDram {
    /// The number of slots.
    fn slots(&self) -> u32;

    /// The content of a slot.
    async fn read(&self, slot: u32) -> (Mark, Line);

    /// Fills a slot. Returns when the write is posted.
    async fn write(&self, slot: u32, mark: Mark, line: &Line);

    /// As [`NicDram::read`], at once and without an access, while no access is under way.
    fn peek(&self, slot: u32) -> (Mark, Line);
}

/// Memory of the processor that runs this: on a DPU the card's memory, on a host a model of it.
///
/// A read is pending once, as with [`Near`](crate::lines::Near).
#[derive(Debug)]
pub struct LocalDram<M> {
    held: RefCell<(M, Vec<Mark>)>,
}

impl<M: DerefMut<Target = [Line]>> LocalDram<M> {
    /// Memory that consists of `lines`, with empty slots.
    ///
    /// # Panics
    /// If there are 2^32 lines or more.
    pub fn new(lines: M) -> Self {
        assert!(u32::try_from(lines.len()).is_ok(), "a card has less than 2^32 lines");
        let marks = vec![Mark::EMPTY; lines.len()];
        Self { held: RefCell::new((lines, marks)) }
    }

    #[inline]
    fn put(&self, slot: u32, mark: Mark, line: &Line) {
        let (lines, marks) = &mut *self.held.borrow_mut();
        lines[slot as usize] = *line;
        marks[slot as usize] = mark;
    }
}

impl<M: DerefMut<Target = [Line]>> NicDram for LocalDram<M> {
    fn slots(&self) -> u32 {
        self.held.borrow().1.len() as u32
    }

    #[inline]
    async fn read(&self, slot: u32) -> (Mark, Line) {
        {
            let held = self.held.borrow();
            prefetch_read(&held.0[slot as usize]);
            prefetch_read(&held.1[slot as usize]);
        }
        let mut was_posted = false;
        poll_fn(|_| match std::mem::replace(&mut was_posted, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        self.peek(slot)
    }

    #[inline]
    async fn write(&self, slot: u32, mark: Mark, line: &Line) {
        self.put(slot, mark, line);
    }

    #[inline]
    fn peek(&self, slot: u32) -> (Mark, Line) {
        let held = self.held.borrow();
        (held.1[slot as usize], held.0[slot as usize])
    }
}
