//! A change, in two steps.
//!
//! [`Store::prepare`] decides the outcome of the operation, writes the extent and finds the slot.
//! Readers can see none of these steps. [`Store::commit`] writes the entry, which makes the whole
//! change visible to readers in one moment. In between the change can be logged. If the log must be
//! on disk first, several changes are prepared at a time.
//!
//! # Invariants
//! 1. The slot of a prepared change is **pinned**: it is neither moved nor taken, its key is not
//!    the subject of another change, and the index is not replaced while a change is prepared.
//! 2. A reader that remembers an entry does not keep its extent alive: the old block is given back
//!    when the new entry is in memory, and may be filled anew at once. The reader notices this by
//!    the pointer's checksums (`layout.rs`, invariant 3).

use loch_fabric::{Buf, Fabric};

use super::buddy::order_of;
use super::hash::KeyHash;
use super::layout::{Entry, extent_addr, extent_parts};
use super::store::{Pin, Store, out_of_memory};
use crate::effect::counter;
use crate::error::EngineError;
use crate::limits::PILAF_SEARCH_SLOTS_MAX;
use crate::log::Change;
use crate::operation::{Expect, Operation, Outcome, PutOptions};

/// A change that readers do not see yet.
#[must_use = "a prepared change is committed or taken back"]
#[derive(Debug)]
pub struct Staged {
    slot: u64,
    old: Entry,
    new: Entry,
    /// The server's answer once the change is committed.
    pub outcome: Outcome<'static>,
    /// The new value that FETCH_ADD, APPEND or TOUCH made from the present one.
    made: Option<Vec<u8>>,
    expires_at_ms: Option<u64>,
}

impl Staged {
    /// The change as the log records it. `operation` is the operation that was prepared.
    pub fn change<'a>(&'a self, operation: &Operation<'a>) -> Change<'a> {
        let given = match operation {
            Operation::Put { value, .. } | Operation::PutIf { value, .. } => Some(*value),
            _ => self.made.as_deref(),
        };
        let (version, expires_at_ms) = (self.new.version, self.expires_at_ms);
        given.map_or(Change::Delete, |value| Change::Put { value, version, expires_at_ms })
    }
}

/// The result of [`Store::prepare`].
#[derive(Debug)]
pub enum Prepared {
    /// The operation changes nothing.
    Answer(Outcome<'static>),
    /// The operation is a prepared change.
    Staged(Staged),
    /// The changes that are already prepared have to be committed first.
    Later,
    /// Versions have to be leased first: [`Store::lease_versions`].
    NoVersions,
}

impl Store {
    /// Decides the outcome of an operation and prepares it.
    ///
    /// # Errors
    /// [`EngineError`]; nothing is changed then.
    ///
    /// # Panics
    /// If the operation is a GET or CONTAINS: clients do these by themselves ([`Store::read`]).
    pub fn prepare<F: Fabric>(
        &mut self,
        fabric: &F,
        key: &[u8],
        operation: &Operation<'_>,
    ) -> Result<Prepared, EngineError> {
        let hash = self.hash(key)?;
        // The index does not show the effect of a prepared change on the key.
        if self.pins.iter().any(|pin| pin.name == hash.name) {
            return Ok(Prepared::Later);
        }
        let found = self.index.find(fabric, hash.name, key)?;
        let alive = match found {
            Some((_, entry)) => (!self.has_expired(fabric, &entry)?).then_some(entry),
            None => None,
        };
        let version = alive.map(|entry| entry.version);
        let (mut made, mut before) = (None, None);
        let (given, options) = match *operation {
            Operation::Get | Operation::Contains => panic!("reads are not prepared"),
            Operation::Delete { of: Some(of) } if version != Some(of) => {
                return Ok(Prepared::Answer(Outcome::Deleted(false)));
            }
            Operation::Delete { .. } => {
                let outcome = Outcome::Deleted(alive.is_some());
                return Ok(self.prepare_delete(found, outcome));
            }
            Operation::PutIf { expect: Expect::Absent, .. } if alive.is_some() => {
                return Ok(Prepared::Answer(Outcome::Refused(version)));
            }
            Operation::PutIf { expect: Expect::Version(of), .. } if version != Some(of) => {
                return Ok(Prepared::Answer(Outcome::Refused(version)));
            }
            Operation::Put { value, options } | Operation::PutIf { value, options, .. } => {
                (value, options)
            }
            Operation::FetchAdd(add) => {
                let number = self.number(fabric, alive.as_ref())?;
                before = Some(number);
                made = Some(number.wrapping_add(add).to_le_bytes().to_vec());
                (&[][..], PutOptions::default())
            }
            Operation::Append(bytes) => {
                let (mut value, expires_at_ms) = self.value(fabric, alive.as_ref())?;
                value.extend_from_slice(bytes);
                made = Some(value);
                (&[][..], PutOptions { expires_at_ms })
            }
            Operation::Touch { of, .. }
                if version.is_none_or(|it| of.is_some_and(|of| of != it)) =>
            {
                return Ok(Prepared::Answer(Outcome::Refused(version)));
            }
            Operation::Touch { options, .. } => {
                made = Some(self.value(fabric, alive.as_ref())?.0);
                (&[][..], options)
            }
            _ => return Err(EngineError::Unsupported),
        };
        let value = made.as_deref().unwrap_or(given);
        let Some(version) = self.versions.take() else {
            return Ok(Prepared::NoVersions);
        };
        let change = Change::Put { value, version, expires_at_ms: options.expires_at_ms };
        let Some(mut staged) = self.stage_put(fabric, hash, key, found, change)? else {
            return Ok(Prepared::Later);
        };
        if let Some(before) = before {
            staged.outcome = Outcome::Scalar(before);
        }
        staged.made = made;
        Ok(Prepared::Staged(staged))
    }

    /// Shows a change to readers.
    ///
    /// # Errors
    /// The fabric's errors, which mean that the server's own memory is gone.
    pub fn commit<F: Fabric>(&mut self, fabric: &F, staged: Staged) -> Result<(), EngineError> {
        // Linearization point of a change: the moment at which the last word that this store
        // changes reaches memory. The reply comes after it.
        self.index.write(fabric, staged.slot, staged.new)?;
        self.counts.keys += u64::from(!staged.new.is_empty());
        self.counts.keys -= u64::from(!staged.old.is_empty());
        self.unpin(&staged);
        self.give_back(&staged.old);
        Ok(())
    }

    /// Takes a prepared change back.
    pub fn abort(&mut self, staged: Staged) {
        self.unpin(&staged);
        self.give_back(&staged.new);
    }

    /// Repeats a change that was made before, as the log records it. Later changes of the key are
    /// replayed later.
    ///
    /// # Errors
    /// As [`Store::prepare`].
    pub fn replay<F: Fabric>(
        &mut self,
        fabric: &F,
        key: &[u8],
        change: Change<'_>,
    ) -> Result<(), EngineError> {
        let hash = self.hash(key)?;
        let found = self.index.find(fabric, hash.name, key)?;
        let staged = match change {
            Change::Delete => match self.prepare_delete(found, Outcome::Deleted(true)) {
                Prepared::Staged(staged) => staged,
                _ => return Ok(()),
            },
            Change::Put { version, .. } => {
                self.versions.outgrow(version);
                let staged = self.stage_put(fabric, hash, key, found, change)?;
                staged.expect("nothing is pinned while a log is replayed")
            }
        };
        self.commit(fabric, staged)
    }

    /// Whether the value has expired. The clock is read for each request: the client that asks may
    /// have found by a GET of its own, a moment ago, that the value has expired.
    fn has_expired<F: Fabric>(&self, fabric: &F, entry: &Entry) -> Result<bool, EngineError> {
        if entry.key_at() == 0 {
            return Ok(false);
        }
        Ok(fabric.load(extent_addr(self.shape.root, entry.grain))? <= fabric.wall_ms())
    }

    fn number<F: Fabric>(&self, fabric: &F, entry: Option<&Entry>) -> Result<u64, EngineError> {
        let Some(entry) = entry else { return Ok(0) };
        let (value, _) = self.value(fabric, Some(entry))?;
        counter(&value)
    }

    /// The bytes of a value, and when it expires; no bytes if there is no value.
    fn value<F: Fabric>(
        &self,
        fabric: &F,
        entry: Option<&Entry>,
    ) -> Result<(Vec<u8>, Option<u64>), EngineError> {
        let Some(entry) = entry else { return Ok((Vec::new(), None)) };
        let (mut extent, len) = (Buf::new(), entry.extent_len());
        fabric.load_bytes(extent_addr(self.shape.root, entry.grain), len, &mut extent)?;
        let expiry = extent[..entry.key_at()].first_chunk().copied();
        Ok((extent[entry.value_at()..].to_vec(), expiry.map(u64::from_le_bytes)))
    }

    fn prepare_delete(
        &mut self,
        found: Option<(u64, Entry)>,
        outcome: Outcome<'static>,
    ) -> Prepared {
        let Some((slot, old)) = found else {
            return Prepared::Answer(outcome);
        };
        self.pins.push(Pin { slot, name: old.hash });
        let (new, made, expires_at_ms) = (Entry::EMPTY, None, None);
        Prepared::Staged(Staged { slot, old, new, outcome, made, expires_at_ms })
    }

    /// Writes the extent of a value and pins its slot; `None` if other changes have to be committed
    /// first.
    fn stage_put<F: Fabric>(
        &mut self,
        fabric: &F,
        hash: KeyHash,
        key: &[u8],
        found: Option<(u64, Entry)>,
        change: Change<'_>,
    ) -> Result<Option<Staged>, EngineError> {
        let Change::Put { value, version, expires_at_ms } = change else {
            unreachable!("a value is put");
        };
        let (len, max) = (value.len() as u64, self.shape.value_bytes_max);
        if len > max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        let mut new = Entry::of(hash.name, version, key, value, expires_at_ms);
        let bytes = new.extent_len() as u64;
        let Some(grain) = self.buddy.allocate(order_of(bytes)) else {
            // The extents that prepared changes replace are not free yet.
            let may_be_later = !self.pins.is_empty();
            return if may_be_later { Ok(None) } else { Err(out_of_memory(bytes, &self.shape)) };
        };
        new.grain = u32::try_from(grain).expect("an arena has at most 2^32 grains");
        let (slot, old) = match found {
            Some(found) => found,
            None => match self.slot_for(fabric, hash) {
                Ok(Some(slot)) => (slot, Entry::EMPTY),
                other => {
                    self.give_back(&new);
                    return other.map(|_| None);
                }
            },
        };
        let expiry = expires_at_ms.map(u64::to_le_bytes);
        let at = extent_addr(self.shape.root, new.grain);
        fabric.store(at, &extent_parts(&expiry, key, value))?;
        self.pins.push(Pin { slot, name: hash.name });
        self.prepared_grains += grains_of(&new);
        let outcome = Outcome::Stored(version);
        Ok(Some(Staged { slot, old, new, outcome, made: None, expires_at_ms }))
    }

    /// An EMPTY slot for a key; `None` if that needs a larger index, which has to wait.
    fn slot_for<F: Fabric>(
        &mut self,
        fabric: &F,
        hash: KeyHash,
    ) -> Result<Option<u64>, EngineError> {
        loop {
            let pins = &self.pins;
            let pinned = |slot| pins.iter().any(|pin| pin.slot == slot);
            let room = self.index.make_room(fabric, hash.name, pinned)?;
            if let Some((slot, moves)) = room {
                self.counts.moves += moves;
                return Ok(Some(slot));
            }
            if !self.pins.is_empty() {
                return Ok(None);
            }
            if !self.grow(fabric)? {
                let (slots, moves) = (self.index.slots, PILAF_SEARCH_SLOTS_MAX);
                return Err(EngineError::IndexFull { slots, moves });
            }
        }
    }

    fn unpin(&mut self, staged: &Staged) {
        let at = self.pins.iter().position(|pin| pin.slot == staged.slot);
        self.pins.swap_remove(at.expect("a staged change has a pin"));
        self.prepared_grains -= grains_of(&staged.new);
    }

    fn give_back(&mut self, entry: &Entry) {
        if !entry.is_empty() {
            self.buddy.free(u64::from(entry.grain), order_of(entry.extent_len() as u64));
        }
    }
}

/// Grains of the block that holds an entry's extent.
fn grains_of(entry: &Entry) -> u64 {
    if entry.is_empty() { 0 } else { 1 << order_of(entry.extent_len() as u64) }
}
