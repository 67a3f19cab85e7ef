//! The memory that a gateway gives to what slow clients do not take.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::COPIES_BYTES_MAX;

/// Bytes of long values that are copied for slow clients, of all threads.
#[derive(Debug, Default)]
pub(crate) struct Copies(AtomicUsize);

impl Copies {
    /// Whether there is room for so many more.
    pub fn take(&self, bytes: usize) -> bool {
        let fits = |now: usize| (now + bytes <= COPIES_BYTES_MAX).then_some(now + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Bytes that are copied now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) as u64
    }

    pub fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}
