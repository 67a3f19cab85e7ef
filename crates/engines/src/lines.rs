//! The memory access engine: host memory as the processor sees it (kv-direct §3.3.4).
//!
//! Host memory is an array of 64-byte *lines*. A processor has its lines to itself, and reaches
//! them only by DMA: one read or write of consecutive lines is one *access*, and is counted. The
//! implementation decides where the time of an access is spent. [`Near`] is the memory of the
//! processor's own host: a read prefetches when it is posted, and copies when it is polled again.
//!
//! # Invariants
//! 1. A write is visible to every read that is posted after the write was posted.
//! 2. To half a line, one operation at most has an access under way, or there are only reads under
//!    way. The station and the allocator ensure that; the engine itself does not order accesses.
//!    Two operations may be at the two halves of one line: a write of half a line leaves the other
//!    half unchanged, and a read that looks at one half may find anything in the other.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::DerefMut;
use std::pin::Pin;
use std::task::{Context, Poll};

use loch_fabric::prefetch_read;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;

/// Bytes of half a line: the smallest slab, and the smallest write.
pub const HALF_BYTES: usize = LINE_BYTES / 2;

/// The unit of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Line(pub [u8; LINE_BYTES]);

impl Line {
    /// A line with all bits zero.
    pub const ZERO: Self = Self([0; LINE_BYTES]);
}

/// The purpose of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A bucket of the hash index, chained ones too.
    Index,
    /// A key and value in a slab.
    Data,
    /// Free slabs, to or from the host's daemon.
    Slabs,
}

/// Accesses of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Reads of consecutive lines.
    pub reads: u64,
    /// Writes of consecutive lines.
    pub writes: u64,
    /// Lines that were read.
    pub lines_read: u64,
    /// Lines that were written.
    pub lines_written: u64,
}

impl Accesses {
    /// Reads and writes together.
    pub fn all(&self) -> u64 {
        self.reads + self.writes
    }
}

/// The accesses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The hash index.
    pub index: Accesses,
    /// Keys and values in slabs.
    pub data: Accesses,
    /// Free slabs.
    pub slabs: Accesses,
}

impl Counts {
    /// Accesses of all purposes.
    pub fn all(&self) -> u64 {
        self.index.all() + self.data.all() + self.slabs.all()
    }

    /// The accesses of a purpose.
    pub fn of(&mut self, purpose: Purpose) -> &mut Accesses {
        match purpose {
            Purpose::Index => &mut self.index,
            Purpose::Data => &mut self.data,
            Purpose::Slabs => &mut self.slabs,
        }
    }

    /// Counts a read.
    #[inline]
    pub fn read(&mut self, purpose: Purpose, lines: usize) {
        let accesses = self.of(purpose);
        accesses.reads += 1;
        accesses.lines_read += lines as u64;
    }

    /// Counts reads of one line each.
    #[inline]
    pub fn read_each(&mut self, purpose: Purpose, count: usize) {
        let accesses = self.of(purpose);
        accesses.reads += count as u64;
        accesses.lines_read += count as u64;
    }

    /// Counts a write.
    #[inline]
    pub fn wrote(&mut self, purpose: Purpose, lines: usize) {
        let accesses = self.of(purpose);
        accesses.writes += 1;
        accesses.lines_written += lines as u64;
    }
}

/// The lines of one processor.
///
/// # Panics
/// All methods panic if a line is not one of the memory's.
#[expect(async_fn_in_trait, reason = "a processor and its memory stay on one thread")]
pub trait HostMemory {
    /// Whether lines can be loaded and stored like the processor's own memory, without waiting.
    #[inline(always)]
    fn loads(&self) -> bool {
        false
    }

    /// The number of lines.
    fn lines(&self) -> u32;

    /// Reads one line.
    async fn read_line(&self, purpose: Purpose, at: u32) -> Line;

    /// Prefetches a line, if that is possible. This is no access, and not counted.
    #[inline(always)]
    fn prefetch(&self, _: u32) {}

    /// Works on lines in their places, and returns the result of `work`; `None`, without a call, if
    /// the memory cannot be [loaded](Self::loads). `work` counts its accesses itself, and makes no
    /// others meanwhile.
    #[inline(always)]
    fn in_place<R>(&self, _work: impl FnOnce(&mut [Line], &mut Counts) -> R) -> Option<R> {
        None
    }

    /// Writes one line. Returns when it is posted.
    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line);

    /// Writes half `half` of the memory, counted in half lines, and leaves the other half of its
    /// line unchanged: a DMA with byte enables. Returns when it is posted.
    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]);

    /// Reads `into.len()` lines, starting at `at`, as one access.
    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]);

    /// Writes the lines `from`, starting at `at`, as one access. Returns when it is posted.
    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]);

    /// The accesses so far.
    fn counts(&self) -> Counts;

    /// The content of a line, for tests, for `loch check`, and for who has just worked on it [in
    /// its place](Self::in_place). It is not counted, and up to date only while no other operation
    /// on it is under way.
    fn peek(&self, at: u32) -> Line;

    /// An access that another engine makes for the processor, with bytes that are elsewhere: free
    /// slabs on their way to or from the host's daemon. It takes the processor's time and is
    /// counted.
    async fn exchange(&self, is_write: bool, lines: usize);
}

/// Memory of the processor's own host.
///
/// A read is pending once: posted, it prefetches; polled again, it copies. Other operations go on
/// in between, as they do while a DMA is under way.
///
/// ```
/// use loch_engines::lines::{HostMemory, Line, Near, Purpose};
/// # use loch_fabric::lanes::block_on;
/// let memory = Near::new(vec![Line::ZERO; 16]);
/// block_on(async {
///     memory.write_line(Purpose::Index, 3, &Line([7; 64])).await;
///     assert_eq!(memory.read_line(Purpose::Index, 3).await, Line([7; 64]));
/// });
/// assert_eq!(memory.counts().index.all(), 2);
/// ```
#[derive(Debug)]
pub struct Near<M> {
    lines: RefCell<M>,
    counts: RefCell<Counts>,
}

impl<M: DerefMut<Target = [Line]>> Near<M> {
    /// Memory that consists of `lines`.
    ///
    /// # Panics
    /// If there are 2^32 lines or more.
    pub fn new(lines: M) -> Self {
        assert!(u32::try_from(lines.len()).is_ok(), "a processor has less than 2^32 lines");
        Self { lines: RefCell::new(lines), counts: RefCell::default() }
    }

    #[inline(always)]
    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.borrow_mut());
    }
}

/// The read of one line: its first poll posts it, its second takes the line. The future is written
/// by hand because it is on the path of every operation, and three nested `async fn` take twice as
/// many instructions.
struct ReadLine<'a, M> {
    memory: &'a Near<M>,
    purpose: Purpose,
    at: u32,
    is_posted: bool,
}

impl<M: DerefMut<Target = [Line]>> Future for ReadLine<'_, M> {
    type Output = Line;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Line> {
        let line = &self.memory.lines.borrow()[self.at as usize];
        if self.is_posted {
            return Poll::Ready(*line);
        }
        self.is_posted = true;
        self.memory.count(|counts| counts.read(self.purpose, 1));
        prefetch_read(line);
        Poll::Pending
    }
}

/// A future that is pending once, so that other operations go on meanwhile.
#[inline(always)]
pub(super) async fn pending_once() {
    let mut was_posted = false;
    poll_fn(|_| match std::mem::replace(&mut was_posted, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl<M: DerefMut<Target = [Line]>> HostMemory for Near<M> {
    #[inline(always)]
    fn loads(&self) -> bool {
        true
    }

    fn lines(&self) -> u32 {
        self.lines.borrow().len() as u32
    }

    #[inline(always)]
    fn read_line(&self, purpose: Purpose, at: u32) -> impl Future<Output = Line> {
        ReadLine { memory: self, purpose, at, is_posted: false }
    }

    #[inline(always)]
    fn prefetch(&self, at: u32) {
        prefetch_read(&self.lines.borrow()[at as usize]);
    }

    #[inline(always)]
    fn in_place<R>(&self, work: impl FnOnce(&mut [Line], &mut Counts) -> R) -> Option<R> {
        Some(work(&mut self.lines.borrow_mut(), &mut self.counts.borrow_mut()))
    }

    #[inline(always)]
    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        self.count(|counts| counts.wrote(purpose, 1));
        self.lines.borrow_mut()[at as usize] = *line;
    }

    #[inline(always)]
    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        self.count(|counts| counts.wrote(purpose, 1));
        let at = half as usize % 2 * HALF_BYTES;
        let line = &mut self.lines.borrow_mut()[half as usize / 2];
        line.0[at..at + HALF_BYTES].copy_from_slice(bytes);
    }

    #[inline]
    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        self.count(|counts| counts.read(purpose, into.len()));
        let range = at as usize..at as usize + into.len();
        // The processor's own prefetcher finds the lines after the first eight.
        self.lines.borrow()[range.clone()].iter().take(8).for_each(prefetch_read);
        pending_once().await;
        into.copy_from_slice(&self.lines.borrow()[range]);
    }

    #[inline]
    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]) {
        self.count(|counts| counts.wrote(purpose, from.len()));
        let at = at as usize;
        self.lines.borrow_mut()[at..at + from.len()].copy_from_slice(from);
    }

    fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    #[inline(always)]
    fn peek(&self, at: u32) -> Line {
        self.lines.borrow()[at as usize]
    }

    #[inline]
    async fn exchange(&self, is_write: bool, lines: usize) {
        self.count(|counts| match is_write {
            true => counts.wrote(Purpose::Slabs, lines),
            false => counts.read(Purpose::Slabs, lines),
        });
    }
}
