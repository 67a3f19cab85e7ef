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
use crate::limits::CHUNK_BYTES;
use crate::nessie::client::Client;
use crate::nessie::client::waits::{InHand, Then};
use crate::nessie::layout::marks::Mark;
use crate::nessie::layout::slab::{Chunk, Class, Entry, LARGE, Slab};
use crate::planted::{self, Bug};

/// Runs of chunks among which the cheapest is chosen.
const RUNS: usize = 4;
/// Chunks whose descriptors are read to choose a run among them; a multiple of the chunks of slabs.
const CHUNKS_AT_A_TIME: u64 = 1024;
/// Entries of a slab that are looked at to estimate what its values are worth.
const SAMPLED: usize = 8;
/// Values of a slab that are evicted in one epoch.
const EVICTED: u32 = 64;

/// A slab, with the word of its descriptor.
type Found = (Slab, Class, u64);

/// Slabs that lie in the way of a slab of another class.
#[derive(Debug)]
pub(super) struct Run {
    slabs: Vec<Found>,
    /// An estimate of what their values are worth together.
    pub worth: u64,
    /// Epochs since one of those that were looked at was used.
    pub unused: u8,
    /// Whether one of them was ever used.
    pub is_used: bool,
}

impl Run {
    /// Slabs that were not looked at yet.
    pub fn new(slabs: Vec<Found>) -> Self {
        Self { slabs, worth: 0, unused: u8::MAX, is_used: false }
    }

    /// The bytes of the slabs.
    pub fn bytes(&self) -> u64 {
        let chunks = |(_, class, _): &Found| u64::from(class.chunks);
        self.slabs.iter().map(chunks).sum::<u64>() * CHUNK_BYTES
    }
}

impl<F: Fabric> Client<F> {
    /// Begins to make memory of other uses available to a class of which this client has no slab.
    pub(super) async fn empty_slabs(&self, class: Class) -> Result<(), EngineError> {
        if !self.evicts() {
            return Ok(());
        }
        for dti in &self.tables {
            let words = self.read_chunk_table(*dti).await?;
            let theirs = self.slab_of_others(*dti, class, &words);
            if let Some(found) = theirs {
                let mut seized = self.gather(0, Then::Seize(Vec::new()));
                self.seize_into(&mut seized, found).await?;
                if seized.begin().await? {
                    return Ok(());
                }
            }
            let Some(run) = self.cheapest_run(*dti, class).await? else { continue };
            if self.empty_run(class, run).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Begins to make a run of slabs available to a class. Returns whether it could.
    pub(super) async fn empty_run(&self, class: Class, run: Run) -> Result<bool, EngineError> {
        let mut seized = self.gather(0, Then::Empty(class, Vec::new()));
        for found in run.slabs {
            self.seize_into(&mut seized, found).await?;
        }
        seized.begin().await
    }

    /// Seizes a slab, and adds it to those that wait for a grace period. Returns whether it could.
    pub(super) async fn seize_into(
        &self,
        seized: &mut InHand<'_, F>,
        (slab, class, word): Found,
    ) -> Result<bool, EngineError> {
        let Some(claim) = self.claim(slab) else { return Ok(false) };
        let is_seized = self.cas_chunk(slab, 0, word, self.seized(&class)).await?;
        if is_seized {
            self.alloc.borrow_mut().list(class).forget_slab(slab);
            seized.add(claim, class);
        } else {
            claim.end();
        }
        Ok(is_seized)
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
    pub(super) async fn cheapest_run(
        &self,
        dti: u8,
        class: Class,
    ) -> Result<Option<Run>, EngineError> {
        let mut cheapest: Option<Run> = None;
        for _ in 0..RUNS {
            let (first, words) = self.read_some_chunks(dti, class).await?;
            let Some(slabs) = self.any_run(Slab { dti, chunk: first }, class, &words) else {
                continue;
            };
            let mut run = Run::new(slabs);
            self.look_into(&mut run).await?;
            if cheapest.as_ref().is_none_or(|cheapest| run.worth < cheapest.worth) {
                cheapest = Some(run);
            }
        }
        Ok(cheapest)
    }

    /// Looks at some values of a run.
    pub(super) async fn look_into(&self, run: &mut Run) -> Result<(), EngineError> {
        run.worth = 0;
        for at in 0..run.slabs.len() {
            let (slab, class, word) = run.slabs[at];
            let (formatted, notes) = self.read_notes(slab, class).await?;
            let used = notes.iter().take(formatted as usize).filter(|note| **note == 0).count();
            let number = |_| Entry { slab, number: self.any(formatted as usize) as u32 };
            let epoch = self.session.pin(&self.fabric)?;
            let values = self.victims(class, (0..SAMPLED).map(number).collect()).await?;
            drop(epoch);
            let worths = values.iter().map(|value| u64::from(self.worth_of_victim(value)));
            let mean = match values.len() as u64 {
                // Values that are in entries soon are new ones.
                0 => self.worth_of_mark(Mark::new(self.mark_epoch())).into(),
                count => worths.sum::<u64>() / count,
            };
            let marks = || values.iter().filter(|value| !value.has_expired).map(|value| value.mark);
            // A slab in which there are no values yet.
            let is_leased = matches!(Chunk::from_word(word), Some(Chunk::Leased { .. }));
            let is_begun = is_leased && values.is_empty() && 2 * used >= formatted as usize;
            run.is_used |= is_begun || marks().any(|mark| mark.is_used());
            let ages = marks().map(|mark| mark.age(self.mark_epoch()));
            run.unused = ages.chain(is_begun.then_some(0)).fold(run.unused, u8::min);
            let share = self.worth.learned().classes.share(&class);
            run.worth += (mean as f32 * used as f32 * share) as u64;
        }
        Ok(())
    }

    /// Reads descriptors of chunks at some place, enough for a slab of the class. Slabs of all
    /// classes but the large ones lie in them as a whole.
    async fn read_some_chunks(
        &self,
        dti: u8,
        class: Class,
    ) -> Result<(u32, Vec<u64>), EngineError> {
        let all = self.map.shape.geometry.chunks;
        let most = CHUNKS_AT_A_TIME.max(2 * u64::from(class.chunks));
        let first = self.any(all.div_ceil(most) as usize) as u64 * most;
        // The last ones may be few. Slabs lie at multiples of their size.
        let first = first.min(all.saturating_sub(most)) / step_of(&class) * step_of(&class);
        let words = self.read_chunks(dti, first..all.min(first + most)).await?;
        Ok((first as u32, words))
    }

    /// The slabs in the way of a slab of the class at any place among the chunks from `first` on
    /// where that may be: other clients are not busy there, and there is memory of other classes
    /// only.
    fn any_run(&self, first: Slab, class: Class, words: &[u64]) -> Option<Vec<Found>> {
        let step = step_of(&class) as usize;
        let places = words.len().checked_sub(class.chunks as usize)? / step + 1;
        let begin = self.any(places);
        let mut after = (begin..places).chain(0..begin);
        after.find_map(|place| self.run_at(place * step, first, class, words))
    }

    fn run_at(&self, begin: usize, first: Slab, class: Class, words: &[u64]) -> Option<Vec<Found>> {
        let (mut at, mut run) = (begin, Vec::new());
        while at < begin + class.chunks as usize {
            let head = match Chunk::from_word(words[at])? {
                Chunk::Free => {
                    at += 1;
                    continue;
                }
                Chunk::Tail { back } => at.checked_sub(back as usize)?,
                _ => at,
            };
            let (id, its_chunks) = Chunk::from_word(words[head])?.slab()?;
            let slab = Slab { dti: first.dti, chunk: first.chunk + head as u32 };
            let its_class = self.map.slab_class(slab.chunk, id, its_chunks)?;
            if its_class == class {
                return None;
            }
            run.push((slab, its_class, words[head]));
            at = (head + its_chunks as usize).max(at + 1);
        }
        (!run.is_empty()).then_some(run)
    }

    /// Evicts the values of a slab that this client has seized.
    pub(super) async fn evict_values(&self, slab: Slab, class: Class) -> Result<(), EngineError> {
        let (formatted, _) = self.read_notes(slab, class).await?;
        for first in (0..formatted).step_by(EVICTED as usize) {
            let _epoch = self.session.pin(&self.fabric)?;
            let numbers = first..formatted.min(first + EVICTED);
            let entries = numbers.map(|number| Entry { slab, number }).collect();
            let victims = self.victims(class, entries).await?;
            self.evict_all(&victims).await?;
        }
        Ok(())
    }

    /// Closes a seized slab whose values were evicted. Returns whether no entry of it is in use
    /// (invariant 1).
    pub(super) async fn is_emptied(&self, slab: Slab, class: Class) -> Result<bool, EngineError> {
        let seized = self.seized(&class).to_word();
        let is_closed = self.cas_chunk(slab, 0, seized, self.closing(class)).await?;
        Ok(is_closed && (planted::is(Bug::EmptiedAnyway) || self.is_unused(slab, class).await?))
    }
}

/// Slabs of a class start at multiples of so many chunks.
fn step_of(class: &Class) -> u64 {
    if class.id == LARGE { 1 } else { class.chunks.into() }
}

#[cfg(test)]
mod tests {
    use loch_fabric::Buf;
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::client_with;
    use crate::nessie::client::uses::Uses;
    use crate::nessie::layout::dte::HEADER_BYTES;
    use crate::nessie::layout::geometry::Options;
    use crate::operation::PutOptions;

    /// A slab that was just leased is in use and worth something, though there is no value in it;
    /// and one of the class is not in its own way.
    #[test]
    fn what_is_begun_is_used_and_nothing_is_emptied_for_its_own_class() {
        let client = client_with(2 << 20, Options { evicts: true, ..Options::default() });
        for key in 0..60 {
            block_on(client.put(&[key; 8], &[key; 100], PutOptions::default())).unwrap();
        }
        let class = client.map.classes.of(HEADER_BYTES + 8 + 100);
        let slab = client.alloc.borrow_mut().list(class).slabs[0];
        let word = client.leased(&class).to_word();
        let look = || {
            let mut run = Run::new(vec![(slab, class, word)]);
            block_on(client.look_into(&mut run)).unwrap();
            (run.unused, run.is_used, run.worth)
        };
        let new = u64::from(client.worth_of_mark(Mark::new(client.mark_epoch())));
        assert_eq!(look(), (0, false, 60 * new), "the values are new");
        // A few keys are not in their first slots.
        for candidates in (0..60).map(|key| client.candidates(&[key; 8]).unwrap()) {
            for slot in (0..candidates.count()).map(|slot| candidates.slot(slot)) {
                client.fabric.store(slot, &[&0u64.to_le_bytes()]).unwrap();
            }
        }
        assert_eq!(look(), (0, true, 60 * new), "its entries are taken, and not in the index yet");
        let forget = |found| {
            let mut worth = client.worth.learned();
            (0..2).for_each(|epoch| worth.classes.tick(epoch));
            let other = client.map.classes.of(5000);
            worth.classes.count(Uses { found, expected: 1e4 }, &class, &other);
            worth.classes.tick(2);
        };
        forget(0.0);
        assert!(look().2 < new, "values of this size are not used any more");
        forget(1e4);
        assert!(look().2 > 59 * new, "they are again");
        let words = block_on(client.read_chunk_table(0)).unwrap();
        let first = Slab { dti: 0, chunk: 0 };
        let shorter = client.map.classes.of(HEADER_BYTES + 8 + 30);
        let ways = |class| (0..10_000).filter_map(|_| client.any_run(first, class, &words)).count();
        assert!(ways(shorter) > 0);
        assert_eq!(ways(class), 0);
    }

    #[test]
    fn a_slab_that_cannot_be_emptied_is_its_owners_again_and_one_that_can_is_not() {
        let client = client_with(2 << 20, Options { evicts: true, ..Options::default() });
        for key in 0..60 {
            block_on(client.put(&[key; 8], &[key; 100], PutOptions::default())).unwrap();
        }
        let has = |key| block_on(client.get(&[key; 8], Buf::new())).unwrap().is_some();
        let class = client.map.classes.of(HEADER_BYTES + 8 + 100);
        let slabs = || client.alloc.borrow_mut().list(class).slabs.clone();
        let [slab] = slabs()[..] else { panic!("they fit into one slab") };
        let descriptor = client.map.chunk_addr(slab.dti, slab.chunk.into());
        let leased = client.leased(&class).to_word();
        let empty = || {
            let run = Run::new(vec![(slab, class, leased)]);
            assert!(block_on(client.empty_run(client.map.classes.of(5000), run)).unwrap());
            assert_eq!(slabs(), [], "nothing is taken from it any more");
            while !client.waits.borrow().is_empty() {
                block_on(client.poll_waits()).unwrap();
            }
        };
        let pinned = block_on(client.pin(&[7; 8])).unwrap().expect("it was put");
        empty();
        assert_eq!(client.fabric.load(descriptor).unwrap(), leased);
        assert_eq!(slabs(), [slab]);
        assert_eq!((0..60).filter(|key| has(*key)).collect::<Vec<_>>(), [7]);
        drop(pinned);
        empty();
        assert_eq!(client.fabric.load(descriptor).unwrap(), Chunk::Free.to_word());
        assert_eq!(((0..60).any(has), slabs()), (false, Vec::new()));
    }
}
