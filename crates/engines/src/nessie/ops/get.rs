//! GET (nessie §4.2.1): the client reads the slots, and then the entry they name.
//!
//! A GET never helps, never waits for other clients and never writes, with one exception: it
//! removes an expired entry before it reports the key as absent. It starts over only when another
//! operation changed a slot that it looked at.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::read::{Seen, Want};
use crate::error::EngineError;
use crate::limits::{CANDIDATES_MAX, WAYS_MAX};
use crate::nessie::client::alloc::Own;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::{Header, flags};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::ledger::Forgotten;
use crate::nessie::layout::marks::{Mark, Marks};
use crate::nessie::layout::slab::Class;
use crate::operation::Value;
use crate::planted::{self, Bug};

/// The outcome of one pass over the candidates.
pub(super) enum Pass {
    Found(usize, Ite, Header, Mark),
    Absent,
    Changed,
}

impl<F: Fabric> Client<F> {
    /// The value of `key`, if it has one. `buf` is filled with the entry.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if other clients kept changing the key's slots.
    #[inline]
    pub fn get(
        &self,
        key: &[u8],
        buf: Buf,
    ) -> impl Future<Output = Result<Option<Value>, EngineError>> {
        self.get_straight::<false>(key, buf)
    }

    /// As [`Client::get`], for the program that awaits it in place. This future is a type of its
    /// own: the compiler inlines a future of this length only if it is polled in one place.
    ///
    /// # Errors
    /// As [`Client::get`].
    #[inline]
    pub fn get_in_place(
        &self,
        key: &[u8],
        buf: Buf,
    ) -> impl Future<Output = Result<Option<Value>, EngineError>> {
        self.get_straight::<true>(key, buf)
    }

    async fn get_straight<const IN_PLACE: bool>(
        &self,
        key: &[u8],
        mut buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let hash = self.hash(key)?;
        let _epoch = self.session.pin(&self.fabric)?;
        if self.cache.is_some() {
            match self.get_remembered(hash, key, buf).await? {
                Ok(found) => return Ok(Some(found)),
                Err(unused) => buf = unused,
            }
        }
        if !self.one_by_one {
            return self.get_anyhow(hash, key, buf, None).await;
        }
        // The usual case, without detours: one bucket after the other, because most keys are in the
        // first. The first entry whose filter bits agree is usually the key's, and as long as the
        // last entry that was read. The general path does everything else.
        let geometry = &self.map.shape.geometry;
        let (ways, slots) = (geometry.ways as usize, geometry.bucket_slots as usize);
        let in_bucket = geometry.bucket_words();
        let filter = hash.filter(&self.map);
        let mut buckets = [RemoteAddr::new(self.session.home(), 0); WAYS_MAX];
        let mut words = [0; CANDIDATES_MAX];
        for way in 0..ways {
            buckets[way] = hash.bucket(&self.map, &buckets[..way]);
            let bucket = self.fabric.read_bucket(buckets[way], in_bucket).await?;
            let Some((position, word)) = self.first_match(&bucket[..slots], filter) else {
                words[way * slots..(way + 1) * slots].copy_from_slice(&bucket[..slots]);
                continue;
            };
            let mark = Marks(bucket[in_bucket - 1]).of(position);
            let Some((at, room)) = self.entry_at(word) else { break };
            buf.clear();
            let first = self.first_read_len(key.len(), Want::Value).min(room);
            let (filled, done) = self.fabric.read(at, first, buf).await;
            (buf, _) = (filled, done?);
            let plain = |h: &Header| h.flags & flags::EXPIRES == 0 && h.entry_len() <= room;
            let Some(header) = self.sound_key(word, at, key, &buf)?.filter(plain) else {
                return self.get_anyhow(hash, key, buf, None).await;
            };
            let missing = header.entry_len().saturating_sub(buf.len());
            if missing > 0 {
                if !self.may_be_long(&header, room) {
                    return self.get_anyhow(hash, key, buf, None).await;
                }
                let rest = at.add(buf.len() as u64);
                let (filled, done) = self.fabric.read(rest, missing, buf).await;
                (buf, _) = (filled, done?);
                if self.fabric.reload(at)? != header.generation {
                    return self.get_anyhow(hash, key, buf, None).await;
                }
            }
            self.hint_read(&header);
            self.used(buckets[way].add(position as u64 * 8), mark)?;
            if self.cache.is_some() {
                let candidates = Candidates::from_hash(&self.map, hash);
                let slot = candidates.position(way * slots + position);
                self.remember(&candidates, slot, word, &buf);
            }
            // Linearization point of a hit (protocol G2): the READ of the bucket. The entry was
            // the key's value at that moment, by I1 and I2, and entries do not change.
            return Ok(Some(header.value_in(buf)));
        }
        self.get_anyhow(hash, key, buf, Some(words)).await
    }

    /// The general path of a GET. The straight path calls it at each place where it gives up. To
    /// leave the loop for a single call at its end would cost a GET in many lanes a tenth.
    pub(super) async fn get_anyhow(
        &self,
        hash: KeyHash,
        key: &[u8],
        buf: Buf,
        misses: Option<[u64; CANDIDATES_MAX]>,
    ) -> Result<Option<Value>, EngineError> {
        let found = self.look_up(hash, key, Want::Value, buf, misses).await?;
        Ok(found.map(|(header, entry)| header.value_in(entry)))
    }

    /// The first slot of a bucket that may show the key, with its word.
    #[inline(always)]
    pub(super) fn first_match(&self, bucket: &[u64], filter: u64) -> Option<(usize, Ite)> {
        let codec = &self.map.codec;
        let may = |w: Ite| codec.is_visible(w) && codec.has_filter(w, filter);
        bucket.iter().map(|w| Ite(*w)).enumerate().find(|(_, w)| may(*w))
    }

    /// The header of an entry that was just read from `at`, if the entry has the key and `buf`
    /// holds it at least up to its key.
    #[inline(always)]
    pub(super) fn sound_key(
        &self,
        word: Ite,
        at: RemoteAddr,
        key: &[u8],
        buf: &[u8],
    ) -> Result<Option<Header>, EngineError> {
        let Some(header) = Header::read(buf) else {
            return Ok(None);
        };
        let ours = self.is_named(word, &header)
            && buf.get(header.key_at()..header.value_at()) == Some(key);
        let sound = ours && self.is_unchanged(at, &header)?;
        Ok(sound.then_some(header))
    }

    /// Whether a copy of an entry is of the incarnation that a word names.
    #[inline(always)]
    pub(super) fn is_named(&self, word: Ite, header: &Header) -> bool {
        let codec = &self.map.codec;
        header.generation & codec.gen_mask() == codec.generation(word)
            || planted::is(Bug::NoGenerationCheck)
    }

    /// Whether the entry from which a copy was made just now is still of that incarnation.
    #[inline(always)]
    pub(super) fn is_unchanged(
        &self,
        at: RemoteAddr,
        header: &Header,
    ) -> Result<bool, EngineError> {
        Ok(self.fabric.reload(at)? == header.generation || planted::is(Bug::TornReadsBelieved))
    }

    async fn get_remembered(
        &self,
        hash: KeyHash,
        key: &[u8],
        buf: Buf,
    ) -> Result<Result<Value, Buf>, EngineError> {
        let candidates = Candidates::from_hash(&self.map, hash);
        Ok(match self.get_cached(&candidates, key, buf).await? {
            Ok(found) if found.expires_at_ms().is_some_and(|at| at <= self.fabric.wall_ms()) => {
                Err(found.into_buf())
            }
            other => other,
        })
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        let hash = self.hash(key)?;
        let _epoch = self.session.pin(&self.fabric)?;
        Ok(self.look_up(hash, key, Want::Key, Buf::new(), None).await?.is_some())
    }

    /// The general path: reads the header and the wanted bytes of the key's entry. `misses` are the
    /// words of all buckets, as they lie in memory, if they have been read and none of them belongs
    /// to the key.
    pub(super) async fn look_up(
        &self,
        hash: KeyHash,
        key: &[u8],
        want: Want,
        mut buf: Buf,
        mut misses: Option<[u64; CANDIDATES_MAX]>,
    ) -> Result<Option<(Header, Buf)>, EngineError> {
        let candidates = Candidates::from_hash(&self.map, hash);
        let mut attempts = Attempts::default();
        loop {
            let (filled, pass) = self.get_pass(&candidates, key, want, buf, misses.take()).await;
            buf = filled;
            match pass? {
                Pass::Found(slot, word, header, _) if self.is_expired(&header, &buf) => {
                    if self.expire(&candidates, key, slot, word, &header).await? {
                        return Ok(None);
                    }
                }
                Pass::Found(slot, word, header, mark) => {
                    if want == Want::Value {
                        self.look_at_clock().await?;
                        self.used(candidates.slot(slot), mark)?;
                    }
                    self.remember(&candidates, slot, word, &buf);
                    return Ok(Some((header, buf)));
                }
                Pass::Absent => {
                    if want == Want::Value {
                        self.missed();
                    }
                    return Ok(None);
                }
                Pass::Changed => (),
            }
            attempts.again(self).await?;
        }
    }

    /// A pass over all candidates, read in one doorbell.
    pub(super) async fn get_pass(
        &self,
        candidates: &Candidates,
        key: &[u8],
        want: Want,
        mut buf: Buf,
        misses: Option<[u64; CANDIDATES_MAX]>,
    ) -> (Buf, Result<Pass, EngineError>) {
        let looked = match misses {
            Some(words) => Ok((candidates.arrange(&words), [Marks::default(); WAYS_MAX])),
            None => self.collect_marked(candidates).await,
        };
        let (words, marks) = match looked {
            Ok(looked) => looked,
            Err(error) => return (buf, Err(error)),
        };
        let looked_at = if misses.is_some() { candidates.count() } else { 0 };
        for (slot, word) in words.into_iter().enumerate().take(candidates.count()).skip(looked_at) {
            let codec = &self.map.codec;
            if !codec.is_visible(word) || !codec.has_filter(word, candidates.filter) {
                continue;
            }
            let (filled, seen) = self.read_entry(word, key, want, buf).await;
            buf = filled;
            match seen {
                // Linearization point of a hit (protocol G2), as above.
                Ok(Seen::Match(header)) => {
                    let mark = candidates.mark_in(&marks, slot);
                    return (buf, self.observe(candidates, slot, word, header, mark).await);
                }
                Ok(Seen::Other) => (),
                Ok(Seen::Changed) => return (buf, Ok(Pass::Changed)),
                Err(error) => return (buf, Err(error)),
            }
        }
        // A second look, posted after the first one completed. If the value had moved from a slot
        // that was not yet looked at into a slot that was, one of the words would differ (every
        // word is unique). Linearization point of a miss (protocol G3): any moment between the two
        // looks.
        if planted::is(Bug::NoSecondLook) {
            return (buf, Ok(Pass::Absent));
        }
        let pass = match self.collect(candidates).await {
            Ok(again) if again == words => Ok(Pass::Absent),
            Ok(_) => Ok(Pass::Changed),
            Err(error) => Err(error),
        };
        (buf, pass)
    }

    /// A hit. If this client is an observer, for which no grace period waits, the slot must still
    /// hold the word after the entry was read, so that the entry was not reused in between.
    async fn observe(
        &self,
        candidates: &Candidates,
        slot: usize,
        word: Ite,
        header: Header,
        mark: Mark,
    ) -> Result<Pass, EngineError> {
        let same =
            !self.session.is_observer() || self.read_word(candidates.slot(slot)).await? == word.0;
        Ok(if same { Pass::Found(slot, word, header, mark) } else { Pass::Changed })
    }

    /// Removes an expired entry (protocol G4). Returns whether this client removed it. The removal,
    /// not the clock, is the event that all clients agree on, so it comes before any caller learns
    /// of the expiry.
    pub(super) async fn expire(
        &self,
        candidates: &Candidates,
        key: &[u8],
        slot: usize,
        word: Ite,
        header: &Header,
    ) -> Result<bool, EngineError> {
        if self.session.is_observer() {
            // An observer may not remove the entry. A client that may will come to the same
            // conclusion.
            return Ok(true);
        }
        if !self.map.codec.is_unmoved(word) {
            self.help(candidates, key, slot, word).await?;
            return Ok(false);
        }
        if planted::is(Bug::FreedBeforeExpired) {
            self.unlinked(word, header)?;
        }
        let mut epoch = self.session.pin(&self.fabric)?;
        epoch.owe();
        // Linearization point of an expiry (protocol G4).
        let is_out = self.clear(candidates, slot, word).await;
        if !is_out.map_err(EngineError::without_effect)? {
            epoch.paid();
            return Ok(false);
        }
        self.unlinked(word, header)?;
        epoch.paid();
        let class = self.map.classes.of(header.entry_len());
        let expired = Forgotten { expired: 1, ..Forgotten::default() };
        let counted = Box::pin(self.count_forgotten(&class, expired)).await;
        counted.map_err(EngineError::without_effect)?;
        Ok(true)
    }

    /// Retires the entry that the word named, after our CAS took the word out of the index.
    #[inline]
    pub(super) fn unlinked(&self, word: Ite, header: &Header) -> Result<(), EngineError> {
        self.unlinked_in(&self.map.classes.of(header.entry_len()), word, header.generation)
    }

    /// The same for an entry whose class is known.
    #[inline(always)]
    pub(super) fn unlinked_in(
        &self,
        class: &Class,
        word: Ite,
        generation: u64,
    ) -> Result<(), EngineError> {
        let place = self.map.codec.place(word);
        let Some(entry) = class.entry(place) else {
            // The CAS was made, so the operation is done; but the word that it unlinked names no
            // entry.
            tracing::warn!(?place, bytes = class.entry_bytes, "damaged memory: no entry is there");
            return Ok(());
        };
        self.retire(entry, class, generation)
    }

    /// The same for an entry that was replaced by one of `new_len` bytes, which is often as long.
    #[inline(always)]
    pub(super) fn unlinked_beside(
        &self,
        (new, new_len): (&Own, usize),
        word: Ite,
        (old_len, generation): (usize, u64),
    ) -> Result<(), EngineError> {
        if old_len == new_len {
            return self.unlinked_in(&new.class, word, generation);
        }
        self.unlinked_in(&self.map.classes.of(old_len), word, generation)
    }
}
