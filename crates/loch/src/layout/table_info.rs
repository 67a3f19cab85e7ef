//! The description of a table for users.

use loch_engines::registry::EngineId;
use serde::Serialize;

use crate::TableProtocol;

/// A table of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// The table's engine.
    pub engine: String,
    /// The protocol of its clients, if the engine has several.
    pub protocol: TableProtocol,
    /// The number of workers of each node that serve the table; 0 if it needs none.
    pub workers: u16,
    /// The bytes of the longest value.
    pub value_bytes_max: u64,
    /// The number of hash functions of its index, each of which gives a key a bucket; 0 if a key's
    /// slots are found in another way.
    pub ways: u8,
    /// The number of slots in a bucket; 0 if there are no such buckets.
    pub bucket_slots: u8,
    /// The slots of its index, over all nodes. An index of `pilaf` begins with so many, and grows;
    /// the sizes of index and data begin with it.
    pub index_slots: u64,
    /// The bytes of its index, over all nodes.
    pub index_bytes: u64,
    /// The bytes of its data tables, over all nodes.
    pub data_bytes: u64,
    /// The unit of the addresses of its entries, to which they are rounded up; 0 if they have no
    /// such unit. It is larger in tables that are too large for a small one.
    pub grain_bytes: u64,
    /// Whether the table is a cache: a PUT always finds room, and other values go: those that are
    /// used little, or with `herd` the oldest.
    pub evicts: bool,
}

impl TableInfo {
    /// Returns whether a GET is a request to a worker. A client that has attached for reading
    /// cannot make it.
    pub fn reads_are_requests(&self) -> bool {
        let engine = EngineId::ALL.iter().find(|engine| engine.name() == self.engine);
        engine.is_some_and(|engine| engine.needs().session_to_read)
    }
}
