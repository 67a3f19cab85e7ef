//! PUTs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, FabricError, RemoteAddr, Step, Swap};

use super::{add_error, longest};
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::limits::{BATCH_PUT_BYTES_MAX, BATCH_PUTS};
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::{Batch, Look, Old, Renewed, Written};
use crate::nessie::layout::dte::{Header, flags};
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::slab::Class;
use crate::nessie::ops::draft::{Draft, DraftValue, Rule};
use crate::nessie::ops::read::Want;
use crate::operation::{PutOptions, Version};
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// PUTs many pairs. `stored` is called once for each pair that was stored, with its index and
    /// the value's version, in any order. Of two pairs with the same key the later one wins.
    ///
    /// # Errors
    /// As [`Client::put`]. After an error no further PUTs are begun; others may have been done.
    /// [`EngineError::Ambiguous`] is told before any other error.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, Version),
    ) -> Result<(), EngineError> {
        if !self.has_stages() {
            for (number, (key, value)) in pairs.iter().enumerate() {
                let options = PutOptions::default();
                stored(number, self.put(key.as_ref(), value.as_ref(), options).await?);
            }
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_default();
        let (mut begin, mut result) = (0, Ok(()));
        while begin < pairs.len() && result.is_ok() {
            let end = pairs.len().min(begin + BATCH_PUTS);
            let stored = |pair, version| stored(begin + pair, version);
            match self.put_batch(&mut batch, &pairs[begin..end], stored).await {
                Ok(done) => begin += done,
                Err(error) => result = Err(error),
            }
        }
        self.batch.set(Some(batch));
        result
    }

    /// PUTs the first of some pairs, up to the one that has the same key as another before it.
    /// Returns how many these are.
    async fn put_batch<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, Version),
    ) -> Result<usize, EngineError> {
        let key_len = longest(pairs.iter().map(|pair| pair.0.as_ref()))?;
        let pairs = &pairs[..self.begin_looks(batch, pairs)];
        let is_long = |pair: &&(K, V)| entry_len_of(pair) > BATCH_PUT_BYTES_MAX;
        let long = pairs.iter().take_while(is_long).count();
        if long > 0 {
            self.put_others(0, &pairs[..long], &mut stored).await?;
            return Ok(long);
        }
        batch.written.clear();
        for (_, value) in pairs {
            self.check_value(value.as_ref().len())?;
            let version = match self.stamp_at_hand() {
                Some(stamp) => Version::from_u64(stamp),
                None => Version::from_u64(self.stamp().await?),
            };
            batch.written.push(Written { version, entry_len: 0 });
        }
        let entry_len = self.first_read_len(key_len, Want::Key);
        batch.old.clear();
        batch.rest.clear();
        let mut epoch = self.session.pin(&self.fabric)?;
        epoch.owe();
        let mut found = self.write_all_entries(batch, pairs).await;
        let count = batch.owned.len();
        if found.is_ok() {
            found = self.find_old(batch, &pairs[..count], entry_len).await;
        }
        if let Err(error) = found {
            // No word of the index names the entries.
            let error = self.released(batch.owned.drain(..), error);
            epoch.paid();
            return Err(error);
        }
        self.replace_entries(batch, pairs, &mut stored).await?;
        let mut epoch = Some(epoch).filter(|_| !planted::is(Bug::BatchRestUnpinned));
        let renewed = self.insert_rest(batch, &mut stored).await?;
        // Each entry that is left has an operation of its own, which owes it.
        epoch.iter_mut().for_each(Pin::paid);
        self.install_rest(batch, pairs, renewed, &mut stored).await?;
        drop(epoch);
        self.put_others(count, &pairs[count..], &mut stored).await?;
        Ok(pairs.len())
    }

    /// Begins to look for keys, up to the first that is among those before it. Returns how many
    /// these are.
    fn begin_looks<K: AsRef<[u8]>, V>(&self, batch: &mut Batch, pairs: &[(K, V)]) -> usize {
        // A bit for each name: most names differ in it.
        let mut seen = [0u64; 8];
        for (number, (key, _)) in pairs.iter().enumerate() {
            let hash = KeyHash::of(&self.map, key.as_ref());
            let name = hash.name();
            let (bits, bit) = (&mut seen[(name >> 6) as usize % 8], 1 << (name % 64));
            let is_known = |before: &Look| before.hash.name() == name;
            if *bits & bit != 0 && batch.looks[..number].iter().any(is_known) {
                return number;
            }
            *bits |= bit;
            batch.looks[number] = Look::begin(&self.map, hash);
        }
        pairs.len()
    }

    /// Finds the old entries of the pairs' keys.
    async fn find_old<K: AsRef<[u8]>, V>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
        entry_len: usize,
    ) -> Result<(), EngineError> {
        if !self.is_near {
            let key = |number: usize| pairs[number].0.as_ref();
            return Box::pin(self.find_far(batch, pairs.len(), key, false, entry_len)).await;
        }
        let words = self.map.shape.geometry.bucket_words();
        let mut entry = std::mem::take(&mut batch.entry);
        let mut puts = Puts { client: self, pairs, batch, entry_len };
        let chased = self.fabric.chase(pairs.len(), words, entry_len, &mut entry, &mut puts).await;
        batch.entry = entry;
        Ok(chased?)
    }

    /// Takes an entry for each pair, and writes it, up to the first that is long, or for which
    /// there is none and cannot be one at once.
    async fn write_all_entries<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
    ) -> Result<(), EngineError> {
        batch.owned.clear();
        let mut before = None;
        while let Some(class) = self.write_entries(batch, pairs)? {
            let count = batch.owned.len();
            // All that has become free may be pinned.
            let is_in_vain = before.replace(count) == Some(count);
            if is_in_vain {
                break;
            }
            let is_wanted = |pair: &&(K, V)| self.map.classes.of(entry_len_of(pair)) == class;
            let wanted = pairs[count..].iter().filter(is_wanted).count();
            if !Box::pin(self.make_room_for(class, wanted)).await? {
                break;
            }
        }
        Ok(())
    }

    /// Goes on writing entries, up to the first pair that is long. Returns the class of which there
    /// is no entry, if one is missing.
    fn write_entries<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
    ) -> Result<Option<Class>, EngineError> {
        let Batch { looks, owned, written, entry, .. } = batch;
        let mut alloc = self.alloc.borrow_mut();
        let mut class: Option<(usize, Class)> = None;
        for number in owned.len()..pairs.len() {
            let draft = draft(&pairs[number], looks[number].hash, written[number].version);
            let entry_len = draft.entry_len();
            if entry_len > BATCH_PUT_BYTES_MAX {
                break;
            }
            let class = match class {
                Some((len, class)) if len == entry_len => class,
                _ => class.insert((entry_len, self.map.classes.of(entry_len))).1,
            };
            let Some(own) = alloc.take(self.owner(), class)? else { return Ok(Some(class)) };
            self.write_at_once(&draft, &own, entry)?;
            written[number].entry_len = entry_len as u32;
            owned.push(own);
        }
        Ok(None)
    }

    /// Replaces the old entries by the new ones, and leaves the keys that others changed to the
    /// general path.
    async fn replace_entries<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        pairs: &[(K, V)],
        stored: &mut impl FnMut(usize, Version),
    ) -> Result<(), EngineError> {
        let mut result = Ok(());
        let mut seen = |batch: &mut Batch, old: Old, new, was| {
            let pair = &pairs[usize::from(old.key)];
            match self.swapped(batch, old, pair, new, was) {
                Ok(Some(version)) => stored(old.key.into(), version),
                Ok(None) => (),
                Err(error) => add_error(&mut result, error),
            }
        };
        if self.is_near {
            for number in 0..batch.old.len() {
                let old = batch.old[number];
                let Swap { at, expect, new } = self.swap(batch, old);
                let was = self.fabric.compare_swap(at, expect, new).await;
                seen(batch, old, new, was);
            }
        } else {
            let swaps: Vec<_> = batch.old.iter().map(|old| self.swap(batch, *old)).collect();
            let seen = |number: usize, was| seen(batch, batch.old[number], swaps[number].new, was);
            Box::pin(self.fabric.compare_swap_many(&swaps, seen)).await;
        }
        result.map_err(|error| {
            // The entries of the other keys are not named by any word.
            let Batch { rest, owned, .. } = batch;
            self.released(rest.drain(..).map(|key| owned[usize::from(key)]), error)
        })
    }

    /// Gives back the entries of a batch that ended with `error`. Returns its error.
    #[cold]
    pub(super) fn released(
        &self,
        own: impl Iterator<Item = Own>,
        error: EngineError,
    ) -> EngineError {
        let mut result = Err(error);
        let released = own.filter_map(|own| self.release(own).err());
        released.for_each(|error| add_error(&mut result, error));
        result.expect_err("it was one")
    }

    /// The CAS that replaces an old entry.
    #[inline(always)]
    fn swap(&self, batch: &Batch, old: Old) -> Swap {
        let Look { hash, slot, word, .. } = &batch.looks[usize::from(old.key)];
        let new = self.visible(hash.filter(&self.map), &batch.owned[usize::from(old.key)]);
        Swap { at: *slot, expect: word.0, new: new.0 }
    }

    /// Takes note of the outcome of the CAS that put `new` in the place of an old entry's word, or
    /// did not. Returns the version if the pair is stored.
    #[inline(always)]
    fn swapped<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        old: Old,
        pair: &(K, V),
        new: u64,
        was: Result<u64, FabricError>,
    ) -> Result<Option<Version>, EngineError> {
        let Batch { looks, rest, owned, written, .. } = batch;
        let number = usize::from(old.key);
        let (Look { hash, slot, word, .. }, own) = (&looks[number], &owned[number]);
        let Written { version, entry_len } = written[number];
        match was {
            // Linearization point of an update (protocol P4).
            Ok(was) if was == word.0 => {
                let old = (old.entry_len as usize, old.generation);
                self.unlinked_beside((own, entry_len as usize), *word, old)?;
                if self.cache.is_some() {
                    self.installed_far(*slot, Ite(new), &draft(pair, *hash, version), own);
                }
                return Ok(Some(version));
            }
            Ok(_) => rest.push(old.key),
            Err(_) => (),
        }
        if self.cache.is_some() {
            self.forget_far(*hash);
        }
        was.map(|_| None).map_err(|error| self.not_swapped(error, *own))
    }

    /// Gives the entry of a CAS that failed back, unless the CAS may have been executed, or may be
    /// later: then only the scrubber knows whether a word names the entry.
    #[cold]
    fn not_swapped(&self, error: FabricError, own: Own) -> EngineError {
        let is_unknown = matches!(error, FabricError::OutcomeUnknown { .. });
        if is_unknown && !planted::is(Bug::BatchUnknownFailed) {
            return error.into();
        }
        self.release(own).err().unwrap_or(error.into())
    }

    /// Installs the values of the other keys by the general path. The caller holds the epoch in
    /// which their entries were taken until all of them are installed: it is what keeps them from
    /// being taken for leaked ones, and an epoch that begins now may be a newer one.
    async fn install_rest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        batch: &Batch,
        pairs: &[(K, V)],
        renewed: Renewed,
        stored: &mut impl FnMut(usize, Version),
    ) -> Result<(), EngineError> {
        if batch.rest.is_empty() {
            return Ok(());
        }
        let mut begun = Vec::with_capacity(batch.rest.len());
        for key in &batch.rest {
            let number = usize::from(*key);
            let (version, own) = (batch.written[number].version, batch.owned[number]);
            let draft = draft(&pairs[number], batch.looks[number].hash, version);
            let mut epoch = self.session.pin(&self.fabric)?;
            epoch.owe();
            let is_renewed = renewed.contains(*key);
            begun.push(async move {
                let (own, epoch) = match is_renewed {
                    true => self.renew(&draft, own, epoch).await?,
                    false => (own, epoch),
                };
                let installed = self.install(&draft, own, epoch, Rule::Always).await;
                installed.map(|_| (number, version))
            });
        }
        self.all_of(begun, |(pair, version)| stored(pair, version)).await
    }

    /// PUTs pairs that have no entry, one by one. The first is the pair number `first`.
    async fn put_others<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        first: usize,
        pairs: &[(K, V)],
        stored: &mut impl FnMut(usize, Version),
    ) -> Result<(), EngineError> {
        if pairs.is_empty() {
            return Ok(());
        }
        let puts = (first..).zip(pairs).map(|(number, (key, value))| async move {
            let put = self.put(key.as_ref(), value.as_ref(), PutOptions::default());
            put.await.map(|version| (number, version))
        });
        self.all_of(puts.collect(), |(pair, version)| stored(pair, version)).await
    }
}

/// The draft of a pair's entry.
#[inline(always)]
fn draft<'a, K: AsRef<[u8]>, V: AsRef<[u8]>>(
    (key, value): &'a (K, V),
    hash: KeyHash,
    version: Version,
) -> Draft<'a> {
    let value = DraftValue::Bytes(value.as_ref());
    Draft { hash, key: key.as_ref(), value, flags: flags::BLIND, expires_at_ms: 0, version }
}

/// The length of a pair's entry.
#[inline(always)]
fn entry_len_of<K: AsRef<[u8]>, V: AsRef<[u8]>>((key, value): &(K, V)) -> usize {
    Header::new(0, Version::default(), key.as_ref().len(), value.as_ref().len(), flags::BLIND)
        .entry_len()
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
        self.client.keep_old::<false>(
            self.batch,
            number,
            self.pairs[number].0.as_ref(),
            entry,
            again,
        );
    }
}
