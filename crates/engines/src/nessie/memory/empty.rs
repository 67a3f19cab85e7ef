//! Emptying: how memory goes from one size class to another, and from one client to another, in a
//! table that evicts.
//!
//! A client that has no slab of a class takes one of another client's, as it is. If there is none,
//! it chooses a run of chunks that is as long as a slab of the class, and empties the slabs in the
//! way: it **seizes** them, so that nobody allocates from them after a grace period; then it evicts
//! their values; then it takes them apart, as any slab without an entry in use. Of some runs it
//! chooses the one whose values are worth least.
//!
//! # Invariants
//! 1. A slab is taken apart only after it was closed and then found without an entry in use. Values
//!    that could not be evicted, because they are pinned or moving, keep their slab as it is.

use loch_fabric::Fabric;

use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::waits::Then;
use crate::nessie::layout::slab::{Chunk, Class, Entry, LARGE, Slab};
use crate::planted::{self, Bug};

/// Runs of chunks among which the cheapest is chosen.
const RUNS: usize = 4;
/// Entries of a slab that are looked at to estimate what its values are worth.
const SAMPLED: usize = 8;
/// Values of a slab that are evicted in one epoch.
const EVICTED: u32 = 64;

/// A slab, with the word of its descriptor.
type Found = (Slab, Class, u64);

impl<F: Fabric> Client<F> {
    /// Begins to make memory of other uses available to a class of which this client has no slab.
    pub(super) async fn empty_slabs(&self, class: Class) -> Result<(), EngineError> {
        if !self.evicts() {
            return Ok(());
        }
        for dti in &self.tables {
            let words = self.read_chunk_table(*dti).await?;
            let theirs = self.slab_of_others(*dti, class, &words);
            if let Some(found) = theirs
                && self.seize_found(found).await?
            {
                return self.wait_then(0, Then::Seize(class, vec![found.0])).await;
            }
            let Some(run) = self.cheapest_run(*dti, class, &words).await? else { continue };
            let mut seized = Vec::new();
            for found in run {
                if self.seize_found(found).await? {
                    seized.push((found.0, found.1));
                }
            }
            if !seized.is_empty() {
                return self.wait_then(0, Then::Empty(seized)).await;
            }
        }
        Ok(())
    }

    async fn seize_found(&self, (slab, class, word): Found) -> Result<bool, EngineError> {
        let (id, chunks) = (class.id, class.chunks);
        let to = Chunk::Seized { class: id, chunks, owner: self.owner().id };
        let seized = self.cas_chunk(slab, 0, word, to).await?;
        if seized {
            self.alloc.borrow_mut().list(class).forget_slab(slab);
        }
        Ok(seized)
    }

    /// Another client's slab of the class.
    fn slab_of_others(&self, dti: u8, class: Class, words: &[u64]) -> Option<Found> {
        let begin = self.any(words.len());
        (0..words.len()).map(|at| (begin + at) % words.len()).find_map(|at| {
            let Some(Chunk::Leased { class: id, chunks, owner }) = Chunk::from_word(words[at])
            else {
                return None;
            };
            let is_theirs = owner != self.owner().id && (id, chunks) == (class.id, class.chunks);
            let slab = Slab { dti, chunk: at as u32 };
            is_theirs.then_some((slab, self.map.slab_class(at as u32, id, chunks)?, words[at]))
        })
    }

    /// The slabs in the way of a slab of the class, where their values are worth least.
    async fn cheapest_run(
        &self,
        dti: u8,
        class: Class,
        words: &[u64],
    ) -> Result<Option<Vec<Found>>, EngineError> {
        let mut cheapest: Option<(u64, Vec<Found>)> = None;
        for _ in 0..RUNS {
            let Some(run) = self.any_run(dti, class, words) else { continue };
            let mut worth = 0;
            for (slab, its_class, _) in &run {
                worth += self.worth_of(*slab, *its_class).await?;
            }
            if cheapest.as_ref().is_none_or(|(least, _)| worth < *least) {
                cheapest = Some((worth, run));
            }
        }
        Ok(cheapest.map(|(_, run)| run))
    }

    /// The slabs in the way of a slab of the class at some place; `None` if other clients are busy
    /// there, or there are none.
    fn any_run(&self, dti: u8, class: Class, words: &[u64]) -> Option<Vec<Found>> {
        let chunks = class.chunks as usize;
        let step = if class.id == LARGE { 1 } else { chunks };
        let places = words.len().checked_sub(chunks)? / step + 1;
        let begin = self.any(places) * step;
        let (mut at, mut run) = (begin, Vec::new());
        while at < begin + chunks {
            let head = match Chunk::from_word(words[at])? {
                Chunk::Free => {
                    at += 1;
                    continue;
                }
                Chunk::Tail { back } => at.checked_sub(back as usize)?,
                _ => at,
            };
            let (id, its_chunks) = match Chunk::from_word(words[head])? {
                Chunk::Leased { class, chunks, .. } | Chunk::Abandoned { class, chunks, .. } => {
                    (class, chunks)
                }
                _ => return None,
            };
            let its_class = self.map.slab_class(head as u32, id, its_chunks)?;
            run.push((Slab { dti, chunk: head as u32 }, its_class, words[head]));
            at = (head + its_chunks as usize).max(at + 1);
        }
        (!run.is_empty()).then_some(run)
    }

    /// An estimate of what the values of a slab are worth.
    async fn worth_of(&self, slab: Slab, class: Class) -> Result<u64, EngineError> {
        let (formatted, notes) = self.read_notes(slab, class).await?;
        let used = notes.iter().take(formatted as usize).filter(|note| **note == 0).count();
        let number = |_| Entry { slab, number: self.any(formatted as usize) as u32 };
        let epoch = self.session.pin(&self.fabric)?;
        let victims = self.victims(class, (0..SAMPLED).map(number).collect()).await?;
        drop(epoch);
        let worth = |sum, worth: u32| sum + u64::from(worth);
        let sum = victims.iter().map(|victim| self.worth_of_victim(victim)).fold(0, worth);
        Ok(sum * used as u64 / victims.len().max(1) as u64)
    }

    /// Evicts the values of a slab that this client has seized, and closes the slab. Returns
    /// whether no entry of it is in use (invariant 1).
    pub(super) async fn is_emptied(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let (formatted, _) = self.read_notes(slab, class).await?;
        for first in (0..formatted).step_by(EVICTED as usize) {
            let _epoch = self.session.pin(&self.fabric)?;
            let numbers = first..formatted.min(first + EVICTED);
            let entries = numbers.map(|number| Entry { slab, number }).collect();
            let victims = self.victims(class, entries).await?;
            self.evict_all(&victims).await?;
        }
        let seized =
            Chunk::Seized { class: class.id, chunks: class.chunks, owner: self.owner().id };
        let is_closed = self.cas_chunk(slab, 0, seized.to_word(), self.closing(class)).await?;
        Ok(is_closed && (planted::is(Bug::EmptiedAnyway) || self.is_unused(slab, class).await?))
    }

    /// Leases a slab that was closed and has values still. Returns whether there is room in it.
    pub(super) async fn keep_emptied(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let to = self.leased(&class);
        let is_leased = self.cas_chunk(slab, 0, self.closing(class).to_word(), to).await?;
        Ok(is_leased && self.add_slab(slab, class).await?)
    }
}
