//! Tentative inserts of other clients: what a slot means to an insert of a key, and how long the
//! insert waits for a rival.

use loch_fabric::{Buf, Fabric};

use super::read::{Seen, Want};
use crate::error::EngineError;
use crate::limits::PATIENCE_US;
use crate::nessie::client::Client;
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;

/// Another client's tentative insert in a lower slot, to which ours gave way.
#[derive(Default)]
pub(in crate::nessie) struct Rival(Option<(usize, Ite, u64)>);

impl Rival {
    /// Whether the word has stood in the slot for longer than the patience of an insert.
    pub(in crate::nessie) fn outlasted(&mut self, slot: usize, word: Ite, now_us: u64) -> bool {
        match self.0 {
            Some((s, w, since)) if (s, w) == (slot, word) => now_us - since > PATIENCE_US,
            _ => {
                self.0 = Some((slot, word, now_us));
                false
            }
        }
    }
}

/// The meaning of a slot to an insert of a key.
pub(super) enum Other {
    /// The slot is free, or holds another key.
    Unrelated,
    /// The slot shows a value of the key.
    Visible,
    /// The slot holds a tentative insert of the key.
    Tentative,
    /// The slot changed while it was looked at.
    Changed,
}

impl<F: Fabric> Client<F> {
    pub(super) async fn other(
        &self,
        candidates: &Candidates,
        word: Ite,
        key: &[u8],
    ) -> Result<Other, EngineError> {
        let codec = &self.map.codec;
        if codec.is_empty(word) || !codec.has_filter(word, candidates.filter) {
            return Ok(Other::Unrelated);
        }
        let (_, seen) = self.read_entry(word, key, Want::Key, Buf::new()).await;
        Ok(match seen? {
            Seen::Match(_) if codec.is_visible(word) => Other::Visible,
            Seen::Match(_) => Other::Tentative,
            Seen::Other => Other::Unrelated,
            Seen::Changed => Other::Changed,
        })
    }

    /// Whether a word is a tentative insert of the key; `None` if it changed meanwhile.
    pub(super) async fn is_tentative_of(
        &self,
        candidates: &Candidates,
        word: Ite,
        key: &[u8],
    ) -> Result<Option<bool>, EngineError> {
        Ok(match self.other(candidates, word, key).await? {
            Other::Tentative => Some(true),
            Other::Changed => None,
            Other::Unrelated | Other::Visible => Some(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_is_outlasted_when_the_same_word_was_in_the_same_slot_for_longer_than_patience() {
        let (a, b) = (Ite(0x11), Ite(0x21));
        let mut rival = Rival::default();
        let mut outlasted = |slot, word, after| rival.outlasted(slot, word, 10_000 + after);
        assert!(!outlasted(1, a, 0));
        assert!(!outlasted(1, a, PATIENCE_US));
        assert!(outlasted(1, a, PATIENCE_US + 1));
        // Another word, and then the same word in another slot: the wait for each starts anew.
        assert!(!outlasted(1, b, PATIENCE_US + 10));
        assert!(!outlasted(1, b, 2 * PATIENCE_US + 10));
        assert!(!outlasted(2, b, 2 * PATIENCE_US + 20));
        assert!(outlasted(2, b, 3 * PATIENCE_US + 21));
    }
}
