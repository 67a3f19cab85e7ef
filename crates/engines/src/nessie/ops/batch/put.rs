//! PUTs of many keys.

use loch_fabric::{Fabric, lanes};

use crate::error::EngineError;
use crate::limits::{BATCH_ENTRY_BYTES_MAX, BATCH_KEYS};
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::{Batch, Named};
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::ite::State;
use crate::nessie::ops::draft::{Draft, DraftValue, Rule};
use crate::nessie::ops::read::Want;
use crate::operation::PutOptions;
use crate::planted::{self, Bug};

/// A PUT of a batch: its draft, and the entry into which it is written.
type Drafted<'a> = (Draft<'a>, Own);

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
        for (begin, pairs) in (0..).step_by(BATCH_KEYS).zip(pairs.chunks(BATCH_KEYS)) {
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
        let key_len = self.begin_batch(batch, pairs.iter().map(|pair| pair.0.as_ref()))?;
        let mut drafts = Vec::with_capacity(pairs.len());
        for (hash, (key, value)) in batch.hashes.iter().zip(pairs) {
            self.check_value(value.as_ref().len())?;
            drafts.push(Draft {
                hash: *hash,
                key: key.as_ref(),
                value: DraftValue::Bytes(value.as_ref()),
                flags: flags::BLIND,
                expires_at_ms: 0,
                version: self.stamp().await?,
            });
        }
        let epoch = self.session.pin(&self.fabric)?;
        let (drafted, others) = self.own_entries(drafts)?;
        batch.pending.truncate(drafted.len());
        batch.at.truncate(drafted.len());
        let slots = self.map.shape.geometry.bucket_slots as usize;
        let ways = self.map.shape.geometry.ways as usize;
        let head_len = self.first_read_len(key_len, Want::Key);
        for way in 1..=ways {
            // Stage 1: the next bucket of each pending key. The entries are written meanwhile.
            let buckets = self.fabric.read_buckets(&batch.at, slots, &mut batch.buckets);
            if way == 1 {
                for (draft, own) in &drafted {
                    self.write(draft, *own).await?;
                }
            }
            buckets.await?;
            // Stage 2: the entries that the first matches name.
            self.name_entries(batch, way, head_len);
            for Named { key, word, .. } in &batch.named {
                self.will_retire(*word, drafted[usize::from(*key)].1.class);
            }
            self.read_named(batch).await?;
            // Stage 3: those that are their keys' are replaced.
            self.replace_entries(batch, &drafted, &mut stored).await?;
            if batch.pending.is_empty() {
                break;
            }
        }
        batch.rest.append(&mut batch.pending);
        let epoch = Some(epoch).filter(|_| !planted::is(Bug::BatchRestUnpinned));
        self.install_rest(&batch.rest, &drafted, &mut stored).await?;
        drop(epoch);
        self.put_others(drafted.len(), others, &mut stored).await
    }

    /// Takes an entry for each draft, as long as there are some. Returns the other drafts apart:
    /// those from the first on for which there is no entry, or that are long.
    fn own_entries<'a>(
        &self,
        drafts: Vec<Draft<'a>>,
    ) -> Result<(Vec<Drafted<'a>>, Vec<Draft<'a>>), EngineError> {
        let mut drafts = drafts.into_iter();
        let mut drafted = Vec::with_capacity(drafts.len());
        let mut alloc = self.alloc.borrow_mut();
        while let Some(draft) = drafts.next() {
            let entry_len = draft.entry_len();
            let own = match entry_len <= BATCH_ENTRY_BYTES_MAX {
                true => alloc.take(self.owner(), self.map.classes.of(entry_len))?,
                false => None,
            };
            match own {
                Some(own) => drafted.push((draft, own)),
                None => return Ok((drafted, std::iter::once(draft).chain(drafts).collect())),
            }
        }
        Ok((drafted, Vec::new()))
    }

    /// Replaces the entries that are their keys' by the drafts, and leaves the other keys to the
    /// general path.
    async fn replace_entries(
        &self,
        batch: &mut Batch,
        drafted: &[Drafted<'_>],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let Batch { named, reads, entries, rest, .. } = batch;
        let mut entries = &entries[..];
        for (Named { key, slot, word }, (at, len)) in named.iter().zip(&*reads) {
            let (entry, others) = entries.split_at(*len);
            entries = others;
            let (draft, own) = &drafted[usize::from(*key)];
            let header = self.sound_key(*word, *at, draft.key, entry)?;
            let visible = matches!(self.map.codec.state(*word), State::Visible { .. });
            let Some(header) = header.filter(|_| visible) else {
                rest.push(*key);
                continue;
            };
            let (state, filter) = (State::Visible { hop: 0 }, draft.hash.filter(&self.map));
            let new = self.map.codec.entry(state, filter, own.place, own.generation);
            // Linearization point of an update (protocol P4).
            if self.fabric.compare_swap(*slot, word.0, new.0).await? != word.0 {
                rest.push(*key);
                continue;
            }
            self.unlinked(*word, &header)?;
            stored(usize::from(*key), draft.version);
        }
        Ok(())
    }

    /// Installs the drafts of the other keys by the general path. The caller holds the epoch in
    /// which their entries were taken until all of them are installed: it is what keeps them from
    /// being taken for leaked ones, and an epoch that begins now may be a newer one.
    async fn install_rest(
        &self,
        rest: &[u8],
        drafted: &[Drafted<'_>],
        stored: &mut impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        if rest.is_empty() {
            return Ok(());
        }
        let mut begun = Vec::with_capacity(rest.len());
        for key in rest {
            let key = usize::from(*key);
            let (draft, own) = &drafted[key];
            let epoch = self.session.pin(&self.fabric)?;
            begun.push(async move {
                let installed = self.install(draft, *own, epoch, Rule::Always).await;
                installed.map(|_| (key, draft.version))
            });
        }
        self.all_of(begun, stored).await
    }

    /// PUTs drafts that have no entry, one by one. The first is the pair number `first`.
    async fn put_others(
        &self,
        first: usize,
        drafts: Vec<Draft<'_>>,
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
        lanes::run(BATCH_KEYS, operations, done).await;
        result
    }
}
