//! The operations on a partition.
//!
//! Each operation is one step of one worker. It takes effect in that step, and cannot race with
//! other operations.

use std::ops::DerefMut;

use super::{Draft, Entry, Partition, Slot};
use crate::error::EngineError;
use crate::herd::key::KeyHash;
use crate::limits::HERD_ITEM_BYTES_MAX;
use crate::operation::{Expect, Operation, Outcome};

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
        version: u64,
        now_ms: u64,
    ) -> Result<Outcome<'_>, EngineError> {
        match operation {
            Operation::Get => Ok(self.get(hash, key, now_ms)),
            Operation::Contains => {
                Ok(Outcome::Contained(self.find_live(hash, key, now_ms).is_some()))
            }
            Operation::Put { value, options } => {
                let expires_at_ms = options.expires_at_ms;
                let draft = self.checked(Draft { key, value, version, expires_at_ms })?;
                // A cache replaces the entry of the key's tag without looking at it.
                let old = if self.loses() { None } else { self.find(hash, key) };
                self.install(hash, old, &draft)?;
                Ok(Outcome::Stored(version))
            }
            Operation::PutIf { value, expect, options } => {
                let expires_at_ms = options.expires_at_ms;
                let draft = self.checked(Draft { key, value, version, expires_at_ms })?;
                let old = self.find_live(hash, key, now_ms);
                let there = old.map(|slot| self.entry(slot).version);
                let as_expected = match expect {
                    Expect::Absent => there.is_none(),
                    Expect::Version(expected) => there == Some(expected),
                };
                if !as_expected {
                    return Ok(Outcome::Refused(there));
                }
                self.install(hash, old, &draft)?;
                Ok(Outcome::Stored(version))
            }
            Operation::Delete => {
                let old = self.find_live(hash, key, now_ms);
                old.inspect(|slot| self.remove(hash, *slot));
                Ok(Outcome::Deleted(old.is_some()))
            }
            Operation::FetchAdd(add) => self.fetch_add(hash, key, add, version, now_ms),
            Operation::Append(bytes) => {
                let old = self.find_live(hash, key, now_ms);
                let entry = old.map(|slot| self.entry(slot));
                let expires_at_ms = entry.and_then(|entry| entry.expires_at_ms);
                let value = &[entry.map_or(&[][..], |entry| entry.value), bytes].concat();
                let draft = self.checked(Draft { key, value, version, expires_at_ms })?;
                self.install(hash, old, &draft)?;
                Ok(Outcome::Stored(version))
            }
        }
    }

    #[inline(always)]
    fn get(&mut self, hash: KeyHash, key: &[u8], now_ms: u64) -> Outcome<'_> {
        let Some(slot) = self.find(hash, key) else { return Outcome::Absent };
        if self.entry(slot).is_expired(now_ms) {
            self.remove(hash, slot);
            return Outcome::Absent;
        }
        let Entry { version, expires_at_ms, value } = self.entry(slot);
        Outcome::Found { version, expires_at_ms, value }
    }

    fn fetch_add(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        add: u64,
        version: u64,
        now_ms: u64,
    ) -> Result<Outcome<'_>, EngineError> {
        let old = self.find_live(hash, key, now_ms);
        let before = match old.map(|slot| self.entry(slot).value) {
            None => 0,
            Some(value) => {
                let wrong = |_| EngineError::NotACounter { len: value.len() as u64 };
                u64::from_le_bytes(value.try_into().map_err(wrong)?)
            }
        };
        let value = &before.wrapping_add(add).to_le_bytes();
        let draft = self.checked(Draft { key, value, version, expires_at_ms: None })?;
        self.install(hash, old, &draft)?;
        Ok(Outcome::Before(before))
    }

    fn entry(&self, slot: Slot) -> Entry<'_> {
        Entry::at(self.data(), slot.place)
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
