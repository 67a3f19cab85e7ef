//! The local cache of remote entries (nessie §4.1.3), keyed by the index word.
//!
//! A line remembers the slot in which a key was found, the word in that slot, and the entry's
//! bytes: up to the key or, if the entry is short, with its value. A line never answers by itself.
//! The slot is READ, and if it still holds the word then the entry is still the key's value,
//! because words are unique in their slots and entries do not change. So a warm GET takes one round
//! trip, and so does a warm update, whose CAS is the check.
//!
//! Generations in words start over some day; a line that was not confirmed for two epochs is
//! therefore not used (see [`crate::epoch`], invariant 4).

use std::iter;

use crate::nessie::layout::dte::Header;
use crate::nessie::layout::ite::Ite;
use crate::net::CacheLimits;
use crate::planted::{self, Bug};

/// Lines of a set.
const WAYS: usize = 4;

/// A set-associative cache. In a full set the line that was not used for the longest time gives
/// way.
#[derive(Debug)]
pub(in crate::nessie) struct Cache {
    sets: Vec<[Option<Kept>; WAYS]>,
    entry_bytes_max: usize,
    clock: u64,
}

/// What a line says about an entry, but for its bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Line {
    pub slot: usize,
    pub word: Ite,
    pub header: Header,
    /// Whether the line has all bytes of the entry.
    pub has_value: bool,
}

/// A line as the cache keeps it.
#[derive(Debug)]
pub(in crate::nessie) struct Kept {
    hash: u64,
    pub line: Line,
    /// The entry's bytes: up to its key, or all of them.
    bytes: Vec<u8>,
    /// The epoch that the session announced when the word was last seen in its slot. It is not
    /// newer than the epoch of the operation that saw the word.
    epoch: u64,
    used: u64,
    /// The epoch in which this client marked the entry as used last, in a table that evicts.
    marked: u8,
}

impl Kept {
    pub fn is_old(&self, epoch: u64) -> bool {
        epoch.saturating_sub(self.epoch) > 1 && !planted::is(Bug::CacheOfAnyAge)
    }
}

impl Cache {
    pub fn new(limits: CacheLimits) -> Self {
        let sets = (limits.lines / WAYS).next_power_of_two().max(1);
        Self {
            sets: iter::repeat_with(Default::default).take(sets).collect(),
            entry_bytes_max: limits.entry_bytes_max,
            clock: 0,
        }
    }

    #[inline]
    fn set(&mut self, hash: u64) -> &mut [Option<Kept>; WAYS] {
        let at = hash as usize & (self.sets.len() - 1);
        &mut self.sets[at]
    }

    /// The line of a key, and the bytes of the entry that it has.
    #[inline]
    pub fn line(&mut self, hash: u64, key: &[u8], epoch: u64) -> Option<(Line, &[u8])> {
        self.clock += 1;
        let clock = self.clock;
        let kept = self.set(hash).iter_mut().flatten().find(|kept| kept.hash == hash)?;
        let header = &kept.line.header;
        if kept.is_old(epoch) || &kept.bytes[header.key_at()..header.value_at()] != key {
            return None;
        }
        kept.used = clock;
        Some((kept.line, &kept.bytes))
    }

    /// All lines, for tests that look into caches.
    #[cfg(feature = "planted")]
    pub fn lines(&self) -> impl Iterator<Item = &Kept> {
        self.sets.iter().flatten().flatten()
    }

    /// Whether the entry is to be marked as used: once in each epoch of the marks.
    pub fn is_to_mark(&mut self, hash: u64, mark_epoch: u8) -> bool {
        let kept = self.set(hash).iter_mut().flatten().find(|kept| kept.hash == hash);
        kept.is_some_and(|kept| std::mem::replace(&mut kept.marked, mark_epoch) != mark_epoch)
    }

    pub fn forget(&mut self, hash: u64) {
        for kept in self.set(hash) {
            if kept.as_ref().is_some_and(|kept| kept.hash == hash) {
                *kept = None;
            }
        }
    }

    /// Takes note that the word was just seen in its slot. The line may hold another word by now:
    /// another lane may have remembered a word that it saw long ago.
    #[inline]
    pub fn confirm(&mut self, hash: u64, word: Ite, epoch: u64) {
        for kept in self.set(hash).iter_mut().flatten() {
            if kept.hash == hash && kept.line.word == word {
                kept.epoch = epoch;
            }
        }
    }

    pub fn keep(&mut self, hash: u64, slot: usize, word: Ite, entry: &[u8], epoch: u64) {
        let header = Header::read(entry).expect("a validated entry has a header");
        let len = header.entry_len();
        let has_value = len <= self.entry_bytes_max && len <= entry.len();
        let bytes = entry[..if has_value { len } else { header.value_at() }].to_vec();
        self.clock += 1;
        let line = Line { slot, word, header, has_value };
        let kept = Kept { hash, line, bytes, epoch, used: self.clock, marked: u8::MAX };
        let set = self.set(hash);
        let same = set.iter().position(|kept| kept.as_ref().is_some_and(|kept| kept.hash == hash));
        let oldest = || (0..WAYS).min_by_key(|w| set[*w].as_ref().map_or(0, |kept| kept.used));
        let way = same.or_else(oldest).expect("a set has lines");
        set[way] = Some(kept);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::operation::Version;

    const KEY: &[u8] = b"key";

    fn entry(value_len: usize) -> Vec<u8> {
        let header = Header::new(1, Version::from_u64(2), KEY.len(), value_len, 0);
        [header.as_bytes(), KEY, &vec![7; value_len]].concat()
    }

    fn keep(cache: &mut Cache, hash: u64, epoch: u64) {
        cache.keep(hash, 0, Ite(hash), &entry(10), epoch);
    }

    #[test]
    fn entries_are_kept_whole_if_they_are_whole_and_short() {
        let whole = entry(100);
        let mut cache = Cache::new(CacheLimits { lines: 4, entry_bytes_max: whole.len() });
        let mut kept = |entry: &[u8]| {
            cache.keep(1, 0, Ite(1), entry, 0);
            let (line, bytes) = cache.line(1, KEY, 0).unwrap();
            assert_eq!(bytes, &entry[..bytes.len()]);
            (bytes.len(), line.has_value)
        };
        let key_end = whole.len() - 100;
        assert_eq!(kept(&whole), (whole.len(), true));
        assert_eq!(kept(&entry(101)), (key_end, false));
        assert_eq!(kept(&whole[..whole.len() - 1]), (key_end, false));
        assert_eq!(kept(&whole[..key_end]), (key_end, false));
    }

    /// A line that was confirmed in an epoch may be used in that epoch and in the next one.
    #[test]
    fn a_line_is_used_until_two_epochs_after_it_was_confirmed() {
        let mut cache = Cache::new(CacheLimits { lines: 4, entry_bytes_max: 1000 });
        keep(&mut cache, 1, 5);
        keep(&mut cache, 2, 5);
        let mut known = |hash, epoch| cache.line(hash, KEY, epoch).is_some();
        assert_eq!((known(1, 5), known(1, 6), known(1, 7)), (true, true, false));
        cache.confirm(1, Ite(1), 6);
        let mut known = |hash, epoch| cache.line(hash, KEY, epoch).is_some();
        assert_eq!((known(1, 7), known(1, 8), known(2, 7)), (true, false, false));
        assert!(cache.line(1, b"another", 7).is_none());
        cache.forget(1);
        assert!(cache.line(1, KEY, 7).is_none() && cache.line(2, KEY, 6).is_some());
    }

    #[test]
    fn the_line_that_was_used_longest_ago_gives_way() {
        let mut cache = Cache::new(CacheLimits { lines: 4, entry_bytes_max: 1000 });
        (1..=4).for_each(|hash| keep(&mut cache, hash, 0));
        // The order of confirmation differs from the order in which the lines lie.
        (1..=4).rev().for_each(|hash| assert!(cache.line(hash, KEY, 0).is_some()));
        for (new, gone) in [(5, 4), (6, 3), (7, 2), (8, 1), (9, 5)] {
            keep(&mut cache, new, 0);
            let is_known = |hash: &u64| {
                let lines = cache.sets[0].iter().flatten();
                lines.map(|kept| kept.hash).any(|known| known == *hash)
            };
            assert!(is_known(&new) && !is_known(&gone), "{new} for {gone}");
            assert_eq!((1..=9).filter(is_known).count(), WAYS);
        }
    }

    /// A lane saw a word again. Meanwhile a slow lane of the same session had remembered a word
    /// that it saw two epochs before. From then on the line carried the new epoch and the old word:
    /// the old word's entry was reused for another value of the key under the same word, and a GET
    /// answered with the bytes in the line.
    #[test]
    fn a_line_is_not_confirmed_by_a_look_at_another_word() {
        let mut cache = Cache::new(CacheLimits { lines: 4, entry_bytes_max: 64 });
        let (hash, old, new) = (7, Ite(8), Ite(16));
        let entry = [0; 64];
        let key = Header::read(&entry).map(|header| header.key_at()..header.value_at()).unwrap();
        let key = &entry[key];
        cache.keep(hash, 0, new, &entry, 3);
        cache.keep(hash, 0, old, &entry, 1);
        cache.confirm(hash, new, 3);
        assert!(cache.line(hash, key, 2).is_some_and(|(line, _)| line.word == old));
        assert!(cache.line(hash, key, 3).is_none(), "it is two epochs old");
        cache.confirm(hash, old, 3);
        assert!(cache.line(hash, key, 3).is_some());
    }
}
