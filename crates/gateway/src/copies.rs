//! The memory that a gateway gives to what slow clients do not take.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::HELD_BYTES_MAX;

/// Bytes that are kept for slow clients, of all threads.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Bytes for which there was room. Without them a client would only be slower.
    kept: AtomicUsize,
    /// Other bytes: answers that are nowhere else.
    held: AtomicUsize,
}

impl Copies {
    /// Whether there is room for so many more, if that is so many at most.
    pub fn take(&self, bytes: usize, most: usize) -> bool {
        let fits = |now: usize| (now + bytes <= most).then_some(now + bytes);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Bytes that are kept now.
    pub fn bytes(&self) -> u64 {
        (self.kept.load(Ordering::Relaxed) + self.held.load(Ordering::Relaxed)) as u64
    }

    pub fn give_back(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A connection holds so many bytes, and no longer as many as before.
    pub fn hold(&self, before: usize, now: usize) {
        if before != now {
            self.held.fetch_add(now, Ordering::Relaxed);
            self.held.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// Whether a command may be executed whose answer may have to be held.
    pub fn may_hold(&self) -> bool {
        self.held.load(Ordering::Relaxed) < HELD_BYTES_MAX
    }
}
