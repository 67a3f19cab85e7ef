//! Bells: a thread sleeps at a word of a region, and any process that maps the region wakes it.
//!
//! The word is 1 while the thread sleeps or is about to, and otherwise 0. So a region that starts
//! zeroed has bells.
//!
//! # The rule
//! 1. The sleeper [arms](Bell::arm) its bell, **then looks** for messages once more, and only then
//!    [sleeps](Bell::sleep). The system lets it sleep only if the bell is still armed.
//! 2. A sender stores its message, **then looks** at the bell ([`Bell::ring`]). If the bell is
//!    armed, the one sender that disarms it wakes the sleeper.
//!
//! Between store and look each side has a full fence, so at least one of the two sees the other
//! (`words.rs` has the orderings and the models). While the receiver is awake, a sender pays for
//! the fence and a load.
//!
//! # Faults survived
//! * **The sleeper dies.** Its bell stays armed. One sender disarms it, and wakes nobody.
//! * **A sender dies** after it has disarmed the bell and before it has woken the sleeper, or a
//!   hostile process stores anything in the word. The sleeper wakes when its time is up, so a sleep
//!   always has a bound. A bell that others disarm all the time makes its thread poll.

use std::sync::Arc;
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::sync::AtomicU64;
use crate::{FabricError, RemoteAddr, Result, bounds};

use super::{Region, words};

const WORD_BYTES: u64 = 8;
/// The memory of a private bell: a page.
const PRIVATE_BYTES: u64 = 4096;

/// The bell at which one thread sleeps.
#[derive(Clone)]
pub struct Bell {
    /// Invariant: the word at `offset` is inside of it, aligned, and may be written.
    region: Arc<Region>,
    offset: u64,
}

impl Bell {
    /// The bell at `at`, which is in `region`.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`] if there is no aligned word, [`FabricError::ReadOnly`] if the
    /// region is mapped read-only.
    pub fn new(region: Arc<Region>, at: RemoteAddr) -> Result<Self> {
        let (offset, region_bytes) = (at.offset(), region.len());
        if !offset.is_multiple_of(WORD_BYTES)
            || !bounds::is_inside(offset, WORD_BYTES, region_bytes)
        {
            return Err(FabricError::OutOfBounds { at, len: WORD_BYTES, region_bytes });
        }
        if !region.is_writable() {
            return Err(FabricError::ReadOnly { at });
        }
        Ok(Self { region, offset })
    }

    /// A bell in memory of this process, where only its own threads ring.
    ///
    /// # Errors
    /// [`RegionError`](super::RegionError) if there is no memory.
    pub fn private() -> std::result::Result<Self, super::RegionError> {
        Ok(Self { region: Arc::new(Region::anonymous(PRIVATE_BYTES)?), offset: 0 })
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: by the invariant the word is mapped for as long as `self` holds the region, and
        // aligned. Every process reaches these bytes as atomics or in the copy engine only.
        unsafe { &*self.region.place(self.offset, WORD_BYTES).cast::<AtomicU64>() }
    }

    /// Says that this thread is about to sleep. It looks for messages once more before it does.
    pub fn arm(&self) {
        words::arm(self.word());
    }

    /// Says that this thread is awake.
    pub fn disarm(&self) {
        words::disarm(self.word());
    }

    /// Whether the thread sleeps here or is about to, and nobody has rung.
    pub fn is_armed(&self) -> bool {
        words::is_armed(self.word())
    }

    /// Sleeps until another thread rings, but not longer than `at_most`. Returns at once if one has
    /// rung since [`Bell::arm`]. Returns whether one has. If not, the bell is still armed.
    pub fn sleep(&self, at_most: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // Its errors say that it is time to look: the bell was rung meanwhile, the time is up, or a
        // signal came.
        let _ = futex::wait(half(self.word()), SHARED, words::ASLEEP as u32, Some(&timeout));
        !self.is_armed()
    }

    /// Wakes the thread that sleeps here, if one does, after everything that was stored before.
    pub fn ring(&self) {
        words::before_bells();
        ring(self.word());
    }
}

/// The threads that sleep are those of any process.
const SHARED: futex::Flags = futex::Flags::empty();

/// Wakes the thread that sleeps at this word, if one does. [`words::before_bells`] comes before.
#[inline(always)]
pub(super) fn ring(word: &AtomicU64) {
    if words::is_to_wake(word) {
        wake(word);
    }
}

#[cold]
fn wake(word: &AtomicU64) {
    // It fails only for words that are not mapped.
    let _ = futex::wake(half(word), SHARED, 1);
}

/// The half of a bell that the system compares: the one with the lower bits.
fn half(word: &AtomicU64) -> &std::sync::atomic::AtomicU32 {
    const { assert!(cfg!(target_endian = "little")) };
    let place = std::ptr::from_ref(word).cast_mut().cast::<u32>();
    // SAFETY: it is the first half of a mapped, aligned word, borrowed for as long. Only the system
    // reaches it at this size.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(place) }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;
    use crate::RegionId;

    const AT: RemoteAddr = RemoteAddr::new(RegionId(0), 64);
    const LONG: Duration = Duration::from_secs(60);

    fn bell() -> Bell {
        let region = Region::anonymous(1 << 16).expect("there is memory");
        Bell::new(Arc::new(region), AT).expect("the word is in the region")
    }

    #[test]
    fn a_bell_that_rings_before_the_sleep_ends_it() {
        let bell = bell();
        bell.arm();
        bell.ring();
        let begun = Instant::now();
        assert!(bell.sleep(LONG));
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    fn a_thread_that_sleeps_is_woken() {
        let bell = bell();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                bell.arm();
                bell.sleep(LONG)
            });
            while !words::is_armed(bell.word()) {
                std::thread::yield_now();
            }
            bell.ring();
            assert!(sleeper.join().expect("it does not panic"));
        });
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    fn a_sleep_for_which_nobody_rings_ends_with_the_bell_armed() {
        let bell = bell();
        bell.arm();
        assert!(!bell.sleep(Duration::from_millis(1)));
        assert!(words::is_armed(bell.word()));
    }

    #[test]
    fn a_word_that_anybody_overwrote_ends_the_sleep() {
        let bell = bell();
        for strange in [0, 2, u64::from(u32::MAX), u64::MAX] {
            bell.arm();
            bell.word().store(strange, Ordering::Relaxed);
            assert!(bell.sleep(LONG));
        }
    }

    #[test]
    fn what_is_no_word_of_the_region_is_no_bell() {
        let region = Arc::new(Region::anonymous(1 << 16).expect("there is memory"));
        for offset in [4, 1 << 16, u64::from(u32::MAX)] {
            let at = RemoteAddr::new(RegionId(0), offset);
            let refused = Bell::new(region.clone(), at);
            assert!(matches!(refused, Err(FabricError::OutOfBounds { .. })));
        }
    }
}
