//! DELETEs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, RemoteAddr, Step};

use super::longest;
use crate::error::EngineError;
use crate::limits::BATCH_KEYS;
use crate::nessie::client::Client;
use crate::nessie::client::batch::{Batch, Look, Old};
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::ops::read::Want;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// Deletes the values of many keys. `deleted` is called once for each key, with its index and
    /// whether it had a value, in any order.
    ///
    /// # Errors
    /// As [`Client::delete`]. After an error no further DELETEs are begun; others may have been
    /// done.
    pub async fn delete_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut deleted: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        if !self.one_by_one {
            // The entries of a batch are validated by their generations alone.
            for (number, key) in keys.iter().enumerate() {
                deleted(number, self.delete(key.as_ref()).await?);
            }
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_default();
        let mut done = Ok(());
        for (begin, keys) in (0..).step_by(BATCH_KEYS).zip(keys.chunks(BATCH_KEYS)) {
            let deleted = |key, had_value| deleted(begin + key, had_value);
            done = self.delete_batch(&mut batch, keys, deleted).await;
            if done.is_err() {
                break;
            }
        }
        self.batch.set(Some(batch));
        done
    }

    async fn delete_batch<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        mut deleted: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        let key_len = longest(keys.iter().map(AsRef::as_ref))?;
        let entry_len = self.first_read_len(key_len, Want::Key);
        let slots = self.map.shape.geometry.bucket_slots as usize;
        batch.old.clear();
        batch.rest.clear();
        let epoch = self.session.pin(&self.fabric)?;
        let mut entry = std::mem::take(&mut batch.entry);
        let mut deletes = Deletes { client: self, keys, batch, entry_len };
        let chased = self.fabric.chase(keys.len(), slots, entry_len, &mut entry, &mut deletes);
        let chased = chased.await;
        batch.entry = entry;
        chased?;
        let Batch { looks, old, rest, .. } = batch;
        for Old { key, entry_len, generation } in old.drain(..) {
            let number = usize::from(key);
            let Look { slot, word, .. } = looks[number];
            let empty = self.fresh_empty().await?;
            // Linearization point of a DELETE that found a value (protocol D3).
            if self.fabric.compare_swap(slot, word.0, empty.0).await? == word.0 {
                self.unlinked_in(self.map.classes.of(entry_len as usize), word, generation)?;
                deleted(number, true);
            } else if planted::is(Bug::BatchDeletesAnyway) {
                deleted(number, true);
            } else {
                rest.push(key);
            }
        }
        drop(epoch);
        for key in &batch.rest {
            let key = usize::from(*key);
            deleted(key, self.delete(keys[key].as_ref()).await?);
        }
        Ok(())
    }
}

/// DELETEs of a batch, from the keys to their entries.
struct Deletes<'a, F: Fabric, K> {
    client: &'a Client<F>,
    keys: &'a [K],
    batch: &'a mut Batch,
    entry_len: usize,
}

impl<F: Fabric, K: AsRef<[u8]>> Chase for Deletes<'_, F, K> {
    #[inline(always)]
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        let map = &*self.client.map;
        let look = Look::begin(map, KeyHash::of(map, self.keys[number].as_ref()));
        self.batch.looks[number] = look;
        look.slot
    }

    #[inline(always)]
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        self.client.step(self.batch, number, bucket, self.entry_len)
    }

    #[inline(always)]
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        self.client.keep_old(self.batch, number, self.keys[number].as_ref(), entry, again);
    }
}
