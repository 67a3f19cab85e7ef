//! What every writer does first: it decides what others left undecided in the key's slots, and
//! clears what means nothing any more. One step at a time; after each it looks again.
//!
//! Nobody is waited for longer than `patience`: anybody may abort what is pending, by one CAS on
//! its status, and its owner learns it from its own failed CAS. An old word is never written back:
//! an aborted update stays in its slot, and means its previous version, until the next writer
//! replaces it.

use loch_fabric::Fabric;

use super::client::Client;
use super::entry::{Dte, Meaning, Route};
use super::read::Survey;
use crate::error::EngineError;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::tentative::Rival;
use crate::planted::{self, Bug};

/// What a survey says once there is nothing left to settle.
pub(super) enum Settled {
    /// Something was settled, or has to be waited for: look again.
    Not,
    /// This slot alone shows a value, and its entry, or its previous version, is decided.
    Present(usize),
    /// No slot does.
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
            let cleared = self.base.clear(candidates, slot, word).await?;
            // A copy is still named by its source.
            if cleared && meaning == (Meaning::Insert { pending: false }) {
                self.retire_entry(word, dte)?;
            }
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

    /// Aborts a pending entry that has stood in its slot for longer than anybody is waited for.
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

    /// Before an entry is replaced in the slot where it shows a value: cuts what a MIGRATE that
    /// copied it may have left in the other slot. Whether the slot may be changed now.
    pub(super) async fn cut_loose(
        &self,
        candidates: &Candidates,
        word: Ite,
        meaning: Meaning,
        dte: &Dte,
    ) -> Result<bool, EngineError> {
        let Some(Route { from, to }) = dte.route else { return Ok(true) };
        if meaning == Meaning::Present {
            // Its source may name it still: what is about to be replaced would stay the value
            // there. Nobody puts it there again, so whoever clears it, it is gone.
            let there = Ite(self.base.read_word(candidates.slot(from)).await?);
            if there == word {
                self.base.clear(candidates, from, word).await?;
            }
            return Ok(true);
        }
        // Aborted, and its mover may be slow rather than dead, and still about to put it into its
        // destination, where it would outlive its retirement. A free destination gets another tag:
        // the mover's CAS expects the old one.
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
