//! GET (nessie §4.2.1): a forward pass over the candidates until one of them shows a value; if none
//! of them does, a reverse pass over all.
//!
//! A GET never waits for other clients, unless the table has previous versions switched off. It
//! then waits for an undecided PUT and aborts it when it loses patience, so that a dead writer
//! blocks no reader.

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::entry::{Dte, Meaning};
use super::read::Seen;
use crate::error::EngineError;
use crate::limits::CANDIDATES_MAX;
use crate::nessie::client::Attempts;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::read::Want;
use crate::nessie::ops::tentative::Rival;
use crate::operation::Value;

/// The target of a GET, and the rivals for which it waits.
struct Search<'a> {
    candidates: Candidates,
    key: &'a [u8],
    want: Want,
    rival: Rival,
}

/// The outcome of one pass.
enum Pass {
    Found(Dte),
    Absent,
    Changed,
}

/// The content of one slot.
enum Look {
    /// The value is in the buffer.
    Found(Dte),
    /// The slot shows no value.
    Nothing,
    /// The slot shows no value as long as this entry is not committed.
    Pending(Ite, u64),
    Changed,
}

impl<F: Fabric> Client<F> {
    /// The value of `key`, if it has one. `buf` is filled with the entry.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if other clients kept changing the key's slots.
    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        let (buf, found) = self.look_up(key, Want::Value, buf).await?;
        Ok(found.map(|dte| dte.header.value_in(buf)))
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        Ok(self.look_up(key, Want::Key, Buf::new()).await?.1.is_some())
    }

    async fn look_up(
        &self,
        key: &[u8],
        want: Want,
        mut buf: Buf,
    ) -> Result<(Buf, Option<Dte>), EngineError> {
        let candidates = self.base.candidates(key)?;
        let _epoch = self.base.session.pin(&self.base.fabric)?;
        let mut search = Search { candidates, key, want, rival: Rival::default() };
        let mut attempts = Attempts::default();
        loop {
            let (filled, pass) = self.get_pass(&mut search, buf).await;
            buf = filled;
            match pass? {
                Pass::Found(dte) if self.is_expired(&dte) => {
                    // An observer may not remove the value. A client that may will come to the same
                    // conclusion.
                    let gone = self.base.session.is_observer()
                        || self.expire(&search.candidates, key, &mut search.rival).await?;
                    if gone {
                        return Ok((buf, None));
                    }
                }
                Pass::Found(dte) => return Ok((buf, Some(dte))),
                Pass::Absent => return Ok((buf, None)),
                Pass::Changed => (),
            }
            attempts.again(&self.base).await?;
        }
    }

    /// Where a round trip is cheap the buckets are read one after the other, as published;
    /// otherwise all are read in one doorbell.
    async fn get_pass(
        &self,
        search: &mut Search<'_>,
        mut buf: Buf,
    ) -> (Buf, Result<Pass, EngineError>) {
        let candidates = search.candidates;
        let (slots, ways) = (candidates.bucket_slots(), candidates.buckets().len());
        let mut words = [Ite::default(); CANDIDATES_MAX];
        let mut pending = Vec::new();
        for way in 0..ways {
            if let Err(error) = self.read_way(&candidates, way, &mut words).await {
                return (buf, Err(error));
            }
            for (slot, word) in words.iter().enumerate().skip(way * slots).take(slots) {
                if !self.may_match(&candidates, *word) {
                    continue;
                }
                let (filled, look) = self.look(search, slot, *word, buf).await;
                buf = filled;
                match look {
                    Ok(Look::Found(dte)) => {
                        let pass = self.observe(&candidates, slot, *word, dte).await;
                        return (buf, pass);
                    }
                    Ok(Look::Nothing) => (),
                    Ok(Look::Pending(word, generation)) => pending.push((word, generation)),
                    Ok(Look::Changed) => return (buf, Ok(Pass::Changed)),
                    Err(error) => return (buf, Err(error)),
                }
            }
        }
        // Linearization point of a miss: any moment between the two passes.
        let absent = self.confirm_absent(&candidates, &words, &pending).await;
        (buf, absent.map(|absent| if absent { Pass::Absent } else { Pass::Changed }))
    }

    async fn read_way(
        &self,
        candidates: &Candidates,
        way: usize,
        words: &mut [Ite; CANDIDATES_MAX],
    ) -> Result<(), EngineError> {
        if !self.base.one_by_one {
            if way == 0 {
                *words = self.base.collect(candidates).await?;
            }
            return Ok(());
        }
        let slots = candidates.bucket_slots();
        let bucket = self.base.fabric.read_bucket(candidates.buckets()[way], slots).await?;
        for slot in way * slots..(way + 1) * slots {
            words[slot] = Ite(bucket[candidates.position(slot) - way * slots]);
        }
        Ok(())
    }

    /// What a slot says about the key's value.
    ///
    /// Linearization point of a hit. If the entry is committed: the READ of the slot, or the
    /// commit, if that came after. If the previous version is the value: the READ of the entry if
    /// it was pending then, or the READ of the slot if it was aborted. An entry is decided before
    /// it is replaced, so the previous version was the value at that moment.
    async fn look(
        &self,
        search: &mut Search<'_>,
        slot: usize,
        word: Ite,
        buf: Buf,
    ) -> (Buf, Result<Look, EngineError>) {
        let (buf, seen) = self.read_entry(word, search.key, search.want, buf).await;
        let dte = match seen {
            Ok(Seen::Match(dte)) => dte,
            Ok(Seen::Other) => return (buf, Ok(Look::Nothing)),
            Ok(Seen::Changed) => return (buf, Ok(Look::Changed)),
            Err(error) => return (buf, Err(error)),
        };
        match dte.meaning(slot) {
            Meaning::Present | Meaning::MovedSource => (buf, Ok(Look::Found(dte))),
            Meaning::Insert { pending: true } | Meaning::Destination { pending: true } => {
                (buf, Ok(Look::Pending(word, dte.header.generation)))
            }
            Meaning::Insert { .. } | Meaning::Destination { .. } => (buf, Ok(Look::Nothing)),
            Meaning::Previous { pending } => {
                let may_wait = !self.previous_versions && !self.base.session.is_observer();
                if pending && may_wait {
                    let done = self.wait_for(&mut search.rival, slot, word, &dte).await;
                    return (buf, done.map(|()| Look::Changed));
                }
                let shown = dte.shown(word);
                let (buf, read) = self.read_shown(shown, search.key, search.want, buf).await;
                (buf, read.map(|read| read.map_or(Look::Changed, Look::Found)))
            }
        }
    }

    /// A hit. If this client is an observer, for which no grace period waits, the slot must still
    /// hold the word, so that the entry was not reused in between; and the entry that the word
    /// names must say the same, so that its previous version was not reused.
    async fn observe(
        &self,
        candidates: &Candidates,
        slot: usize,
        word: Ite,
        dte: Dte,
    ) -> Result<Pass, EngineError> {
        if !self.base.session.is_observer() {
            return Ok(Pass::Found(dte));
        }
        let codec = &self.base.map.codec;
        let direct = codec.generation(word) == dte.header.generation & codec.gen_mask();
        let Some((at, _)) = self.base.entry_at(word) else { return Ok(Pass::Changed) };
        let status = self.base.read_word(super::entry::Status::addr(at)).await?;
        let decided = status & 3 == super::entry::Status::Committed as u64;
        let same = self.base.read_word(candidates.slot(slot)).await? == word.0;
        Ok(if same && direct == decided { Pass::Found(dte) } else { Pass::Changed })
    }
}
