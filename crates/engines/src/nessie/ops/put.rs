//! PUT (nessie §4.2.2, repaired): write the entry, then publish it with one CAS.
//!
//! The entry is written into the client's own memory first, so a PUT that meets no other writer is
//! one CAS on a slot. If the key has a value the CAS replaces it; if it has none, see `insert.rs`.
//!
//! **Absorbing.** An unconditional PUT that loses its CAS to another unconditional PUT of the same
//! key is done: it took effect just before the winner and was overwritten at once. That is sound
//! only between unconditional PUTs (flag BLIND), and only if this operation itself read the word
//! that the losing CAS expected. If the word had been remembered from before, the winner might have
//! come before this operation began.

use loch_fabric::{Buf, Fabric, FabricError};

use super::draft::{Attempt, Draft, DraftValue, Installed, Rule};
use super::read::{Lookup, Match, Seen, Want};
use super::tentative::Rival;
use crate::effect::counter;
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::limits::WAYS_MAX;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::look::Words;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::{Header, flags, next_generation};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::operation::{PutOptions, Version};
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// [`EngineError`]; after every error but [`EngineError::Ambiguous`] the key's value is
    /// unchanged.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<Version, EngineError> {
        let mut draft = self.unstamped(key, DraftValue::Bytes(value), flags::BLIND, options)?;
        draft.version = Version::from_u64(self.stamp().await?);
        let (own, mut epoch) = self.allocate(draft.entry_len()).await?;
        if !self.one_by_one || self.cache.is_some() {
            self.write(&draft, own).await?;
        } else if self.update_in_place(&draft, own).await? {
            epoch.paid();
            return Ok(draft.version);
        }
        self.install(&draft, own, epoch, Rule::Always).await?;
        Ok(draft.version)
    }

    /// The usual case, without detours: looks at one bucket after the other until one shows the
    /// key's value, as long as no other client changes it. Writes the entry in any case. Returns
    /// whether it was installed.
    async fn update_in_place(&self, draft: &Draft<'_>, own: Own) -> Result<bool, EngineError> {
        let geometry = &self.map.shape.geometry;
        let (ways, slots) = (geometry.ways as usize, geometry.bucket_slots as usize);
        let filter = draft.hash.filter(&self.map);
        let mut buckets = [draft.hash.first_bucket(&self.map); WAYS_MAX];
        let first = self.fabric.read_bucket(buckets[0], slots);
        // The entry is written while the bucket is on its way.
        self.write(draft, own).await?;
        let mut bucket = first.await?;
        let mut way = 0;
        let (slot, word) = loop {
            if let Some((position, word)) = self.first_match(&bucket[..slots], filter) {
                break (buckets[way].add(position as u64 * 8), word);
            }
            way += 1;
            if way == ways {
                return Ok(false);
            }
            buckets[way] = draft.hash.bucket(&self.map, &buckets[..way]);
            bucket = self.fabric.read_bucket(buckets[way], slots).await?;
        };
        let Some((at, room)) = self.entry_at(word) else { return Ok(false) };
        self.will_retire(word, &own.class);
        let first = self.first_read_len(draft.key.len(), Want::Key).min(room);
        let (buf, done) = self.fabric.read(at, first, self.spare.take()).await;
        done?;
        let header = self.sound_key(word, at, draft.key, &buf)?;
        self.spare.give_back(buf);
        let visible = self.map.codec.is_unmoved(word);
        let Some(header) = header.filter(|_| visible) else { return Ok(false) };
        let new = self.visible(filter, &own);
        // Linearization point of an update (protocol P4).
        if self.fabric.compare_swap(slot, word.0, new.0).await? != word.0 {
            return Ok(false);
        }
        let old_len = header.entry_len();
        self.unlinked_beside((&own, draft.entry_len()), word, (old_len, header.generation))?;
        Ok(true)
    }

    /// Publishes a draft, written into an owned entry, under a rule. Takes the entry in every case:
    /// it ends up in the index or is released. If nobody knows which, it is left to the scrubber.
    pub(super) async fn install<'a>(
        &'a self,
        draft: &Draft<'_>,
        mut own: Own,
        mut epoch: Pin<'a, F>,
        rule: Rule,
    ) -> Result<Installed, EngineError> {
        let candidates = Candidates::from_hash(&self.map, draft.hash);
        match self.install_cached(&candidates, draft, own, rule).await {
            Ok(None) => (),
            Ok(Some(installed)) => {
                epoch.paid();
                return Ok(installed);
            }
            Err(error) => return Err(self.not_installed(error, own, epoch)),
        }
        let mut attempts = Attempts::default();
        let mut rival = Rival::default();
        loop {
            match self.attempt(&candidates, draft, own, rule, &mut rival).await {
                Ok(Attempt::Done(installed)) => {
                    epoch.paid();
                    return Ok(installed);
                }
                Ok(Attempt::Again) => (),
                Ok(Attempt::Renew) => (own, epoch) = self.renew(draft, own, epoch).await?,
                Ok(Attempt::Failed(error)) => return Err(error),
                Err(error) => return Err(self.not_installed(error, own, epoch)),
            }
            if let Err(error) = attempts.again(self).await {
                return Err(self.not_installed(error, own, epoch));
            }
        }
    }

    /// Gives back the entry of an operation that failed, unless a word of the index may name the
    /// entry. Returns the operation's error.
    #[cold]
    fn not_installed(&self, error: EngineError, own: Own, mut epoch: Pin<'_, F>) -> EngineError {
        let is_certain = match &error {
            EngineError::Ambiguous(_) => false,
            // Nothing was sent, or nothing but READs.
            EngineError::Fabric(error) => {
                matches!(error, FabricError::Unreachable { .. } | FabricError::Unattached { .. })
            }
            _ => true,
        };
        if is_certain {
            match self.release(own) {
                Ok(()) => epoch.paid(),
                Err(error) => return error,
            }
        }
        error
    }

    /// An update by a remembered word: one round trip. Only the CAS shows whether the word is still
    /// current, and a failure does not show when it changed: no PUT is absorbed.
    async fn install_cached(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
    ) -> Result<Option<Installed>, EngineError> {
        let Some(line) = self.cached(candidates, draft.key) else {
            return Ok(None);
        };
        let header = line.header;
        let allowed = match rule {
            Rule::Always => true,
            Rule::IfVersion(version) => {
                header.version == version && header.flags & flags::EXPIRES == 0
            }
            Rule::IfAbsent | Rule::Add(_) => false,
        };
        let visible = self.map.codec.is_unmoved(line.word);
        if !allowed || !visible {
            return Ok(None);
        }
        let new = self.visible(candidates.filter, &own);
        match self.cas(candidates, line.slot, line.word, new).await? {
            // Linearization point of a warm update (protocol P2).
            Ok(()) => {
                self.unlinked(line.word, &header)?;
                self.installed(candidates, line.slot, new, draft, &own);
                Ok(Some(Installed::Yes(0)))
            }
            Err(now) => {
                self.forget(candidates);
                if planted::is(Bug::AbsorbSpeculative)
                    && rule == Rule::Always
                    && self.absorbs(candidates, draft.key, line.word, now).await?
                {
                    self.release(own)?;
                    return Ok(Some(Installed::Yes(0)));
                }
                Ok(None)
            }
        }
    }

    async fn attempt(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        rival: &mut Rival,
    ) -> Result<Attempt, EngineError> {
        let (words, marks) = self.collect_marked(candidates).await?;
        match self.find(candidates, &words, draft.key).await? {
            Lookup::Changed => Ok(Attempt::Again),
            Lookup::Absent => match rule {
                // The version is gone; a second look makes sure that the value did not just move.
                Rule::IfVersion(_) => self.confirm_absent(candidates, &words, own).await,
                _ => self.insert(candidates, (&words, &marks), draft, own, rule, rival).await,
            },
            Lookup::Found(found, entry) => {
                if !self.map.codec.is_unmoved(found.word) {
                    self.help(candidates, draft.key, found.slot, found.word).await?;
                    return Ok(Attempt::Again);
                }
                if rule != Rule::Always && self.is_expired(&found.header, &entry) {
                    let Match { slot, word, header } = found;
                    self.expire(candidates, draft.key, slot, word, &header).await?;
                    return Ok(Attempt::Again);
                }
                self.update(candidates, draft, own, rule, found).await
            }
        }
    }

    async fn confirm_absent(
        &self,
        candidates: &Candidates,
        words: &Words,
        own: Own,
    ) -> Result<Attempt, EngineError> {
        if self.collect(candidates).await? != *words {
            return Ok(Attempt::Again);
        }
        self.release(own)?;
        Ok(Attempt::Done(Installed::No(None)))
    }

    /// Replaces the value in a slot: `V(x) -> V(d)`.
    async fn update(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        found: Match,
    ) -> Result<Attempt, EngineError> {
        let mut before = 0;
        let refused = match rule {
            Rule::Always => false,
            Rule::IfAbsent => true,
            Rule::IfVersion(version) => found.header.version != version,
            Rule::Add(add) => match self.read_number(draft.key, found.word).await? {
                None => return Ok(Attempt::Again),
                Some(number) => {
                    before = number;
                    self.write_number(draft, own, number.wrapping_add(add)).await?;
                    false
                }
            },
        };
        if refused {
            // Linearization point of a condition that failed (protocol X): the READ of the slot.
            self.release(own)?;
            return Ok(Attempt::Done(Installed::No(Some(found.header.version))));
        }
        let new = self.visible(candidates.filter, &own);
        match self.cas(candidates, found.slot, found.word, new).await? {
            // Linearization point of an update (protocol P4).
            Ok(()) => {
                self.unlinked(found.word, &found.header)?;
                self.installed(candidates, found.slot, new, draft, &own);
                Ok(Attempt::Done(Installed::Yes(before)))
            }
            Err(now) => {
                if rule == Rule::Always
                    && self.absorbs(candidates, draft.key, found.word, now).await?
                {
                    // Linearization point (protocol P5): just before the CAS to which this one
                    // lost.
                    self.release(own)?;
                    return Ok(Attempt::Done(Installed::Yes(0)));
                }
                Ok(Attempt::Again)
            }
        }
    }

    /// Whether an unconditional PUT of the same key put `now`, which a slot holds instead of `was`,
    /// there.
    async fn absorbs(
        &self,
        candidates: &Candidates,
        key: &[u8],
        was: Ite,
        now: Ite,
    ) -> Result<bool, EngineError> {
        let codec = &self.map.codec;
        let rival = codec.is_visible(now)
            && codec.has_filter(now, candidates.filter)
            && !codec.same_entry(was, now);
        if !rival {
            return Ok(false);
        }
        let (_, seen) = self.read_entry(now, key, Want::Key, Buf::new()).await;
        let blind = |h: Header| h.flags & flags::BLIND != 0 || planted::is(Bug::AbsorbAnything);
        Ok(matches!(seen?, Seen::Match(header) if blind(header)))
    }

    async fn read_number(&self, key: &[u8], word: Ite) -> Result<Option<u64>, EngineError> {
        let (buf, seen) = self.read_entry(word, key, Want::Value, Buf::new()).await;
        let Seen::Match(header) = seen? else {
            return Ok(None);
        };
        counter(&buf[header.value_at()..header.entry_len()]).map(Some)
    }

    /// Gives an owned entry, whose tentative word was in the index, a new generation, so that the
    /// old word is never used again (rule U).
    pub(super) async fn renew<'a>(
        &'a self,
        draft: &Draft<'_>,
        own: Own,
        mut epoch: Pin<'a, F>,
    ) -> Result<(Own, Pin<'a, F>), EngineError> {
        let generation = next_generation(own.generation);
        let mask = self.map.codec.gen_mask();
        if generation & mask >= own.generation & mask {
            let own = Own { generation, ..own };
            self.fabric.store_before(own.at, generation)?;
            self.write(draft, own).await?;
            return Ok((own, epoch));
        }
        // The entry's short generation would start over: the entry rests, and the operation goes on
        // with another one. Our epoch is held meanwhile: it keeps the entry ours.
        let (fresh, fresh_epoch) = self.allocate(own.class.entry_bytes as usize).await?;
        if let DraftValue::InPlace(len) = draft.value {
            let at = draft.header(0).value_at() as u64;
            let (value, done) =
                self.fabric.read(own.at.add(at), len, Buf::with_capacity(len)).await;
            done?;
            self.fabric.store(fresh.at.add(at), &[&value])?;
        }
        self.write(draft, fresh).await?;
        self.release(own)?;
        epoch.paid();
        Ok((fresh, fresh_epoch))
    }
}
