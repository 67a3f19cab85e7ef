//! DELETE (nessie §4.2.4, repaired): one CAS, no tombstone.

use loch_fabric::Fabric;

use super::read::Lookup;
use crate::error::EngineError;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::flags;

impl<F: Fabric> Client<F> {
    /// Deletes the value of `key`. Returns whether the key had a value.
    ///
    /// Unlike a PUT, a DELETE that loses its CAS never counts as done: it returns whether there was
    /// a value, and the operation that won may have changed the answer.
    ///
    /// # Errors
    /// [`EngineError`]; after every error but [`EngineError::Ambiguous`] nothing was deleted.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        let candidates = self.candidates(key)?;
        let _epoch = self.session.pin(&self.fabric)?;
        if let Some(line) = self.cached(&candidates, key) {
            self.forget(&candidates);
            let header = line.header;
            let plain = header.flags & flags::EXPIRES == 0;
            let unmoved = self.map.codec.is_unmoved(line.word);
            // Linearization point of a warm DELETE (protocol D3).
            if plain && unmoved && self.clear(&candidates, line.slot, line.word).await? {
                self.unlinked(line.word, &header)?;
                return Ok(true);
            }
        }
        let mut attempts = Attempts::default();
        loop {
            let words = self.collect(&candidates).await?;
            match self.find(&candidates, &words, key).await? {
                Lookup::Changed => (),
                Lookup::Absent => {
                    // Linearization point (protocol D2): any moment between the two equal looks.
                    if self.collect(&candidates).await? == words {
                        return Ok(false);
                    }
                }
                Lookup::Found(found, entry) => {
                    // Looked at before the CAS: after the CAS the value may have expired, although
                    // other clients still saw it.
                    let was_expired = self.is_expired(&found.header, &entry);
                    if !self.map.codec.is_unmoved(found.word) {
                        self.help(&candidates, key, found.slot, found.word).await?;
                    } else if self.clear(&candidates, found.slot, found.word).await? {
                        // Linearization point of a DELETE that found a value (protocol D3).
                        self.unlinked(found.word, &found.header)?;
                        return Ok(!was_expired);
                    }
                }
            }
            attempts.again(self).await?;
        }
    }
}
