//! The server's table: the index, the arena and what the server knows of them (pilaf §3.2, Figure
//! 4).
//!
//! The operations on the table are in `change.rs` (PUT, DELETE and similar ones), `index.rs`
//! (slots), `resize.rs` (a larger index) and `check.rs`. All state here that is not in the region
//! is rebuilt when a server starts.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::buddy::{Buddy, order_of};
use super::hash::KeyHash;
use super::index::Index;
use super::layout::{ARENA_OFFSET, GRAIN_BYTES, LINE_BYTES, Root, WAYS, extent_addr};
use super::versions::Versions;
use crate::error::EngineError;
use crate::kv::check_key;
use crate::limits::VALUE_BYTES_MAX;
use crate::log::Change;
use crate::operation::Outcome;

/// One node's part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The address of its root.
    pub root: RemoteAddr,
    /// Bytes of the arena, from which index and extents are taken.
    pub arena_bytes: u64,
    /// Slots of the first index; the index grows by doubling.
    pub index_slots: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// The table's seed, the same at every node.
    pub seed: u64,
    /// This node's number, which its versions carry.
    pub node: u8,
}

impl Shape {
    /// Bytes from the root to the end of the arena.
    pub fn bytes(&self) -> u64 {
        ARENA_OFFSET + self.arena_bytes
    }

    fn checked(self) -> Result<Self, EngineError> {
        let slots = self.index_slots;
        let sane = self.root.offset().is_multiple_of(LINE_BYTES)
            && slots.is_power_of_two()
            && slots > WAYS as u64
            && self.value_bytes_max <= VALUE_BYTES_MAX
            && self.arena_bytes / GRAIN_BYTES <= 1 << 32;
        if sane {
            return Ok(self);
        }
        let what = format!("no table of pilaf can have this shape: {self:?}");
        Err(EngineError::Damaged { what })
    }
}

/// The counts of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Keys with a value, expired ones included.
    pub keys: u64,
    /// Keys moved to another slot.
    pub moves: u64,
    /// The number of times that an index was replaced.
    pub resizes: u64,
}

/// The slot of a prepared change, and the name of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pin {
    pub slot: u64,
    pub name: u64,
}

/// One node's part of a table, with the server's own state.
#[derive(Debug)]
pub struct Store {
    pub(super) shape: Shape,
    pub(super) index: Index,
    pub(super) buddy: Buddy,
    pub(super) counts: StoreCounts,
    pub(super) versions: Versions,
    is_open: bool,
    pub(super) pins: Vec<Pin>,
    /// Grains in the extents of prepared changes.
    pub(super) prepared_grains: u64,
    scratch: Buf,
}

/// A key and its state.
pub(super) type KeyState<'a> = (&'a [u8], Change<'a>);

impl Store {
    /// An empty table in place of any earlier one, closed to clients until [`Store::open`].
    ///
    /// # Errors
    /// The fabric's; [`EngineError::OutOfMemory`] if the arena is too small for the index.
    pub fn create<F: Fabric>(fabric: &F, shape: Shape) -> Result<Self, EngineError> {
        let shape = shape.checked()?;
        let last = fabric.load(shape.root)?;
        // Fresh memory begins at a random generation, so that a node that lost its memory does not
        // repeat itself.
        let generation = if last == 0 { fabric.random() >> 16 } else { last >> 1 } + 1;
        fabric.store_before(shape.root, generation << 1 | 1)?;
        let mut buddy = Buddy::new(shape.arena_bytes / GRAIN_BYTES);
        let Some(grain) = buddy.allocate(order_of(Index::bytes(shape.index_slots))) else {
            return Err(out_of_memory(Index::bytes(shape.index_slots), &shape));
        };
        let (root, slots) = (shape.root, shape.index_slots);
        let mut index = Index::new(root, grain, slots, generation);
        index.clear(fabric)?;
        let versions = Versions::load(fabric, shape.root, shape.node)?;
        Ok(Self {
            shape,
            index,
            buddy,
            counts: StoreCounts::default(),
            versions,
            is_open: false,
            pins: Vec::new(),
            prepared_grains: 0,
            scratch: Buf::new(),
        })
    }

    /// Lets clients in.
    ///
    /// # Errors
    /// The fabric's.
    pub fn open<F: Fabric>(&mut self, fabric: &F) -> Result<(), EngineError> {
        self.is_open = true;
        self.publish(fabric)
    }

    /// The counts.
    pub fn counts(&self) -> StoreCounts {
        self.counts
    }

    /// The shape with which the store was made.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Slots of the index.
    pub fn slots(&self) -> u64 {
        self.index.slots
    }

    /// Bytes of the arena's free blocks.
    pub fn free_bytes(&self) -> u64 {
        self.buddy.free_grains() * GRAIN_BYTES
    }

    /// Leases versions and returns the end of the lease. The end has to be logged, durably, before
    /// any other change is prepared.
    ///
    /// # Errors
    /// As [`Versions::lease`].
    pub fn lease_versions<F: Fabric>(&mut self, fabric: &F) -> Result<u64, EngineError> {
        self.versions.lease(fabric, self.shape.root)
    }

    /// Takes note that versions below the end of this lease may have been given away.
    pub fn versions_were_leased(&mut self, end: u64) {
        self.versions.skip_to(end);
    }

    /// The value of a key, its version and expiry, as the server itself sees it; `None` if the key
    /// has no value or the value has expired.
    ///
    /// # Errors
    /// The fabric's errors, and the errors of an invalid key.
    pub fn read<F: Fabric>(
        &mut self,
        fabric: &F,
        key: &[u8],
    ) -> Result<Option<Outcome<'_>>, EngineError> {
        let hash = self.hash(key)?;
        let Some((_, entry)) = self.index.find(fabric, hash.name, key)? else {
            return Ok(None);
        };
        self.scratch.clear();
        let at = extent_addr(self.shape.root, entry.grain);
        fabric.load_bytes(at, entry.extent_len(), &mut self.scratch)?;
        let expires_at_ms = entry.expires_at_ms(&self.scratch);
        if expires_at_ms.is_some_and(|ms| ms <= fabric.wall_ms()) {
            return Ok(None);
        }
        let value = &self.scratch[entry.value_at()..];
        Ok(Some(Outcome::Found { version: entry.version, expires_at_ms, value }))
    }

    /// The number of the index that clients use.
    pub(super) fn generation(&self) -> u64 {
        self.index.generation
    }

    /// Takes note of keys that are moved from a slot at or above `cursor` to a slot below it.
    pub(super) fn watch_moves(&mut self, cursor: Option<u64>) {
        self.index.watched = cursor.unwrap_or(0);
        self.index.moved.clear();
    }

    /// Takes a slot to which such a key was moved.
    pub(super) fn take_moved(&mut self) -> Option<u64> {
        self.index.moved.pop()
    }

    /// The key in a slot, and its state.
    pub(super) fn state_of<F: Fabric>(
        &mut self,
        fabric: &F,
        slot: u64,
    ) -> Result<Option<KeyState<'_>>, EngineError> {
        let entry = self.index.entry(fabric, slot)?;
        if entry.is_empty() {
            return Ok(None);
        }
        self.scratch.clear();
        let at = extent_addr(self.shape.root, entry.grain);
        fabric.load_bytes(at, entry.extent_len(), &mut self.scratch)?;
        let (key, value) = self.scratch[entry.key_at()..].split_at(entry.key_len as usize);
        let (version, expires_at_ms) = (entry.version, entry.expires_at_ms(&self.scratch));
        Ok(Some((key, Change::Put { value, version, expires_at_ms })))
    }

    pub(super) fn hash(&self, key: &[u8]) -> Result<KeyHash, EngineError> {
        check_key(key)?;
        Ok(KeyHash::of(self.shape.seed, key))
    }

    /// Makes the index the one that clients use, if the table is open.
    pub(super) fn publish<F: Fabric>(&self, fabric: &F) -> Result<(), EngineError> {
        if !self.is_open {
            return Ok(());
        }
        let Index { generation, at, slots, .. } = self.index;
        let root = Root::sealed(generation, at, slots, self.shape.arena_bytes);
        let place = self.shape.root;
        fabric.store_before(place, root.state | 1)?;
        for (i, word) in root.words().iter().enumerate().skip(1) {
            fabric.store_before(place.add(i as u64 * 8), *word)?;
        }
        // The state comes last: a client that sees it sees a root that verifies, and an index that
        // is whole.
        fabric.store_before(place, root.state)?;
        Ok(())
    }
}

pub(super) fn out_of_memory(bytes: u64, shape: &Shape) -> EngineError {
    EngineError::OutOfMemory { bytes, capacity: shape.arena_bytes }
}
