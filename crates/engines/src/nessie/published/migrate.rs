//! MIGRATE (nessie §4.2.3, repaired): making room by copying an entry to another of its candidates.
//!
//! The copy names both candidates and is put into both slots, first the source, then the
//! destination. As long as the copy is pending, the source shows its previous version, which is the
//! entry that was copied, and the destination shows nothing. One CAS on the status commits the
//! copy: now the destination shows it, and the source, which names the same copy, has to be
//! cleared. So at every moment a slot shows the value, and the next writer of the key settles what
//! a stopped mover leaves.
//!
//! Between the second CAS and the commit the mover aborts all pending inserts of the key: one of
//! them may have made its reverse pass when the value was in neither of the two slots that it
//! looked at.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::entry::{Dte, Meaning, Route, Status};
use super::read::{Seen, Survey};
use super::settle::Settled;
use crate::error::EngineError;
use crate::limits::LOOKS_MAX;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::draft::{Draft, DraftValue};
use crate::nessie::ops::migrate::{Room, Step};
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
use crate::planted::{self, Bug};

/// The outcome of a move, with the entry that the copy was to be written into.
enum Moved {
    /// The value is in its new slot.
    Yes,
    /// The value is where it was; the copy's word was in the index.
    No,
    /// The value is where it was; the copy's word was never in the index.
    Never,
}

impl<F: Fabric> Client<F> {
    /// Frees one of a key's slots, all of which are taken, by moving other entries. `false` if no
    /// chain of moves can do it; `true` does not promise that a slot is still free.
    ///
    /// Must not be called inside an epoch: every copy needs an entry.
    pub(super) async fn make_slot(
        &self,
        candidates: &Candidates,
        words: &Words,
        rival: &mut Rival,
    ) -> Result<bool, EngineError> {
        let room = {
            let _epoch = self.base.session.pin(&self.base.fabric)?;
            self.base.find_room(candidates, words).await?
        };
        let steps = match room {
            Room::Changed => return Ok(true),
            // No client of this protocol writes such words.
            Room::Unsettled(_) => return Ok(false),
            Room::Chain(steps) => steps,
        };
        for step in &steps {
            if !self.migrate(step, rival).await? {
                break;
            }
        }
        Ok(true)
    }

    /// Moves the value of a key from one candidate to another. Returns whether it did.
    pub(super) async fn migrate(
        &self,
        step: &Step,
        rival: &mut Rival,
    ) -> Result<bool, EngineError> {
        let len = {
            let _epoch = self.base.session.pin(&self.base.fabric)?;
            let Some(survey) = self.movable(step, rival).await? else { return Ok(false) };
            let shown = survey.entry(step.from).map(|(_, dte)| dte.shown(step.word));
            let Some(shown) = shown else { return Ok(false) };
            shown.len
        };
        let (own, epoch) = self.base.allocate(len).await?;
        let moved = match self.copy(step, own, len, rival).await {
            Ok(Moved::Yes) => {
                self.base.counts.moves.set(self.base.counts.moves.get() + 1);
                Ok(true)
            }
            Ok(Moved::No) => Ok(false),
            Ok(Moved::Never) => {
                self.base.release(own)?;
                Ok(false)
            }
            Err(error) => {
                if !error.is_of_the_fabric() {
                    self.base.release(own)?;
                }
                Err(error)
            }
        };
        epoch.ends_with(moved)
    }

    /// The slots of the key that is to be moved, if its decided value is in the source and the
    /// destination is free. Otherwise it settles what it finds: a slot that is needed may hold an
    /// entry that a dead client left.
    async fn movable(&self, step: &Step, rival: &mut Rival) -> Result<Option<Survey>, EngineError> {
        let Step { key, candidates, from, word, to } = step;
        let Some(survey) = self.survey(candidates, key).await? else { return Ok(None) };
        match self.settle(candidates, &survey, rival).await? {
            Settled::Not => Ok(None),
            Settled::Absent => {
                if let Some((Meaning::Insert { pending: true }, dte)) = survey.entry(*from) {
                    self.wait_for(rival, *from, survey.words[*from], dte).await?;
                }
                Ok(None)
            }
            Settled::Present(slot) => {
                let free = self.base.map.codec.is_empty(survey.words[*to]);
                let there = slot == *from && survey.words[slot] == *word;
                Ok((free && there).then_some(survey))
            }
        }
    }

    async fn copy(
        &self,
        step: &Step,
        own: Own,
        len: usize,
        rival: &mut Rival,
    ) -> Result<Moved, EngineError> {
        let Step { key, candidates, from, word, to } = step;
        // The destination is read before the source is changed: see `Client::cut_loose`.
        let Some(survey) = self.movable(step, rival).await? else { return Ok(Moved::Never) };
        let Some((meaning, dte)) = survey.entry(*from) else { return Ok(Moved::Never) };
        let prev = dte.shown(*word);
        let (buf, read) = self.read_shown(prev, key, Want::Value, Buf::new()).await;
        let Some(value) = read?.filter(|dte| dte.header.entry_len() == len) else {
            return Ok(Moved::Never);
        };
        if !self.cut_loose(candidates, *word, meaning, dte).await? {
            return Ok(Moved::Never);
        }
        let mut free = survey.words[*to];
        if meaning != Meaning::Present {
            // The source may hold a copy that was aborted on its way to the same destination. The
            // destination has another tag by now: without reading it again, every copy would be
            // aborted like the one before.
            free = Ite(self.base.read_word(candidates.slot(*to)).await?);
            if !self.base.map.codec.is_empty(free) {
                return Ok(Moved::Never);
            }
        }
        let draft = draft_of(&value, KeyHash::of(&self.base.map, key), key, &buf);
        let route = Route { from: *from, to: *to };
        self.write(&draft, own, Some(prev), Some(route))?;
        let new = self.word(candidates.filter, own.place, own.generation);
        if self.base.cas(candidates, *from, *word, new).await?.is_err() {
            return Ok(Moved::Never);
        }
        if meaning != Meaning::Present {
            self.retire_entry(*word, dte)?;
        }
        if self.base.cas(candidates, *to, free, new).await?.is_err() {
            // The copy stays at the source as an aborted entry, which stands for its previous
            // version.
            self.decide(new, own.generation, Status::Aborted).await?;
            return Ok(Moved::No);
        }
        let alone = self.abort_inserts(candidates, key, route).await;
        let committed = match alone {
            Err(error) if error.is_of_the_fabric() => return Err(error),
            // The commit. The key's value does not change.
            Ok(true) => self.decide(new, own.generation, Status::Committed).await?,
            Ok(false) | Err(_) => {
                self.decide(new, own.generation, Status::Aborted).await?;
                false
            }
        };
        // Now the copy means nothing in one of the two slots.
        self.base.clear(candidates, if committed { *from } else { *to }, new).await?;
        if !committed {
            return Ok(Moved::No);
        }
        self.retire(prev)?;
        Ok(Moved::Yes)
    }

    /// Aborts all pending inserts of a key whose copy is in both slots of the route. `false` if a
    /// slot never stood still.
    async fn abort_inserts(
        &self,
        candidates: &Candidates,
        key: &[u8],
        route: Route,
    ) -> Result<bool, EngineError> {
        if planted::is(Bug::MoveSparesInserts) {
            return Ok(true);
        }
        let words = self.base.collect(candidates).await?;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if slot == route.from || slot == route.to {
                continue;
            }
            let mut word = *word;
            let mut looks = 0;
            while self.may_match(candidates, word) && !self.is_harmless(slot, word, key).await? {
                looks += 1;
                if looks == LOOKS_MAX {
                    return Ok(false);
                }
                word = Ite(self.base.read_word(candidates.slot(slot)).await?);
            }
        }
        Ok(true)
    }

    /// Whether a slot's word is not a pending insert of the key, or was aborted just now.
    async fn is_harmless(&self, slot: usize, word: Ite, key: &[u8]) -> Result<bool, EngineError> {
        match self.read_entry(word, key, Want::Key, Buf::new()).await.1? {
            Seen::Changed => Ok(false),
            Seen::Match(dte) if dte.meaning(slot) == (Meaning::Insert { pending: true }) => {
                self.abort(word, &dte).await
            }
            Seen::Match(_) | Seen::Other => Ok(true),
        }
    }

    /// Moves a key's value to a free candidate, if the key has both: for tests, which need more
    /// moves than full indexes make.
    #[cfg(feature = "planted")]
    pub async fn wander(&self, key: &[u8]) -> Result<bool, EngineError> {
        let candidates = self.base.candidates(key)?;
        let mut rival = Rival::default();
        let step = {
            let _epoch = self.base.session.pin(&self.base.fabric)?;
            let Some(survey) = self.survey(&candidates, key).await? else { return Ok(false) };
            let Settled::Present(from) = self.settle(&candidates, &survey, &mut rival).await?
            else {
                return Ok(false);
            };
            let count = candidates.count();
            let first = self.base.fabric.random() as usize % count;
            let mut all = (0..count).map(|slot| (first + slot) % count);
            let is_free = |slot: &usize| self.base.map.codec.is_empty(survey.words[*slot]);
            let Some(to) = all.find(is_free) else { return Ok(false) };
            Step { key: key.to_vec(), candidates, from, word: survey.words[from], to }
        };
        self.migrate(&step, &mut rival).await
    }
}

/// The draft of a copy of an entry that was read whole.
fn draft_of<'a>(dte: &Dte, hash: KeyHash, key: &'a [u8], entry: &'a [u8]) -> Draft<'a> {
    let header = &dte.header;
    Draft {
        hash,
        key,
        value: DraftValue::Bytes(&entry[header.value_at()..header.entry_len()]),
        flags: flags::STATUS | header.flags & flags::EXPIRES,
        expires_at_ms: dte.expires_at_ms.unwrap_or(0),
        version: header.version,
    }
}
