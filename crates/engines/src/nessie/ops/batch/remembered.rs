//! Batches that use the client's cache, which remembers the slot in which a key was found and the
//! word in it. The top of `client/cache.rs` says why that is sound.
//!
//! A GET begins in the bucket with the remembered slot. If the slot holds the word still, the value
//! is the remembered one, or that of the entry that the word names. A PUT or DELETE begins with its
//! CAS, which expects the remembered word. A key whose word was replaced goes the usual way.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Chase, Fabric, RemoteAddr, Step};

use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::{Batch, Look, Old};
use crate::nessie::client::cache::Line;
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::draft::Draft;

impl<F: Fabric> Client<F> {
    /// Lets a look begin in the bucket in which the key is remembered, if it is.
    #[cold]
    pub(super) fn begin_remembered(&self, look: &mut Look, key: &[u8]) {
        let candidates = Candidates::from_hash(&self.map, look.hash);
        if let Some(line) = self.cached(&candidates, key) {
            (look.slot, _) = bucket_of(&candidates, &line);
            look.way = Look::REMEMBERED;
        }
    }

    /// The first step of such a look: the remembered entry, if the bucket still shows its word.
    /// Otherwise the look is where it goes on: in the bucket, if the word is there, else at its
    /// beginning.
    #[cold]
    pub(super) fn look_remembered(
        &self,
        look: &mut Look,
        key: &[u8],
        bucket: &[u64; BUCKET_WORDS_MAX],
    ) -> Option<Line> {
        let read = std::mem::replace(look, Look::begin(&self.map, look.hash)).slot;
        let candidates = Candidates::from_hash(&self.map, look.hash);
        // Another lane may have another line by now.
        let line = self.cached(&candidates, key)?;
        let (at, position) = bucket_of(&candidates, &line);
        if at != read || bucket[position] != line.word.0 {
            self.forget(&candidates);
            return None;
        }
        self.confirm(&candidates, line.word);
        let ways = candidates.buckets().iter();
        let way = ways.take_while(|bucket| **bucket != read).count() as u8;
        (look.slot, look.way) = (read, way);
        Some(line)
    }

    /// Sorts the first keys of a batch that takes entries out of the index: those whose entries are
    /// remembered need no look. With `plain_only` an entry that may expire does.
    #[cold]
    pub(super) fn find_remembered<'k>(
        &self,
        batch: &mut Batch,
        keys: impl Iterator<Item = &'k [u8]>,
        plain_only: bool,
    ) {
        let Batch { looks, old, cold, .. } = batch;
        cold.clear();
        for (number, key) in keys.enumerate() {
            let look = &mut looks[number];
            let candidates = Candidates::from_hash(&self.map, look.hash);
            let usable = |line: &Line| {
                let is_plain = line.header().flags & flags::EXPIRES == 0;
                self.map.codec.is_unmoved(line.word) && (is_plain || !plain_only)
            };
            match self.cached(&candidates, key).filter(usable) {
                Some(line) => {
                    let header = line.header();
                    (look.slot, look.word) = (candidates.slot(line.slot), line.word);
                    old.push(Old {
                        key: number as u8,
                        entry_len: header.entry_len() as u32,
                        generation: header.generation,
                    });
                }
                None => cold.push(number as u8),
            }
        }
    }

    /// Remembers an entry that a look has found.
    #[cold]
    pub(super) fn remember_found(&self, look: &Look, entry: &[u8]) {
        let candidates = Candidates::from_hash(&self.map, look.hash);
        if let Some(slot) = candidates.index_of(look.slot) {
            self.remember(&candidates, slot, look.word, entry);
        }
    }

    /// Remembers an entry that was put into the slot at `at`.
    #[cold]
    pub(super) fn installed_found(&self, at: RemoteAddr, word: Ite, draft: &Draft<'_>, own: Own) {
        let candidates = Candidates::from_hash(&self.map, draft.hash);
        if let Some(slot) = candidates.index_of(at) {
            self.installed(&candidates, slot, word, draft, own);
        }
    }

    /// Forgets a key whose word was not, or is no longer, the remembered one.
    #[cold]
    pub(super) fn forget_found(&self, look: &Look) {
        self.forget(&Candidates::from_hash(&self.map, look.hash));
    }
}

/// The bucket of a remembered slot, and the slot's position in it.
fn bucket_of(candidates: &Candidates, line: &Line) -> (RemoteAddr, usize) {
    let slots = candidates.bucket_slots();
    let position = candidates.position(line.slot);
    (candidates.buckets()[position / slots], position % slots)
}

/// The chases of some keys of a batch.
pub(super) struct Part<'a, C> {
    pub keys: &'a [u8],
    pub chase: &'a mut C,
}

impl<C: Chase> Chase for Part<'_, C> {
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        self.chase.bucket(self.keys[number].into())
    }

    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        self.chase.step(self.keys[number].into(), bucket)
    }

    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        self.chase.arrived(self.keys[number].into(), entry, again);
    }
}
