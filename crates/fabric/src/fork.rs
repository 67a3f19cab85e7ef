//! Telling a process from the children that are forked from it.
//!
//! A child inherits its parent's memory, and with it objects that belong to the parent alone:
//! sessions, slabs, connections. A [`ForkMark`] that was made together with them tells the child
//! that they are not its own.
//!
//! # Invariants
//! 1. Each process has one word for all its marks. It is 0 until the first mark is made, and keeps
//!    its value from then on. The kernel clears it in every child (`MADV_WIPEONFORK`), also in a
//!    child that was made without libc.
//! 2. No process draws a value that one of its ancestors had: the counter is inherited.
//!
//! # Faults
//! A fork at any moment, of any thread, also in the middle of [`ForkMark::new`].

use std::io;
use std::ptr::null_mut;
// Not loom's: the kernel takes part.
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Says whether this process is still the one that made the mark. Asking costs one load.
///
/// ```
/// let mark = loch_fabric::ForkMark::new()?;
/// assert!(!mark.is_inherited());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ForkMark {
    word: &'static AtomicU64,
    /// The word's value in the process that made the mark: never 0.
    value: u64,
}

/// The word of this process (invariant 1), once there is one.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last value that was drawn (invariant 2).
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Bytes that are mapped for the word. The kernel rounds them up to whole pages.
const WORD_BYTES: usize = size_of::<AtomicU64>();

impl ForkMark {
    /// A mark of this process.
    ///
    /// # Errors
    /// The operating system's, if there is no page for the word.
    pub fn new() -> io::Result<Self> {
        let word = word()?;
        let now = word.load(Ordering::Acquire);
        if now != 0 {
            return Ok(Self { word, value: now });
        }
        let drawn = DRAWN.fetch_add(1, Ordering::AcqRel) + 1;
        // If several threads come here at the same time, one of them sets the word for all.
        let set = word.compare_exchange(0, drawn, Ordering::AcqRel, Ordering::Acquire);
        Ok(Self { word, value: set.map_or_else(|first| first, |_| drawn) })
    }

    /// Whether the mark was made by a process from which this one was forked.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        // A mark reaches another thread only by a synchronisation that orders this load after the
        // one in `new`.
        self.word.load(Ordering::Relaxed) != self.value
    }

    /// A mark as if it were inherited from a parent, for tests of code that checks marks.
    ///
    /// # Errors
    /// As [`ForkMark::new`].
    #[doc(hidden)]
    pub fn of_a_parent() -> io::Result<Self> {
        Ok(Self { word: word()?, value: u64::MAX })
    }
}

/// The word of this process; 0 if the word or the process is new.
fn word() -> io::Result<&'static AtomicU64> {
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        let fresh = map()?;
        match WORD.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => word = fresh,
            Err(first) => {
                // SAFETY: it was mapped above, and no other thread has been given it.
                let _ = unsafe { rustix::mm::munmap(fresh.cast(), WORD_BYTES) };
                word = first;
            }
        }
    }
    // SAFETY: a page that `map` has made is aligned, zeroed, never unmapped once it is in `WORD`,
    // and only ever reached as this atomic. The kernel clears it in children alone, before they
    // run.
    Ok(unsafe { &*word })
}

/// A page of zeros which every child finds zeroed again.
fn map() -> io::Result<*mut AtomicU64> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address the kernel chooses touches no memory of this
    // process.
    let page =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), WORD_BYTES, prot, MapFlags::PRIVATE) }?;
    // SAFETY: the page is the one just mapped, and the advice changes nothing of this process's.
    if let Err(error) = unsafe { rustix::mm::madvise(page, WORD_BYTES, Advice::LinuxWipeOnFork) } {
        // SAFETY: it was mapped above, and nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(page, WORD_BYTES) };
        return Err(error.into());
    }
    Ok(page.cast())
}

#[cfg(all(test, not(feature = "loom")))]
pub(crate) mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A child that hangs is killed after these seconds.
    const CHILD_SECONDS_MAX: u32 = 60;

    /// Runs `work` in a forked child; what it returns is the child's exit code.
    pub(crate) fn in_child(work: impl FnOnce() -> u8) -> i32 {
        // SAFETY: the child runs only `work`, which takes no lock but the allocator's, which is
        // free in a child, and such as only threads of the child hold. Then it ends without
        // running exit handlers of the test's other threads.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: it touches no memory.
            unsafe { libc::alarm(CHILD_SECONDS_MAX) };
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(u8::MAX);
            // SAFETY: it ends this child and touches no memory.
            unsafe { libc::_exit(code.into()) };
        }
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let waited = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        waited.unwrap().unwrap().1.exit_status().expect("it was not killed")
    }

    #[test]
    fn a_mark_is_its_makers_and_not_its_childrens() {
        let mark = ForkMark::new().unwrap();
        assert_eq!((mark.is_inherited(), ForkMark::new().unwrap().is_inherited()), (false, false));
        let told = in_child(|| {
            let before = mark.is_inherited();
            // A mark of the child's own does not bring the parent's back.
            let own = ForkMark::new().unwrap();
            u8::from(before)
                | u8::from(mark.is_inherited()) << 1
                | u8::from(own.is_inherited()) << 2
        });
        assert_eq!(told, 0b011);
        assert!(!mark.is_inherited(), "a child changes nothing of its parent's");
    }

    #[test]
    fn a_grandchild_inherits_from_both() {
        let mark = ForkMark::new().unwrap();
        let told = in_child(|| {
            let own = ForkMark::new().unwrap();
            let told = in_child(|| {
                let last = ForkMark::new().unwrap();
                let marks = [mark, own, last].map(|mark| u8::from(mark.is_inherited()));
                marks[0] | marks[1] << 1 | marks[2] << 2
            });
            told as u8
        });
        assert_eq!(told, 0b011);
    }

    #[test]
    fn threads_that_are_first_at_the_same_time_agree() {
        let threads = [(); 4].map(|()| std::thread::spawn(|| ForkMark::new().unwrap().value));
        let values = threads.map(|thread| thread.join().unwrap());
        assert!(values.iter().all(|value| *value == values[0] && *value != 0), "{values:?}");
    }

    #[test]
    fn a_mark_for_tests_is_inherited() {
        let _own = ForkMark::new().unwrap();
        assert!(ForkMark::of_a_parent().unwrap().is_inherited());
    }
}
