//! Verifies a table of this protocol: looks at the same memory as [`super::super::Client::check`],
//! by these rules.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::client::Client;
use super::entry::{Dte, Meaning};
use super::read::Seen;
use crate::error::EngineError;
use crate::nessie::check::report::CheckReport;
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::{Ite, State};
use crate::nessie::ops::read::Want;

/// A slot whose word names a sound entry.
struct Occupied {
    key: Vec<u8>,
    candidates: Candidates,
    slot: usize,
    dte: Dte,
}

impl<F: Fabric> Client<F> {
    /// Verifies the invariants for every slot, and every chunk descriptor and entry. May run beside
    /// other clients. In the report, "tentative" counts inserts that have not taken effect, and
    /// "moving" counts copies in the slot where they mean nothing.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn check(&self) -> Result<CheckReport, EngineError> {
        self.base.check_by(self).await
    }

    /// The meaning of a slot that holds a word, if it has one.
    pub(super) async fn meaning_at(
        &self,
        at: RemoteAddr,
        word: Ite,
    ) -> Result<Option<Meaning>, EngineError> {
        if self.base.map.codec.is_empty(word) || self.base.entry_at(word).is_none() {
            return Ok(None);
        }
        let occupied = self.occupied(at, word).await?.ok();
        Ok(occupied.map(|occupied| occupied.dte.meaning(occupied.slot)))
    }

    /// The description of what is wrong with a slot that holds a word, if anything is.
    pub(super) async fn wrong_with_slot(
        &self,
        at: RemoteAddr,
        word: Ite,
    ) -> Result<Option<String>, EngineError> {
        let codec = &self.base.map.codec;
        if codec.try_state(word) != Some(State::Visible { hop: 0 }) {
            return Ok(Some("bits that no client of this protocol writes".into()));
        }
        let place = codec.place(word);
        if self.base.entry_at(word).is_none() {
            return Ok(Some(format!("it names {place:?}, which there is not")));
        }
        let occupied = match self.occupied(at, word).await? {
            Ok(occupied) => occupied,
            Err(wrong) => return Ok(Some(wrong)),
        };
        if !codec.has_filter(word, occupied.candidates.filter) {
            return Ok(Some("its filter bits are not its key's".into()));
        }
        if let Some(route) = occupied.dte.route
            && ![route.from, route.to].contains(&occupied.slot)
        {
            return Ok(Some(format!("the copy in it is one from {} to {}", route.from, route.to)));
        }
        let wrong = self.base.wrong_with_entry(place, &occupied.dte.header).await?;
        match (wrong, occupied.dte.meaning(occupied.slot)) {
            (Some(wrong), _) => Ok(Some(wrong)),
            (None, Meaning::Present) => self.wrong_with_company(&occupied, word).await,
            (None, Meaning::Previous { .. }) => match self.wrong_with_previous(&occupied).await? {
                Some(wrong) => Ok(Some(wrong)),
                None => self.wrong_with_company(&occupied, word).await,
            },
            (None, _) => Ok(None),
        }
    }

    async fn occupied(
        &self,
        at: RemoteAddr,
        word: Ite,
    ) -> Result<Result<Occupied, String>, EngineError> {
        let Some((header, head)) = self.base.read_head(word).await? else {
            return Ok(Err("I2: the entry it names has another generation".into()));
        };
        if header.flags & flags::STATUS == 0 {
            return Ok(Err("the entry it names is of the other protocol".into()));
        }
        let Some(dte) = Dte::read(&head) else {
            return Ok(Err("the status of its entry is of another generation".into()));
        };
        let key = head[header.key_at()..header.value_at()].to_vec();
        let candidates = Candidates::of(&self.base.map, &key);
        let Some(slot) = candidates.index_of(at) else {
            return Ok(Err("it is no candidate of its entry's key".into()));
        };
        Ok(Ok(Occupied { key, candidates, slot, dte }))
    }

    /// I3: the previous version of an entry that is not committed is there.
    async fn wrong_with_previous(
        &self,
        occupied: &Occupied,
    ) -> Result<Option<String>, EngineError> {
        let Some(prev) = occupied.dte.prev else { return Ok(None) };
        let place = self.base.map.codec.place(prev.word);
        if self.base.entry_at(prev.word).is_none() {
            return Ok(Some(format!("its entry's previous version is at {place:?}")));
        }
        let read = self.read_shown(prev, &occupied.key, Want::Key, Buf::new()).await.1?;
        let Some(dte) = read else {
            return Ok(Some("I3: its entry's previous version is gone".into()));
        };
        if dte.header.entry_len() != prev.len {
            return Ok(Some("its entry tells a wrong length of its previous version".into()));
        }
        self.base.wrong_with_entry(place, &dte.header).await
    }

    /// I1: no other slot shows a value of the key, but for the same copy.
    async fn wrong_with_company(
        &self,
        occupied: &Occupied,
        word: Ite,
    ) -> Result<Option<String>, EngineError> {
        let Occupied { key, candidates, slot: mine, .. } = occupied;
        let words = self.base.collect(candidates).await?;
        for (slot, other) in words[..candidates.count()].iter().enumerate() {
            if slot == *mine || *other == word || !self.may_match(candidates, *other) {
                continue;
            }
            let seen = self.read_entry(*other, key, Want::Key, Buf::new()).await.1?;
            if let Seen::Match(dte) = seen
                && matches!(dte.meaning(slot), Meaning::Present | Meaning::Previous { .. })
            {
                return Ok(Some(format!("I1: candidate {slot} of its key shows a value too")));
            }
        }
        Ok(None)
    }
}
