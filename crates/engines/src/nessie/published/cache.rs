//! The local cache of entries, keyed by the index word that names them (nessie §4.1.3).
//!
//! The cache keeps only committed entries. They never change, and a slot that holds the word holds
//! the value. A line saves the READ of the entry, never the READ of the slot. Generations in words
//! start over some day, so a line that was not used for two epochs is not used again. The scrubber
//! and the check use no lines at all, because they also look at entries between operations (see
//! [`crate::epoch`], invariant 4).

use loch_fabric::{Buf, Fabric};

use super::client::Client;
use super::entry::Dte;
use crate::nessie::layout::ite::Ite;

/// The number by which a line is found: every bit of the word counts, and the low bits choose the
/// set.
fn name_of(word: Ite) -> u64 {
    word.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl<F: Fabric> Client<F> {
    /// The entry that a word names, if the cache has it and it has the key. `buf` gets its bytes.
    /// If all bytes are wanted and the cache has only some of them, there is no hit.
    pub(super) fn cached(
        &self,
        word: Ite,
        key: &[u8],
        with_value: bool,
        buf: &mut Buf,
    ) -> Option<Dte> {
        let cache = self.base.cache.as_ref().filter(|_| self.base.session.is_working())?;
        let (name, epoch) = (name_of(word), self.base.session.epoch());
        let mut cache = cache.borrow_mut();
        let (line, bytes) = cache.line(name, key, epoch)?;
        if line.word != word || with_value && !line.has_value {
            return None;
        }
        buf.clear();
        buf.extend_from_slice(bytes);
        cache.confirm(name, word, self.base.seen_epoch());
        Dte::read(buf)
    }

    /// Keeps a committed entry. `entry` holds at least the bytes before its value.
    pub(super) fn keep(&self, word: Ite, entry: &[u8]) {
        if let Some(cache) = &self.base.cache
            && !self.base.session.is_observer()
        {
            let epoch = self.base.seen_epoch();
            cache.borrow_mut().keep(name_of(word), 0, word, entry, epoch);
        }
    }
}
