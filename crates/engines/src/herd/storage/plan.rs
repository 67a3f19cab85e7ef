//! The division of a partition's memory.

use serde::{Deserialize, Serialize};

use super::chained::Chained;
use super::entry::{ENTRY_GRAINS_MAX, GRAIN_WORDS};
use super::lossy::BUCKET_WORDS;
use crate::error::LayoutError;
use crate::limits::GRAIN_BYTES;

/// The behaviour of a table, and of each of its partitions, when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Lets the oldest entries go, whether they were read lately or not.
    Cache,
    /// Refuses new entries and keeps the old ones.
    Store,
}

/// The parts of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The behaviour when the partition is full.
    pub mode: Mode,
    /// Buckets to which keys hash.
    pub(super) buckets: u32,
    /// Buckets with which chains are extended.
    pub(super) spare_buckets: u32,
    /// Grains of the log or heap.
    pub(super) data_grains: u32,
}

/// The least number of grains of a log or heap: room for several of the longest entries.
const DATA_GRAINS_MIN: u64 = 4 * ENTRY_GRAINS_MAX as u64;
const DATA_GRAINS_MAX: u64 = u32::MAX as u64 - 1;
/// The most entries of a partition: each takes a grain at least.
pub const ENTRIES_MAX: u64 = DATA_GRAINS_MAX;
const BUCKET_BYTES: u64 = BUCKET_WORDS as u64 * 8;

impl Plan {
    /// Divides `bytes` into an index for `slots` entries, and data.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that does not fit; it names values that would.
    pub fn new(mode: Mode, bytes: u64, slots: u64) -> Result<Self, LayoutError> {
        let (buckets, spare) = match mode {
            Mode::Cache => (slots.div_ceil(BUCKET_WORDS as u64).max(1), 0),
            Mode::Store => Chained::plan(slots),
        };
        // One line is lost if the memory does not start at a line.
        let index_bytes = (buckets.saturating_add(spare + 1)).saturating_mul(BUCKET_BYTES);
        let grains = (bytes.saturating_sub(index_bytes) / GRAIN_BYTES).min(DATA_GRAINS_MAX);
        let buckets = u32::try_from(buckets).ok().filter(|_| grains >= DATA_GRAINS_MIN);
        let Some(buckets) = buckets else {
            let least = DATA_GRAINS_MIN * GRAIN_BYTES;
            return Err(LayoutError::Geometry(format!(
                "a herd partition of {bytes} bytes with {slots} index slots cannot be laid out: its \
                 index takes {index_bytes} bytes, its data {least} at least, and a partition has up \
                 to {} index buckets",
                u32::MAX
            )));
        };
        let spare_buckets = spare as u32;
        Ok(Self { mode, buckets, spare_buckets, data_grains: grains as u32 })
    }

    /// Words of memory that the partition takes.
    pub fn words(&self) -> usize {
        let data = self.data_grains as usize * GRAIN_WORDS;
        BUCKET_WORDS + self.index_words() + data
    }

    /// Bytes of the log or heap.
    pub fn data_bytes(&self) -> u64 {
        u64::from(self.data_grains) * GRAIN_BYTES
    }

    /// Words of the index.
    pub(super) fn index_words(&self) -> usize {
        (self.buckets as usize + self.spare_buckets as usize) * BUCKET_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_takes_the_memory_it_is_given() {
        for mode in [Mode::Cache, Mode::Store] {
            let plan = Plan::new(mode, 16 << 20, 100_000).expect("it fits");
            let bytes = plan.words() as u64 * 8;
            assert!(((16 << 20) - 64..=16 << 20).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (bytes, slots) in [(0, 1), (1 << 20, 1 << 20), (1 << 20, u64::MAX)] {
            for mode in [Mode::Cache, Mode::Store] {
                let refused = Plan::new(mode, bytes, slots).expect_err("it does not fit");
                assert!(refused.to_string().contains(&slots.to_string()), "{refused}");
            }
        }
    }
}
