//! DELETE (nessie §4.2.4, repaired): one CAS, no tombstone; and the removal of expired values.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::entry::{Dte, Meaning};
use super::read::Survey;
use super::settle::Settled;
use crate::error::EngineError;
use crate::nessie::client::Attempts;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ledger::Forgotten;
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
use crate::operation::Version;

impl<F: Fabric> Client<F> {
    /// Deletes the value of `key`. Returns whether the key had a value.
    ///
    /// # Errors
    /// [`EngineError`]; after every error but [`EngineError::Ambiguous`] nothing was deleted.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.delete_value(key, None).await
    }

    /// Deletes the value of `key` if it has this version. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete_if(&self, key: &[u8], version: Version) -> Result<bool, EngineError> {
        self.delete_value(key, Some(version)).await
    }

    /// Deletes the value of `key`, or only one of this version.
    async fn delete_value(&self, key: &[u8], of: Option<Version>) -> Result<bool, EngineError> {
        let candidates = self.base.candidates(key)?;
        let _epoch = self.base.session.pin(&self.base.fabric)?;
        let (mut attempts, mut rival) = (Attempts::default(), Rival::default());
        loop {
            if let Some(survey) = self.survey(&candidates, key).await? {
                match self.settle(&candidates, &survey, &mut rival).await? {
                    Settled::Not => (),
                    Settled::Absent => {
                        // Linearization point: any moment between the two passes.
                        if self.is_absent(&candidates, &survey).await? {
                            return Ok(false);
                        }
                    }
                    Settled::Present(slot) => {
                        if let Some(value) = self.shown(key, &survey, slot).await? {
                            if of.is_some_and(|version| version != value.header.version) {
                                // Linearization point of a DELETE that found another version: as
                                // of a GET.
                                return Ok(false);
                            }
                            // Looked at before the CAS: after the CAS the value may have expired,
                            // although other clients still saw it.
                            let was_expired = self.is_expired(&value);
                            if self.unlink(&candidates, &survey, slot).await? {
                                return Ok(!was_expired);
                            }
                        }
                    }
                }
            }
            attempts.again(&self.base).await?;
        }
    }

    /// The reverse pass over a survey that found no value.
    pub(super) async fn is_absent(
        &self,
        candidates: &Candidates,
        survey: &Survey,
    ) -> Result<bool, EngineError> {
        let undecided = |m| {
            matches!(m, Meaning::Insert { pending: true } | Meaning::Destination { pending: true })
        };
        let pending: Vec<_> = survey
            .entries()
            .filter(|(_, meaning, _)| undecided(*meaning))
            .map(|(slot, _, dte)| (survey.words[slot], dte.header.generation))
            .collect();
        self.confirm_absent(candidates, &survey.words, &pending).await
    }

    /// The entry that holds the value which a slot shows; `None` if it was replaced meanwhile.
    pub(super) async fn shown(
        &self,
        key: &[u8],
        survey: &Survey,
        slot: usize,
    ) -> Result<Option<Dte>, EngineError> {
        match survey.entry(slot) {
            Some((Meaning::Previous { .. }, dte)) => {
                let shown = dte.shown(survey.words[slot]);
                self.read_shown(shown, key, Want::Key, Buf::new()).await.1
            }
            entry => Ok(entry.map(|(_, dte)| *dte)),
        }
    }

    /// Takes the value that a slot shows out of the index. Returns whether it did.
    pub(super) async fn unlink(
        &self,
        candidates: &Candidates,
        survey: &Survey,
        slot: usize,
    ) -> Result<bool, EngineError> {
        let mut epoch = self.base.session.pin(&self.base.fabric)?;
        epoch.owe();
        let is_out = self.take_out(candidates, survey, slot).await;
        epoch.ends_with(is_out)
    }

    async fn take_out(
        &self,
        candidates: &Candidates,
        survey: &Survey,
        slot: usize,
    ) -> Result<bool, EngineError> {
        let Some((meaning, dte)) = survey.entry(slot) else { return Ok(false) };
        let word = survey.words[slot];
        // Linearization point of a DELETE that found a value.
        if !self.cut_loose(candidates, word, meaning, dte).await?
            || !self.base.clear(candidates, slot, word).await?
        {
            return Ok(false);
        }
        self.retire_entry(word, dte)?;
        if meaning != Meaning::Present
            && let Some(prev) = dte.prev
        {
            self.retire(prev)?;
        }
        Ok(true)
    }

    /// Removes the value of `key` if it has expired. Returns whether it did. The removal, not the
    /// clock, is the event that all clients agree on, so it comes before any caller learns of the
    /// expiry.
    pub(super) async fn expire(
        &self,
        candidates: &Candidates,
        key: &[u8],
        rival: &mut Rival,
    ) -> Result<bool, EngineError> {
        let Some(survey) = self.survey(candidates, key).await? else { return Ok(false) };
        let Settled::Present(slot) = self.settle(candidates, &survey, rival).await? else {
            return Ok(false);
        };
        match self.shown(key, &survey, slot).await? {
            Some(dte) if self.is_expired(&dte) => {
                if !self.unlink(candidates, &survey, slot).await? {
                    return Ok(false);
                }
                let class = self.base.map.classes.of(dte.header.entry_len());
                let expired = Forgotten { expired: 1, ..Forgotten::default() };
                self.base.count_forgotten(&class, expired).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
