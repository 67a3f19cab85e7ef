//! Operations that use the client's cache, which remembers the slot in which a key was found and
//! the word in it. The top of `client/cache.rs` says why that is sound.

use loch_fabric::{Buf, Fabric};

use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::cache::Line;
use crate::nessie::layout::dte::Header;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
#[cfg(feature = "planted")]
use crate::nessie::layout::ite::Place;
use crate::nessie::layout::marks::{Mark, Marks};
use crate::operation::Value;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// A GET by a remembered word: one round trip. Gives the buffer back if the word did not do.
    pub(super) async fn get_cached(
        &self,
        candidates: &Candidates,
        key: &[u8],
        mut buf: Buf,
    ) -> Result<Result<Value, Buf>, EngineError> {
        let Some(line) = self.cached_into(candidates, key, &mut buf) else {
            return Ok(Err(buf));
        };
        let (slot, header) = (candidates.slot(line.slot), line.header);
        if line.has_value {
            if planted::is(Bug::CacheOutlivesReuse) || self.read_word(slot).await? == line.word.0 {
                self.confirm(candidates, line.word);
                self.mark_remembered(candidates, line.slot).await?;
                return Ok(Ok(header.value_in(buf)));
            }
        } else {
            // The slot and the entry are read in one doorbell, in an unknown order. So the entry's
            // own generation must agree too: then the entry was in place when it was read, and it
            // is the one that the word names.
            let place = self.map.codec.place(line.word);
            let base = self.map.data_base(place.dti).expect("a remembered place is in the map");
            let at = base.add(place.offset);
            buf.clear();
            let (filled, word) =
                self.fabric.read_word_and_bytes(slot, at, header.entry_len(), buf).await;
            buf = filled;
            // An entry that the client has put itself is remembered without its checksum.
            let seen =
                Header::read(&buf).filter(|seen| header.with_checksum(seen.checksum) == *seen);
            if word? == line.word.0
                && let Some(header) = seen
                && self.is_valid(&header, place, at, &buf, true)?
            {
                self.confirm(candidates, line.word);
                self.mark_remembered(candidates, line.slot).await?;
                return Ok(Ok(header.value_in(buf)));
            }
        }
        self.forget(candidates);
        Ok(Err(buf))
    }

    /// Marks a remembered entry as used. The marks did not come with its slot: they are READ once
    /// an epoch.
    async fn mark_remembered(
        &self,
        candidates: &Candidates,
        slot: usize,
    ) -> Result<(), EngineError> {
        if !self.evicts() {
            return Ok(());
        }
        self.look_at_clock().await?;
        let is_to_mark = self.cache.as_ref().is_some_and(|cache| {
            cache.borrow_mut().is_to_mark(candidates.hash.name(), self.mark_epoch())
        });
        let at = candidates.slot(slot);
        let mark = match is_to_mark {
            true => {
                let (bucket, position) = self.map.bucket_of(at);
                Marks(self.read_word(self.map.marks_addr(bucket)).await?).of(position)
            }
            // It was marked in this epoch.
            false => Mark::returned(self.mark_epoch()),
        };
        self.used(at, mark)
    }

    /// What the client remembers of a key.
    pub(super) fn cached(&self, candidates: &Candidates, key: &[u8]) -> Option<Line> {
        let mut cache = self.cache.as_ref()?.borrow_mut();
        let (line, _) = cache.line(candidates.hash.name(), key, self.session.epoch())?;
        Some(line)
    }

    /// The same, with the bytes that it remembers.
    #[inline]
    pub(super) fn cached_into(
        &self,
        candidates: &Candidates,
        key: &[u8],
        buf: &mut Buf,
    ) -> Option<Line> {
        let mut cache = self.cache.as_ref()?.borrow_mut();
        let (line, bytes) = cache.line(candidates.hash.name(), key, self.session.epoch())?;
        buf.clear();
        buf.extend_from_slice(bytes);
        Some(line)
    }

    #[inline]
    pub(super) fn confirm(&self, candidates: &Candidates, word: Ite) {
        if let Some(cache) = &self.cache {
            cache.borrow_mut().confirm(candidates.hash.name(), word, self.seen_epoch());
        }
    }

    /// The epoch for a cache line whose word was just seen in its slot.
    #[inline]
    pub(in crate::nessie) fn seen_epoch(&self) -> u64 {
        if planted::is(Bug::CacheLinesTooYoung) {
            return self.session.epoch();
        }
        self.session.announced()
    }

    /// Whether this client would still use a remembered word that names an entry by this
    /// generation, or by another one with the same bits in a word. `home_epoch` is the epoch of the
    /// client's home node. For tests: no other code looks into a cache.
    #[cfg(feature = "planted")]
    pub fn remembers(&self, place: Place, generation: u64, home_epoch: u64) -> bool {
        let Some(cache) = &self.cache else { return false };
        let (codec, epoch) = (&self.map.codec, self.session.judges_by(home_epoch));
        let named = generation & codec.gen_mask();
        cache.borrow().lines().any(|kept| {
            codec.place(kept.line.word) == place
                && codec.generation(kept.line.word) == named
                && !kept.is_old(epoch)
        })
    }

    pub(super) fn forget(&self, candidates: &Candidates) {
        if let Some(cache) = &self.cache {
            cache.borrow_mut().forget(candidates.hash.name());
        }
    }

    /// Remembers an entry that was just read from, or put into, a slot. `entry` holds at least its
    /// header and key.
    #[inline]
    pub(super) fn remember(&self, candidates: &Candidates, slot: usize, word: Ite, entry: &[u8]) {
        if let Some(cache) = &self.cache
            && !self.session.is_observer()
        {
            cache.borrow_mut().keep(candidates.hash.name(), slot, word, entry, self.seen_epoch());
        }
    }
}
