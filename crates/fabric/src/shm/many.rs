//! The places of READs that were posted, and how they are completed: one after the other.

use super::{copy, words};
use crate::limits::{BATCH_READS_MAX, BUCKET_WORDS_MAX};
use crate::sync::AtomicU64;
use crate::{Buf, RemoteAddr};

/// The places of the bytes of many READs.
pub(super) struct Places([*const u8; BATCH_READS_MAX]);

impl Places {
    pub const NOWHERE: Self = Self([std::ptr::null(); BATCH_READS_MAX]);

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut *const u8> {
        self.0.iter_mut()
    }

    /// Loads the first `words` words of each place.
    ///
    /// # Safety
    /// The places must come from `ShmEndpoint::post_buckets` with as many words and at least as
    /// many buckets as `out` has, and the endpoint must have been borrowed since.
    #[inline(always)]
    pub(super) unsafe fn load_each(&self, words: usize, out: &mut [[u64; BUCKET_WORDS_MAX]]) {
        for (place, out) in self.0.iter().zip(out) {
            for (i, out) in out[..words].iter_mut().enumerate() {
                // SAFETY: by this function's contract posting checked `words` words at the place.
                *out = unsafe { load_word(*place, i) };
            }
        }
    }

    /// Appends the bytes of READs to `buf`, one READ's after the other's.
    ///
    /// # Safety
    /// The places must come from `ShmEndpoint::post_each` for the same `reads`, and the endpoint
    /// must have been borrowed since.
    #[inline(always)]
    pub(super) unsafe fn copy_each(&self, reads: &[(RemoteAddr, usize)], buf: &mut Buf) {
        let all = reads.iter().map(|(_, len)| len).sum();
        // SAFETY: by this function's contract each place has as many mapped bytes as its READ asks
        // for. The lengths add up to `all`, so the copies initialise all of it.
        unsafe {
            buf.append_with(all, |mut room| {
                for (place, (_, len)) in self.0.iter().zip(reads) {
                    copy::copy_out(*place, room, *len);
                    room = room.add(*len);
                }
            });
        }
    }
}

/// Loads word `i` from a place.
///
/// # Safety
/// `place` must be 8-aligned and mapped for `i + 1` words.
#[inline(always)]
pub(super) unsafe fn load_word(place: *const u8, i: usize) -> u64 {
    // SAFETY: by this function's contract; every process reaches these bytes as atomics or in the
    // copy engine only.
    words::load(unsafe { &*place.cast::<AtomicU64>().add(i) })
}
