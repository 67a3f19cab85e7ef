//! The DRAM load dispatcher: memory of the card as a cache of a part of host memory (kv-direct
//! §3.3.4).
//!
//! The card's memory is about as fast as its links to the host, and much smaller than the host's.
//! If it were a cache of all host memory, its throughput would limit everything. So only a share of
//! the lines, chosen by a hash of their address, is *cacheable*, and accesses to the other lines go
//! directly to the host. The share is the *load dispatch ratio*, at which memory and links are
//! equally busy (`loch-papers card --figure table5` computes it).
//!
//! The cache is direct-mapped: line `x` of host memory belongs to slot `x` mod the number of slots,
//! and the quotient is its tag. A line that is written is installed dirty, without a look at the
//! host. A dirty line is written back when another line takes its slot, or by
//! [`Dispatcher::flush`].
//!
//! # Real and modelled parts
//! On a DPU, which has its own memory and its host behind PCIe, everything is real: [`LocalDram`]
//! is the DPU's memory, and `Host` its DMA engine. A host has no second memory: there `LocalDram`
//! is memory like the host's, contents and counts are those of a card, and no time is saved.
//!
//! # Invariants
//! 1. *If the mark of a slot says that it holds line `x`, then the slot has the newest content of
//!    `x`*, at every moment. If no slot holds a cacheable line, host memory has its newest content.
//!    Marks and lines change together, and only the operation that holds the slot changes them
//!    (`slots.rs`); it writes a dirty line back before it installs another. A write to `x` is
//!    posted when its slot has it.
//! 2. Two lines that share a slot are never accessed in host memory at the same time, and no line
//!    is accessed twice at the same time: the operation that holds the slot makes each such access.
//!    Lines that are not cacheable are accessed only by their callers, whose accesses exclude each
//!    other (invariant 2 of [`lines`](crate::lines)). So the host's accesses satisfy that
//!    invariant.
//!
//! # Races
//! *A hit needs no slot held.* The bytes that it read were, at one moment after it was posted, the
//! newest content of their line (1), and no write to the bytes it looks at, the line or half of it,
//! is under way beside it. The line may have been evicted since; that changes nothing.
//!
//! *Two operations at the halves of one line* both hold its slot to write, so neither loses the
//! other's bytes.
//!
//! *A miss looks again when it holds the slot*, unless no operation held the slot since the look:
//! another reader of the line may have installed it meanwhile, and it may even have been evicted
//! again. A write that evicted and was evicted would leave the same mark as before.
//!
//! *A dirty victim whose owner reads it again* misses, or hits while it is still there. On a miss
//! the owner waits for the slot, until the line that replaces it has posted the write-back; host
//! memory shows posted bytes to every later read. On a hit, the content is the one that is written
//! back.
//!
//! *An operation that is dropped* in the middle of an access leaves the slot unchanged, perhaps
//! written back once more than needed, or in its final state: the install is the last step.

mod dram;
mod slots;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use loch_fabric::lanes;

pub use self::dram::{LocalDram, Mark, NicDram};
use self::slots::Slots;
use crate::lines::{Counts, HALF_BYTES, HostMemory, Line, Purpose};

/// Parts of one access that are under way at a time.
const PARTS_MAX: usize = 16;

/// The outcomes of accesses to lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// Reads of cacheable lines that the card's memory had.
    pub read_hits: u64,
    /// Reads of cacheable lines that the card's memory did not have.
    pub read_misses: u64,
    /// Writes of cacheable lines that it had.
    pub write_hits: u64,
    /// Writes of cacheable lines, or of halves of them, that it did not have.
    pub write_misses: u64,
    /// Dirty lines that went back to the host.
    pub write_backs: u64,
    /// Reads of the card's memory.
    pub dram_reads: u64,
    /// Writes of the card's memory.
    pub dram_writes: u64,
}

impl Dispatched {
    /// Accesses to cacheable lines.
    pub fn cacheable(&self) -> u64 {
        self.read_hits + self.read_misses + self.write_hits + self.write_misses
    }

    /// The share of accesses to cacheable lines that the card's memory had.
    pub fn hit_rate(&self) -> f64 {
        (self.read_hits + self.write_hits) as f64 / self.cacheable().max(1) as f64
    }
}

/// Host memory, a share of which the card's memory caches.
///
/// ```
/// use loch_engines::kv_direct::dispatch::{Dispatcher, LocalDram};
/// use loch_engines::lines::{HostMemory, Line, Near, Purpose};
/// # use loch_fabric::lanes::block_on;
/// let (host, dram) = (Near::new(vec![Line::ZERO; 64]), LocalDram::new(vec![Line::ZERO; 4]));
/// let memory = Dispatcher::new(host, dram, 1.0);
/// block_on(async {
///     memory.write_line(Purpose::Index, 3, &Line([7; 64])).await;
///     assert_eq!(memory.read_line(Purpose::Index, 3).await, Line([7; 64]));
///     assert_eq!(memory.host().counts().all(), 0, "the card has it");
///     // Line 7 has the same slot.
///     assert_eq!(memory.read_line(Purpose::Index, 7).await, Line::ZERO);
/// });
/// assert_eq!(memory.dispatched().write_backs, 1);
/// assert_eq!(memory.host().peek(3), Line([7; 64]));
/// ```
#[derive(Debug)]
pub struct Dispatcher<H, D> {
    host: H,
    dram: D,
    /// Lines whose hash is below this are cacheable.
    below: u64,
    slots: Slots,
    counts: Cell<Counts>,
    dispatched: Cell<Dispatched>,
}

impl<H: HostMemory, D: NicDram> Dispatcher<H, D> {
    /// `dram`, which is empty, as a cache of this share of `host`.
    ///
    /// # Panics
    /// If the ratio is not from 0 to 1, or the card has no memory.
    pub fn new(host: H, dram: D, ratio: f64) -> Self {
        assert!((0.0..=1.0).contains(&ratio), "a ratio of {ratio}");
        assert!(dram.slots() > 0, "a card without memory dispatches nothing");
        let slots = Slots::new(dram.slots());
        let below = (ratio * (1u64 << 32) as f64) as u64;
        Self { host, dram, below, slots, counts: Cell::default(), dispatched: Cell::default() }
    }

    /// The host's memory, whose counts are the remaining DMAs.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The outcomes of accesses so far.
    pub fn dispatched(&self) -> Dispatched {
        self.dispatched.get()
    }

    /// Whether a line is cacheable.
    #[inline]
    pub fn is_cacheable(&self, at: u32) -> bool {
        u64::from(mix(at)) < self.below
    }

    /// Writes all dirty lines back, so that host memory is up to date.
    pub async fn flush(&self) {
        for slot in 0..self.dram.slots() {
            let _held = self.slots.hold(slot).await;
            let (mark, line) = self.read_slot(slot).await;
            let Some(tag) = mark.tag().filter(|_| mark.is_dirty()) else { continue };
            self.write_back(Purpose::Index, slot, mark, &line).await;
            self.write_slot(slot, Mark::of(tag, false), &line).await;
        }
    }

    #[inline]
    fn place(&self, at: u32) -> (u32, u32) {
        let slots = self.dram.slots();
        (at % slots, at / slots)
    }

    #[inline]
    fn tally(&self, tally: impl FnOnce(&mut Dispatched)) {
        let mut dispatched = self.dispatched.get();
        tally(&mut dispatched);
        self.dispatched.set(dispatched);
    }

    #[inline]
    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }

    #[inline]
    async fn read_slot(&self, slot: u32) -> (Mark, Line) {
        self.tally(|tally| tally.dram_reads += 1);
        self.dram.read(slot).await
    }

    #[inline]
    async fn write_slot(&self, slot: u32, mark: Mark, line: &Line) {
        self.tally(|tally| tally.dram_writes += 1);
        self.dram.write(slot, mark, line).await;
    }

    /// Writes the line of a held slot back to the host, if it is dirty.
    async fn write_back(&self, purpose: Purpose, slot: u32, mark: Mark, line: &Line) {
        let Some(tag) = mark.tag().filter(|_| mark.is_dirty()) else { return };
        self.tally(|tally| tally.write_backs += 1);
        self.host.write_line(purpose, tag * self.dram.slots() + slot, line).await;
    }

    #[inline]
    async fn read_cacheable(&self, purpose: Purpose, at: u32) -> Line {
        let (slot, tag) = self.place(at);
        let moment = self.slots.now(slot);
        let (mut mark, mut line) = self.read_slot(slot).await;
        if mark.tag() == Some(tag) {
            self.tally(|tally| tally.read_hits += 1);
            return line;
        }
        let _held = match self.slots.hold_since(slot, moment) {
            Some(held) => held,
            None => {
                let held = self.slots.hold(slot).await;
                (mark, line) = self.read_slot(slot).await;
                held
            }
        };
        if mark.tag() == Some(tag) {
            self.tally(|tally| tally.read_hits += 1);
            return line;
        }
        self.tally(|tally| tally.read_misses += 1);
        let wanted = self.host.read_line(purpose, at).await;
        self.write_back(purpose, slot, mark, &line).await;
        self.write_slot(slot, Mark::of(tag, false), &wanted).await;
        wanted
    }

    #[inline]
    async fn write_cacheable(&self, purpose: Purpose, at: u32, line: &Line) {
        let (slot, tag) = self.place(at);
        let _held = self.slots.hold(slot).await;
        let (mark, victim) = self.read_slot(slot).await;
        if mark.tag() == Some(tag) {
            self.tally(|tally| tally.write_hits += 1);
        } else {
            self.tally(|tally| tally.write_misses += 1);
            self.write_back(purpose, slot, mark, &victim).await;
        }
        self.write_slot(slot, Mark::of(tag, true), line).await;
    }

    /// Half a line is written to the place of its line. On a miss that is the host: the line is not
    /// fetched to be merged.
    async fn write_cacheable_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        let (slot, tag) = self.place(half / 2);
        let _held = self.slots.hold(slot).await;
        let (mark, mut line) = self.read_slot(slot).await;
        if mark.tag() == Some(tag) {
            self.tally(|tally| tally.write_hits += 1);
            let at = half as usize % 2 * HALF_BYTES;
            line.0[at..at + HALF_BYTES].copy_from_slice(bytes);
            self.write_slot(slot, Mark::of(tag, true), &line).await;
        } else {
            self.tally(|tally| tally.write_misses += 1);
            self.host.write_half(purpose, half, bytes).await;
        }
    }

    /// The number of lines, of `lines` lines from `at` on, that form one access: one if the first
    /// is cacheable, otherwise all up to the next cacheable line.
    fn run(&self, at: u32, lines: usize) -> usize {
        let next = (at..).take(lines).position(|at| self.is_cacheable(at));
        next.map_or(lines, |next| next.max(1))
    }

    async fn read_run(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        if self.is_cacheable(at) {
            into[0] = self.read_cacheable(purpose, at).await;
        } else {
            self.host.read(purpose, at, into).await;
        }
    }

    async fn write_run(&self, purpose: Purpose, at: u32, from: &[Line]) {
        if self.is_cacheable(at) {
            self.write_cacheable(purpose, at, &from[0]).await;
        } else {
            self.host.write(purpose, at, from).await;
        }
    }
}

impl<H: HostMemory, D: NicDram> HostMemory for Dispatcher<H, D> {
    fn lines(&self) -> u32 {
        self.host.lines()
    }

    #[inline]
    async fn read_line(&self, purpose: Purpose, at: u32) -> Line {
        self.count(|counts| counts.read(purpose, 1));
        match self.is_cacheable(at) {
            true => self.read_cacheable(purpose, at).await,
            false => self.host.read_line(purpose, at).await,
        }
    }

    #[inline]
    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        self.count(|counts| counts.wrote(purpose, 1));
        match self.is_cacheable(at) {
            true => self.write_cacheable(purpose, at, line).await,
            false => self.host.write_line(purpose, at, line).await,
        }
    }

    #[inline]
    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        self.count(|counts| counts.wrote(purpose, 1));
        match self.is_cacheable(half / 2) {
            true => self.write_cacheable_half(purpose, half, bytes).await,
            false => self.host.write_half(purpose, half, bytes).await,
        }
    }

    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        self.count(|counts| counts.read(purpose, into.len()));
        let (mut at, mut rest) = (at, into);
        let parts = std::iter::from_fn(|| {
            let (from, len) = (at, self.run(at, rest.len()));
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            (at, rest) = (at + len as u32, after);
            (len > 0).then(|| self.read_run(purpose, from, part))
        });
        lanes::run(PARTS_MAX, parts, |()| ()).await;
    }

    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]) {
        self.count(|counts| counts.wrote(purpose, from.len()));
        let (mut at, mut rest) = (at, from);
        let parts = std::iter::from_fn(|| {
            let (to, len) = (at, self.run(at, rest.len()));
            let (part, after) = rest.split_at(len);
            (at, rest) = (at + len as u32, after);
            (len > 0).then(|| self.write_run(purpose, to, part))
        });
        lanes::run(PARTS_MAX, parts, |()| ()).await;
    }

    /// The accesses as they were asked for, before dispatching.
    fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn peek(&self, at: u32) -> Line {
        let (slot, tag) = self.place(at);
        let (mark, line) = self.dram.peek(slot);
        // A line that is not cacheable has no mark.
        if mark.tag() == Some(tag) { line } else { self.host.peek(at) }
    }

    async fn exchange(&self, is_write: bool, lines: usize) {
        let purpose = Purpose::Slabs;
        self.count(|counts| match is_write {
            true => counts.wrote(purpose, lines),
            false => counts.read(purpose, lines),
        });
        self.host.exchange(is_write, lines).await;
    }
}

/// A hash of a line's address that is as good for neighbours as for distant lines: the finalizer of
/// MurmurHash3.
#[inline]
fn mix(at: u32) -> u32 {
    let mut hash = at;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}
