//! The scrubber frees the memory that clients left: those that died, and those that live whose
//! operations ended without an outcome (the published design leaks it).
//!
//! A client that dies may leave a tentative word, an unfinished move, an entry that it had not yet
//! installed, or an entry that it had replaced and not yet noted. Any writer that meets a tentative
//! word or an unfinished move settles it. The scrubber settles those that no writer meets, and
//! finds the entries:
//!
//! 1. It looks at every entry that is in use by its note and generation, and lists those that no
//!    slot of their key shows.
//! 2. It waits for a grace period: every operation that was under way has ended, so an entry that
//!    was about to be installed has been, or its client is dead.
//! 3. It looks at the listed entries again. An entry is leaked if it is still the same incarnation
//!    and if two equal looks at all its candidates still do not show it. The scrubber then writes
//!    its note, as the entry's client should have done.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::report::Scrubbed;
use super::rules::{Rules, Standing, Suspect};
use crate::epoch::Grace;
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::dte::{BEFORE_VALUE_BYTES_MAX, Header, note_of};
use crate::nessie::layout::hash::TableMap;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::slab::{Chunk, Class, Entry, FORMATTED_OFFSET, Slab};
use crate::nessie::memory::left::give_back;
use crate::planted::{self, Bug};

/// Pause between two looks at the grace period.
const GRACE_POLL_US: u64 = 1000;

impl<F: Fabric> Client<F> {
    /// Scrubs data table `dti`. Waits at most `wait_us` for clients that are in the middle of an
    /// operation. If that is too short, nothing is freed, and the next scrub may be luckier.
    ///
    /// # Errors
    /// [`EngineError::Timeout`] if the grace period did not pass, or the fabric's errors.
    pub async fn scrub(&self, dti: u8, wait_us: u64) -> Result<Scrubbed, EngineError> {
        self.scrub_by(self, dti, wait_us).await
    }

    /// [`Client::scrub`] by the rules of a protocol.
    pub(in crate::nessie) async fn scrub_by(
        &self,
        rules: &impl Rules,
        dti: u8,
        wait_us: u64,
    ) -> Result<Scrubbed, EngineError> {
        let scrubbed = self.scrub_table(rules, dti, wait_us).await;
        // Between scrubs this session is unused, and would go on announcing the verbs that it
        // posted.
        self.session.quiesce(&self.fabric).await?;
        scrubbed
    }

    async fn scrub_table(
        &self,
        rules: &impl Rules,
        dti: u8,
        wait_us: u64,
    ) -> Result<Scrubbed, EngineError> {
        let mut report = Scrubbed::default();
        let suspects = self.suspects(rules, dti, &mut report).await?;
        let stuck = self.unowned(dti).await?;
        if suspects.is_empty() && stuck.is_empty() {
            return Ok(report);
        }
        if !planted::is(Bug::NoGraceInScrub) {
            self.outlast(wait_us).await?;
        }
        for suspect in suspects {
            self.resolve(rules, suspect, &mut report).await?;
        }
        for (slab, class, word) in stuck {
            let to = Chunk::Abandoned {
                class: class.id,
                chunks: class.chunks,
                free_hint: class.entries,
            };
            let at = self.map.chunk_addr(slab.dti, slab.chunk as u64);
            self.fabric.compare_swap(at, word, to.to_word()).await?;
        }
        Ok(report)
    }

    /// Waits until every operation of every session that is under way now has ended, and the verbs
    /// that they posted are over, but at most `wait_us`.
    ///
    /// # Errors
    /// [`EngineError::Timeout`], or the fabric's errors.
    pub async fn outlast(&self, wait_us: u64) -> Result<(), EngineError> {
        let mut grace = Grace::begin(&self.fabric, self.map.sessions()).await?;
        let until = self.fabric.now_us() + wait_us;
        while !grace.has_passed(&self.fabric).await? {
            self.session.settle(&self.fabric)?;
            if self.fabric.now_us() > until {
                return Err(EngineError::Timeout { timeout_us: wait_us });
            }
            self.fabric.pause(GRACE_POLL_US).await;
        }
        Ok(())
    }

    fn at(&self, suspect: &Suspect) -> RemoteAddr {
        self.map.slab_addr(suspect.entry.slab).add(suspect.class.entry_at(suspect.entry.number))
    }

    /// Whether a word names this incarnation of an entry.
    pub(in crate::nessie) fn names(&self, word: Ite, suspect: &Suspect) -> bool {
        let codec = &self.map.codec;
        !codec.is_empty(word)
            && codec.place(word) == suspect.class.place(suspect.entry)
            && codec.generation(word) == suspect.generation & codec.gen_mask()
    }

    /// The key of an entry, which may be half-written; `None` if its bytes cannot be a key, or if
    /// the entry is another incarnation.
    pub(in crate::nessie) async fn key_of(
        &self,
        suspect: Suspect,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let at = self.at(&suspect);
        let len = suspect.class.entry_bytes.min(BEFORE_VALUE_BYTES_MAX as u64) as usize;
        let (buf, done) = self.fabric.read(at, len, Buf::with_capacity(len)).await;
        done?;
        let Some(header) = Header::read(&buf) else {
            return Ok(None);
        };
        if header.generation != suspect.generation {
            return Ok(None);
        }
        // A key that ends behind its entry was never finished. No client could look for it, so any
        // key will do. All other keys were read whole.
        Ok(Some(buf.get(header.key_at()..header.value_at()).unwrap_or(&[0]).to_vec()))
    }

    /// Frees the leaked entries, after the grace period.
    async fn resolve(
        &self,
        rules: &impl Rules,
        suspect: Suspect,
        report: &mut Scrubbed,
    ) -> Result<(), EngineError> {
        let _epoch = self.session.pin(&self.fabric)?;
        if !self.is_used(&suspect, report).await? && !planted::is(Bug::UnusedScrubbed) {
            return Ok(());
        }
        for _ in 0..3 {
            let note_at = self
                .map
                .slab_addr(suspect.entry.slab)
                .add(suspect.class.note_at(suspect.entry.number));
            if self.read_note(suspect.class, suspect.entry).await? == note_of(suspect.generation) {
                return Ok(());
            }
            let Some(standing) = rules.standing(suspect).await? else {
                return Ok(());
            };
            match standing {
                Standing::Shown => return Ok(()),
                Standing::Unclear => (),
                Standing::Undecided(slot, word) => {
                    if !rules.settle_left(suspect, slot, word, report).await? {
                        return Ok(());
                    }
                }
                Standing::Unnamed => {
                    self.fabric
                        .write_unsignaled(note_at, &note_of(suspect.generation).to_le_bytes())?;
                    report.freed += 1;
                    report.freed_bytes += suspect.class.entry_bytes;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether the slab of a suspect is still cut as the scrubber thought, and the entry was ever
    /// used in it. The notes and the count of used entries that made the entry a suspect may have
    /// been read while the slab was cut anew, one before and the other after.
    ///
    /// Called inside an epoch: a slab that is not about to be taken apart now stays whole until the
    /// epoch ends. A client may open a slab again that it has closed: what is in such a slab is put
    /// off.
    async fn is_used(&self, suspect: &Suspect, report: &mut Scrubbed) -> Result<bool, EngineError> {
        let Suspect { class, entry: Entry { slab, number }, .. } = *suspect;
        let word = self.read_word(self.map.chunk_addr(slab.dti, slab.chunk as u64)).await?;
        let stays = match Chunk::from_word(word) {
            Some(
                Chunk::Leased { class, chunks, .. }
                | Chunk::Abandoned { class, chunks, .. }
                | Chunk::Seized { class, chunks, .. },
            ) => Some((class, chunks)),
            Some(Chunk::Closing { .. }) => {
                report.put_off += 1;
                None
            }
            _ => None,
        };
        if stays != Some((class.id, class.chunks)) {
            return Ok(false);
        }
        let formatted = self.read_word(self.map.slab_addr(slab).add(FORMATTED_OFFSET)).await?;
        Ok((number as u64) < formatted)
    }

    /// The slabs that a session was seizing when it ended.
    ///
    /// The sessions are read after the descriptors. A session that wrote a descriptor was there at
    /// that time, so if it is missing later it has ended. In the other order, a session that began
    /// in between would seem to have ended.
    async fn unowned(&self, dti: u8) -> Result<Vec<(Slab, Class, u64)>, EngineError> {
        let early = match planted::is(Bug::SessionsBeforeDescriptors) {
            true => Some(self.live_sessions().await?),
            false => None,
        };
        let words = self.read_chunk_table(dti).await?;
        let live = match early {
            Some(live) => live,
            None => self.live_sessions().await?,
        };
        let mut stuck = Vec::new();
        for (chunk, word) in words.into_iter().enumerate() {
            if let Some(Chunk::Seized { class, chunks, owner }) = Chunk::from_word(word)
                && !live.contains(&owner)
                && let Some(class) = self.map.slab_class(chunk as u32, class, chunks)
            {
                stuck.push((Slab { dti, chunk: chunk as u32 }, class, word));
            }
        }
        Ok(stuck)
    }

    /// The low halves of the incarnations of all sessions of all nodes.
    async fn live_sessions(&self) -> Result<Vec<u32>, EngineError> {
        use crate::region::{SESSION_BYTES, SESSIONS_OFFSET};
        let mut live = Vec::new();
        for (region, slots) in self.map.sessions() {
            let bytes = (*slots as u64 * SESSION_BYTES) as usize;
            let at = RemoteAddr::new(*region, SESSIONS_OFFSET);
            let buf = Buf::with_capacity(bytes);
            let (buf, done) = self.fabric.read_whole_words(at, bytes, buf).await;
            done?;
            let incarnation =
                |slot: &[u8]| u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"));
            live.extend(
                buf.chunks_exact(SESSION_BYTES as usize)
                    .map(incarnation)
                    .filter(|i| *i != 0)
                    .map(|i| i as u32),
            );
        }
        Ok(live)
    }
}

/// Cleans up the chunk descriptors that a session left: leased slabs become abandoned, and runs
/// that the session was putting together or taking apart become whole or free. Returns the slabs
/// that were touched. The slabs that the session was seizing wait for the scrubber's grace period.
///
/// The node calls this for a session that has certainly ended.
///
/// # Errors
/// The fabric's.
pub async fn release_dead<F: Fabric>(
    fabric: &F,
    map: &TableMap,
    dti: u8,
    owner: u32,
) -> Result<u64, EngineError> {
    let bytes = map.shape.geometry.chunks as usize * 8;
    let buf = Buf::with_capacity(bytes);
    let (buf, done) = fabric.read_whole_words(map.chunk_addr(dti, 0), bytes, buf).await;
    done?;
    let words: Vec<u64> = buf
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
        .collect();
    let mut released = 0;
    for (at, word) in words.iter().copied().enumerate() {
        let dead = match Chunk::from_word(word) {
            Some(
                Chunk::Leased { owner, .. }
                | Chunk::Closing { owner, .. }
                | Chunk::Forming { owner, .. },
            ) => owner,
            _ => continue,
        };
        if dead == owner {
            released += 1;
            give_back(fabric, map, Slab { dti, chunk: at as u32 }, &words[at..]).await?;
        }
    }
    Ok(released)
}
