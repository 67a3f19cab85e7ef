//! DELETEs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, FabricError, RemoteAddr, Step, Swap};

use super::{add_error, longest};
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
        if !self.has_stages() {
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
        batch.old.clear();
        batch.rest.clear();
        let mut epoch = self.session.pin(&self.fabric)?;
        self.find_doomed(batch, keys, entry_len).await?;
        epoch.owe();
        let taken_out = self.take_out(batch, &mut deleted).await;
        epoch.ends_with(taken_out)?;
        if self.is_near {
            for key in &batch.rest {
                let key = usize::from(*key);
                deleted(key, self.delete(keys[key].as_ref()).await?);
            }
            return Ok(());
        }
        let rest = batch.rest.iter().map(|key| {
            let key = usize::from(*key);
            async move { self.delete(keys[key].as_ref()).await.map(|had_value| (key, had_value)) }
        });
        self.all_of(rest.collect(), |(key, had_value)| deleted(key, had_value)).await
    }

    /// Finds the entries that the keys have.
    async fn find_doomed<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        entry_len: usize,
    ) -> Result<(), EngineError> {
        if !self.is_near {
            for (look, key) in batch.looks.iter_mut().zip(keys) {
                *look = Look::begin(&self.map, KeyHash::of(&self.map, key.as_ref()));
            }
            let key = |number: usize| keys[number].as_ref();
            return Box::pin(self.find_far(batch, keys.len(), key, true, entry_len)).await;
        }
        let words = self.map.shape.geometry.bucket_words();
        let mut entry = std::mem::take(&mut batch.entry);
        let mut deletes = Deletes { client: self, keys, batch, entry_len };
        let chased = self.fabric.chase(keys.len(), words, entry_len, &mut entry, &mut deletes);
        let chased = chased.await;
        batch.entry = entry;
        Ok(chased?)
    }

    /// Takes the entries that were found out of the index, and leaves the keys that others changed
    /// to the general path.
    async fn take_out(
        &self,
        batch: &mut Batch,
        deleted: &mut impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        let Batch { looks, old, swaps, rest, .. } = batch;
        swaps.clear();
        for Old { key, .. } in &*old {
            let Look { slot, word, .. } = looks[usize::from(*key)];
            let empty = self.fresh_empty().await?;
            swaps.push(Swap { at: slot, expect: word.0, new: empty.0 });
        }
        let mut result = Ok(());
        let seen = |number: usize, was: Result<u64, FabricError>| {
            let Old { key, entry_len, generation } = old[number];
            let number = usize::from(key);
            let word = looks[number].word;
            if self.cache.is_some() {
                self.forget_far(looks[number].hash);
            }
            match was {
                // Linearization point of a DELETE that found a value (protocol D3).
                Ok(was) if was == word.0 => {
                    let class = self.map.classes.of(entry_len as usize);
                    match self.unlinked_in(&class, word, generation) {
                        Ok(()) => deleted(number, true),
                        Err(error) => add_error(&mut result, error),
                    }
                }
                Ok(_) if planted::is(Bug::BatchDeletesAnyway) => deleted(number, true),
                Ok(_) => rest.push(key),
                Err(error) => add_error(&mut result, error.into()),
            }
        };
        self.fabric.compare_swap_many(swaps, seen).await;
        result
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
        self.client.keep_old::<false>(self.batch, number, self.keys[number].as_ref(), entry, again);
    }
}
