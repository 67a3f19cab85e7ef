//! The costs of a table's operations.

use loch_fabric::VerbCount;

/// The costs of a table's operations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Counts of verbs, round trips and bytes.
    pub verbs: VerbCount,
    /// How often an operation started over because another client changed a word that it had read,
    /// and how many requests were sent again.
    pub retries: u64,
    /// Moves that were made to free an index slot.
    pub moves: u64,
    /// Unfinished moves of other clients that were completed or undone.
    pub helped: u64,
}
