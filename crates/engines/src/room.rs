//! The room for a table before it is laid out.

/// The room that a table gets, and the declarations that tables of all engines share.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The table's bytes of a node's memory.
    pub share: u64,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Bytes of the longest value, if the declaration chose it.
    pub value_max: Option<u64>,
    /// Workers of each node, where workers serve the table.
    pub workers: u16,
    /// The most requests that a client has under way at one worker, if the declaration chose it.
    pub window: Option<u16>,
    /// Session slots of each node whose clients can have the table open. One of them is for the
    /// node's scrubber.
    pub slots: u32,
    /// Whether clients reach the table's memory over a network.
    pub is_remote: bool,
}
