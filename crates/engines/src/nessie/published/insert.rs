//! Inserting a key that has no value: a pending entry in a free slot, a reverse pass over all other
//! slots, and the commit.
//!
//! Two clients that insert the same key may choose different slots. Each makes its reverse pass
//! after its own word is in place, so of two inserts the one that looks later sees the other. The
//! insert in the higher slot gives way, or is made to: the other insert aborts it before it commits
//! itself.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::draft::Attempt;
use super::entry::{Meaning, Previous, Status};
use super::read::{Seen, Survey};
use crate::error::EngineError;
use crate::limits::LOOKS_MAX;
use crate::nessie::client::alloc::Own;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::draft::{Draft, DraftValue, Installed, Rule};
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
use crate::planted::{self, Bug};

/// The meaning of a slot to an insert whose word is in place.
enum Other {
    /// The slot means nothing, or nothing any more.
    Harmless,
    /// The insert has to give way.
    Prior,
    /// The slot changed, or its entry was decided: look again.
    Changed,
}

impl<F: Fabric> Client<F> {
    /// Inserts a key; the survey shows no value of the key.
    pub(super) async fn insert(
        &self,
        candidates: &Candidates,
        draft: &Draft<'_>,
        own: Own,
        rule: Rule,
        survey: &Survey,
        rival: &mut Rival,
    ) -> Result<Attempt, EngineError> {
        let words = &survey.words;
        let Some(slot) = (0..candidates.count()).find(|c| self.base.map.codec.is_empty(words[*c]))
        else {
            let pending = |m| m == Meaning::Insert { pending: true };
            let Some((slot, _, dte)) = survey.entries().find(|(_, m, _)| pending(*m)) else {
                return Ok(Attempt::Full(Box::new(*words)));
            };
            self.wait_for(rival, slot, words[slot], dte).await?;
            return Ok(Attempt::Again);
        };
        if let (Rule::Add(add), DraftValue::Number(number)) = (rule, &draft.value) {
            number.set(add);
        }
        self.write(draft, own, None, None)?;
        let new = self.word(candidates.filter, own.place, own.generation);
        if self.base.cas(candidates, slot, words[slot], new).await?.is_err() {
            return Ok(Attempt::Again);
        }
        let alone = self.reverse_pass(candidates, slot, draft.key, rival).await;
        match alone {
            Err(error) if error.is_of_the_fabric() => return Err(error),
            Ok(true) => {
                // Linearization point of an insert.
                if self.decide(new, own.generation, Status::Committed).await? {
                    self.installed(new, draft, own.generation, None);
                    return Ok(Attempt::Done(Installed::Yes(0)));
                }
            }
            Ok(false) | Err(_) => {
                // The entry may have been aborted before; no other client commits it.
                self.decide(new, own.generation, Status::Aborted).await?;
            }
        }
        if self.base.clear(candidates, slot, new).await? {
            let len = draft.entry_len();
            self.retire(Previous { word: new, generation: own.generation, len })?;
        }
        Ok(alone.map_or_else(Attempt::Failed, |_| Attempt::Spent))
    }

    /// Looks at all other slots, after the word in `mine` is in place. Returns whether the word may
    /// be committed.
    async fn reverse_pass(
        &self,
        candidates: &Candidates,
        mine: usize,
        key: &[u8],
        rival: &mut Rival,
    ) -> Result<bool, EngineError> {
        if planted::is(Bug::NoReversePass) {
            return Ok(true);
        }
        let words = self.base.collect(candidates).await?;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if slot == mine {
                continue;
            }
            let mut word = *word;
            let mut looks = 0;
            loop {
                match self.other(candidates, mine, slot, word, key, rival).await? {
                    Other::Harmless => break,
                    Other::Prior => return Ok(false),
                    Other::Changed => (),
                }
                looks += 1;
                if looks == LOOKS_MAX {
                    // The slot never stands still: giving way is right at any time.
                    return Ok(false);
                }
                word = Ite(self.base.read_word(candidates.slot(slot)).await?);
            }
        }
        Ok(true)
    }

    async fn other(
        &self,
        candidates: &Candidates,
        mine: usize,
        slot: usize,
        word: Ite,
        key: &[u8],
        rival: &mut Rival,
    ) -> Result<Other, EngineError> {
        if !self.may_match(candidates, word) {
            return Ok(Other::Harmless);
        }
        let dte = match self.read_entry(word, key, Want::Key, Buf::new()).await.1? {
            Seen::Match(dte) => dte,
            Seen::Other => return Ok(Other::Harmless),
            Seen::Changed => return Ok(Other::Changed),
        };
        Ok(match dte.meaning(slot) {
            Meaning::Insert { pending: false } | Meaning::Destination { pending: false } => {
                Other::Harmless
            }
            Meaning::Insert { pending: true } => {
                let lower = slot < mine;
                if planted::is(Bug::RivalsIgnored) {
                    Other::Harmless
                } else if lower && !rival.outlasted(slot, word, self.base.fabric.now_us()) {
                    Other::Prior
                } else if self.abort(word, &dte).await? {
                    Other::Harmless
                } else {
                    Other::Changed
                }
            }
            Meaning::Present
            | Meaning::Previous { .. }
            | Meaning::MovedSource
            | Meaning::Destination { pending: true } => Other::Prior,
        })
    }
}
