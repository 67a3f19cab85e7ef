//! PUTs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, RemoteAddr, Step, lanes};

use super::longest;
use crate::error::EngineError;
use crate::limits::{BATCH_ENTRY_BYTES_MAX, BATCH_PUTS};
use crate::nessie::client::Client;
use crate::nessie::client::batch::{Batch, Look, Old};
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::layout::slab::Class;
use crate::nessie::ops::draft::{Draft, DraftValue, Rule};
use crate::nessie::ops::read::Want;
use crate::operation::PutOptions;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// PUTs many pairs. `stored` is called once for each pair that was stored, with its index and
    /// the value's version, in any order. Of two pairs with the same key either may win.
    ///
    /// # Errors
    /// As [`Client::put`]. After an error no further PUTs are begun; others may have been done.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if !self.one_by_one {
            // The entries of a batch are validated by their generations alone.
            for (number, (key, value)) in pairs.iter().enumerate() {
                let options = PutOptions::default();
                stored(number, self.put(key.as_ref(), value.as_ref(), options).await?);
            }
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_default();
        let mut done = Ok(());
        for (begin, pairs) in (0..).step_by(BATCH_PUTS).zip(pairs.chunks(BATCH_PUTS)) {
            let stored = |pair, version| stored(begin + pair, version);
            done = self.put_batch(&mut batch, pairs, stored).await;
            if done.is_err() {
                break;
            }
        }
        self.batch.set(Some(batch));
        done
    }

    async fn put_batch<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let key_len = longest(pairs.iter().map(|pair| pair.0.as_ref()))?;
        batch.versions.clear();
        for (_, value) in pairs {
            self.check_value(value.as_ref().len())?;
            let version = match self.stamp_at_hand() {
                Some(version) => version,
                None => self.stamp().await?,
            };
            batch.versions.push(version);
        }
        let entry_len = self.first_read_len(key_len, Want::Key);
        let slots = self.map.shape.geometry.bucket_slots as usize;
        batch.old.clear();
        batch.rest.clear();
        let epoch = self.session.pin(&self.fabric)?;
        self.write_entries(batch, pairs)?;
        let count = batch.owned.len();
        let mut entry = std::mem::take(&mut batch.entry);
        let mut puts = Puts { client: self, pairs, batch, entry_len };
        let chased = self.fabric.chase(count, slots, entry_len, &mut entry, &mut puts).await;
        batch.entry = entry;
        chased?;
        self.replace_entries(batch, pairs, &mut stored).await?;
        let epoch = Some(epoch).filter(|_| !planted::is(Bug::BatchRestUnpinned));
        self.install_rest(batch, pairs, &mut stored).await?;
        drop(epoch);
        self.put_others(count, &pairs[count..], &mut stored).await
    }

    /// Takes an entry for each pair, and writes it, up to the first for which there is none, or
    /// that is long.
    fn write_entries<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
    ) -> Result<(), EngineError> {
        let Batch { looks, owned, versions, entry, .. } = batch;
        owned.clear();
        let mut alloc = self.alloc.borrow_mut();
        let mut class: Option<(usize, Class)> = None;
        for (number, (pair, version)) in pairs.iter().zip(versions).enumerate() {
            let hash = KeyHash::of(&self.map, pair.0.as_ref());
            looks[number] = Look::begin(&self.map, hash);
            let draft = draft(pair, hash, *version);
            let entry_len = draft.entry_len();
            if entry_len > BATCH_ENTRY_BYTES_MAX {
                break;
            }
            let class = match class {
                Some((len, class)) if len == entry_len => class,
                _ => class.insert((entry_len, self.map.classes.of(entry_len))).1,
            };
            let Some(own) = alloc.take(self.owner(), class)? else { break };
            self.write_at_once(&draft, own, entry)?;
            owned.push(own);
        }
        Ok(())
    }

    /// Replaces the old entries by the new ones, and leaves the keys that others changed to the
    /// general path.
    async fn replace_entries<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let Batch { looks, old, rest, owned, versions, .. } = batch;
        for Old { key, entry_len, generation } in old.drain(..) {
            let number = usize::from(key);
            let (Look { hash, slot, word, .. }, own) = (looks[number], &owned[number]);
            let new = self.visible(hash.filter(&self.map), *own);
            // Linearization point of an update (protocol P4).
            if self.fabric.compare_swap(slot, word.0, new.0).await? != word.0 {
                rest.push(key);
                continue;
            }
            let new_len = draft(&pairs[number], hash, 0).entry_len();
            let class = self.class_beside(own.class, new_len, entry_len as usize);
            self.unlinked_in(class, word, generation)?;
            stored(number, versions[number]);
        }
        Ok(())
    }

    /// Installs the values of the other keys by the general path. The caller holds the epoch in
    /// which their entries were taken until all of them are installed: it is what keeps them from
    /// being taken for leaked ones, and an epoch that begins now may be a newer one.
    async fn install_rest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &Batch,
        pairs: &[(K, V)],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if batch.rest.is_empty() {
            return Ok(());
        }
        let mut begun = Vec::with_capacity(batch.rest.len());
        for key in &batch.rest {
            let number = usize::from(*key);
            let (version, own) = (batch.versions[number], batch.owned[number]);
            let draft = draft(&pairs[number], batch.looks[number].hash, version);
            let epoch = self.session.pin(&self.fabric)?;
            begun.push(async move {
                let installed = self.install(&draft, own, epoch, Rule::Always).await;
                installed.map(|_| (number, version))
            });
        }
        self.all_of(begun, stored).await
    }

    /// PUTs pairs that have no entry, one by one. The first is the pair number `first`.
    async fn put_others<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        first: usize,
        pairs: &[(K, V)],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if pairs.is_empty() {
            return Ok(());
        }
        let puts = (first..).zip(pairs).map(|(number, (key, value))| async move {
            let put = self.put(key.as_ref(), value.as_ref(), PutOptions::default());
            put.await.map(|version| (number, version))
        });
        self.all_of(puts.collect(), stored).await
    }

    /// Does operations of the general path side by side, so that none waits for another's epoch.
    async fn all_of<O: Future<Output = Result<(usize, u64), EngineError>>>(
        &self,
        operations: Vec<O>,
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let mut result = Ok(());
        let done = |done: Result<(usize, u64), EngineError>| match done {
            Ok((pair, version)) => stored(pair, version),
            Err(error) if result.is_ok() => result = Err(error),
            Err(_) => (),
        };
        lanes::run(BATCH_PUTS, operations, done).await;
        result
    }
}

/// The draft of a pair's entry.
#[inline(always)]
fn draft<'a, K: AsRef<[u8]>, V: AsRef<[u8]>>(
    (key, value): &'a (K, V),
    hash: KeyHash,
    version: u64,
) -> Draft<'a> {
    let value = DraftValue::Bytes(value.as_ref());
    Draft { hash, key: key.as_ref(), value, flags: flags::BLIND, expires_at_ms: 0, version }
}

/// PUTs of a batch, from the keys to their old entries.
struct Puts<'a, F: Fabric, P> {
    client: &'a Client<F>,
    pairs: &'a [P],
    batch: &'a mut Batch,
    entry_len: usize,
}

impl<F: Fabric, K: AsRef<[u8]>, V> Chase for Puts<'_, F, (K, V)> {
    #[inline(always)]
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        self.batch.looks[number].slot
    }

    #[inline(always)]
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        let step = self.client.step(self.batch, number, bucket, self.entry_len);
        if let Step::Entry(_) = step {
            let class = &self.batch.owned[number].class;
            self.client.will_retire(self.batch.looks[number].word, class);
        }
        step
    }

    #[inline(always)]
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        self.client.keep_old(self.batch, number, self.pairs[number].0.as_ref(), entry, again);
    }
}
