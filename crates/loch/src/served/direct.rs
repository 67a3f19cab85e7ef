//! A table of kv-direct on one node: requests in the region, and nothing else.
//!
//! Each worker's index and slabs are in the memory of the node's process, as a herd table's values
//! are. What they are like stands in the table's directory entry.

use loch_engines::kv_direct::storage::{Options, Plan};
use loch_engines::region::{EngineId, LayoutError, TableEntry};

/// What a worker's memory is like, in [`TableEntry::words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Bytes of each worker's memory.
    pub bytes: u64,
    /// The share of it that is the index, in millionths.
    pub index_millionths: u64,
    /// Bytes of a key and its value up to which they are in the index.
    pub inline_bytes: u16,
    /// Bytes of every key, if they are all the same.
    pub key_bytes: Option<u16>,
    /// Whether values have versions and can expire.
    pub versions: bool,
    /// Whether operations overtake others on other keys.
    pub out_of_order: bool,
}

const MILLION: f64 = 1e6;
const VERSIONS: u64 = 1;
const OUT_OF_ORDER: u64 = 2;

impl Partition {
    /// That of a table of the directory.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if it cannot be.
    pub fn of(entry: &TableEntry) -> Result<Self, LayoutError> {
        let partition = Self::of_words(entry.words)
            .ok_or_else(|| LayoutError::Geometry("a table's partitions cannot be".into()))?;
        partition.plan(entry.geometry.value_bytes_max)?;
        Ok(partition)
    }

    /// As it is in a directory entry.
    pub fn words(self) -> [u64; 6] {
        let flags = [(self.versions, VERSIONS), (self.out_of_order, OUT_OF_ORDER)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        let key_bytes = self.key_bytes.map_or(0, u64::from);
        [self.bytes, self.index_millionths, self.inline_bytes.into(), key_bytes, flags, 0]
    }

    fn of_words(words: [u64; 6]) -> Option<Self> {
        let [bytes, index_millionths, inline_bytes, key_bytes, flags, 0] = words else {
            return None;
        };
        let partition = Self {
            bytes,
            index_millionths,
            inline_bytes: inline_bytes.try_into().ok()?,
            key_bytes: Some(u16::try_from(key_bytes).ok()?).filter(|bytes| *bytes > 0),
            versions: flags & VERSIONS != 0,
            out_of_order: flags & OUT_OF_ORDER != 0,
        };
        (partition.words() == words).then_some(partition)
    }

    /// The share of the memory that is the index, as it is kept.
    pub fn millionths(ratio: f64) -> u64 {
        (ratio * MILLION).round() as u64
    }

    /// Where everything is in a worker's memory.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] says what it may be.
    pub fn plan(self, value_bytes_max: u64) -> Result<Plan, LayoutError> {
        Plan::new(&Options {
            bytes: self.bytes,
            index_ratio: self.index_millionths as f64 / MILLION,
            inline_bytes_max: self.inline_bytes,
            versions: self.versions,
            value_bytes_max,
            key_bytes: self.key_bytes,
        })
    }

    /// What it is like, option by option, for people.
    pub fn facts(self) -> [(&'static str, String); 6] {
        let Self { bytes, inline_bytes, versions, out_of_order, .. } = self;
        [
            ("bytes of a worker", bytes.to_string()),
            ("index_ratio", (self.index_millionths as f64 / MILLION).to_string()),
            ("inline_bytes", inline_bytes.to_string()),
            ("key_bytes", self.key_bytes.map_or("any".into(), |bytes| bytes.to_string())),
            ("versions", versions.to_string()),
            ("out_of_order", out_of_order.to_string()),
        ]
    }

    /// The same of a directory entry, if it is one of kv-direct.
    pub fn facts_of(entry: &TableEntry) -> Option<[(&'static str, String); 6]> {
        let is_one = entry.engine() == Some(EngineId::KvDirect);
        is_one.then(|| Self::of_words(entry.words)).flatten().map(Self::facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_says_survives_the_trip() {
        let partition = Partition {
            bytes: 1 << 20,
            index_millionths: Partition::millionths(0.37),
            inline_bytes: 24,
            key_bytes: Some(8),
            versions: true,
            out_of_order: false,
        };
        for partition in [
            partition,
            Partition { versions: false, out_of_order: true, key_bytes: None, ..partition },
        ] {
            assert_eq!(Partition::of_words(partition.words()), Some(partition));
        }
        assert_eq!(partition.facts()[1], ("index_ratio", "0.37".into()));
        for wrong in [[1, 1, 1 << 16, 0, 0, 0], [1, 1, 1, 0, 4, 0], [1, 1, 1, 0, 0, 1]] {
            assert_eq!(Partition::of_words(wrong), None);
        }
    }
}
