//! The counts and findings of a walk over a table.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Index slots looked at.
    pub slots: u64,
    /// Slots that show a value.
    pub values: u64,
    /// Slots with a tentative insert: of operations under way, or of dead clients.
    pub tentative: u64,
    /// Slots in the middle of a move.
    pub moving: u64,
    /// Entries in use that no slot shows: of operations under way, or leaked.
    pub unshown: u64,
    /// Bytes of the unshown entries.
    pub unshown_bytes: u64,
    /// Broken invariants, in words. Empty is good.
    pub broken: Vec<String>,
}

/// How a node's data table is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes of the data table.
    pub data_bytes: u64,
    /// Bytes of chunks in slabs.
    pub slab_bytes: u64,
    /// Bytes of entries in use, by their classes.
    pub entry_bytes: u64,
    /// Entries in use.
    pub entries: u64,
    /// Slabs leased by clients.
    pub leased_slabs: u64,
    /// Slabs without an owner.
    pub abandoned_slabs: u64,
    /// The values that were evicted or have expired, by size class: the classes of which there are
    /// some. `None` in a table of an engine that does not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<Vec<ForgottenOf>>,
}

/// The values of one size class that a node and its clients have removed by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ForgottenOf {
    /// Bytes of an entry; 0 for entries that are longer than those of all classes.
    pub entry_bytes: u64,
    /// Values that were evicted.
    pub evicted: u64,
    /// Values that had expired and were removed.
    pub expired: u64,
}

/// The result of a piece of a walk that looks for what has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Entries that will expire, or have expired.
    pub expiring: u64,
    /// Values that had expired, and that this client removed.
    pub removed: u64,
    /// Whether the walk has come to its end. The next piece begins another one.
    pub is_over: bool,
}

/// The result of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Entries in use.
    pub entries: u64,
    /// Entries that no slot showed at first.
    pub suspects: u64,
    /// Entries that were freed.
    pub freed: u64,
    /// Bytes of the freed entries.
    pub freed_bytes: u64,
    /// Tentative words of dead clients that were removed.
    pub tentative: u64,
    /// Unfinished moves that were completed or undone.
    pub moves: u64,
    /// Entries that no slot showed, in slabs that clients had closed: another scrub looks at them.
    pub put_off: u64,
}
