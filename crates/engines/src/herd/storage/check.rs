//! Walks a whole partition and verifies its invariants: `loch check`.

use std::collections::HashMap;
use std::ops::DerefMut;

use super::chained::Chained;
use super::entry::{Head, flags, present};
use super::heap::Heap;
use super::log::Log;
use super::lossy::{BUCKET_WORDS, Lossy, position_of, tag_of};
use super::{Keeper, Partition};
use crate::herd::key::KeyHash;
use crate::limits::GRAIN_BYTES;

/// The result of a walk through a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries that can be found.
    pub entries: u64,
    /// Bytes of those entries, with their headers.
    pub entry_bytes: u64,
    /// Bytes of the log or heap.
    pub data_bytes: u64,
    /// Broken invariants, in words. Empty is good.
    pub broken: Vec<String>,
}

/// A report stops listing here.
const BROKEN_MAX: usize = 100;

impl<M: DerefMut<Target = [u64]>> Partition<M> {
    /// Whether the partition lets old entries go when it is full.
    pub fn loses(&self) -> bool {
        matches!(self.keeper, Keeper::Cache { .. })
    }

    /// Entries that a cache has dropped because their buckets were full, although its log still
    /// held them. If there are many of these, the index is too small for the log.
    pub fn displaced(&self) -> u64 {
        match &self.keeper {
            Keeper::Cache { index, .. } => index.displaced,
            Keeper::Store { .. } => 0,
        }
    }

    /// Verifies every word of the index and every entry. `seed` is the seed with which the keys
    /// were hashed.
    pub fn check(&self, seed: u64) -> Report {
        let mut report =
            Report { data_bytes: std::mem::size_of_val(self.data()) as u64, ..Report::default() };
        match &self.keeper {
            Keeper::Cache { index, log } => self.check_cache(seed, index, log, &mut report),
            Keeper::Store { index, heap, entries } => {
                self.check_store(seed, index, heap, &mut report);
                if *entries != report.entries {
                    report.broke(format!("{entries} entries counted, {} found", report.entries));
                }
            }
        }
        report
    }

    fn check_cache(&self, seed: u64, index: &Lossy, log: &Log, report: &mut Report) {
        for (number, bucket) in self.index().chunks_exact(BUCKET_WORDS).enumerate() {
            let mut tags: Vec<u16> = Vec::with_capacity(BUCKET_WORDS);
            for word in bucket.iter().filter(|word| **word != 0) {
                if tags.contains(&tag_of(*word)) {
                    report.broke(format!("bucket {number} has two words of one tag"));
                }
                tags.push(tag_of(*word));
                if log.has(position_of(*word)) {
                    let is_here = |hash| index.bucket(hash) == number * BUCKET_WORDS;
                    self.check_word(seed, *word, is_here, report);
                }
            }
        }
    }

    fn check_store(&self, seed: u64, index: &Chained, heap: &Heap, report: &mut Report) {
        let mut named = Vec::new();
        for (bucket, word) in index.chains(self.index()) {
            let is_here = |hash| index.bucket(hash) == bucket as usize * BUCKET_WORDS;
            self.check_word(seed, word, is_here, report);
            named.push(word as u32);
        }
        named.sort_unstable();
        match heap.entries(self.data()) {
            Err(broken) => report.broke(broken),
            Ok(there) if there == named => self.check_unique(&named, report),
            Ok(there) => {
                let (named, there) = (named.len(), there.len());
                report.broke(format!("the index names {named} entries, the heap has {there}"));
            }
        }
    }

    /// Verifies that a word's entry belongs where the word is.
    fn check_word(
        &self,
        seed: u64,
        word: u64,
        is_here: impl Fn(KeyHash) -> bool,
        report: &mut Report,
    ) {
        let (data, place) = (self.data(), word as u32);
        let end = std::mem::size_of_val(data) as u64 / GRAIN_BYTES;
        let head = if u64::from(place) < end { Head::at(data, place) } else { Head::NOTHING };
        let inside = u64::from(place) + u64::from(head.grains()) <= end;
        let Some(key) = head.key(data, place).filter(|_| inside && !head.has(flags::FREE)) else {
            report.broke(format!("{word:#018x} names no entry"));
            return;
        };
        let hash = KeyHash::of(seed, key);
        if !is_here(hash) || hash.tag() != tag_of(word) {
            report.broke(format!("{word:#018x} names an entry of another bucket or tag"));
        }
        report.entries += 1;
        report.entry_bytes += u64::from(head.grains()) * GRAIN_BYTES;
    }

    /// Verifies that no key has two entries.
    fn check_unique(&self, places: &[u32], report: &mut Report) {
        let mut versions = HashMap::new();
        for place in places {
            let Some(key) = Head::at(self.data(), *place).key(self.data(), *place) else {
                continue;
            };
            let version = present(self.data(), *place).version;
            if let Some(other) = versions.insert(key, version) {
                report.broke(format!("one key has entries of versions {other} and {version}"));
            }
        }
    }
}

impl Report {
    fn broke(&mut self, what: String) {
        if self.broken.len() < BROKEN_MAX {
            self.broken.push(what);
        }
    }
}
