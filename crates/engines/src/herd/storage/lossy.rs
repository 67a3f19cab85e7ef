//! The index of a cache: lossy and set-associative, a bucket in one cache line (herd §4.1).
//!
//! ```text
//! word    63..48  47..32  31..0
//!         tag     lap     place
//! ```
//! A word with tag 0 names no entry. A bucket has eight words, and never two words with the same
//! tag: a PUT replaces the word with its tag without looking at its key. A PUT therefore needs only
//! one random access. The price is that a key can be displaced by another key with the same bucket
//! and tag, which happens to one key in ten thousand in a full index.
//!
//! # Invariants
//! 1. A key has at most one word: the word with its tag in its bucket. So a value that was replaced
//!    cannot come back.
//! 2. No word is older than [`SWEEP_LAPS`] + 2 laps (see `log.rs`, which relies on it).

use super::log::{Log, Position};
use crate::herd::key::KeyHash;

/// Words of a bucket.
pub(super) const BUCKET_WORDS: usize = 8;

/// All buckets are swept once in this many laps of the log.
pub(super) const SWEEP_LAPS: u32 = 1 << 14;

const TAG_SHIFT: u32 = 48;

/// The index of a cache; the words themselves are the partition's.
#[derive(Debug)]
pub(super) struct Lossy {
    buckets: u32,
    /// The next bucket to be swept.
    sweep: u32,
    /// Entries that were dropped because their bucket was full, although the log still held them.
    pub displaced: u64,
}

#[inline(always)]
pub(super) fn tag_of(word: u64) -> u16 {
    (word >> TAG_SHIFT) as u16
}

#[inline(always)]
pub(super) fn word_of(tag: u16, position: Position) -> u64 {
    u64::from(tag) << TAG_SHIFT | u64::from(position.lap) << 32 | u64::from(position.place)
}

#[inline(always)]
pub(super) fn position_of(word: u64) -> Position {
    Position { lap: (word >> 32) as u16, place: word as u32 }
}

impl Lossy {
    /// # Panics
    /// If there is no bucket, or the words are not whole buckets.
    pub fn new(words: usize) -> Self {
        assert!(words > 0 && words.is_multiple_of(BUCKET_WORDS), "{words} words are no buckets");
        let buckets = u32::try_from(words / BUCKET_WORDS).expect("buckets are numbered in 32 bits");
        Self { buckets, sweep: 0, displaced: 0 }
    }

    /// The first word of the key's bucket.
    #[inline(always)]
    pub fn bucket(&self, hash: KeyHash) -> usize {
        hash.bucket(self.buckets) as usize * BUCKET_WORDS
    }

    /// The word with the key's tag, by its place in the index, and the position that it names if
    /// that is still in the log.
    #[inline(always)]
    pub fn find(&self, index: &[u64], log: &Log, hash: KeyHash) -> Option<(usize, Position)> {
        let first = self.bucket(hash);
        let bucket = &index[first..first + BUCKET_WORDS];
        let at = bucket.iter().position(|word| tag_of(*word) == hash.tag())?;
        let position = position_of(bucket[at]);
        log.has(position).then_some((first + at, position))
    }

    /// Makes a word with the key's tag name a position. It replaces the word with this tag, or else
    /// an empty word, or else the oldest word.
    #[inline]
    pub fn set(&mut self, index: &mut [u64], log: &Log, hash: KeyHash, position: Position) {
        let (first, tag) = (self.bucket(hash), hash.tag());
        let bucket = &mut index[first..first + BUCKET_WORDS];
        let at = match bucket.iter().position(|word| tag_of(*word) == tag) {
            Some(at) => at,
            None => {
                let age = |word: u64| if word == 0 { u64::MAX } else { log.age(position_of(word)) };
                let (at, oldest) = (bucket.iter().copied().enumerate())
                    .max_by_key(|(_, word)| age(*word))
                    .expect("a bucket has words");
                self.displaced += u64::from(oldest != 0 && log.has(position_of(oldest)));
                at
            }
        };
        bucket[at] = word_of(tag, position);
    }

    /// Removes words whose entries are no longer in the log from the next buckets, as many as are
    /// needed to sweep all buckets in [`SWEEP_LAPS`] laps. To be called once a lap.
    pub fn sweep(&mut self, index: &mut [u64], log: &Log) {
        for _ in 0..self.buckets.div_ceil(SWEEP_LAPS) {
            let first = self.sweep as usize * BUCKET_WORDS;
            for word in &mut index[first..first + BUCKET_WORDS] {
                if !log.has(position_of(*word)) {
                    *word = 0;
                }
            }
            self.sweep = (self.sweep + 1) % self.buckets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_tells_what_it_was_made_of(tag in 1u16.., lap: u16, place: u32) {
            let position = Position { lap, place };
            let word = word_of(tag, position);
            prop_assert_eq!((tag_of(word), position_of(word)), (tag, position));
        }
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest_word() {
        let mut index = vec![0; BUCKET_WORDS];
        let (mut lossy, mut log) = (Lossy::new(BUCKET_WORDS), Log::new(1 << 10));
        let hashes: Vec<_> = (0..20u32).map(|key| KeyHash::of(1, &key.to_le_bytes())).collect();
        for hash in &hashes {
            let position = log.append(4).position;
            lossy.set(&mut index, &log, *hash, position);
        }
        let found: Vec<_> =
            hashes.iter().map(|hash| lossy.find(&index, &log, *hash).is_some()).collect();
        let (old, young) = found.split_at(20 - BUCKET_WORDS);
        assert!(!old.contains(&true) && !young.contains(&false), "{found:?}");
        assert_eq!(lossy.displaced, 12);
    }
}
