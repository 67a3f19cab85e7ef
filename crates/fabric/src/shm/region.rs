//! Region files and their mappings.

use std::ffi::c_void;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::pages::{HUGE_BYTES, OnProgress, Pages, Wanted};
use super::words;
use crate::Buf;
use crate::bounds::is_inside;
use crate::sync::AtomicU64;

/// Why a region file could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There is a file of that name.
    #[error("{path} exists already", path = .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system has no room for the whole region. Nothing was left behind.
    #[error(
        "no room for {bytes} bytes in {path}: give the node less memory, or make the file system \
         larger (for /dev/shm: mount -o remount,size=... /dev/shm)",
        path = .path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The size asked for.
        bytes: u64,
        /// The bytes that were free, if the file system has a bound.
        free: Option<u64>,
    },
    /// The caller has stopped the making of pages.
    #[error("the pages of {path} were not wanted any more", path = .path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than what was to be mapped.
    #[error("the region file has {have} bytes, {want} were expected: it was truncated")]
    Truncated {
        /// Bytes the file has.
        have: u64,
        /// Bytes that were expected.
        want: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} the region file {path}: {source}", path = .path.display())]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The answer.
        source: Errno,
    },
}

/// A region file mapped into this process.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("region");
/// let region = loch_fabric::shm::Region::create(&path, 1 << 20)?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Region {
    /// First byte of the mapping. Invariant: `len` bytes from here stay mapped until drop.
    base: NonNull<u8>,
    len: u64,
    writable: bool,
    /// The pages that were made with the region; `None` if it was there before, or is short.
    pages: Option<Pages>,
    /// The reservation that holds the mapping: it is aligned for huge pages inside it.
    reservation: (NonNull<c_void>, usize),
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to its bytes goes through
// atomics and the copy engine, which may race with anything.
unsafe impl Send for Region {}
// SAFETY: as for Send: no method hands out a reference to the mapped bytes but as atomics.
unsafe impl Sync for Region {}

/// Mappings start at multiples of this, so that huge pages can back them.
const ALIGN_BYTES: usize = HUGE_BYTES as usize;
/// A shorter region is reserved at once, and gets huge pages only if it is populated.
const LONG_BYTES_MIN: u64 = 32 << 20;
/// The file system of shared memory, as `statfs` calls it. Others reserve space without pages.
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

impl Region {
    /// Makes the file, reserves all its blocks and maps it. Zeroed, readable by its owner only.
    ///
    /// # Errors
    /// [`RegionError::Exists`], [`RegionError::NoSpace`] (then no file is left), or
    /// [`RegionError::Os`].
    pub fn create(path: &Path, len: u64) -> Result<Self, RegionError> {
        Self::create_watched(path, len, &|_| ControlFlow::Continue(()))
    }

    /// Like [`Region::create`], and tells `on_progress` how many bytes have their pages.
    ///
    /// # Errors
    /// As [`Region::create`], and [`RegionError::Stopped`] if `on_progress` breaks. Then no file is
    /// left.
    pub fn create_watched(
        path: &Path,
        len: u64,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, RegionError> {
        let os = |action| move |source| RegionError::Os { action, path: path.into(), source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| match e {
            Errno::EXIST => RegionError::Exists { path: path.into() },
            e => os("create")(e),
        })?;
        let region = Self::fill(fd, len, path, on_progress);
        if region.is_err() {
            // The error says what went wrong; a file that cannot be removed adds nothing to it.
            let _ = rustix::fs::unlink(path);
        }
        region
    }

    /// Makes a region without a file, for nodes inside this process: all its memory is reserved,
    /// zeroed, and ends with the last mapping.
    ///
    /// ```
    /// let region = loch_fabric::shm::Region::anonymous(1 << 20)?;
    /// assert!(region.is_writable());
    /// # Ok::<(), loch_fabric::shm::RegionError>(())
    /// ```
    ///
    /// # Errors
    /// [`RegionError::NoSpace`] or [`RegionError::Os`].
    pub fn anonymous(len: u64) -> Result<Self, RegionError> {
        let path = Path::new("(anonymous memory)");
        let os = |action| move |source| RegionError::Os { action, path: path.into(), source };
        let fd =
            rustix::fs::memfd_create("loch-region", MemfdFlags::CLOEXEC).map_err(os("create"))?;
        Self::fill(fd, len, path, &|_| ControlFlow::Continue(()))
    }

    /// Gives an empty file `len` bytes with all their blocks, and maps it.
    fn fill(
        fd: OwnedFd,
        len: u64,
        path: &Path,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, RegionError> {
        let os = |action| move |source| RegionError::Os { action, path: path.into(), source };
        let system = rustix::fs::fstatfs(&fd).map_err(os("stat"))?;
        // A file system without a bound says that it has 0 blocks.
        let room = system.f_bavail.saturating_mul(system.f_bsize as u64);
        let free = (system.f_blocks > 0).then_some(room);
        let no_space = || RegionError::NoSpace { path: path.into(), bytes: len, free };
        let reserve = |fd: BorrowedFd<'_>| {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len).map_err(|e| match e {
                Errno::NOSPC | Errno::FBIG | Errno::NOMEM => no_space(),
                e => os("reserve")(e),
            })
        };
        if len < LONG_BYTES_MIN || system.f_type as u64 != TMPFS_MAGIC {
            reserve(fd.as_fd())?;
            return Self::map(fd, true, path);
        }
        // The pages come first, since they are made by all cores and large. A file system that has
        // no room for them all is not filled in vain.
        if free.is_some_and(|free| free < len) {
            return Err(no_space());
        }
        rustix::fs::ftruncate(&fd, len).map_err(|e| match e {
            Errno::FBIG => no_space(),
            e => os("extend")(e),
        })?;
        let mut region = Self::map(fd, true, path)?;
        let stopped = |_| RegionError::Stopped { path: path.into() };
        region.pages = region.wanted(true).make(on_progress).map_err(stopped)?;
        // What has no page yet gets one now, or the error that an access would get as a signal.
        reserve(region.fd())?;
        Ok(region)
    }

    /// Maps an existing file.
    ///
    /// # Errors
    /// [`RegionError::Os`].
    pub fn open(path: &Path, writable: bool) -> Result<Self, RegionError> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
            .map_err(|source| RegionError::Os { action: "open", path: path.into(), source })?;
        Self::map(fd, writable, path)
    }

    /// Maps a file whose descriptor came from its node.
    ///
    /// # Errors
    /// [`RegionError::Truncated`] if it is not `len` bytes long, [`RegionError::Os`].
    pub fn from_fd(fd: OwnedFd, len: u64, writable: bool) -> Result<Self, RegionError> {
        let region = Self::map(fd, writable, Path::new("(passed by the node)"))?;
        if region.len != len {
            return Err(RegionError::Truncated { have: region.len, want: len });
        }
        Ok(region)
    }

    fn map(fd: OwnedFd, writable: bool, path: &Path) -> Result<Self, RegionError> {
        let os = |action| move |source| RegionError::Os { action, path: path.into(), source };
        let len = rustix::fs::fstat(&fd).map_err(os("stat"))?.st_size as u64;
        if len == 0 {
            return Err(RegionError::Truncated { have: 0, want: 1 });
        }
        let reserved = len as usize + ALIGN_BYTES;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh private reservation at an address the kernel chooses touches no memory of
        // this process; it is unmapped once, in Drop.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(os("reserve addresses for"))?;
        let reservation = (NonNull::new(start).expect("mmap never returns null"), reserved);
        let base = (start as usize).next_multiple_of(ALIGN_BYTES) as *mut c_void;
        // SAFETY: `base .. base + len` lies inside the reservation just made, which nothing else
        // uses, so mapping over it with FIXED replaces only our own placeholder.
        let mapped = unsafe {
            rustix::mm::mmap(base, len as usize, prot, MapFlags::SHARED | MapFlags::FIXED, &fd, 0)
        };
        if let Err(e) = mapped {
            // SAFETY: the reservation was made above and is not used again.
            let _ = unsafe { rustix::mm::munmap(start, reserved) };
            return Err(os("map")(e));
        }
        let base = NonNull::new(base.cast()).expect("inside a reservation that is not at null");
        Ok(Self { base, len, writable, pages: None, reservation, fd })
    }

    /// Asks the kernel to back the region with huge pages and to enter all pages into this
    /// process's page tables, so that the first accesses do not fault one by one. All cores work at
    /// it. A long region that this process has made has its pages already.
    pub fn populate(&self) -> Pages {
        let all = self.populate_watched(&|_| ControlFlow::Continue(()));
        all.expect("nobody stops it")
    }

    /// Like [`Region::populate`], and tells `on_progress` how many bytes are done. Returns `None`
    /// if `on_progress` breaks before all are.
    pub fn populate_watched(&self, on_progress: OnProgress<'_>) -> Option<Pages> {
        let made = match self.pages {
            None => self.wanted(false).make(on_progress).ok()?,
            made => made,
        };
        Some(made.unwrap_or(Pages::Base))
    }

    fn wanted(&self, is_new: bool) -> Wanted {
        // SAFETY: the mapping is our own and stays until drop, and nobody keeps the value longer
        // than the call in which it is made.
        unsafe { Wanted::new(self.base.as_ptr(), self.len, is_new, self.writable) }
    }

    /// Bytes mapped.
    #[allow(clippy::len_without_is_empty, reason = "an empty region cannot be mapped")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the mapping may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the file has no name any more: what maps it now goes on, and nobody opens it again.
    /// Anonymous memory never had one.
    pub fn is_unlinked(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|file| file.st_nlink == 0)
    }

    /// The file, to be passed to a client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline(always)]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The first of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not all inside the region.
    #[inline]
    pub(crate) fn place(&self, offset: u64, len: u64) -> *mut u8 {
        let inside = is_inside(offset, len, self.len);
        assert!(inside, "{len} bytes at {offset:#x} are outside the region");
        // SAFETY: in bounds by the assertion, and mapped for the life of `self`.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// If it is not 8-aligned inside the region.
    #[inline]
    pub fn word(&self, offset: u64) -> &std::sync::atomic::AtomicU64 {
        // SAFETY: see `place_of_word`; others access it as an atomic or in the copy engine only. A
        // store to a read-only mapping faults instead of corrupting; callers check `is_writable`.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.place_of_word(offset)) }
    }

    /// The place of a word: in bounds (`place` has checked it), aligned by the assertion (the base
    /// is page-aligned), and mapped for the life of `self`.
    #[inline]
    fn place_of_word(&self, offset: u64) -> *mut u64 {
        assert!(offset.is_multiple_of(8), "the word at {offset:#x} is not aligned");
        self.place(offset, 8).cast()
    }

    #[inline]
    fn shared_word(&self, offset: u64) -> &AtomicU64 {
        assert!(self.writable, "the region is mapped read-only");
        // SAFETY: as in `word`.
        unsafe { &*self.place_of_word(offset).cast() }
    }

    /// Replaces the word at `offset` by `new` if it is `expect`. Returns the word that was there.
    ///
    /// # Panics
    /// As [`Region::word`], or if the region is read-only.
    pub(crate) fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> u64 {
        words::compare_swap(self.shared_word(offset), expect, new)
    }

    /// Adds to the word at `offset`, wrapping. Returns the word that was there.
    ///
    /// # Panics
    /// As [`Region::compare_swap`].
    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        words::fetch_add(self.shared_word(offset), add)
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not all inside the region.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) {
        let place = self.place(offset, into.len() as u64);
        // SAFETY: `place` has checked the bounds; `into` is private memory of the same length.
        unsafe { super::copy::copy_out(place, into.as_mut_ptr(), into.len()) };
    }

    /// Appends `len` bytes to a buffer.
    ///
    /// # Panics
    /// If they are not all inside the region.
    pub(crate) fn append_to(&self, offset: u64, len: usize, buf: &mut Buf) {
        let place = self.place(offset, len as u64);
        // SAFETY: `place` has checked the bounds; the copy fills `len` bytes of private memory, for
        // which `append_with` has made room.
        unsafe { buf.append_with(len, |into| super::copy::copy_out(place, into, len)) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they are not all inside the region, or it is read-only.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) {
        assert!(self.writable, "the region is mapped read-only");
        let place = self.place(offset, bytes.len() as u64);
        // SAFETY: writable by the assertion, `place` has checked the bounds; `bytes` is private
        // memory.
        unsafe { super::copy::copy_in(bytes.as_ptr(), place, bytes.len()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (start, len) = self.reservation;
        // SAFETY: made in `map`, holds the mapping, and nothing borrows from `self` any more.
        let _ = unsafe { rustix::mm::munmap(start.as_ptr(), len) };
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_share_bytes_and_a_reader_sees_the_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let a = Region::create(&path, 3 << 20).unwrap();
        let b = Region::open(&path, false).unwrap();
        a.copy_in(5000, b"shared");
        let mut seen = [0; 6];
        b.copy_out(5000, &mut seen);
        assert_eq!((&seen, b.len(), b.is_writable()), (b"shared", 3 << 20, false));
        assert!(!a.is_unlinked() && !b.is_unlinked());
        std::fs::remove_file(&path).unwrap();
        assert!(a.is_unlinked() && b.is_unlinked());
    }

    #[test]
    fn a_region_that_does_not_fit_is_an_error_and_leaves_no_file() {
        let path = Path::new("/dev/shm").join(format!("loch-test-{}", std::process::id()));
        let error = Region::create(&path, 1 << 50).unwrap_err();
        assert!(matches!(error, RegionError::NoSpace { bytes, .. } if bytes == 1 << 50), "{error}");
        assert!(!path.exists());
    }

    /// A long region gets its pages from many threads and in another order than a short one.
    #[test]
    fn a_long_region_is_zeroed_and_has_all_its_pages_when_it_is_made() {
        let path = Path::new("/dev/shm").join(format!("loch-long-{}", std::process::id()));
        // Not a multiple of a huge page.
        let len = 2 * LONG_BYTES_MIN + (1 << 20) + 4096;
        let done = std::sync::atomic::AtomicU64::new(0);
        let made = Region::create_watched(&path, len, &|bytes| {
            done.fetch_max(bytes, std::sync::atomic::Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        let _ = std::fs::remove_file(&path);
        let region = made.unwrap();
        assert_eq!(done.into_inner(), len, "progress ends with the whole region");
        let blocks = rustix::fs::fstat(&region.fd).unwrap().st_blocks as u64;
        assert!(blocks * 512 >= len, "{blocks} blocks: an access could fail");
        let mut page = [1; 4096];
        for offset in (0..len).step_by(page.len()) {
            region.copy_out(offset, &mut page);
            assert_eq!(page, [0; 4096], "at {offset:#x}");
        }
        let pages = region.populate_watched(&|_| panic!("the pages are there already"));
        assert_eq!(pages, region.pages);
    }

    /// Each thread ends after the step that it is in.
    #[test]
    fn the_making_of_pages_ends_when_its_caller_wants_no_more() {
        let path = Path::new("/dev/shm").join(format!("loch-stopped-{}", std::process::id()));
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let stop = |_| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            ControlFlow::Break(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let len = (threads as u64 + 8) * LONG_BYTES_MIN;
        let refused = Region::create_watched(&path, len, &stop).unwrap_err();
        assert!(matches!(refused, RegionError::Stopped { .. }), "{refused}");
        assert!(!path.exists());
        let calls = calls.into_inner();
        assert!((1..=threads).contains(&calls), "{calls} steps by {threads} threads");
        let region = Region::anonymous(LONG_BYTES_MIN - 4096).unwrap();
        assert_eq!(region.populate_watched(&|_| ControlFlow::Break(())), None);
    }

    /// Pages that cannot be had are an answer of the kernel, where an access would be a signal.
    #[test]
    fn a_kernel_that_refuses_pages_does_not_end_the_process() {
        let region = Region::anonymous(2 * LONG_BYTES_MIN).unwrap();
        rustix::fs::ftruncate(&region.fd, LONG_BYTES_MIN).unwrap();
        for is_new in [true, false] {
            let made = region.wanted(is_new).make(&|_| ControlFlow::Continue(()));
            assert!(matches!(made, Ok(None)), "{made:?}");
        }
    }

    /// The message with which `work` panics.
    fn refusal(work: impl FnOnce()) -> String {
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let said = unwound.expect_err("it was taken");
        said.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    /// An offset just below 2^64 once passed in release builds, because the sum of the offset and
    /// eight wraps. A build with overflow checks also panicked, but with another message: the test
    /// wants the message of the bounds check, which every build has.
    #[test]
    fn what_is_outside_is_refused_by_the_bounds_check_and_not_by_an_overflow() {
        let region = Region::anonymous(1 << 20).unwrap();
        let len = region.len();
        for offset in [len, len - 7, len + 8, 1 << 63, u64::MAX - 15, u64::MAX - 7, u64::MAX] {
            let said = [
                refusal(|| {
                    let _ = region.word(offset);
                }),
                refusal(|| region.copy_out(offset, &mut [0; 8])),
                refusal(|| region.copy_in(offset, &[0; 8])),
            ];
            for said in said {
                assert!(said.contains(&format!("at {offset:#x}")), "{offset:#x}: {said:?}");
            }
        }
        assert_eq!(region.word(len - 8).load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        drop(Region::create(&path, 4096).unwrap());
        assert!(matches!(Region::create(&path, 4096), Err(RegionError::Exists { .. })));
    }
}
