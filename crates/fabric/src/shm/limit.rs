//! The bound that a GET is measured against: its unavoidable memory accesses and nothing else.

use crate::{RemoteAddr, Result};

use super::ShmEndpoint;

/// One step of the chase: it reads an index word, and then the bytes that the word names.
pub trait Chase {
    /// The entry that an index word names: its address and length in bytes.
    fn entry(&self, word: u64) -> (RemoteAddr, usize);
}

impl ShmEndpoint {
    /// For each of `index_words`, loads the word, and then a word of every cache line of the entry
    /// that it names, without hashing, matching, validation or copying. The CPU overlaps the steps
    /// as well as it can. Returns a sum of everything that was read, so that the compiler cannot
    /// drop a load.
    ///
    /// # Errors
    /// [`OutOfBounds`](crate::FabricError::OutOfBounds) if a word or an entry lies outside its
    /// region.
    pub fn chase(&self, index_words: &[RemoteAddr], to: &impl Chase) -> Result<u64> {
        let mut sum = 0u64;
        for at in index_words {
            let word = self.load_word_at(*at)?;
            let (entry, len) = to.entry(word);
            sum = sum.wrapping_add(self.touch(entry, len)?);
        }
        Ok(sum)
    }
}
