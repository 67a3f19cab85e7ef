//! Reading entries, and the combined view of all candidates of a key.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::entry::{Dte, Meaning, Previous, Status};
use crate::error::EngineError;
use crate::limits::CANDIDATES_MAX;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::{EXTENSION_BYTES, Header};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::read::{Want, names_nothing};
use crate::planted::{self, Bug};

/// A validated look at an entry.
pub(super) enum Seen {
    /// The entry has the key.
    Match(Dte),
    /// The entry has another key, and so has the slot for as long as it holds this word.
    Other,
    /// The entry is no longer the one that the word names: the slot has changed.
    Changed,
}

/// All candidates of a key, with the entries of the key that they name.
pub(super) struct Survey {
    pub words: Words,
    entries: [Option<(Meaning, Dte)>; CANDIDATES_MAX],
}

impl Survey {
    /// The meaning and the entry of slot `slot`, if it names an entry of the key.
    pub fn entry(&self, slot: usize) -> Option<(Meaning, &Dte)> {
        self.entries[slot].as_ref().map(|(meaning, dte)| (*meaning, dte))
    }

    /// The slots that name entries of the key, with their meanings and entries.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Meaning, &Dte)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(slot, entry)| entry.as_ref().map(|(m, dte)| (slot, *m, dte)))
    }
}

impl<F: Fabric> Client<F> {
    /// Whether a word may name an entry of the key whose candidates these are.
    pub(super) fn may_match(&self, candidates: &Candidates, word: Ite) -> bool {
        let codec = &self.base.map.codec;
        codec.is_visible(word) && codec.has_filter(word, candidates.filter)
    }

    /// READs an entry, unless it is in the cache, and validates it against the word that names it.
    /// With [`Want::Value`] a committed entry is read whole. The value of an uncommitted entry is
    /// of no use (nessie §4.3.2, "multiple reads").
    pub(super) async fn read_entry(
        &self,
        word: Ite,
        key: &[u8],
        want: Want,
        mut buf: Buf,
    ) -> (Buf, Result<Seen, EngineError>) {
        if let Some(dte) = self.cached(word, key, want == Want::Value, &mut buf) {
            return (buf, Ok(Seen::Match(dte)));
        }
        let Some((at, room)) = self.base.entry_at(word) else {
            return (buf, Err(names_nothing(word)));
        };
        buf.clear();
        let first = self.base.first_read_len(key.len() + EXTENSION_BYTES, want).min(room);
        let (mut buf, done) = self.base.fabric.read(at, first, buf).await;
        if let Err(error) = done {
            return (buf, Err(error.into()));
        }
        let Some(header) = self.current(word, &buf) else { return (buf, Ok(Seen::Changed)) };
        let found = buf.get(header.key_at()..header.value_at());
        let same_key = header.key_len() == key.len() && found == Some(key);
        let dte = Dte::read(&buf);
        let committed = dte.is_some_and(|dte| dte.status == Status::Committed);
        let with_value = same_key && want == Want::Value && committed;
        let wanted = if with_value { header.entry_len() } else { header.value_at() };
        // A length that no entry can have is torn or damaged.
        if wanted > room || same_key && !self.base.may_be_long(&header, room) {
            return (buf, Ok(Seen::Changed));
        }
        if wanted > buf.len() {
            let have = buf.len();
            let rest = at.add(have as u64);
            let (more, done) = self.base.fabric.read(rest, wanted - have, buf).await;
            buf = more;
            if let Err(error) = done {
                return (buf, Err(error.into()));
            }
        }
        let place = self.base.map.codec.place(word);
        match self.base.is_valid(&header, place, at, &buf, with_value) {
            Err(error) => return (buf, Err(error)),
            Ok(false) => return (buf, Ok(Seen::Changed)),
            Ok(true) if !same_key => return (buf, Ok(Seen::Other)),
            Ok(true) => (),
        }
        let Some(dte) = dte else { return (buf, Ok(Seen::Changed)) };
        if want == Want::Value {
            self.base.hint_read(&header);
        }
        if committed {
            self.keep(word, &buf);
        }
        (buf, Ok(Seen::Match(dte)))
    }

    /// The header of the bytes that were read, if its generation is the word's.
    pub(super) fn current(&self, word: Ite, buf: &[u8]) -> Option<Header> {
        let codec = &self.base.map.codec;
        let header = Header::read(buf)?;
        let same = header.generation & codec.gen_mask() == codec.generation(word);
        (same || planted::is(Bug::NoGenerationCheck)).then_some(header)
    }

    /// READs the entry that holds a value: committed, with this generation. `None` if it is no
    /// longer there because the value was replaced.
    pub(super) async fn read_shown(
        &self,
        shown: Previous,
        key: &[u8],
        want: Want,
        buf: Buf,
    ) -> (Buf, Result<Option<Dte>, EngineError>) {
        let (buf, seen) = self.read_entry(shown.word, key, want, buf).await;
        let same = |dte: &Dte| {
            dte.header.generation == shown.generation && dte.status == Status::Committed
        };
        let seen = seen.map(|seen| match seen {
            Seen::Match(dte) => Some(dte).filter(same),
            Seen::Other | Seen::Changed => None,
        });
        (buf, seen)
    }

    /// The forward pass of a writer: READs all candidates in one doorbell, and the bytes before the
    /// value of every entry that may have the key. `None` if a slot changed meanwhile.
    pub(super) async fn survey(
        &self,
        candidates: &Candidates,
        key: &[u8],
    ) -> Result<Option<Survey>, EngineError> {
        let words = self.base.collect(candidates).await?;
        let mut survey = Survey { words, entries: [None; CANDIDATES_MAX] };
        let mut buf = self.base.spare.take();
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if !self.may_match(candidates, *word) {
                continue;
            }
            let (returned, seen) = self.read_entry(*word, key, Want::Key, buf).await;
            buf = returned;
            match seen? {
                Seen::Match(dte) => survey.entries[slot] = Some((dte.meaning(slot), dte)),
                Seen::Other => (),
                Seen::Changed => return Ok(None),
            }
        }
        self.base.spare.give_back(buf);
        Ok(Some(survey))
    }

    /// The reverse pass of an operation that found no value: whether the key had no value at some
    /// moment after the forward pass. Every word must be unchanged; it was then unchanged all the
    /// time, because words are unique in their slots. And no pending entry may have been committed.
    pub(super) async fn confirm_absent(
        &self,
        candidates: &Candidates,
        words: &Words,
        pending: &[(Ite, u64)],
    ) -> Result<bool, EngineError> {
        if planted::is(Bug::NoSecondLook) {
            return Ok(true);
        }
        if self.base.collect(candidates).await? != *words {
            return Ok(false);
        }
        for (word, generation) in pending {
            let Some((at, _)) = self.base.entry_at(*word) else { return Ok(false) };
            let now = self.base.read_word(Status::addr(at)).await?;
            let now = Status::of_word(now, *generation);
            let absent = matches!(now, Some(Status::Pending | Status::Aborted));
            if !absent && !planted::is(Bug::StatusNotReread) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn is_expired(&self, dte: &Dte) -> bool {
        dte.expires_at_ms.is_some_and(|at| at <= self.base.fabric.wall_ms())
    }
}
