//! The options that a table of nessie's layout can declare.

use serde::{Deserialize, Serialize};

use super::geometry::Protocol;

/// Slots of a bucket, unless they are declared.
pub const BUCKET_SLOTS: u8 = 4;
/// The same in a table that evicts.
pub const BUCKET_SLOTS_OF_CACHE: u8 = 3;

/// The options of every table that is laid out as nessie's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayoutOptions {
    /// Slots of the table's index on each node: the most keys that it can hold there, less some 5
    /// %. Default: one slot for every 112 bytes of the table's memory.
    pub index_slots: Option<u64>,
    /// Hash functions of the index, 2 to 4. Default 3.
    pub ways: u8,
    /// Slots that each hash function gives a key: 1, 2 or 4, default 4; in a table that evicts 1 or
    /// 3, default 3.
    pub bucket_slots: Option<u8>,
    /// Whether index entries carry bits of the key's hash. Default yes.
    pub filter_bits: bool,
    /// Whether the header of a long entry is read before its value. Default yes.
    pub multi_read: bool,
    /// Whether a GET reads all candidates at once. Default: only where a round trip is expensive.
    /// Where readers use checksums, as over a network, they always read all at once.
    pub batched_reads: Option<bool>,
    /// Whether entries carry checksums. Default: only over a network, where a second READ costs a
    /// round trip; clients on the node's host do not need checksums.
    pub checksums: bool,
    /// What happens to a PUT that finds no room. Default none: it is refused.
    pub eviction: Eviction,
}

/// What a table does when a PUT finds no room, neither memory nor a slot of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Eviction {
    /// The table stores: the PUT is refused.
    #[default]
    None,
    /// The table is a cache: values that are used little make room.
    Sieve,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self {
            index_slots: None,
            ways: 3,
            bucket_slots: None,
            filter_bits: true,
            multi_read: true,
            batched_reads: None,
            checksums: false,
            eviction: Eviction::None,
        }
    }
}

/// The options of a table of nessie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The options of the layout of index and entries.
    #[serde(flatten)]
    pub layout: LayoutOptions,
    /// Whether clients cache remote entries. Default: only where a round trip is expensive.
    pub cache: Option<bool>,
    /// The protocol that the clients follow. Default `loch`.
    pub protocol: TableProtocol,
    /// In a table of protocol `published`, whether a GET that meets an undecided PUT takes the
    /// previous version; otherwise the GET waits. Default yes.
    pub previous_versions: Option<bool>,
}

/// The protocol that the clients of a table of nessie follow. The tables behave the same under
/// both; their costs differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableProtocol {
    /// Loch's own protocol.
    #[default]
    Loch,
    /// The published protocol, repaired, to be measured beside Loch's own. A reservation is copied
    /// when it is committed.
    Published,
}

impl From<Protocol> for TableProtocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Loch => Self::Loch,
            Protocol::Published { .. } => Self::Published,
        }
    }
}
