//! A table, for people.

use loch_engines::registry::EngineId;

use crate::TableProtocol;

/// A table of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: String,
    /// By which rules its clients go, where an engine has several.
    pub protocol: TableProtocol,
    /// Slots of its index, over all nodes.
    pub index_slots: u64,
    /// Bytes of its index, over all nodes.
    pub index_bytes: u64,
    /// Bytes of its data tables, over all nodes.
    pub data_bytes: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Hash functions of its index.
    pub ways: u8,
    /// Slots of a bucket.
    pub bucket_slots: u8,
    /// Workers of each node that serve it; 0: nobody does.
    pub workers: u16,
}

impl TableInfo {
    /// Whether a GET is a request to a worker, which who attached for reading cannot make.
    pub fn reads_are_requests(&self) -> bool {
        let engine = EngineId::ALL.iter().find(|engine| engine.name() == self.engine);
        engine.is_some_and(|engine| engine.needs().session_to_read)
    }
}
