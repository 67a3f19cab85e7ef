//! PUTs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, RemoteAddr, Step, lanes};

use super::longest;
use crate::error::EngineError;
use crate::limits::{BATCH_ENTRY_BYTES_MAX, BATCH_PUTS};
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::Batch;
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::layout::ite::State;
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
        let mut drafts = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            self.check_value(value.as_ref().len())?;
            let version = match self.stamp_at_hand() {
                Some(version) => version,
                None => self.stamp().await?,
            };
            drafts.push(Draft {
                hash: KeyHash::of(&self.map, key.as_ref()),
                key: key.as_ref(),
                value: DraftValue::Bytes(value.as_ref()),
                flags: flags::BLIND,
                expires_at_ms: 0,
                version,
            });
        }
        let entry_len = self.first_read_len(key_len, Want::Key);
        let slots = self.map.shape.geometry.bucket_slots as usize;
        batch.old.clear();
        batch.rest.clear();
        let mut entry = std::mem::take(&mut batch.entry);
        let epoch = self.session.pin(&self.fabric)?;
        let owned = self.own_entries(&drafts)?;
        let (drafts, others) = drafts.split_at(owned.len());
        let drafted = Drafted { drafts, owned: &owned };
        for (draft, own) in drafts.iter().zip(&owned) {
            if !self.write_at_once(draft, *own, &mut entry)? {
                self.write(draft, *own).await?;
            }
        }
        let mut puts = Puts { client: self, drafted, batch, entry_len };
        let chased = self.fabric.chase(owned.len(), slots, entry_len, &mut entry, &mut puts).await;
        batch.entry = entry;
        chased?;
        self.replace_entries(batch, drafted, &mut stored).await?;
        let epoch = Some(epoch).filter(|_| !planted::is(Bug::BatchRestUnpinned));
        self.install_rest(&batch.rest, drafted, &mut stored).await?;
        drop(epoch);
        self.put_others(owned.len(), others, &mut stored).await
    }

    /// Takes an entry for each draft, up to the first for which there is none, or that is long.
    fn own_entries(&self, drafts: &[Draft<'_>]) -> Result<Vec<Own>, EngineError> {
        let mut owned = Vec::with_capacity(drafts.len());
        let mut alloc = self.alloc.borrow_mut();
        let (mut class_len, mut class) = (0, None);
        for entry_len in drafts.iter().map(Draft::entry_len) {
            if entry_len > BATCH_ENTRY_BYTES_MAX {
                break;
            }
            if class_len != entry_len {
                (class_len, class) = (entry_len, Some(self.map.classes.of(entry_len)));
            }
            let Some(class) = class else { break };
            let Some(own) = alloc.take(self.owner(), class)? else { break };
            owned.push(own);
        }
        Ok(owned)
    }

    /// Replaces the old entries by the drafts, and leaves the keys that others changed to the
    /// general path.
    async fn replace_entries(
        &self,
        batch: &mut Batch,
        drafted: Drafted<'_>,
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let Batch { words, slots, old, rest, .. } = batch;
        for (key, header) in old.drain(..) {
            let number = usize::from(key);
            let (draft, own) = drafted.of(key);
            let (word, slot) = (words[number], slots[number]);
            let (state, filter) = (State::Visible { hop: 0 }, draft.hash.filter(&self.map));
            let new = self.map.codec.entry(state, filter, own.place, own.generation);
            // Linearization point of an update (protocol P4).
            if self.fabric.compare_swap(slot, word.0, new.0).await? != word.0 {
                rest.push(key);
                continue;
            }
            let class = match header.entry_len() == draft.entry_len() {
                true => own.class,
                false => self.map.classes.of(header.entry_len()),
            };
            self.unlinked_in(class, word, &header)?;
            stored(number, draft.version);
        }
        Ok(())
    }

    /// Installs the drafts of the other keys by the general path. The caller holds the epoch in
    /// which their entries were taken until all of them are installed: it is what keeps them from
    /// being taken for leaked ones, and an epoch that begins now may be a newer one.
    async fn install_rest(
        &self,
        rest: &[u8],
        drafted: Drafted<'_>,
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if rest.is_empty() {
            return Ok(());
        }
        let mut begun = Vec::with_capacity(rest.len());
        for key in rest {
            let (draft, own) = drafted.of(*key);
            let epoch = self.session.pin(&self.fabric)?;
            begun.push(async move {
                let installed = self.install(draft, *own, epoch, Rule::Always).await;
                installed.map(|_| (usize::from(*key), draft.version))
            });
        }
        self.all_of(begun, stored).await
    }

    /// PUTs drafts that have no entry, one by one. The first is the pair number `first`.
    async fn put_others(
        &self,
        first: usize,
        drafts: &[Draft<'_>],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if drafts.is_empty() {
            return Ok(());
        }
        let puts = (first..).zip(drafts).map(|(pair, draft)| async move {
            let DraftValue::Bytes(value) = draft.value else { unreachable!("a PUT has a value") };
            self.put(draft.key, value, PutOptions::default()).await.map(|version| (pair, version))
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

/// The drafts of a batch, and the entries into which they are written.
#[derive(Clone, Copy)]
struct Drafted<'a> {
    drafts: &'a [Draft<'a>],
    owned: &'a [Own],
}

impl<'a> Drafted<'a> {
    #[inline(always)]
    fn of(self, key: u8) -> (&'a Draft<'a>, &'a Own) {
        (&self.drafts[usize::from(key)], &self.owned[usize::from(key)])
    }
}

/// PUTs of a batch, from the keys to their old entries.
struct Puts<'a, F: Fabric> {
    client: &'a Client<F>,
    drafted: Drafted<'a>,
    batch: &'a mut Batch,
    entry_len: usize,
}

impl<F: Fabric> Chase for Puts<'_, F> {
    #[inline(always)]
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        self.batch.begin_at(&self.client.map, number, self.drafted.drafts[number].hash)
    }

    #[inline(always)]
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        let step = self.client.step(self.batch, number, bucket, self.entry_len);
        if let Step::Entry(_) = step {
            let class = self.drafted.owned[number].class;
            self.client.will_retire(self.batch.words[number], class);
        }
        step
    }

    #[inline(always)]
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        let wanted = self.drafted.drafts[number].key;
        self.client.keep_old(self.batch, number, wanted, entry, again);
    }
}
