//! What can be declared of a table of nessie's layout.

use serde::{Deserialize, Serialize};

use super::geometry::Protocol;

/// What can be declared of every table that is laid out as nessie's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayoutOptions {
    /// Slots of its index on each node: the most keys it can hold there, less some 5 %. Default:
    /// one for every 112 bytes of the table's memory.
    pub index_slots: Option<u64>,
    /// Hash functions of the index, 2 to 4. Default 3.
    pub ways: u8,
    /// Slots that each hash function gives a key: 1, 2 or 4. Default 4.
    pub bucket_slots: u8,
    /// Whether index entries carry bits of the key's hash. Default yes.
    pub filter_bits: bool,
    /// Whether of long entries the header is read first. Default yes.
    pub multi_read: bool,
    /// Whether a GET reads all candidates at once. Default: where a round trip is dear. Where
    /// readers go by checksums, as over a network, they always do.
    pub batched_reads: Option<bool>,
    /// Whether entries carry checksums. Default: over a network, where a second READ costs a round
    /// trip; clients on the node's host do not need them.
    pub checksums: bool,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self {
            index_slots: None,
            ways: 3,
            bucket_slots: 4,
            filter_bits: true,
            multi_read: true,
            batched_reads: None,
            checksums: false,
        }
    }
}

/// What can be declared of a table of nessie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Index and entries.
    #[serde(flatten)]
    pub layout: LayoutOptions,
    /// Whether clients cache remote entries. Default: where a round trip is dear.
    pub cache: Option<bool>,
    /// By which rules the clients go. Default `loch`.
    pub protocol: TableProtocol,
    /// Whether a GET that meets an undecided PUT takes the previous version, in a table of protocol
    /// `published`; without, it waits. Default yes.
    pub previous_versions: Option<bool>,
}

/// By which rules the clients of a table of nessie go. What a table does is the same; what it costs
/// is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableProtocol {
    /// Loch's own.
    #[default]
    Loch,
    /// The published one, repaired, to be measured beside Loch's own. A reservation is copied when
    /// it is committed.
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
