//! The operations on a partition.
//!
//! Each operation is one step of one worker. It takes effect in that step, and cannot race with
//! other operations.

use std::ops::DerefMut;

use super::{Draft, Partition, Slot, present};
use crate::effect::{Effect, Versioned};
use crate::error::EngineError;
use crate::herd::key::KeyHash;
use crate::limits::HERD_ITEM_BYTES_MAX;
use crate::operation::{Operation, Outcome, Version};

impl<M: DerefMut<Target = [u64]>> Partition<M> {
    /// Executes an operation on a key. `version` is a number that no value of the table ever had,
    /// and becomes the version of a value that is written now. `now_ms` is the time by which values
    /// expire.
    ///
    /// # Errors
    /// [`EngineError::KeyEmpty`], [`EngineError::ValueTooLong`] and [`EngineError::NotACounter`];
    /// in a store [`EngineError::OutOfMemory`] and [`EngineError::IndexFull`]. Nothing has changed
    /// then.
    #[inline]
    pub fn execute(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        operation: Operation<'_>,
        version: Version,
        now_ms: u64,
    ) -> Result<Outcome<'_>, EngineError> {
        match operation {
            Operation::Get => return Ok(self.get(hash, key, now_ms)),
            Operation::Put { value, options } => {
                let expires_at_ms = options.expires_at_ms;
                let draft = self.checked(Draft { key, value, version, expires_at_ms })?;
                // A cache replaces the entry of the key's tag without looking at it.
                let old = if self.loses() { None } else { self.find(hash, key) };
                self.install(hash, old, &draft)?;
                return Ok(Outcome::Stored(version));
            }
            _ => {}
        }
        let old = self.find_live(hash, key, now_ms);
        let (outcome, effect) = operation.on(old.map(|slot| self.present(slot)), version)?;
        let outcome = outcome.without_value()?;
        match effect {
            Effect::Nothing => {}
            Effect::Remove => old.into_iter().for_each(|slot| self.remove(hash, slot)),
            Effect::Store(Versioned { version, expires_at_ms, value }) => {
                let draft = self.checked(Draft { key, value: &value, version, expires_at_ms })?;
                self.install(hash, old, &draft)?;
            }
        }
        Ok(outcome)
    }

    #[inline(always)]
    fn get(&mut self, hash: KeyHash, key: &[u8], now_ms: u64) -> Outcome<'_> {
        let Some(slot) = self.find(hash, key) else { return Outcome::Absent };
        if self.present(slot).is_expired(now_ms) {
            self.remove(hash, slot);
            return Outcome::Absent;
        }
        self.present(slot).found()
    }

    fn present(&self, slot: Slot) -> Versioned<&[u8]> {
        present(self.data(), slot.place)
    }

    /// The draft, if its value is not too long.
    fn checked<'d>(&self, draft: Draft<'d>) -> Result<Draft<'d>, EngineError> {
        let (key_len, len) = (draft.key.len(), draft.value.len());
        if key_len == 0 {
            return Err(EngineError::KeyEmpty);
        }
        let max = HERD_ITEM_BYTES_MAX.saturating_sub(key_len).min(self.value_bytes_max);
        if key_len + len > HERD_ITEM_BYTES_MAX || len > max {
            return Err(EngineError::ValueTooLong { len: len as u64, max: max as u64 });
        }
        Ok(draft)
    }
}
