//! Looking at words of the index, and at the marks beside them.

use std::cell::Cell;
use std::ops::Range;

use loch_fabric::{Fabric, RemoteAddr};

use super::Client;
use crate::error::EngineError;
use crate::limits::{CANDIDATES_MAX, WAYS_MAX};
use crate::nessie::layout::dte::Header;
use crate::nessie::layout::hash::{Candidates, TableMap};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::marks::Marks;

/// The words of a key's candidates, by candidate number.
pub(in crate::nessie) type Words = [Ite; CANDIDATES_MAX];

/// A place in the index: the one to which a client looks next for something to evict.
#[derive(Debug)]
pub(in crate::nessie) struct Hand {
    /// The buckets that the hand passes over, among those of all shards.
    buckets: Range<u64>,
    /// The number of the next one; `None`: anywhere.
    bucket: Cell<Option<u64>>,
}

impl Hand {
    /// The hand of a client at the node with data table `home`. In a coupled table all that it
    /// could evict is shown by its node's own shard, and a worker may reach no other one.
    pub fn of(map: &TableMap, home: u8) -> Self {
        let of_shard = u64::from(map.shape.geometry.buckets_per_shard);
        let first = u64::from(home) * of_shard;
        let buckets = if map.shape.coupled { first..first + of_shard } else { 0..map.buckets() };
        Self { buckets, bucket: Cell::default() }
    }

    /// So many buckets as a part of those that the hand passes over.
    pub fn part(&self, buckets: usize) -> f32 {
        buckets as f32 / (self.buckets.end - self.buckets.start) as f32
    }

    /// A run of up to `most` buckets, which are in one shard, and their number. The hand goes on
    /// behind them, and begins anywhere.
    pub fn next<F: Fabric>(&self, map: &TableMap, fabric: &F, most: u64) -> (RemoteAddr, usize) {
        let Range { start, end } = self.buckets;
        let bucket = self.bucket.get().unwrap_or_else(|| start + fabric.random() % (end - start));
        let (at, count) = map.run(bucket, most);
        let next = bucket + count;
        self.bucket.set(Some(if next == end { start } else { next }));
        (at, count as usize)
    }

    /// Has the hand pass over the rest of the shard that has this run, whose node is lost.
    pub fn skip(&self, map: &TableMap, run: RemoteAddr) {
        let Range { start, end } = self.buckets;
        let of_shard = u64::from(map.shape.geometry.buckets_per_shard);
        // Another lane may have gone on.
        let is_there = |bucket: &u64| map.run(*bucket, 1).0.region() == run.region();
        if let Some(bucket) = self.bucket.get().filter(is_there) {
            let next = (bucket / of_shard + 1) * of_shard;
            self.bucket.set(Some(if next == end { start } else { next }));
        }
    }
}

impl<F: Fabric> Client<F> {
    /// READs all candidates, one READ a bucket, in one doorbell.
    #[inline]
    pub(in crate::nessie) async fn collect(
        &self,
        candidates: &Candidates,
    ) -> Result<Words, EngineError> {
        Ok(self.collect_marked(candidates).await?.0)
    }

    /// The same, with the marks of the buckets if the table evicts.
    #[inline]
    pub(in crate::nessie) async fn collect_marked(
        &self,
        candidates: &Candidates,
    ) -> Result<(Words, [Marks; WAYS_MAX]), EngineError> {
        let mut words = [0; CANDIDATES_MAX];
        let evicts = self.evicts();
        let marks = if evicts { candidates.buckets().len() } else { 0 };
        let count = candidates.count() + marks;
        self.fabric.read_words(candidates.buckets(), &mut words[..count]).await?;
        Ok(match evicts {
            true => candidates.arrange_marked(&words),
            false => (candidates.arrange(&words), [Marks::default(); WAYS_MAX]),
        })
    }

    /// Whether an entry, of which this is the beginning, has expired.
    #[inline]
    pub(in crate::nessie) fn is_expired(&self, header: &Header, entry: &[u8]) -> bool {
        header.expires_at_ms(entry).is_some_and(|at| at <= self.fabric.wall_ms())
    }

    pub(in crate::nessie) async fn read_word(&self, at: RemoteAddr) -> Result<u64, EngineError> {
        let mut word = [0];
        self.fabric.read_words(&[at], &mut word).await?;
        Ok(word[0])
    }
}
