//! The first step of every writer: it decides the entries that others left undecided in the key's
//! slots, and clears words that mean nothing any more. It takes one step at a time, and looks again
//! after each.
//!
//! No client is waited for longer than `patience`: any client may abort a pending entry, by one CAS
//! on its status, and the owner learns it from its own failed CAS. An old word is never written
//! back: an aborted update stays in its slot, and stands for its previous version, until the next
//! writer replaces it.

use loch_fabric::Fabric;

use super::client::Client;
use super::entry::{Dte, Meaning, Route};
use super::read::Survey;
use crate::error::EngineError;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::tentative::Rival;
use crate::planted::{self, Bug};

/// The result of a survey.
pub(super) enum Settled {
    /// A step was taken, or another client has to be waited for: look again.
    Not,
    /// This slot alone shows a value, and its entry, or its previous version, is decided.
    Present(usize),
    /// No slot shows a value.
    Absent,
}

impl<F: Fabric> Client<F> {
    /// Settles the next thing in a key's slots, if there is one.
    pub(super) async fn settle(
        &self,
        candidates: &Candidates,
        survey: &Survey,
        rival: &mut Rival,
    ) -> Result<Settled, EngineError> {
        let find =
            |wanted: fn(Meaning) -> bool| survey.entries().find(|(_, meaning, _)| wanted(*meaning));
        if let Some((slot, ..)) = find(|m| m == Meaning::MovedSource) {
            self.base.clear(candidates, slot, survey.words[slot]).await?;
            return Ok(Settled::Not);
        }
        let undecided = |m| {
            matches!(
                m,
                Meaning::Previous { pending: true } | Meaning::Destination { pending: true }
            )
        };
        if let Some((slot, _, dte)) = find(undecided) {
            self.wait_for(rival, slot, survey.words[slot], dte).await?;
            return Ok(Settled::Not);
        }
        let void = |m| {
            matches!(
                m,
                Meaning::Insert { pending: false } | Meaning::Destination { pending: false }
            )
        };
        if let Some((slot, meaning, dte)) = find(void) {
            let word = survey.words[slot];
            let mut epoch = self.base.session.pin(&self.base.fabric)?;
            epoch.owe();
            let cleared = self.base.clear(candidates, slot, word).await?;
            // The copy's source still names it.
            if cleared && meaning == (Meaning::Insert { pending: false }) {
                self.retire_entry(word, dte)?;
            }
            epoch.paid();
            return Ok(Settled::Not);
        }
        let shows = |m| matches!(m, Meaning::Present | Meaning::Previous { .. });
        let mut showing = survey.entries().filter(|(_, meaning, _)| shows(*meaning));
        match (showing.next(), showing.next()) {
            (None, _) => Ok(Settled::Absent),
            (Some((slot, ..)), None) => Ok(Settled::Present(slot)),
            // The candidates were not read at one moment, and the value moved.
            (Some(_), Some(_)) => Ok(Settled::Not),
        }
    }

    /// Aborts a pending entry that has stood in its slot for longer than the patience of a writer.
    pub(super) async fn wait_for(
        &self,
        rival: &mut Rival,
        slot: usize,
        word: Ite,
        dte: &Dte,
    ) -> Result<(), EngineError> {
        if rival.outlasted(slot, word, self.base.fabric.now_us()) {
            self.abort(word, dte).await?;
        }
        Ok(())
    }

    /// Called before an entry is replaced in the slot where it shows a value: cuts what a MIGRATE
    /// that copied the entry may have left in the other slot. Returns whether the slot may be
    /// changed now.
    pub(super) async fn cut_loose(
        &self,
        candidates: &Candidates,
        word: Ite,
        meaning: Meaning,
        dte: &Dte,
    ) -> Result<bool, EngineError> {
        let Some(Route { from, to }) = dte.route else { return Ok(true) };
        if meaning == Meaning::Present {
            // The copy's source may still name it: the entry that is about to be replaced would
            // stay the value there. No client puts it there again, so it is gone whichever client
            // clears it.
            let there = Ite(self.base.read_word(candidates.slot(from)).await?);
            if there == word {
                self.base.clear(candidates, from, word).await?;
            }
            return Ok(true);
        }
        // The copy is aborted, but its mover may be slow rather than dead. It could still put the
        // copy into its destination, where the copy would outlive its retirement. A free
        // destination therefore gets another tag: the mover's CAS expects the old one.
        let there = Ite(self.base.read_word(candidates.slot(to)).await?);
        if planted::is(Bug::DestinationStays) {
            return Ok(true);
        }
        if self.base.map.codec.is_empty(there) {
            return self.base.clear(candidates, to, there).await;
        }
        Ok(there != word)
    }

    /// Retires the entry that a word named, after this client's CAS took the word out of the index.
    pub(super) fn retire_entry(&self, word: Ite, dte: &Dte) -> Result<(), EngineError> {
        let (generation, len) = (dte.header.generation, dte.header.entry_len());
        self.retire(super::entry::Previous { word, generation, len })
    }
}
