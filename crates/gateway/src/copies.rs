//! The memory that a gateway gives to what slow clients do not take.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are kept for slow clients, of all threads.
#[derive(Debug, Default)]
pub(crate) struct Copies(AtomicUsize);

impl Copies {
    /// Whether there is room for so many more, if that is so many at most.
    pub fn take(&self, bytes: usize, most: usize) -> bool {
        let fits = |now: usize| (now + bytes <= most).then_some(now + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Bytes that are kept now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) as u64
    }

    pub fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
