//! PUT (nessie §4.2.2, repaired): write the entry, pending; put it into a slot by CAS; make sure
//! that no other operation is in its way; commit it by CAS on its status.
//!
//! An update replaces the word in the slot that shows the value. Only another writer of the same
//! slot can be in its way, and a writer decides an entry before it replaces it. An insert may
//! choose any free slot: see `insert.rs`. Until the commit the value is unchanged, because the new
//! entry names the entry that it replaced; the replaced entry is therefore retired only after the
//! commit.
//!
//! An entry whose word was in the index is never used for another attempt: the client that aborted
//! it may have cleared its slot, and the word must not come back.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::draft::Attempt;
use super::entry::{Dte, Meaning, Previous, Status};
use super::read::Survey;
use super::settle::Settled;
use crate::effect::counter;
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::limits::MOVE_DEPTH_MAX;
use crate::nessie::client::Attempts;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::look::Words;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::ops::draft::{Draft, DraftValue, Installed, Rule};
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
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
        let draft = self.draft(key, DraftValue::Bytes(value), options).await?;
        self.install(&draft, Rule::Always).await?;
        Ok(draft.version)
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
                Ok(Attempt::Done(installed)) => return epoch.ends_with(Ok(installed)),
                Ok(Attempt::Again) => held = Some((own, epoch)),
                Ok(Attempt::Spent) => epoch.ends_with(Ok(()))?,
                Ok(Attempt::Full(words)) => {
                    // Making room takes an entry of its own, and an epoch with it.
                    epoch.ends_with(self.base.release(own))?;
                    self.make_room(&candidates, &words, &mut rival).await?;
                }
                Ok(Attempt::Failed(error)) => return epoch.ends_with(Err(error)),
                Err(error) => {
                    // After a fabric error the entry's state is unknown to the client, but not to
                    // the scrubber.
                    if !error.is_of_the_fabric() {
                        self.base.release(own)?;
                    }
                    return epoch.ends_with(Err(error));
                }
            }
            if let Err(error) = attempts.again(&self.base).await {
                if let Some((own, epoch)) = held {
                    epoch.ends_with(self.base.release(own))?;
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
                // Linearization point of a condition that failed: the linearization point of a GET.
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
            // The replaced entry is aborted: only the slot needed it.
            self.retire_entry(word, dte)?;
        }
        if planted::is(Bug::RetiresPreviousEarly) {
            self.retire(prev)?;
        }
        // Linearization point of an update.
        if !self.decide(new, own.generation, Status::Committed).await? {
            // Another client lost patience. The entry stays and stands for its previous version,
            // until the next writer replaces and retires it.
            return Ok(Attempt::Spent);
        }
        self.retire(prev)?;
        self.installed(new, draft, own.generation, Some(prev));
        Ok(Attempt::Done(Installed::Yes(before)))
    }

    async fn read_number(&self, key: &[u8], shown: Previous) -> Result<Option<u64>, EngineError> {
        let (buf, read) = self.read_shown(shown, key, Want::Value, Buf::new()).await;
        let Some(Dte { header, .. }) = read? else { return Ok(None) };
        counter(&buf[header.value_at()..header.entry_len()]).map(Some)
    }
}
