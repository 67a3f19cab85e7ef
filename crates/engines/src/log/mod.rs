//! The operation log: what a server did, on a disk, so that it can be done again (pilaf §4,
//! "Logging").
//!
//! The log is a sequence of records, numbered from 1, in segments ([`record`]). It is appended to
//! by one server ([`Log`]) and read once, when that server starts anew ([`recover`]); snapshots
//! keep it short (`snapshot.rs`). Engines make no system calls: the disk is a [`Storage`].
//!
//! # What survives
//! | | the process is killed | the host loses power |
//! | --- | --- | --- |
//! | [`Policy::sync`] | all that was acknowledged | all that was acknowledged |
//! | otherwise | all but the records of the last [`write_us`](Policy::write_us) or `write_bytes` | all but the last [`loss_records_max`](Policy::loss_records_max) records, of the last [`loss_us_max`](Policy::loss_us_max) |
//!
//! With `sync` a record is durable before its operation is acknowledged, and before anybody can see
//! its effect; that is for the log's owner to keep. Otherwise what is lost is a **suffix** of the
//! log: if a change is lost, so are all that came after it. Each node of a table has a log of its
//! own, so of a table a suffix is lost of each node's changes.
//!
//! The bounds hold because [`Log::has_room`] says no when they are reached, and the owner then
//! takes no more changes until the disk is done. A disk that is slow makes PUTs slow, not the loss
//! large.
//!
//! # Faults
//! * **A failed append or sync** poisons the log, for good: after a failed fsync nobody knows what
//!   is on the disk, and a second one that succeeds means nothing. Its owner stops. The next
//!   process can read what is not on the disk; it writes that anew before it calls it durable
//!   (`recover.rs`).
//! * **A crash** leaves a torn tail, which is cut off; a segment, a copy of one, or a snapshot in
//!   the making, which is removed; or segments that a snapshot replaced, which the next snapshot
//!   removes.
//! * **Damage** that no crash explains is an error with segment and offset, and so is a missing
//!   segment. Nothing is repaired by guessing.

mod append;
mod memory;
pub mod record;
mod recover;
#[cfg(test)]
mod rules;
mod snapshot;
mod storage;
#[cfg(test)]
mod tests;

pub use append::Log;
pub use memory::{DiskFaults, MemoryStorage};
pub use record::{Change, Op};
pub use recover::{Recovered, Told, recover};
pub use snapshot::Snapshot;
pub use storage::{Storage, StorageError};

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether an operation is acknowledged, and seen, only after its record is durable.
    pub sync: bool,
    /// Bytes that are gathered before they are appended to the segment.
    pub write_bytes: usize,
    /// But no record waits longer for that, in microseconds.
    pub write_us: u64,
    /// A sync begins when a record has not been durable for so long, in microseconds.
    pub sync_us: u64,
    /// Records that a loss of power may take.
    pub loss_records_max: u64,
    /// It takes none that is older than this, in microseconds.
    pub loss_us_max: u64,
    /// A segment is full when it has so many bytes.
    pub segment_bytes: u64,
}

impl Default for Policy {
    /// Asynchronous: a killed process loses a millisecond, a host without power a tenth of a second
    /// or, of a disk that is slow, a second.
    fn default() -> Self {
        Self {
            sync: false,
            write_bytes: 64 << 10,
            write_us: 1_000,
            sync_us: 100_000,
            loss_records_max: 1 << 20,
            loss_us_max: 1_000_000,
            segment_bytes: 64 << 20,
        }
    }
}

/// A table's log on one node: where it is, and how it is kept.
#[derive(Clone, Debug)]
pub struct Logging<S> {
    /// The disk.
    pub storage: S,
    /// Tells this table's log on this node from all others.
    pub table: u64,
    /// How it is kept.
    pub policy: Policy,
    /// A snapshot is made when the log has grown by so many bytes, and by as many as the snapshot
    /// before had.
    pub compact_bytes: u64,
}

/// Why a log cannot be read or appended to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The storage failed now. What was not durable may be lost.
    #[error(transparent)]
    Storage(StorageError),
    /// The storage failed earlier: the server has to be started anew.
    #[error("the log was given up: {0}")]
    Poisoned(StorageError),
    /// Records that were durable are not what they were.
    #[error("the log is damaged in segment {segment} at byte {offset}")]
    Damaged {
        /// The segment.
        segment: u64,
        /// Where its records end.
        offset: u64,
    },
    /// A segment is not there.
    #[error("the log has no record {lsn}: a segment is missing")]
    Missing {
        /// The first record that is not there.
        lsn: u64,
        /// The one that is there instead; 0: none.
        found: u64,
    },
    /// The segments are another table's.
    #[error("segment {segment} is of table {found:#x}, not of {expected:#x}")]
    AnotherTable {
        /// The segment.
        segment: u64,
        /// Whose it is.
        found: u64,
        /// Whose it should be.
        expected: u64,
    },
}
