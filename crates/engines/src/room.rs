//! What there is for a table before it is laid out.

/// What a table has room in, and what is declared of it whatever its engine.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Its bytes of a node's memory.
    pub share: u64,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Bytes of the longest value, if that was chosen.
    pub value_max: Option<u64>,
    /// Workers of each node, where workers serve the table.
    pub workers: u16,
    /// Requests that a client has under way at one worker, if that was chosen.
    pub window: Option<u16>,
    /// Session slots of each node whose clients can have the table open: the node's scrubber's
    /// among them.
    pub slots: u32,
    /// Whether its memory is reached over a network.
    pub is_remote: bool,
}
