//! DELETE (nessie §4.2.4, repaired): one CAS, no tombstone.

use loch_fabric::Fabric;

use super::read::Lookup;
use crate::error::EngineError;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::{Header, flags};
use crate::operation::Version;

impl<F: Fabric> Client<F> {
    /// Deletes the value of `key`. Returns whether the key had a value.
    ///
    /// Unlike a PUT, a DELETE that loses its CAS never counts as done: it returns whether there was
    /// a value, and the operation that won may have changed the answer.
    ///
    /// # Errors
    /// [`EngineError`]; after every error but [`EngineError::Ambiguous`] nothing was deleted.
    #[inline]
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.delete_value(key, None).await
    }

    /// Deletes the value of `key` if it has this version. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete_if(&self, key: &[u8], version: Version) -> Result<bool, EngineError> {
        self.delete_value(key, Some(version)).await
    }

    /// Deletes the value of `key`, or only one of this version.
    async fn delete_value(&self, key: &[u8], of: Option<Version>) -> Result<bool, EngineError> {
        let is_meant = |header: &Header| of.is_none_or(|version| version == header.version);
        let candidates = self.candidates(key)?;
        let mut epoch = self.session.pin(&self.fabric)?;
        if let Some(line) = self.cached(&candidates, key) {
            self.forget(&candidates);
            let header = line.header;
            let plain = header.flags & flags::EXPIRES == 0;
            let deletes = is_meant(&header) && self.map.codec.is_unmoved(line.word);
            // Linearization point of a warm DELETE (protocol D3).
            epoch.owe();
            if plain && deletes && self.clear(&candidates, line.slot, line.word).await? {
                self.unlinked(line.word, &header)?;
                epoch.paid();
                return Ok(true);
            }
            epoch.paid();
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
                // Linearization point of a DELETE that found another version: as of a GET.
                Lookup::Found(found, _) if !is_meant(&found.header) => return Ok(false),
                Lookup::Found(found, entry) => {
                    // Looked at before the CAS: after the CAS the value may have expired, although
                    // other clients still saw it.
                    let was_expired = self.is_expired(&found.header, &entry);
                    if !self.map.codec.is_unmoved(found.word) {
                        self.help(&candidates, key, found.slot, found.word).await?;
                    } else {
                        epoch.owe();
                        if self.clear(&candidates, found.slot, found.word).await? {
                            // Linearization point of a DELETE that found a value (protocol D3).
                            self.unlinked(found.word, &found.header)?;
                            epoch.paid();
                            return Ok(!was_expired);
                        }
                        epoch.paid();
                    }
                }
            }
            attempts.again(self).await?;
        }
    }
}
