//! Verification: the invariants of a table between two operations of its server.

use std::collections::HashMap;

use loch_fabric::{Buf, Fabric};

use super::buddy::order_of;
use super::hash::{KeyHash, candidates};
use super::index::Index;
use super::layout::{GRAIN_BYTES, extent_addr};
use super::store::Store;
use crate::error::EngineError;

/// The result of [`Store::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Keys with a value, expired ones included.
    pub keys: u64,
    /// Bytes of the keys and values.
    pub bytes: u64,
    /// Bytes of the blocks that hold them.
    pub block_bytes: u64,
    /// The broken invariants, in one sentence each.
    pub broken: Vec<String>,
}

impl Store {
    /// Keys with a value, and bytes of the blocks that hold them, as they were counted.
    pub fn counted(&self) -> StoreReport {
        let (keys, block_bytes) = (self.counts.keys, self.taken_grains() * GRAIN_BYTES);
        StoreReport { keys, block_bytes, ..StoreReport::default() }
    }

    /// Grains of the extents that the table shows.
    fn taken_grains(&self) -> u64 {
        let index = 1 << order_of(Index::bytes(self.index.slots));
        self.buddy.grains() - self.buddy.free_grains() - index - self.prepared_grains
    }

    /// Looks at every slot and every extent. A prepared change is not in the table yet, but its
    /// extent is not lost.
    ///
    /// # Errors
    /// The fabric's.
    pub fn check<F: Fabric>(&self, fabric: &F) -> Result<StoreReport, EngineError> {
        let mut report = StoreReport::default();
        let mut keys: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut owners: HashMap<u64, u64> = HashMap::new();
        for slot in 0..self.index.slots {
            let Some(entry) = self.index.verified(fabric, slot)? else {
                report.broken.push(format!("slot {slot}: its checksum does not verify"));
                continue;
            };
            if entry.is_empty() {
                continue;
            }
            let mut extent = Buf::new();
            let at = extent_addr(self.shape.root, entry.grain);
            fabric.load_bytes(at, entry.extent_len(), &mut extent)?;
            if !entry.verifies(&extent) {
                report.broken.push(format!("slot {slot}: its extent does not verify"));
            }
            let key = extent[entry.key_at()..entry.value_at()].to_vec();
            let hash = KeyHash::of(self.shape.seed, &key);
            if hash.name != entry.hash || !candidates(entry.hash, self.index.slots).contains(&slot)
            {
                report.broken.push(format!("slot {slot}: it is none of its key's"));
            }
            if let Some(other) = keys.insert(key, slot) {
                report.broken.push(format!("slot {slot}: its key is in slot {other} too"));
            }
            let grains = 1 << order_of(extent.len() as u64);
            for grain in u64::from(entry.grain)..u64::from(entry.grain) + grains {
                let shared = owners.insert(grain, slot);
                if let Some(other) = shared {
                    report.broken.push(format!("slot {slot}: slot {other} has its extent too"));
                } else if self.buddy.is_free(grain) {
                    report.broken.push(format!("slot {slot}: its extent is free"));
                }
            }
            report.keys += 1;
            report.bytes += u64::from(entry.key_len) + u64::from(entry.value_len);
            report.block_bytes += grains * GRAIN_BYTES;
        }
        let taken = self.taken_grains();
        if taken != report.block_bytes / GRAIN_BYTES {
            let taken = taken * GRAIN_BYTES;
            let text = format!("{taken} bytes are taken for {} of extents", report.block_bytes);
            report.broken.push(text);
        }
        if report.keys != self.counts.keys {
            let (found, counted) = (report.keys, self.counts.keys);
            report.broken.push(format!("there are {found} keys, and {counted} were counted"));
        }
        Ok(report)
    }
}
