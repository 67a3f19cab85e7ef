//! Pages for a region, made by all cores.
//!
//! A node is ready when all its memory is there, so this is what its start takes. It is measured:
//! zeroing a huge page takes a quarter of the time of 512 small ones, and a region whose small
//! pages are made first pays for them, and for copying them into huge ones. So a new region gets
//! *one* small page in each block, because the kernel does not collapse an empty block, and the
//! kernel then zeroes the rest of the block as a part of its huge page. `MADV_COLLAPSE` does so
//! whatever the policy for shared memory is; each call of it waits for all cores once, so a call
//! gets many blocks.
//!
//! Nothing here is needed for a region to be right: where the kernel refuses, or has no huge pages
//! left, small pages are made, and the caller reserves what is missing.

use std::ffi::c_void;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::Advice;

/// Bytes of a huge page. Mappings start at multiples of this, so that huge pages can back them.
pub(super) const HUGE_BYTES: u64 = 2 << 20;
/// Bytes of a small page, or less: one byte in a page is enough to have the page made.
const TOUCHED_BYTES: usize = 4096;
/// A thread takes steps of this length, so that the threads end at about the same time, progress is
/// seen, and making pages can be stopped: on a slow machine a step takes half a second. A region
/// that is not longer is not worth a second thread.
const STEP_BYTES: u64 = 32 << 20;

/// The kind of pages behind a mapping; a fact for logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages were obtained, so far as the kernel says.
    Huge,
    /// Base pages.
    Base,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge",
            Self::Base => "base",
        })
    }
}

/// Called with the number of bytes that are done, by any thread. If it breaks, the other pages are
/// not made.
pub type OnProgress<'a> = &'a (dyn Fn(u64) -> ControlFlow<()> + Sync);

/// The caller wanted no more pages, by [`OnProgress`].
#[derive(Debug)]
pub(super) struct Stopped;

/// A mapping whose pages are wanted.
pub(super) struct Wanted {
    /// The first byte, at a multiple of [`HUGE_BYTES`].
    base: *mut u8,
    len: u64,
    /// Whether the file behind the mapping has no page yet.
    is_new: bool,
    writable: bool,
}

/// What the threads share.
struct Work<'a> {
    wanted: &'a Wanted,
    next: AtomicU64,
    done: AtomicU64,
    on_progress: OnProgress<'a>,
    /// Not all blocks have huge pages.
    some_small: AtomicBool,
    /// The kernel has no huge page left, or gives none at all. Asking again takes long.
    only_small: AtomicBool,
    /// The kernel refuses pages: the file system is full, or the kernel is too old to be asked.
    refused: AtomicBool,
    /// The caller wants no more pages.
    stopped: AtomicBool,
}

// SAFETY: the pointer is only handed to the kernel as the start of ranges for advice, which changes
// no contents; the mapping outlives the value by the contract of `Wanted::new`.
unsafe impl Sync for Wanted {}

impl Wanted {
    /// The pages of the `len` bytes from `base` on.
    ///
    /// # Safety
    /// The bytes are a mapping that the caller owns, and they stay mapped as long as the value
    /// lives.
    pub(super) unsafe fn new(base: *mut u8, len: u64, is_new: bool, writable: bool) -> Self {
        Self { base, len, is_new, writable }
    }

    /// Makes the pages, huge ones if they can be had, and enters them into this process's page
    /// tables, so that the first accesses do not fault one by one.
    ///
    /// Returns `None` if the kernel refused some of them.
    ///
    /// # Errors
    /// [`Stopped`] if `on_progress` says so.
    pub(super) fn make(&self, on_progress: OnProgress<'_>) -> Result<Option<Pages>, Stopped> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let threads = threads.min(self.len / STEP_BYTES).max(1);
        let work = Work {
            wanted: self,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            on_progress,
            some_small: AtomicBool::new(false),
            only_small: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("loch-memory".into());
                // Without the thread, the others do its part.
                let _ = thread.spawn_scoped(scope, || work.run());
            }
            work.run();
        });
        if work.stopped.into_inner() {
            return Err(Stopped);
        }
        let is_huge = !work.some_small.into_inner();
        let pages = if is_huge { Pages::Huge } else { Pages::Base };
        Ok((!work.refused.into_inner()).then_some(pages))
    }
}

impl Work<'_> {
    /// Takes steps until none is left.
    fn run(&self) {
        while !self.refused.load(Ordering::Relaxed) && !self.stopped.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(STEP_BYTES, Ordering::Relaxed);
            if at >= self.wanted.len {
                return;
            }
            let len = STEP_BYTES.min(self.wanted.len - at);
            if let Err(error) = self.step(at, len) {
                tracing::debug!(%error, "the kernel makes no pages in advance");
                self.refused.store(true, Ordering::Relaxed);
                return;
            }
            let done = self.done.fetch_add(len, Ordering::Relaxed) + len;
            if (self.on_progress)(done).is_break() {
                self.stopped.store(true, Ordering::Relaxed);
            }
        }
    }

    fn step(&self, at: u64, len: u64) -> Result<(), Errno> {
        let whole = len / HUGE_BYTES * HUGE_BYTES;
        if whole > 0 && !self.only_small.load(Ordering::Relaxed) {
            if self.wanted.is_new {
                for block in (at..at + whole).step_by(HUGE_BYTES as usize) {
                    self.populate(block, TOUCHED_BYTES)?;
                }
            }
            self.collapse(at, whole);
        }
        self.populate(at, len as usize)
    }

    /// Asks for huge pages, which the region can do without.
    fn collapse(&self, at: u64, len: u64) {
        let ask = || {
            // SAFETY: the range is inside our own mapping, and the advice changes no contents: it
            // only asks for larger pages. rustix does not know this advice.
            let answer =
                unsafe { libc::madvise(self.start(at), len as usize, libc::MADV_COLLAPSE) };
            if answer == 0 { Ok(()) } else { Err(last_error()) }
        };
        // A page that another thread of the kernel holds just now is no reason to give up.
        let collapsed =
            ask().or_else(|error| if error == Errno::AGAIN { ask() } else { Err(error) });
        if let Err(error) = collapsed {
            tracing::debug!(%error, at, "some pages stay small");
            self.some_small.store(true, Ordering::Relaxed);
            self.only_small.fetch_or(error != Errno::AGAIN, Ordering::Relaxed);
        }
    }

    fn populate(&self, at: u64, len: usize) -> Result<(), Errno> {
        let advice = match self.wanted.writable {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        // SAFETY: the range is inside our own mapping, and populating changes no contents.
        unsafe { rustix::mm::madvise(self.start(at), len, advice) }
    }

    fn start(&self, at: u64) -> *mut c_void {
        // SAFETY: `at` is inside the mapping.
        unsafe { self.wanted.base.add(at as usize).cast() }
    }
}

/// The error of the system call before.
fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}
