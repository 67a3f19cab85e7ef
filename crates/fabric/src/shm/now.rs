//! READs and swaps that are executed when they are posted, for a doorbell that is only partly on
//! this host.

use crate::{Buf, RemoteAddr, Result};

use super::chase::load_word;
use super::{ShmEndpoint, words};

impl ShmEndpoint {
    /// Whether `len` bytes may be read.
    pub(crate) fn check_read(&self, at: RemoteAddr, len: usize) -> Result<()> {
        self.locate(at, len, false).map(drop)
    }

    /// READs words as they are now, without counting the READ.
    pub(crate) fn read_now(&self, at: RemoteAddr, out: &mut [u64]) -> Result<()> {
        let place = self.locate(at, out.len() * 8, false)?;
        if !at.offset().is_multiple_of(8) {
            return Err(self.misaligned(at, out.len() * 8));
        }
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: located for all words of `out`, and aligned.
            *out = unsafe { load_word(place, i) };
        }
        Ok(())
    }

    /// Swaps a word now, without counting the swap.
    pub(crate) fn swap_now(&self, at: RemoteAddr, expect: u64, new: u64) -> Result<u64> {
        Ok(words::compare_swap(self.word(at, true)?, expect, new))
    }

    /// Appends `len` bytes as they are now, without counting a READ.
    ///
    /// # Panics
    /// If [`Self::check_read`] refuses them.
    pub(crate) fn append_now(&self, at: RemoteAddr, len: usize, buf: &mut Buf) {
        let place = self.locate(at, len, false).expect("the caller has checked it");
        // SAFETY: located for `len` bytes, and `self` is borrowed.
        unsafe { self.complete_read(place, len, buf) };
    }
}
