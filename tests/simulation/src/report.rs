//! The report of a run, and the verdict on its history.

use loch_history::{Answer, History, Operation, Outcome, Verdict, check, timeline};

use crate::watch::Slabs;

/// The number of configurations that the search may look at for one history.
pub const SEARCH_BUDGET: u64 = 2_000_000;
/// The message of a search that may look no further: a failure, but no bug found.
pub const BUDGET_SPENT: &str = "the search ran out of its budget";

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub operations: u64,
    pub events: u64,
    pub virtual_ns: u64,
    pub retries: u64,
    pub moves: u64,
    pub helped: u64,
    pub evicted: u64,
    /// Values that had expired, and that the nodes removed.
    pub expired: u64,
    pub deaths: u64,
    pub crashes: u64,
    /// Times that a node's workers ended or died.
    pub restarts: u64,
    /// Times that a worker attached other memory.
    pub attached: u64,
    /// Operations that a processor executed on a value at hand.
    pub forwarded: u64,
    /// Snapshots that logs made.
    pub snapshots: u64,
    /// Whether the history is of a table that lost values, as that table may.
    pub lossy: u64,
    pub cuts: u64,
    pub unknown: u64,
    pub refused: u64,
    /// Leaked entries that the agents freed.
    pub freed: u64,
    pub slabs: Slabs,
    /// The fingerprint of all calls and answers.
    pub fingerprint: u64,
}

impl Report {
    /// Counts operations.
    pub fn count(&mut self, operations: &[Operation]) {
        let is_unknown = |o: &&Operation| !matches!(o.outcome, Outcome::Known(_));
        let without = |o: &&Operation| matches!(o.outcome, Outcome::Known(Answer::NoEffect));
        self.operations = operations.len() as u64;
        self.unknown = operations.iter().filter(is_unknown).count() as u64;
        self.refused = operations.iter().filter(without).count() as u64;
        self.fingerprint = fingerprint(operations);
    }

    /// Adds another report's counts.
    pub fn add(&mut self, other: &Report) {
        self.operations += other.operations;
        self.events += other.events;
        self.virtual_ns += other.virtual_ns;
        self.retries += other.retries;
        self.moves += other.moves;
        self.helped += other.helped;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self.deaths += other.deaths;
        self.crashes += other.crashes;
        self.restarts += other.restarts;
        self.attached += other.attached;
        self.forwarded += other.forwarded;
        self.snapshots += other.snapshots;
        self.lossy += other.lossy;
        self.cuts += other.cuts;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.freed += other.freed;
        self.slabs.add(&other.slabs);
        self.fingerprint = self.fingerprint.rotate_left(5) ^ other.fingerprint;
    }
}

/// Whether the calls and answers are linearizable. The search may look at `budget` configurations.
///
/// # Errors
/// The violation, with the history that shows it.
pub fn judge(history: &History, budget: u64) -> Result<(), String> {
    match check(history, budget) {
        Verdict::Linearizable => Ok(()),
        Verdict::Exhausted { key, .. } => Err(format!("key {key}: {BUDGET_SPENT}")),
        Verdict::Violation(violation) => {
            Err(format!("not linearizable\n{}", timeline(&violation.history)))
        }
    }
}

/// The fingerprint of all calls and answers, and of their times.
fn fingerprint(operations: &[Operation]) -> u64 {
    let text = format!("{operations:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
