//! PUT (nessie §4.2.2, repaired): write the entry, pending; put it into a slot by CAS; make sure
//! that nothing is in its way; commit it by CAS on its status.
//!
//! An update replaces the word in the slot that shows the value, so nothing can be in its way but
//! another writer of the same slot, and who replaces an entry has decided it before. An insert may
//! choose any free slot: see `insert.rs`. Until the commit the value is what it was, because the
//! entry names the one that it replaced; that one is therefore retired only after the commit.
//!
//! An entry whose word was in the index is never used again for another attempt: whoever aborted it
//! may have cleared its slot, and the word must not come back.

use loch_fabric::{Buf, Fabric};
use zerocopy::IntoBytes;

use super::super::alloc::Own;
use super::super::client::Attempts;
use super::super::dte::{Header, flags};
use super::super::hash::Candidates;
use super::super::insert::Rival;
use super::super::ite::Ite;
use super::super::put::{Draft, DraftValue, Installed, Rule};
use super::super::read::{Want, Words};
use super::client::{Client, is_of_the_fabric};
use super::entry::{Dte, Extension, Meaning, Previous, Route, Status};
use super::read::Survey;
use super::settle::Settled;
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::limits::MOVE_DEPTH_MAX;
use crate::operation::PutOptions;
use crate::planted::{self, Bug};

/// How one attempt to install an entry ended.
pub(super) enum Attempt {
    /// For good. The entry is in the index, or was released.
    Done(Installed),
    /// A slot changed; the entry's word was never in the index.
    Again,
    /// The entry's word was in the index, and the entry was aborted: another one is needed.
    Spent,
    /// All candidates are taken; the entry's word was never in the index.
    Full(Box<Words>),
    /// As [`Attempt::Spent`], and the operation cannot go on.
    Failed(EngineError),
}

impl<F: Fabric> Client<F> {
    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// [`EngineError`]; after any but [`EngineError::Ambiguous`] the key's value is what it was.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<u64, EngineError> {
        let draft = self.draft(key, DraftValue::Bytes(value), options).await?;
        self.install(&draft, Rule::Always).await?;
        Ok(draft.version)
    }

    pub(super) async fn draft<'a>(
        &self,
        key: &'a [u8],
        value: DraftValue<'a>,
        options: PutOptions,
    ) -> Result<Draft<'a>, EngineError> {
        self.base.draft(key, value, flags::STATUS, options).await
    }

    /// Publishes a draft under a rule.
    pub(super) async fn install(
        &self,
        draft: &Draft<'_>,
        rule: Rule,
    ) -> Result<Installed, EngineError> {
        let candidates = Candidates::from_hash(&self.base.map, draft.hash);
        let (mut attempts, mut rival) = (Attempts::default(), Rival::default());
        let mut held: Option<(Own, Pin<'_, F>)> = None;
        loop {
            let (own, epoch) = match held.take() {
                Some(held) => held,
                None => self.base.allocate(draft.entry_len()).await?,
            };
            match self.attempt(&candidates, draft, own, rule, &mut rival).await {
                Ok(Attempt::Done(installed)) => return Ok(installed),
                Ok(Attempt::Again) => held = Some((own, epoch)),
                Ok(Attempt::Spent) => drop(epoch),
                Ok(Attempt::Full(words)) => {
                    // To make room takes an entry of its own, and an epoch with it.
                    self.base.release(own)?;
                    drop(epoch);
                    self.make_room(&candidates, &words, &mut rival).await?;
                }
                Ok(Attempt::Failed(error)) => return Err(error),
                Err(error) => {
                    // After a fabric error nothing is known of the entry; the scrubber knows.
                    if !is_of_the_fabric(&error) {
                        self.base.release(own)?;
                    }
                    return Err(error);
                }
            }
            if let Err(error) = attempts.again(&self.base).await {
                if let Some((own, _)) = held {
                    self.base.release(own)?;
                }
                return Err(error);
            }
        }
    }

    async fn make_room(
        &self,
        candidates: &Candidates,
        words: &Words,
        rival: &mut Rival,
    ) -> Result<(), EngineError> {
        if self.make_slot(candidates, words, rival).await? {
            return Ok(());
        }
        let slots = self.base.map.shape.geometry.index_slots();
        Err(EngineError::IndexFull { slots, moves: MOVE_DEPTH_MAX })
    }

    /// Writes an entry into owned memory, pending; its generation is there already.
    pub(super) fn write(
        &self,
        draft: &Draft<'_>,
        own: Own,
        prev: Option<Previous>,
        route: Option<Route>,
    ) -> Result<(), EngineError> {
        let number;
        let value = match &draft.value {
            DraftValue::Bytes(bytes) => *bytes,
            DraftValue::Number(n) => {
                number = n.get().to_le_bytes();
                &number
            }
            DraftValue::InPlace(_) => unreachable!("nothing is reserved in these tables"),
        };
        let mut header = draft.header(own.generation);
        let extension = Extension::pending(own.generation, prev, route);
        let expiry = draft.expires_at_ms.to_le_bytes();
        let expiry = if header.flags & flags::EXPIRES != 0 { &expiry[..] } else { &[] };
        if self.base.map.shape.options.checksums {
            let unchanging = &extension.as_bytes()[size_of_val(&extension.status)..];
            let summed = [unchanging, expiry, draft.key].concat();
            header.checksum = header.checksum_of(own.place, &summed, value);
        }
        let head = &header.as_bytes()[8..];
        let parts = [head, extension.as_bytes(), expiry, draft.key, value];
        Ok(self.base.fabric.store(own.at.add(8), &parts)?)
    }

    async fn attempt(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        rival: &mut Rival,
    ) -> Result<Attempt, EngineError> {
        let Some(survey) = self.survey(candidates, draft.key).await? else {
            return Ok(Attempt::Again);
        };
        match self.settle(candidates, &survey, rival).await? {
            Settled::Not => Ok(Attempt::Again),
            Settled::Present(slot) => {
                self.update(candidates, draft, own, rule, &survey, slot).await
            }
            Settled::Absent if matches!(rule, Rule::IfVersion(_)) => {
                if !self.is_absent(candidates, &survey).await? {
                    return Ok(Attempt::Again);
                }
                self.base.release(own)?;
                Ok(Attempt::Done(Installed::No(None)))
            }
            Settled::Absent => self.insert(candidates, draft, own, rule, &survey, rival).await,
        }
    }

    /// Replaces the value that a slot shows.
    async fn update(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        survey: &Survey,
        slot: usize,
    ) -> Result<Attempt, EngineError> {
        let Some((meaning, dte)) = survey.entry(slot) else { return Ok(Attempt::Again) };
        let word = survey.words[slot];
        let mut before = 0;
        if rule != Rule::Always {
            let Some(value) = self.shown(draft.key, survey, slot).await? else {
                return Ok(Attempt::Again);
            };
            if self.is_expired(&value) {
                self.unlink(candidates, survey, slot).await?;
                return Ok(Attempt::Again);
            }
            let refused = match rule {
                Rule::IfAbsent => true,
                Rule::IfVersion(version) => value.header.version != version,
                Rule::Always | Rule::Add(_) => false,
            };
            if refused {
                // Linearization point of a condition that failed: that of a GET.
                self.base.release(own)?;
                return Ok(Attempt::Done(Installed::No(Some(value.header.version))));
            }
            if let (Rule::Add(add), DraftValue::Number(number)) = (rule, &draft.value) {
                let Some(found) = self.read_number(draft.key, dte.shown(word)).await? else {
                    return Ok(Attempt::Again);
                };
                before = found;
                number.set(found.wrapping_add(add));
            }
        }
        if !self.cut_loose(candidates, word, meaning, dte).await? {
            return Ok(Attempt::Again);
        }
        let prev = dte.shown(word);
        self.write(draft, own, Some(prev), None)?;
        let new = self.word(candidates.filter, own.place, own.generation);
        if self.base.cas(candidates, slot, word, new).await?.is_err() {
            return Ok(Attempt::Again);
        }
        if meaning != Meaning::Present {
            // Aborted: nothing needs it but the slot.
            self.retire_entry(word, dte)?;
        }
        if planted::is(Bug::RetiresPreviousEarly) {
            self.retire(prev)?;
        }
        // Linearization point of an update.
        if !self.decide(new, own.generation, Status::Committed).await? {
            // Somebody lost patience. The entry stays and means its previous version, until the
            // next writer replaces and retires it.
            return Ok(Attempt::Spent);
        }
        self.retire(prev)?;
        self.installed(new, draft, own.generation, Some(prev));
        Ok(Attempt::Done(Installed::Yes(before)))
    }

    async fn read_number(&self, key: &[u8], shown: Previous) -> Result<Option<u64>, EngineError> {
        let (buf, read) = self.read_shown(shown, key, Want::Value, Buf::new()).await;
        let Some(Dte { header, .. }) = read? else { return Ok(None) };
        let value = &buf[header.value_at()..header.entry_len()];
        let bytes =
            value.try_into().map_err(|_| EngineError::NotACounter { len: value.len() as u64 })?;
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    /// Remembers what was just committed.
    pub(super) fn installed(
        &self,
        word: Ite,
        draft: &Draft<'_>,
        generation: u64,
        prev: Option<Previous>,
    ) {
        if self.base.cache.is_none() {
            return;
        }
        let header: Header = draft.header(generation);
        let mut extension = Extension::pending(generation, prev, None);
        extension.status = Status::Committed.word(generation);
        let expiry = draft.expires_at_ms.to_le_bytes();
        let expiry = if header.flags & flags::EXPIRES != 0 { &expiry[..] } else { &[] };
        let value = if let DraftValue::Bytes(value) = draft.value { value } else { &[] };
        let entry = [header.as_bytes(), extension.as_bytes(), expiry, draft.key, value].concat();
        self.keep(word, &entry);
    }
}
