//! The bounds that GETs are measured against: their unavoidable memory accesses and nothing else.

use crate::{RemoteAddr, Result};

use super::ShmEndpoint;

/// What index words name: a step of a bare loop reads a word, and then the bytes that it names.
pub trait Names {
    /// The entry that an index word names: its address and length in bytes, multiples of 8.
    fn entry(&self, word: u64) -> (RemoteAddr, usize);
}

impl ShmEndpoint {
    /// For each of `index_words`, loads the word, and then all words of the entry that it names,
    /// without hashing, matching, validation or copying. The CPU overlaps the steps as well as it
    /// can. Returns a sum of everything that was read, so that the compiler cannot drop a load.
    ///
    /// # Errors
    /// [`OutOfBounds`](crate::FabricError::OutOfBounds) if a word or an entry lies outside its
    /// region, or is not aligned.
    pub fn bare_loop(&self, index_words: &[RemoteAddr], to: &impl Names) -> Result<u64> {
        let mut sum = 0u64;
        for at in index_words {
            let word = self.load_word_at(*at)?;
            let (entry, len) = to.entry(word);
            sum = sum.wrapping_add(self.load_all(entry, len)?);
        }
        Ok(sum)
    }

    /// The same, but a word is prefetched `AHEAD` steps before it is loaded, and its entry `AHEAD`
    /// steps before it is read.
    ///
    /// # Errors
    /// As [`Self::bare_loop`].
    pub fn bare_loop_ahead<const AHEAD: usize>(
        &self,
        index_words: &[RemoteAddr],
        to: &impl Names,
    ) -> Result<u64> {
        // The words whose entries are on their way.
        let mut words = [0u64; AHEAD];
        let mut sum = 0u64;
        for step in 0..index_words.len() + 2 * AHEAD {
            if let Some(at) = index_words.get(step) {
                self.prefetch_lines(self.locate(*at, 8, false)?, 8);
            }
            // The entry that is read now gives its place in `words` to one that is posted now.
            if step >= 2 * AHEAD {
                let (entry, len) = to.entry(words[step % AHEAD]);
                sum = sum.wrapping_add(self.load_all(entry, len)?);
            }
            if let Some(at) = step.checked_sub(AHEAD).and_then(|step| index_words.get(step)) {
                let word = self.load_word_at(*at)?;
                words[step % AHEAD] = word;
                let (entry, len) = to.entry(word);
                self.prefetch_lines(self.locate(entry, len, false)?, len);
            }
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shm::Region;
    use crate::{Fabric, RegionId};

    const HOME: RegionId = RegionId(0);
    const ENTRIES: u64 = 300;
    /// Entries of two lines behind the index words.
    const ENTRY_BYTES: usize = 112;

    fn entry_at(number: u64) -> RemoteAddr {
        RemoteAddr::new(HOME, 4096 + number * 128)
    }

    struct Entries;

    impl Names for Entries {
        fn entry(&self, word: u64) -> (RemoteAddr, usize) {
            (entry_at(word), ENTRY_BYTES)
        }
    }

    #[test]
    fn every_distance_reads_every_entry_once() {
        let dir = tempfile::tempdir().unwrap();
        let region = Region::create(&dir.path().join("region"), 1 << 16).unwrap();
        let mut shm = ShmEndpoint::new(HOME);
        shm.attach(HOME, Arc::new(region));
        let word_at = |number| RemoteAddr::new(HOME, number * 8);
        for number in 0..ENTRIES {
            shm.store_before(word_at(number), ENTRIES - 1 - number).unwrap();
            shm.store_before(entry_at(number), number + 1).unwrap();
            shm.store_before(entry_at(number).add(ENTRY_BYTES as u64 - 8), 1000).unwrap();
        }
        let words: Vec<_> = (0..ENTRIES).map(word_at).collect();
        for len in [0, 1, 7, 300] {
            let words = &words[..len];
            let named = (0..len as u64).map(|number| ENTRIES - number + 1000);
            let expected = named.sum::<u64>();
            assert_eq!(shm.bare_loop(words, &Entries).unwrap(), expected);
            for sum in [
                shm.bare_loop_ahead::<1>(words, &Entries),
                shm.bare_loop_ahead::<2>(words, &Entries),
                shm.bare_loop_ahead::<32>(words, &Entries),
            ] {
                assert_eq!(sum.unwrap(), expected, "{len} steps");
            }
        }
    }
}
