//! The scrubber's rules (see [`super::super::Client::scrub`]): how it settles the entries that a
//! dead client of this protocol left.
//!
//! An entry is needed if a slot of its key names it and it shows a value there, or if it is the
//! previous version of an uncommitted entry that a slot names. An entry that is still pending after
//! a grace period has no owner any more: its operation has ended.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::client::Client;
use super::entry::{Dte, Meaning, Status};
use super::read::Seen;
use crate::error::EngineError;
use crate::nessie::check::expire::ExpiryWalk;
use crate::nessie::check::report::{CheckReport, Expired, Scrubbed};
use crate::nessie::check::rules::{Rules, Standing, Suspect};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// Scrubs data table `dti`, as [`super::super::Client::scrub`] does.
    ///
    /// # Errors
    /// [`EngineError::Timeout`] if the grace period did not pass, or the fabric's errors.
    pub async fn scrub(&self, dti: u8, wait_us: u64) -> Result<Scrubbed, EngineError> {
        self.base.scrub_by(self, dti, wait_us).await
    }

    /// Removes some of what has expired, as [`super::super::Client::expire_some`] does.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn expire_some(&self, walk: &mut ExpiryWalk) -> Result<Expired, EngineError> {
        self.base.expire_some_by(self, walk).await
    }

    /// Whether an entry of the suspect's key needs the suspect as its previous version.
    fn needs(&self, dte: &Dte, suspect: &Suspect) -> bool {
        let is_it = dte.prev.is_some_and(|prev| {
            prev.generation == suspect.generation && self.base.names(prev.word, suspect)
        });
        is_it && dte.status != Status::Committed && !planted::is(Bug::PreviousNotNeeded)
    }

    /// What a word in a slot of the suspect's key says about the suspect; `None`: nothing.
    async fn standing_in(
        &self,
        suspect: &Suspect,
        key: &[u8],
        slot: usize,
        word: Ite,
    ) -> Result<Option<Standing>, EngineError> {
        let named = self.base.names(word, suspect);
        let seen = self.read_entry(word, key, Want::Key, Buf::new()).await.1?;
        Ok(match seen {
            Seen::Changed => Some(Standing::Unclear),
            Seen::Other => None,
            Seen::Match(dte) if named => Some(match dte.meaning(slot) {
                Meaning::Present | Meaning::Previous { pending: false } => Standing::Shown,
                _ => Standing::Undecided(slot, word),
            }),
            Seen::Match(dte) => self.needs(&dte, suspect).then_some(Standing::Shown),
        })
    }
}

impl<F: Fabric> Rules for Client<F> {
    async fn standing(&self, suspect: Suspect) -> Result<Option<Standing>, EngineError> {
        let Some(key) = self.base.key_of(suspect).await? else { return Ok(None) };
        let candidates = Candidates::of(&self.base.map, &key);
        let words = self.base.collect(&candidates).await?;
        let mut shown = false;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if !self.may_match(&candidates, *word) {
                continue;
            }
            match self.standing_in(&suspect, &key, slot, *word).await? {
                None => (),
                // A copy is shown in one slot, and may be left over in another.
                Some(Standing::Shown) => shown = true,
                Some(other) => return Ok(Some(other)),
            }
        }
        if shown {
            return Ok(Some(Standing::Shown));
        }
        let again = self.base.collect(&candidates).await?;
        Ok(Some(if again == words { Standing::Unnamed } else { Standing::Unclear }))
    }

    async fn settle_left(
        &self,
        suspect: Suspect,
        slot: usize,
        word: Ite,
        report: &mut Scrubbed,
    ) -> Result<bool, EngineError> {
        let Some(key) = self.base.key_of(suspect).await? else { return Ok(false) };
        let candidates = Candidates::of(&self.base.map, &key);
        let seen = self.read_entry(word, &key, Want::Key, Buf::new()).await.1?;
        let Seen::Match(dte) = seen else { return Ok(true) };
        match dte.meaning(slot) {
            Meaning::Present | Meaning::Previous { pending: false } => return Ok(false),
            Meaning::Previous { pending: true }
            | Meaning::Insert { pending: true }
            | Meaning::Destination { pending: true } => {
                self.abort(word, &dte).await?;
            }
            Meaning::Insert { pending: false } => {
                if self.base.clear(&candidates, slot, word).await? {
                    self.retire_entry(word, &dte)?;
                    report.tentative += 1;
                }
            }
            Meaning::MovedSource | Meaning::Destination { pending: false } => {
                report.moves += self.base.clear(&candidates, slot, word).await? as u64;
            }
        }
        Ok(true)
    }

    /// By one attempt: if a slot changes meanwhile, or something has to be settled first, a later
    /// walk comes back to the key.
    async fn expire_key(&self, key: &[u8]) -> Result<(), EngineError> {
        let candidates = self.base.candidates(key)?;
        let _epoch = self.base.session.pin(&self.base.fabric)?;
        self.expire(&candidates, key, &mut Rival::default()).await.map(drop)
    }

    async fn wrong_with(&self, at: RemoteAddr, word: Ite) -> Result<Option<String>, EngineError> {
        self.wrong_with_slot(at, word).await
    }

    async fn count_slot(
        &self,
        at: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        match self.meaning_at(at, word).await? {
            Some(Meaning::Present | Meaning::Previous { .. }) => report.values += 1,
            Some(Meaning::Insert { .. }) => report.tentative += 1,
            Some(Meaning::MovedSource | Meaning::Destination { .. }) => report.moving += 1,
            None => (),
        }
        Ok(())
    }
}
