//! kv-direct's own hash index and slabs, as its processor uses them.

use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::kv_direct::item::Item;
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::slab::SlabDaemon;
use loch_engines::kv_direct::storage::{Lookup, Options, Plan, Storage};
use loch_engines::lines::{Counts, HostMemory, LINE_BYTES};
use loch_fabric::lanes::block_on;

use super::{Design, Memory, zeroed};
use loch_engines::operation::Version;

/// Operations between two looks of the host's daemon at the free slabs.
const OPERATIONS_A_TURN: u32 = 64;

/// Turns of the daemon that an operation waits for memory.
const TURNS_MAX: u32 = 1 << 20;

/// The table.
pub struct KvDirect {
    storage: Storage<Memory>,
    daemon: SlabDaemon,
    seed: u64,
    item: Item,
    operations: u32,
}

impl KvDirect {
    /// An empty table.
    ///
    /// # Panics
    /// If such options are out of range.
    pub fn new(options: &Options, seed: u64) -> Self {
        let plan = Plan::new(options).expect("options are in range");
        let pools = plan.pools();
        let daemon = SlabDaemon::new(Arc::clone(&pools));
        let storage = Storage::new(zeroed(plan.lines()), &plan, pools);
        Self { storage, daemon, seed, item: Item::new(), operations: 0 }
    }

    fn lookup(&mut self, key: &[u8]) -> Lookup {
        self.operations += 1;
        if self.operations.is_multiple_of(OPERATIONS_A_TURN) {
            self.daemon.turn();
        }
        let hash = KeyHash::of(self.seed, key);
        let found = block_on(self.storage.lookup(hash, key, &mut self.item));
        found.expect("keys have the table's length, and nothing is damaged")
    }

    /// Whether the value had room; none if the daemon was asked for memory.
    fn store(&self, lookup: &mut Lookup, key: &[u8], value: &[u8]) -> Option<bool> {
        match block_on(self.storage.store(lookup, key, value, Version::from_u64(0), None)) {
            Ok(()) => Some(true),
            Err(EngineError::OutOfMemory { .. }) if self.storage.slabs().starving() => None,
            Err(EngineError::OutOfMemory { .. }) => Some(false),
            Err(failure) => panic!("a value of the table's length is refused: {failure:?}"),
        }
    }
}

impl Design for KvDirect {
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let mut lookup = self.lookup(key);
        if let Some(has_room) = self.store(&mut lookup, key, value) {
            return has_room;
        }
        // Operations that wait in the station for the daemon go on with what they have read.
        // Once: a slab that one allocates and gives back again is news to the allocator, which
        // would ask the daemon for ever.
        let answered = (0..TURNS_MAX).any(|_| {
            self.daemon.turn();
            !self.storage.slabs().starving()
        });
        assert!(answered, "the daemon never answers");
        self.store(&mut lookup, key, value) == Some(true)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let is_there = self.lookup(key).found();
        if is_there {
            value.clear();
            value.extend_from_slice(self.item.value());
        }
        is_there
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let mut lookup = self.lookup(key);
        let was_there = lookup.found();
        block_on(self.storage.remove(&mut lookup)).expect("nothing is damaged");
        was_there
    }

    fn bytes(&self) -> u64 {
        u64::from(self.storage.memory().lines()) * LINE_BYTES as u64
    }

    fn counts(&self) -> Counts {
        self.storage.memory().counts()
    }
}
