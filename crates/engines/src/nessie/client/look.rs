//! Looking at words of the index, and at the marks beside them.

use loch_fabric::Fabric;
use loch_fabric::RemoteAddr;

use super::Client;
use crate::error::EngineError;
use crate::limits::{CANDIDATES_MAX, WAYS_MAX};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::marks::Marks;

/// The words of a key's candidates, by candidate number.
pub(in crate::nessie) type Words = [Ite; CANDIDATES_MAX];

impl<F: Fabric> Client<F> {
    /// READs all candidates, one READ a bucket, in one doorbell.
    #[inline]
    pub(in crate::nessie) async fn collect(
        &self,
        candidates: &Candidates,
    ) -> Result<Words, EngineError> {
        Ok(self.collect_marked(candidates).await?.0)
    }

    /// The same, with the marks of the buckets if the table evicts.
    #[inline]
    pub(in crate::nessie) async fn collect_marked(
        &self,
        candidates: &Candidates,
    ) -> Result<(Words, [Marks; WAYS_MAX]), EngineError> {
        let mut words = [0; CANDIDATES_MAX];
        let evicts = self.evicts();
        let marks = if evicts { candidates.buckets().len() } else { 0 };
        let count = candidates.count() + marks;
        self.fabric.read_words(candidates.buckets(), &mut words[..count]).await?;
        Ok(match evicts {
            true => candidates.arrange_marked(&words),
            false => (candidates.arrange(&words), [Marks::default(); WAYS_MAX]),
        })
    }

    pub(in crate::nessie) async fn read_word(&self, at: RemoteAddr) -> Result<u64, EngineError> {
        let mut word = [0];
        self.fabric.read_words(&[at], &mut word).await?;
        Ok(word[0])
    }
}
