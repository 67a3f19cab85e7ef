//! The rules of Loch's own protocol: the meaning of T, V, F and C, and what can be wrong with a
//! slot.

use loch_fabric::{Fabric, RemoteAddr};

use super::report::{CheckReport, Scrubbed};
use super::rules::{Rules, Standing, Suspect};
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::{Ite, State};
use crate::planted::{self, Bug};

impl<F: Fabric> Rules for Client<F> {
    async fn standing(&self, suspect: Suspect) -> Result<Option<Standing>, EngineError> {
        let Some(key) = self.key_of(suspect).await? else {
            return Ok(None);
        };
        let candidates = Candidates::of(&self.map, &key);
        let words = self.collect(&candidates).await?;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if self.names(*word, &suspect) {
                let shown = matches!(self.map.codec.state(*word), State::Visible { .. });
                return Ok(Some(if shown {
                    Standing::Shown
                } else {
                    Standing::Undecided(slot, *word)
                }));
            }
        }
        let again = self.collect(&candidates).await?;
        Ok(Some(if again == words { Standing::Unnamed } else { Standing::Unclear }))
    }

    async fn settle_left(
        &self,
        suspect: Suspect,
        slot: usize,
        word: Ite,
        report: &mut Scrubbed,
    ) -> Result<bool, EngineError> {
        let Some(key) = self.key_of(suspect).await? else {
            return Ok(false);
        };
        let candidates = Candidates::of(&self.map, &key);
        if self.map.codec.is_visible(word) {
            self.help(&candidates, &key, slot, word).await?;
            report.moves += 1;
            return Ok(false);
        }
        // A T from before the grace period: its owner is dead.
        report.tentative += self.clear(&candidates, slot, word).await? as u64;
        Ok(true)
    }

    /// As a GET that reads no value (protocol G1 to G4): only the value that the index shows in
    /// this look is removed.
    async fn expire_key(&self, key: &[u8]) -> Result<(), EngineError> {
        if planted::is(Bug::ExpiredByHint) {
            return self.delete(key).await.map(drop);
        }
        self.contains(key).await.map(drop)
    }

    async fn wrong_with(&self, at: RemoteAddr, word: Ite) -> Result<Option<String>, EngineError> {
        let codec = &self.map.codec;
        if codec.try_state(word).is_none() {
            return Ok(Some("bits that no client writes".into()));
        }
        let place = codec.place(word);
        if self.entry_at(word).is_none() {
            return Ok(Some(format!("it names {place:?}, which there is not")));
        }
        let Some((header, key)) = self.read_key(word).await? else {
            return Ok(Some("I2: the entry it names has another generation".into()));
        };
        let candidates = Candidates::of(&self.map, &key);
        let Some(mine) = candidates.index_of(at) else {
            return Ok(Some("it is no candidate of its entry's key".into()));
        };
        if !codec.has_filter(word, candidates.filter) {
            return Ok(Some("its filter bits are not its key's".into()));
        }
        if let Some(wrong) = self.wrong_with_entry(place, &header).await? {
            return Ok(Some(wrong));
        }
        if codec.is_visible(word) {
            return self.wrong_with_company(&candidates, mine, word, &key).await;
        }
        Ok(None)
    }

    async fn count_slot(
        &self,
        _: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        match self.map.codec.state(word) {
            State::Tentative => report.tentative += 1,
            State::Visible { .. } => report.values += 1,
            State::Frozen { .. } | State::Copy { .. } => report.moving += 1,
            State::Empty => (),
        }
        Ok(())
    }
}

impl<F: Fabric> Client<F> {
    /// I1: no other slot shows the key, but for the other half of a move.
    async fn wrong_with_company(
        &self,
        candidates: &Candidates,
        mine: usize,
        word: Ite,
        key: &[u8],
    ) -> Result<Option<String>, EngineError> {
        let codec = &self.map.codec;
        let words = self.collect(candidates).await?;
        for (slot, other) in words[..candidates.count()].iter().enumerate() {
            if slot == mine
                || !codec.is_visible(*other)
                || !codec.has_filter(*other, candidates.filter)
            {
                continue;
            }
            let same_key = self.read_key(*other).await?.is_some_and(|(_, k)| k == key);
            let moving = codec.same_entry(word, *other)
                && matches!(
                    (codec.state(word), codec.state(*other)),
                    (State::Frozen { .. }, State::Copy { .. })
                        | (State::Copy { .. }, State::Frozen { .. })
                );
            if same_key && !moving {
                return Ok(Some(format!("I1: candidate {slot} of its key shows a value too")));
            }
        }
        Ok(None)
    }
}
