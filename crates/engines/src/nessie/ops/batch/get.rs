//! GETs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Buf, Chase, Fabric, RemoteAddr, Step};

use super::longest;
use crate::error::EngineError;
use crate::limits::BATCH_KEYS;
use crate::nessie::client::Client;
use crate::nessie::client::batch::Batch;
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::ops::read::Want;
use crate::operation::Found;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// GETs many keys. `found` is called once for each key, with its index, in any order.
    ///
    /// # Errors
    /// As [`Client::get`]. After an error no further GETs are begun.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<(), EngineError> {
        if !self.one_by_one {
            // The entries of a batch are validated by their generations alone.
            for (number, key) in keys.iter().enumerate() {
                let value = self.get(key.as_ref(), Buf::new()).await?;
                found(number, value.as_ref().map(Found::from));
            }
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_default();
        let mut done = Ok(());
        for (begin, keys) in (0..).step_by(BATCH_KEYS).zip(keys.chunks(BATCH_KEYS)) {
            done = self.get_batch(&mut batch, keys, |key, value| found(begin + key, value)).await;
            if done.is_err() {
                break;
            }
        }
        self.batch.set(Some(batch));
        done
    }

    async fn get_batch<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        mut found: impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<(), EngineError> {
        let key_len = longest(keys.iter().map(AsRef::as_ref))?;
        let entry_len = self.first_read_len(key_len, Want::Value);
        let slots = self.map.shape.geometry.bucket_slots as usize;
        batch.rest.clear();
        let mut entry = std::mem::take(&mut batch.entry);
        // One epoch for all keys and steps: it keeps every word's entry from being reused as the
        // same incarnation.
        let epoch = match planted::is(Bug::BatchUnpinned) {
            true => None,
            false => Some(self.session.pin(&self.fabric)?),
        };
        let mut gets = Gets { client: self, keys, batch, entry_len, found: &mut found, longest: 0 };
        let chased = self.fabric.chase(keys.len(), slots, entry_len, &mut entry, &mut gets).await;
        let longest = gets.longest;
        batch.entry = entry;
        chased?;
        if longest > 0 {
            self.hint_read_of(longest);
        }
        for key in &batch.rest {
            let key = usize::from(*key);
            if planted::is(Bug::BatchForgetsRest) {
                found(key, None);
                continue;
            }
            let value = self.get_anyhow(batch.hashes[key], keys[key].as_ref(), Buf::new(), None);
            found(key, value.await?.as_ref().map(Found::from));
        }
        drop(epoch);
        Ok(())
    }
}

/// GETs of a batch, from the keys to the values.
struct Gets<'a, F: Fabric, K, S> {
    client: &'a Client<F>,
    keys: &'a [K],
    batch: &'a mut Batch,
    entry_len: usize,
    found: &'a mut S,
    /// Bytes of the longest entry among those that were found.
    longest: usize,
}

impl<F: Fabric, K: AsRef<[u8]>, S: FnMut(usize, Option<Found<'_>>)> Chase for Gets<'_, F, K, S> {
    #[inline(always)]
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        let map = &*self.client.map;
        let hash = KeyHash::of(map, self.keys[number].as_ref());
        self.batch.hashes[number] = hash;
        self.batch.ways[number] = 0;
        hash.first_bucket(map)
    }

    #[inline(always)]
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        self.client.step(self.batch, number, bucket, self.entry_len)
    }

    #[inline(always)]
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        let (word, wanted) = (self.batch.words[number], self.keys[number].as_ref());
        let header = self.client.sound_in_batch(word, wanted, entry, again);
        let Some(header) = header.filter(|header| header.entry_len() <= entry.len()) else {
            self.batch.rest.push(number as u8);
            return;
        };
        let value = &entry[header.value_at()..header.entry_len()];
        self.longest = self.longest.max(header.entry_len());
        // Linearization point of a hit (protocol G2): the READ of the bucket.
        (self.found)(number, Some(Found { version: header.version, value, expires_at_ms: None }));
    }
}
