//! GETs of many keys.

use loch_fabric::{Buf, Fabric};
use zerocopy::FromBytes;

use crate::error::EngineError;
use crate::limits::{BATCH_KEYS, GRAIN_BYTES};
use crate::nessie::client::Client;
use crate::nessie::client::batch::Batch;
use crate::nessie::layout::dte::{HEADER_BYTES, Header, flags};
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
        let key_len = self.begin_batch(batch, keys.iter().map(AsRef::as_ref))?;
        // A multiple of the grain, so that headers are aligned in the buffer.
        let entry_len = self.first_read_len(key_len, Want::Value);
        let entry_len = entry_len.next_multiple_of(GRAIN_BYTES as usize);
        let slots = self.map.shape.geometry.bucket_slots as usize;
        let ways = self.map.shape.geometry.ways as usize;
        // One epoch for all keys and stages: it keeps every word's entry from being reused as the
        // same incarnation.
        let mut epoch = Some(self.session.pin(&self.fabric)?);
        let mut longest = 0;
        for way in 1..=ways {
            // Stage 1: the next bucket of each pending key.
            self.fabric.read_buckets(&batch.at, slots, &mut batch.buckets).await?;
            if planted::is(Bug::BatchUnpinned) {
                epoch = None;
            }
            // Stage 2: the entries that the first matches name.
            self.name_entries(batch, way, entry_len);
            self.read_named(batch).await?;
            // Stage 3: those that are their keys'.
            longest = longest.max(self.take_values(batch, keys, &mut found)?);
            if batch.pending.is_empty() {
                break;
            }
        }
        if longest > 0 {
            self.hint_read_of(longest);
        }
        batch.rest.append(&mut batch.pending);
        for key in &batch.rest {
            let key = usize::from(*key);
            let hash = batch.hashes[key];
            if planted::is(Bug::BatchForgetsRest) {
                found(key, None);
                continue;
            }
            let value = self.get_anyhow(hash, keys[key].as_ref(), Buf::new(), None).await?;
            found(key, value.as_ref().map(Found::from));
        }
        drop(epoch);
        Ok(())
    }

    /// Hands over the values of entries that are their keys', and leaves the other keys to the
    /// general path. Returns the length of the longest entry among them.
    #[inline(never)]
    fn take_values<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        found: &mut impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<usize, EngineError> {
        let Batch { named, reads, entries, rest, .. } = batch;
        let mut longest = 0;
        let mut entries = &entries[..];
        for (named, (at, len)) in named.iter().zip(&*reads) {
            let (entry, others) = entries.split_at(*len);
            entries = others;
            let key = usize::from(named.key);
            let read = Header::ref_from_prefix(entry).ok();
            let is_plain = |(header, _): &(&Header, _)| {
                header.flags & flags::EXPIRES == 0 && header.entry_len() <= *len
            };
            let Some((header, _)) = read.filter(is_plain) else {
                rest.push(named.key);
                continue;
            };
            let value_at = header.value_at();
            let is_current = self.is_named(named.word, header)
                && entry[HEADER_BYTES..value_at] == *keys[key].as_ref()
                && (self.is_unchanged(*at, header)? || planted::is(Bug::BatchBelievesTorn));
            if !is_current {
                rest.push(named.key);
                continue;
            }
            let value = &entry[value_at..header.entry_len()];
            longest = longest.max(header.entry_len());
            // Linearization point of a hit (protocol G2): the READ of the bucket.
            found(key, Some(Found { version: header.version, value, expires_at_ms: None }));
        }
        Ok(longest)
    }
}
