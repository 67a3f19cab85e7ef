//! Batches over a network: what the client's cache spares them, and their looks for entries that
//! are to be taken out of the index.
//!
//! The cache remembers the slot in which a key was found, and the word in it. The top of
//! `client/cache.rs` says why that is sound. A GET begins in the bucket with the remembered slot.
//! If the slot holds the word still, the value is the remembered one, or is in the entry that the
//! word names. A PUT or DELETE begins with its CAS, which expects the remembered word. A key whose
//! word was replaced goes the usual way.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Buf, Chase, Fabric, RemoteAddr, Step};

use crate::error::EngineError;
use crate::limits::BATCH_ENTRY_BYTES_MAX;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::{Batch, Look, Old};
use crate::nessie::client::cache::Line;
use crate::nessie::layout::dte::flags;
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::draft::Draft;

impl<F: Fabric> Client<F> {
    /// Lets a look begin in the bucket in which the key is remembered, if it is.
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
    ///
    /// `buf` gets the bytes that are remembered.
    pub(super) fn look_remembered(
        &self,
        look: &mut Look,
        key: &[u8],
        bucket: &[u64; BUCKET_WORDS_MAX],
        buf: &mut Buf,
    ) -> Option<Line> {
        let read = std::mem::replace(look, Look::begin(&self.map, look.hash)).slot;
        let candidates = Candidates::from_hash(&self.map, look.hash);
        // Another lane may have another line by now.
        let line = self.cached_into(&candidates, key, buf)?;
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

    /// Looks for the entries of the first `count` keys of a batch, which are to be taken out of the
    /// index. With `plain_only` a remembered entry that may expire does not do.
    pub(super) async fn find_far<'k>(
        &self,
        batch: &mut Batch,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        plain_only: bool,
        entry_len: usize,
    ) -> Result<(), EngineError> {
        let entry_len = entry_len.min(BATCH_ENTRY_BYTES_MAX);
        batch.cold.clear();
        for number in 0..count {
            if self.cache.is_none() || !self.find_remembered(batch, number, key(number), plain_only)
            {
                batch.cold.push(number as u8);
            }
        }
        let words = self.map.shape.geometry.bucket_words();
        let (cold, mut entry) = (batch.cold.clone(), std::mem::take(&mut batch.entry));
        let mut looks = Looks { client: self, batch, numbers: &cold, key, entry_len };
        let chased = self.fabric.chase(cold.len(), words, entry_len, &mut entry, &mut looks).await;
        batch.entry = entry;
        Ok(chased?)
    }

    /// Whether the entry of a key is remembered, so that it need not be looked for.
    fn find_remembered(
        &self,
        batch: &mut Batch,
        number: usize,
        key: &[u8],
        plain_only: bool,
    ) -> bool {
        let look = &mut batch.looks[number];
        let candidates = Candidates::from_hash(&self.map, look.hash);
        let Some(line) = self.cached(&candidates, key) else { return false };
        let header = line.header;
        let is_plain = header.flags & flags::EXPIRES == 0;
        if !self.map.codec.is_unmoved(line.word) || plain_only && !is_plain {
            return false;
        }
        (look.slot, look.word) = (candidates.slot(line.slot), line.word);
        batch.old.push(Old {
            key: number as u8,
            entry_len: header.entry_len() as u32,
            generation: header.generation,
        });
        true
    }

    /// Remembers an entry that a look has found.
    pub(super) fn remember_found(&self, look: &Look, entry: &[u8]) {
        let candidates = Candidates::from_hash(&self.map, look.hash);
        if let Some(slot) = candidates.index_of(look.slot) {
            self.remember(&candidates, slot, look.word, entry);
        }
    }

    /// Remembers an entry that was put into a slot.
    #[cold]
    pub(super) fn installed_far(&self, at: RemoteAddr, word: Ite, draft: &Draft<'_>, own: &Own) {
        let candidates = Candidates::from_hash(&self.map, draft.hash);
        if let Some(slot) = candidates.index_of(at) {
            self.installed(&candidates, slot, word, draft, own);
        }
    }

    /// Forgets a key whose word was not, or is no longer, the remembered one.
    #[cold]
    pub(super) fn forget_far(&self, hash: KeyHash) {
        self.forget(&Candidates::from_hash(&self.map, hash));
    }
}

/// The bucket of a remembered slot, and the slot's position in it.
fn bucket_of(candidates: &Candidates, line: &Line) -> (RemoteAddr, usize) {
    let slots = candidates.bucket_slots();
    let position = candidates.position(line.slot);
    (candidates.buckets()[position / slots], position % slots)
}

/// Looks for the entries of some keys of a batch.
struct Looks<'a, F: Fabric, K> {
    client: &'a Client<F>,
    batch: &'a mut Batch,
    numbers: &'a [u8],
    key: K,
    entry_len: usize,
}

impl<'k, F: Fabric, K: Fn(usize) -> &'k [u8]> Chase for Looks<'_, F, K> {
    fn bucket(&mut self, look: usize) -> RemoteAddr {
        self.batch.looks[usize::from(self.numbers[look])].slot
    }

    fn step(&mut self, look: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        self.client.step(self.batch, self.numbers[look].into(), bucket, self.entry_len)
    }

    fn arrived(&mut self, look: usize, entry: &[u8], again: u64) {
        let number = usize::from(self.numbers[look]);
        self.client.keep_old::<true>(self.batch, number, (self.key)(number), entry, again);
    }
}
