//! What a table's operations cost.

use loch_fabric::VerbCount;

/// What a table's operations cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Verbs, round trips and bytes.
    pub verbs: VerbCount,
    /// Times an operation started over because another changed what it looked at, and requests that
    /// were sent again.
    pub retries: u64,
    /// Moves made to free an index slot.
    pub moves: u64,
    /// Unfinished moves of others that were completed or undone.
    pub helped: u64,
}
