//! Operations on many keys in stages: each stage goes over all keys of a batch, so that the misses
//! of one stage overlap, and no key has a future or a buffer of its own.
//!
//! A batch follows the rules of the single operations, and its linearization points are theirs.
//! Only the usual case is done here: the first match in a bucket is the key's entry, and nobody
//! changes it. The other keys are left to the general path, after those.
//!
//! Each stage is a function of its own that is not inlined: for all together the registers do not
//! suffice.

mod get;
mod put;

use loch_fabric::{Fabric, RemoteAddr};

use crate::error::EngineError;
use crate::kv::check_key;
use crate::limits::{BATCH_ENTRY_BYTES_MAX, WAYS_MAX};
use crate::nessie::client::Client;
use crate::nessie::client::batch::{Batch, Named};
use crate::nessie::layout::hash::KeyHash;

impl<F: Fabric> Client<F> {
    /// Whether batches are worth it: where round trips are cheap, entries are short, and no cache
    /// saves READs. Otherwise as many single operations, in lanes, cost less.
    #[inline]
    pub fn takes_batches(&self) -> bool {
        self.one_by_one && self.cache.is_none() && self.read_hint.get() <= BATCH_ENTRY_BYTES_MAX
    }

    /// Makes all keys pending. Returns the length of the longest one.
    #[inline(never)]
    fn begin_batch<'k>(
        &self,
        batch: &mut Batch,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) -> Result<usize, EngineError> {
        let Batch { hashes, pending, at, rest, .. } = batch;
        hashes.clear();
        pending.clear();
        at.clear();
        rest.clear();
        let mut key_len = 0;
        for key in keys.clone() {
            check_key(key)?;
            key_len = key_len.max(key.len());
        }
        pending.extend(0..keys.len() as u8);
        hashes.extend(keys.map(|key| KeyHash::of(&self.map, key)));
        at.extend(hashes.iter().map(|hash| hash.first_bucket(&self.map)));
        Ok(key_len)
    }

    /// Finds the entry that the first match of each bucket names. Keys without a match stay
    /// pending, with their bucket number `way` if they have so many, and that bucket is announced.
    #[inline(never)]
    fn name_entries(&self, batch: &mut Batch, way: usize, entry_len: usize) {
        let Batch { hashes, pending, at, buckets, named, reads, rest, .. } = batch;
        named.clear();
        reads.clear();
        let slots = self.map.shape.geometry.bucket_slots as usize;
        let mut left = 0;
        for (number, bucket) in (0..pending.len()).zip(&*buckets) {
            let key = pending[number];
            let hash = &hashes[usize::from(key)];
            let Some((position, word)) = self.first_match(&bucket[..slots], hash.filter(&self.map))
            else {
                (pending[left], at[left]) = (key, self.next_bucket(hash, way));
                self.fabric.will_read(at[left]);
                left += 1;
                continue;
            };
            match self.entry_at(word) {
                Some((entry, room)) => {
                    reads.push((entry, entry_len.min(room)));
                    named.push(Named { key, slot: at[number].add(position as u64 * 8), word });
                }
                None => rest.push(key),
            }
        }
        pending.truncate(left);
        at.truncate(left);
    }

    /// READs the entries that were named.
    async fn read_named(&self, batch: &mut Batch) -> Result<(), EngineError> {
        let mut entries = std::mem::take(&mut batch.entries);
        entries.clear();
        let (entries, done) = self.fabric.read_many(&batch.reads, entries).await;
        batch.entries = entries;
        Ok(done?)
    }

    /// The bucket number `way` of a key; any one if the key has fewer.
    #[cold]
    fn next_bucket(&self, hash: &KeyHash, way: usize) -> RemoteAddr {
        let mut buckets = [hash.first_bucket(&self.map); WAYS_MAX];
        let last = way.min(self.map.shape.geometry.ways as usize - 1);
        for way in 1..=last {
            buckets[way] = hash.bucket(&self.map, &buckets[..way]);
        }
        buckets[last]
    }
}
