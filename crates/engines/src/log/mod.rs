//! The operation log: a server's changes, on a disk, so that they can be made again (pilaf §4,
//! "Logging").
//!
//! The log is a sequence of records, numbered from 1, in segments ([`record`]). One server appends
//! to it ([`Log`]), and it is read once, when that server starts anew ([`recover`]). Snapshots keep
//! it short (`snapshot.rs`). Engines make no system calls: the disk is a [`Storage`].
//!
//! # Which changes survive
//! | | the process is killed | the host loses power |
//! | --- | --- | --- |
//! | [`Policy::sync`] | all that was acknowledged | all that was acknowledged |
//! | otherwise | all but the records of the last [`write_us`](Policy::write_us) or `write_bytes` | all but the last [`loss_records_max`](Policy::loss_records_max) records, of the last [`loss_us_max`](Policy::loss_us_max) |
//!
//! With `sync` a record is durable before its operation is acknowledged, and before any client can
//! see its effect; the log's owner has to ensure that. Otherwise the lost records are a **suffix**
//! of the log: if a change is lost, so are all changes after it. Each node of a table has its own
//! log, so a table loses a suffix of each node's changes.
//!
//! The bounds hold because [`Log::has_room`] says no when they are reached, and the owner then
//! takes no more changes until the disk has caught up. A slow disk makes PUTs slow, but does not
//! make the loss large.
//!
//! # Faults
//! * **A failed append or sync** poisons the log for good: after a failed fsync nobody knows which
//!   bytes are on the disk, and a second fsync that succeeds means nothing. The log's owner stops.
//!   The next process can read bytes that are not on the disk; it writes them again before it calls
//!   them durable (`recover.rs`).
//! * **A crash** leaves a torn tail, which is cut off; or an unfinished segment, copy of a segment,
//!   or snapshot, which is removed; or segments that a snapshot replaced, which the next snapshot
//!   removes.
//! * **Damage** that no crash explains is an error with segment and offset. A missing segment is an
//!   error too. Nothing is repaired by guessing.

mod append;
mod memory;
pub mod record;
mod recover;
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

/// The policy of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether an operation is acknowledged, and its effect seen, only after its record is durable.
    pub sync: bool,
    /// Bytes that the buffer gathers before they are appended to the segment.
    pub write_bytes: usize,
    /// The longest time that a record waits in the buffer, in microseconds.
    pub write_us: u64,
    /// A sync begins when a record has not been durable for this long, in microseconds.
    pub sync_us: u64,
    /// The most records that a loss of power may take.
    pub loss_records_max: u64,
    /// The greatest age of a record that a loss of power may take, in microseconds.
    pub loss_us_max: u64,
    /// A segment is full when it has this many bytes.
    pub segment_bytes: u64,
}

impl Default for Policy {
    /// Asynchronous: a killed process loses a millisecond of changes. A host without power loses a
    /// tenth of a second of them or, with a slow disk, a second.
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

/// A table's log on one node: its storage and its policy.
#[derive(Clone, Debug)]
pub struct Logging<S> {
    /// The disk.
    pub storage: S,
    /// A number that distinguishes this table's log on this node from all others.
    pub table: u64,
    /// The policy.
    pub policy: Policy,
    /// A snapshot is made when the log has grown by this many bytes, and by as many bytes as the
    /// last snapshot had.
    pub compact_bytes: u64,
}

/// The reasons why a log cannot be read or appended to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The storage failed now. Records that were not durable may be lost.
    #[error(transparent)]
    Storage(StorageError),
    /// The storage failed earlier: the server has to be started anew.
    #[error("the log was given up: {0}")]
    Poisoned(StorageError),
    /// Records that were durable have changed.
    #[error("the log is damaged in segment {segment} at byte {offset}")]
    Damaged {
        /// The segment.
        segment: u64,
        /// The offset where its valid records end.
        offset: u64,
    },
    /// A segment is missing.
    #[error("the log has no record {lsn}: a segment is missing")]
    Missing {
        /// The first missing record.
        lsn: u64,
        /// The record that stands in its place; 0: no record.
        found: u64,
    },
    /// The segments belong to another table.
    #[error("segment {segment} is of table {found:#x}, not of {expected:#x}")]
    AnotherTable {
        /// The segment.
        segment: u64,
        /// The table to which it belongs.
        found: u64,
        /// The table to which it should belong.
        expected: u64,
    },
}
