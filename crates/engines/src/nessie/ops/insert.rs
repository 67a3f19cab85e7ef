//! Inserting a key that has no value (nessie §4.2.2, repaired).
//!
//! Two clients that insert the same key may choose different slots. So an insert is **tentative**
//! until it has looked at all other slots *after* its own word was in place: of two inserts, the
//! one that looks later sees the other. The insert in the higher slot gives way. A tentative word
//! is invisible, and any client may remove it at any time; only its owner commits it, with one CAS.
//!
//! **Home.** If the key's home slot is free, the value goes there with a single CAS, after a second
//! look at the other slots. This is sound only if all other operations respect a free home: a
//! tentative insert elsewhere gives way when it sees a free home, and a move changes its tag.

use arrayvec::ArrayVec;
use loch_fabric::{Fabric, RemoteAddr};

use super::draft::{Attempt, Draft, Installed, Rule};
use super::tentative::{Other, Rival};
use crate::error::EngineError;
use crate::limits::{CANDIDATES_MAX, LOOKS_MAX, MOVE_DEPTH_MAX, WAYS_MAX};
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::unpinned;
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::{Ite, State};
use crate::nessie::layout::marks::{Mark, Marks};
use crate::nessie::layout::slab::Class;
use crate::nessie::memory::victims::Victim;
use crate::planted::{self, Bug};

/// The word that a tentative one replaces: it is EMPTY, or the slot's value is evicted.
pub(super) enum Over {
    Empty(Ite),
    Victim(Victim),
}

impl<F: Fabric> Client<F> {
    /// Inserts a key; `words` show no value of the key, and have `marks` beside them if the table
    /// evicts.
    pub(super) async fn insert(
        &self,
        candidates: &Candidates,
        (words, marks): (&Words, &[Marks; WAYS_MAX]),
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        rival: &mut Rival,
    ) -> Result<Attempt, EngineError> {
        if let Rule::Add(add) = rule {
            self.write_number(draft, own, add).await?;
        }
        self.look_at_clock().await?;
        let codec = &self.map.codec;
        if codec.is_empty(words[0]) {
            let done = self.insert_at_home(candidates, words[0], draft, own).await?;
            return self.marked(candidates, (0, marks[0]), done);
        }
        if let Some(free) = (1..candidates.count()).find(|c| codec.is_empty(words[*c])) {
            let over = Over::Empty(words[free]);
            let done = self.insert_tentatively(candidates, free, over, draft, own, rival).await?;
            return self.marked(candidates, (free, marks[0]), done);
        }
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if matches!(self.other(candidates, *word, draft.key).await?, Other::Tentative) {
                self.clear_rival(candidates, slot, *word).await?;
                return Ok(Attempt::Again);
            }
        }
        // If memory is short, something has to go anyway: it may as well be one of these.
        let moves_first = !self.evicts() || !self.evicts_in_slots(own.class);
        if moves_first {
            let has_moved = self.make_slot(candidates, words).await?;
            self.searches.has_ended(has_moved);
            if has_moved {
                return Ok(Attempt::Again);
            }
        }
        if self.evicts() {
            let victim = Box::pin(self.victim_in_slots(candidates, words, marks)).await?;
            let Some((slot, over)) = victim else {
                // All are pinned, or have changed; what is pinned can be moved.
                if !moves_first {
                    self.make_slot(candidates, words).await?;
                }
                return Ok(Attempt::Again);
            };
            let done = self.insert_tentatively(candidates, slot, over, draft, own, rival).await?;
            return self.marked(candidates, (slot, marks[0]), done);
        }
        Err(EngineError::IndexFull {
            slots: self.map.shape.geometry.index_slots(),
            moves: MOVE_DEPTH_MAX,
        })
    }

    /// Whether a new key whose slots are all taken takes the place of a value in one of them, and
    /// nothing is moved.
    pub(super) fn evicts_in_slots(&self, class: Class) -> bool {
        self.is_short_of(class) || self.searches.skips_one()
    }

    /// Marks the slot of a value that was inserted, if the table evicts.
    fn marked(
        &self,
        candidates: &Candidates,
        (slot, first_marks): (usize, Marks),
        attempt: Attempt,
    ) -> Result<Attempt, EngineError> {
        if matches!(attempt, Attempt::Done(Installed::Yes(_))) {
            self.mark_inserted(candidates, slot, first_marks)?;
        }
        Ok(attempt)
    }

    /// Marks the slot of a value that was inserted, if the table evicts. `first_marks` are those of
    /// the key's first bucket.
    pub(super) fn mark_inserted(
        &self,
        candidates: &Candidates,
        slot: usize,
        first_marks: Marks,
    ) -> Result<(), EngineError> {
        if !self.evicts() {
            return Ok(());
        }
        let now = self.mark_epoch();
        let mark = match first_marks.has_ghost(candidates.hash.print()) {
            true => Mark::returned(now),
            false => Mark::new(now),
        };
        self.write_mark(candidates.slot(slot), mark)
    }

    /// The slot with the value that is worth least of those that take up all slots of a key.
    pub(super) async fn victim_in_slots(
        &self,
        candidates: &Candidates,
        words: &Words,
        marks: &[Marks; WAYS_MAX],
    ) -> Result<Option<(usize, Over)>, EngineError> {
        // Of values that are worth as little, any: otherwise the one that has just come would go
        // again and again.
        let (count, first) = (candidates.count(), self.any(candidates.count()));
        let mut slots: ArrayVec<(u32, usize), CANDIDATES_MAX> = (0..count)
            .map(|number| (first + number) % count)
            .map(|slot| (self.worth_of_mark(candidates.mark_in(marks, slot)), slot))
            .collect();
        slots.sort_by_key(|(worth, _)| *worth);
        for (_, slot) in slots {
            let (at, word) = (candidates.slot(slot), words[slot]);
            let mark = candidates.mark_in(marks, slot);
            if let Some(victim) = self.victim_of(at, word, mark).await? {
                return Ok(Some((slot, Over::Victim(victim))));
            }
        }
        Ok(None)
    }

    /// The value that a slot shows, as a victim.
    pub(in crate::nessie) async fn victim_of(
        &self,
        slot: RemoteAddr,
        word: Ite,
        mark: Mark,
    ) -> Result<Option<Victim>, EngineError> {
        if !self.map.codec.is_unmoved(word) {
            return Ok(None);
        }
        let Some((header, head)) = self.read_head(word).await? else { return Ok(None) };
        let class = self.map.classes.of(header.entry_len());
        let place = self.map.codec.place(word);
        let (Some(entry), Some((at, _))) = (class.entry(place), self.entry_at(word)) else {
            return Ok(None);
        };
        let hash = KeyHash::of(&self.map, &head[header.key_at()..header.value_at()]);
        if self.is_held(at, &header, hash)? {
            return Ok(None);
        }
        let first_marks = self.map.marks_addr(hash.first_bucket(&self.map));
        Ok(Some(Victim {
            slot,
            word,
            entry,
            class,
            generation: unpinned(header.generation),
            mark,
            has_expired: self.is_expired(&header, &head),
            hash,
            first_marks: Some(Marks(self.read_word(first_marks).await?)),
        }))
    }

    async fn insert_at_home(
        &self,
        candidates: &Candidates,
        home: Ite,
        draft: &Draft<'_>,
        own: Own,
    ) -> Result<Attempt, EngineError> {
        // Protocol K1. The look is posted after the home word arrived: a rival that committed in
        // between has changed the home word.
        let words = self.collect(candidates).await?;
        for (slot, word) in words.into_iter().enumerate().take(candidates.count()).skip(1) {
            match self.other(candidates, word, draft.key).await? {
                Other::Unrelated => (),
                Other::Visible | Other::Changed => return Ok(Attempt::Again),
                Other::Tentative => {
                    if !self.clear_rival(candidates, slot, word).await? {
                        return Ok(Attempt::Again);
                    }
                }
            }
        }
        let new = self.visible(candidates.filter, &own);
        match self.cas(candidates, 0, home, new).await? {
            // Linearization point of an insert at home (protocol K2).
            Ok(()) => {
                self.installed(candidates, 0, new, draft, &own);
                Ok(Attempt::Done(Installed::Yes(0)))
            }
            Err(_) => Ok(Attempt::Again),
        }
    }

    /// Removes a tentative word of another client, which has no effect but for that client.
    async fn clear_rival(
        &self,
        candidates: &Candidates,
        slot: usize,
        word: Ite,
    ) -> Result<bool, EngineError> {
        self.clear(candidates, slot, word).await.map_err(EngineError::without_effect)
    }

    async fn insert_tentatively(
        &self,
        candidates: &Candidates,
        slot: usize,
        over: Over,
        draft: &Draft<'_>,
        own: Own,
        rival: &mut Rival,
    ) -> Result<Attempt, EngineError> {
        let new = self.visible(candidates.filter, &own);
        let tentative = self.map.codec.with_state(new, State::Tentative);
        match self.try_tentatively(candidates, slot, over, tentative, draft.key, rival).await {
            Ok(None) => (),
            Ok(Some(attempt)) => return Ok(attempt),
            // No other client commits the word.
            Err(error) if error.is_of_the_fabric() => {
                return Ok(Attempt::Failed(error.without_effect()));
            }
            Err(error) => return Err(error),
        }
        match self.cas(candidates, slot, tentative, new).await {
            // Linearization point of an insert elsewhere (protocol K7).
            Ok(Ok(())) => {
                self.installed(candidates, slot, new, draft, &own);
                Ok(Attempt::Done(Installed::Yes(0)))
            }
            // Another client removed the word: it certainly had no effect.
            Ok(Err(_)) => Ok(Attempt::Renew),
            Err(error) => Ok(Attempt::Failed(error)),
        }
    }

    /// Puts a tentative word into a slot. Returns `None` if it may be committed.
    async fn try_tentatively(
        &self,
        candidates: &Candidates,
        slot: usize,
        over: Over,
        tentative: Ite,
        key: &[u8],
        rival: &mut Rival,
    ) -> Result<Option<Attempt>, EngineError> {
        // Protocol K5.
        if !self.begin_tentatively(candidates, slot, over, tentative).await? {
            return Ok(Some(Attempt::Again));
        }
        let verified = self.verify(candidates, slot, key, rival).await;
        if let Err(error @ EngineError::Damaged { .. }) = verified {
            // The entry is about to be released: no word may name it.
            self.clear(candidates, slot, tentative).await?;
            return Err(error);
        }
        if !verified? {
            // Protocol K8. Either this client removes the word or another one has: in both cases
            // the word was in the index.
            self.clear(candidates, slot, tentative).await?;
            return Ok(Some(Attempt::Renew));
        }
        Ok(None)
    }

    /// Puts a tentative word into a slot. Returns whether it did: not if the slot has changed.
    #[inline]
    pub(super) async fn begin_tentatively(
        &self,
        candidates: &Candidates,
        slot: usize,
        over: Over,
        tentative: Ite,
    ) -> Result<bool, EngineError> {
        match over {
            Over::Empty(free) => Ok(self.cas(candidates, slot, free, tentative).await?.is_ok()),
            // As if the slot had been free in between.
            Over::Victim(victim) => Box::pin(self.evict_for(&victim, tentative)).await,
        }
    }

    /// Looks at all other slots, after the tentative word in `mine` is in place (protocol K6).
    /// Returns whether the word may be committed.
    async fn verify(
        &self,
        candidates: &Candidates,
        mine: usize,
        key: &[u8],
        rival: &mut Rival,
    ) -> Result<bool, EngineError> {
        if planted::is(Bug::DuplicateStays) {
            return Ok(true);
        }
        let words = self.collect(candidates).await?;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if slot == mine {
                continue;
            }
            let mut word = *word;
            let mut looks = 0;
            loop {
                if slot == 0 && self.map.codec.is_empty(word) && !planted::is(Bug::HomeIgnored) {
                    // A free home must be used.
                    return Ok(false);
                }
                match self.other(candidates, word, key).await? {
                    Other::Unrelated => break,
                    Other::Visible => return Ok(false),
                    Other::Changed => (),
                    Other::Tentative => {
                        let lower = slot < mine;
                        if lower && !rival.outlasted(slot, word, self.fabric.now_us()) {
                            return Ok(false);
                        }
                        if self.clear(candidates, slot, word).await? {
                            break;
                        }
                    }
                }
                looks += 1;
                if looks == LOOKS_MAX {
                    // The slot never stands still: giving way is right at any time.
                    return Ok(false);
                }
                word = Ite(self.read_word(candidates.slot(slot)).await?);
            }
        }
        Ok(true)
    }
}
