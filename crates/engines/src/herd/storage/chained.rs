//! The index of a store: like a cache's index, but it loses no key.
//!
//! A bucket has seven words and a **link**. When a bucket is full, its link names another bucket
//! from a pool of spare buckets, and so on. The words of a chain have no gaps: the last word fills
//! the place of a removed one, and a spare bucket without words goes back to the pool.
//!
//! ```text
//! word    63..48  47..32  31..0        link    63..32  31..0
//!         tag     0       place                0       a bucket's number; 0: none
//! ```
//!
//! # Bounds
//! [`Chained::plan`] gives a bucket five keys on average. With as many keys as slots were asked
//! for, one bucket in eight then has an eighth key, and there is a spare bucket for every fourth
//! bucket. Keys beyond that, or keys made to collide, end with
//! [`IndexFull`](crate::EngineError::IndexFull). An adversary who does not know the table's seed
//! cannot make such keys.

use super::entry::Head;
use super::lossy::{BUCKET_WORDS, tag_of, word_of};
use crate::herd::key::KeyHash;
use crate::herd::storage::log::Position;

/// Words of a bucket that name entries.
const ENTRIES: usize = BUCKET_WORDS - 1;
/// The position of a bucket's link.
const LINK: usize = ENTRIES;

/// The index of a store; the words themselves are the partition's.
#[derive(Debug)]
pub(super) struct Chained {
    /// The buckets to which keys hash; the spare buckets follow.
    buckets: u32,
    /// The first spare bucket that is in no chain; 0: no bucket.
    spare: u32,
}

/// A word that names a key's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The word's place in the index.
    pub at: usize,
    /// The place of the entry.
    pub place: u32,
}

/// The pool of spare buckets is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Chained {
    /// The numbers of buckets for this many keys: first those to which keys hash, then the spare
    /// ones.
    pub fn plan(slots: u64) -> (u64, u64) {
        let buckets = slots.div_ceil(5).max(1);
        (buckets, buckets.div_ceil(4))
    }

    /// An index in which keys hash to the first `buckets` buckets. Its words are zero.
    pub fn new(index: &mut [u64], buckets: u32) -> Self {
        let all = (index.len() / BUCKET_WORDS) as u32;
        assert!(buckets > 0 && buckets <= all, "{buckets} buckets of {all}");
        let mut chained = Self { buckets, spare: 0 };
        // The first spare bucket is taken first, so that a small table stays together.
        (buckets..all).rev().for_each(|bucket| chained.give_back(index, bucket as usize));
        chained
    }

    /// The first word of the key's bucket.
    #[inline(always)]
    pub fn bucket(&self, hash: KeyHash) -> usize {
        hash.bucket(self.buckets) as usize * BUCKET_WORDS
    }

    /// The place in the first word of the key's first bucket that has the key's tag: a guess.
    #[inline]
    pub fn guess(&self, index: &[u64], hash: KeyHash) -> Option<u32> {
        let first = self.bucket(hash);
        let bucket = &index[first..first + ENTRIES];
        let word = bucket.iter().find(|word| tag_of(**word) == hash.tag())?;
        Some(*word as u32)
    }

    /// The word that names the key's entry.
    pub fn find(&self, index: &[u64], data: &[u64], hash: KeyHash, key: &[u8]) -> Option<Slot> {
        let mut first = self.bucket(hash);
        loop {
            for (at, word) in (first..).zip(&index[first..first + ENTRIES]) {
                let place = *word as u32;
                if tag_of(*word) == hash.tag() && Head::at(data, place).is_of(data, place, key) {
                    return Some(Slot { at, place });
                }
            }
            first = next(index, first)?;
        }
    }

    /// Makes a word with a new key's tag name a place.
    pub fn insert(&mut self, index: &mut [u64], hash: KeyHash, place: u32) -> Result<(), Full> {
        let mut last = self.bucket(hash);
        while let Some(next) = next(index, last) {
            last = next;
        }
        // A chain has no gaps, so only its last bucket can have room.
        let room = (last..last + ENTRIES).find(|at| index[*at] == 0);
        let at = match room {
            Some(at) => at,
            None => self.extend(index, last)?,
        };
        index[at] = word(hash.tag(), place);
        Ok(())
    }

    /// Makes a word name another place.
    pub fn move_to(&self, index: &mut [u64], at: usize, place: u32) {
        index[at] = word(tag_of(index[at]), place);
    }

    /// Removes a word of the key's chain.
    pub fn remove(&mut self, index: &mut [u64], hash: KeyHash, at: usize) {
        let mut before_last = None;
        let mut last = self.bucket(hash);
        while let Some(next) = next(index, last) {
            before_last = Some(last);
            last = next;
        }
        let filler = (last..last + ENTRIES).rev().find(|at| index[*at] != 0);
        let filler = filler.expect("the last bucket of a chain is not empty");
        index[at] = index[filler];
        index[filler] = 0;
        if let (true, Some(before)) = (filler == last, before_last) {
            index[before + LINK] = 0;
            self.give_back(index, last / BUCKET_WORDS);
        }
    }

    /// The first word of a spare bucket, which was appended to the chain that ended with `last`.
    fn extend(&mut self, index: &mut [u64], last: usize) -> Result<usize, Full> {
        if self.spare == 0 {
            return Err(Full);
        }
        let first = self.spare as usize * BUCKET_WORDS;
        index[last + LINK] = u64::from(self.spare);
        self.spare = index[first + LINK] as u32;
        index[first + LINK] = 0;
        Ok(first)
    }

    /// Puts an empty bucket into the pool.
    fn give_back(&mut self, index: &mut [u64], bucket: usize) {
        index[bucket * BUCKET_WORDS + LINK] = u64::from(self.spare);
        self.spare = bucket as u32;
    }

    /// The words that name entries, each with the bucket to which its key hashes.
    pub fn chains<'a>(&'a self, index: &'a [u64]) -> impl Iterator<Item = (u32, u64)> + 'a {
        (0..self.buckets)
            .flat_map(move |bucket| self.chain(index, bucket).map(move |word| (bucket, word)))
    }

    /// The number of buckets to which keys hash.
    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    /// The words that name the entries of the keys that hash to a bucket.
    pub fn chain<'a>(&self, index: &'a [u64], bucket: u32) -> impl Iterator<Item = u64> + 'a {
        let first = Some(bucket as usize * BUCKET_WORDS);
        let links = std::iter::successors(first, |first| next(index, *first));
        let all = links.flat_map(|first| index[first..first + ENTRIES].iter().copied());
        all.filter(|word| *word != 0)
    }
}

/// The number of words that name entries, or could.
pub(super) fn slots(index: &[u64]) -> u64 {
    (index.len() / BUCKET_WORDS * ENTRIES) as u64
}

fn word(tag: u16, place: u32) -> u64 {
    word_of(tag, Position { lap: 0, place })
}

/// The bucket after the one that begins at `first`. Bucket 0 is never a spare bucket.
#[inline(always)]
fn next(index: &[u64], first: usize) -> Option<usize> {
    let link = index[first + LINK] as usize;
    (link != 0).then_some(link * BUCKET_WORDS)
}
