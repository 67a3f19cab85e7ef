//! The reasons why an operation was refused or did not finish.

use loch_fabric::FabricError;

use crate::limits::KEY_BYTES_MAX;
use crate::size::InWords;

/// The classes of errors, by what the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The call is wrong, whatever the state of the cluster: correct it.
    Usage,
    /// Memory, or another bounded resource, is used up: make room.
    NoRoom,
    /// The same call may succeed later: try again.
    TryAgain,
    /// A mutation may or may not have happened: read the key to find out.
    OutcomeUnknown,
    /// The cluster or this host has to be repaired.
    Repair,
}

/// The error of an engine's operation. Unless a variant says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    // Correct the call.
    /// A key has at least one byte.
    #[error("the key is empty: a key has 1 to {KEY_BYTES_MAX} bytes")]
    KeyEmpty,
    /// The key is longer than the table's keys can be.
    #[error("the key has {len} bytes: a key of this table has 1 to {max} bytes")]
    KeyTooLong {
        /// Bytes of the key.
        len: usize,
        /// Bytes of the longest key.
        max: usize,
    },
    /// All keys of the table have one length, and this key has another.
    #[error("the key has {len} bytes: every key of this table has {want} (key_bytes)")]
    KeyOfOtherLength {
        /// Bytes of the key.
        len: usize,
        /// Bytes of every key of the table.
        want: usize,
    },
    /// The value is longer than the table takes.
    #[error(
        "the value has {}, the table takes up to {} with this key: declare it with a larger \
         value_max, which may need more memory, or with another engine if this one takes no more",
        InWords(*len),
        InWords(*max)
    )]
    ValueTooLong {
        /// Bytes of the value.
        len: u64,
        /// The table's limit.
        max: u64,
    },
    /// The value under the key is not a counter of 8 bytes.
    #[error("the value has {len} bytes: fetch_add needs a value of 8 bytes")]
    NotACounter {
        /// Bytes of the value.
        len: u64,
    },
    /// The value is not made of elements of this size, or not of as many as there are operands.
    #[error(
        "the value has {len} bytes, and {wanted} or a multiple were expected: choose numbers of \
         another length, or give as many operands as the value has numbers"
    )]
    NotAVector {
        /// Bytes of the value.
        len: u64,
        /// Bytes of an element, or of all operands.
        wanted: u64,
    },
    /// The function is not for such elements, or not for such an operation.
    #[error(
        "this function cannot be applied so: `and`, `or` and `xor` are not for floats, comparisons \
         are for filters, and all others for updates and reductions"
    )]
    UnfitFunction,
    /// The table was declared without a function of this number.
    #[error("the table has no function {number}: declare it with one (functions)")]
    NoFunction {
        /// The number.
        number: u16,
    },
    /// A function that the table was declared with trapped, or took longer than it may.
    #[error("function {number} trapped, or used up its fuel; the value is as it was")]
    FunctionFailed {
        /// The number.
        number: u16,
    },
    /// The table keeps no versions.
    #[error("the table was declared without versions: declare it with versions = true")]
    NoVersions,
    /// The table is of a protocol without scans.
    #[error(
        "the table is of protocol \"published\", which has no scans: declare it with protocol = \
         \"loch\""
    )]
    NoScans,
    /// The client was attached for reading only.
    #[error("the cluster was attached read-only: connect without `read_only` to change values")]
    ReadOnly,
    /// The client was attached for reading only, and in this engine even a read is a request to a
    /// worker.
    #[error(
        "the cluster was attached read-only, and reads of this engine are requests to its workers: \
         attach for writing (ConnectOptions::read_only)"
    )]
    NeedsSession,
    /// The worker does not do this: its engine has no such operation, or the key belongs to another
    /// worker.
    #[error(
        "the worker does not do this: its engine has no such operation, or the key is another's"
    )]
    Unsupported,

    // Make room.
    /// The key has no free slot, and no move of other entries could free one.
    #[error(
        "the index is full: no slot of {slots} for this key after moving up to {moves} entries; \
         delete keys, declare the table with more index_slots, or use a table of nessie that \
         evicts (eviction = \"sieve\")"
    )]
    IndexFull {
        /// Slots of the whole index.
        slots: u64,
        /// Moves that were allowed.
        moves: usize,
    },
    /// There is no memory for an entry of this size.
    #[error(
        "no memory for an entry of {}: the data tables that this client writes to have {} in all; \
         drop pins, start the nodes with more memory, or delete keys (a table of nessie that \
         evicts does that by itself, with eviction = \"sieve\", and still needs memory for the old \
         value and the new one)",
        InWords(*bytes),
        InWords(*capacity)
    )]
    OutOfMemory {
        /// Bytes of the entry.
        bytes: u64,
        /// Bytes of all data tables this client can allocate from.
        capacity: u64,
    },
    /// The session has as many values pinned as it can.
    #[error(
        "{max} values are pinned already, which is as many as one session can have: drop some, \
         copy them, or open the table another time"
    )]
    TooManyPins {
        /// Pins of a session.
        max: usize,
    },

    // Try again.
    /// A worker did not answer, or other clients changed the key's entries, or took the memory that
    /// became free, again and again until the deadline passed. Nothing was changed.
    #[error(
        "not done within {timeout_us} us: a worker does not answer, or other clients kept changing \
         the same entries, or have taken or pinned all memory that became free"
    )]
    Timeout {
        /// The time that the operation may take.
        timeout_us: u64,
    },

    // Find out.
    /// A mutation may or may not have happened: the fabric lost the answer. Read the key to learn
    /// which; if the call is repeated, the mutation may happen twice.
    #[error("the outcome is unknown, read the key to learn it: {0}")]
    Ambiguous(FabricError),

    // Repair.
    /// An entry contradicts the index in a way no race explains: the memory is damaged.
    #[error("damaged memory: {what}; run `loch check`")]
    Damaged {
        /// A description of the damage.
        what: String,
    },
    /// The fabric refused or failed.
    #[error("the fabric failed: {0}")]
    Fabric(FabricError),
}

impl EngineError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::KeyEmpty
            | Self::KeyTooLong { .. }
            | Self::KeyOfOtherLength { .. }
            | Self::ValueTooLong { .. }
            | Self::NotACounter { .. }
            | Self::NotAVector { .. }
            | Self::UnfitFunction
            | Self::NoFunction { .. }
            | Self::FunctionFailed { .. }
            | Self::NoVersions
            | Self::NoScans
            | Self::ReadOnly
            | Self::NeedsSession
            | Self::Unsupported => ErrorKind::Usage,
            Self::IndexFull { .. } | Self::OutOfMemory { .. } | Self::TooManyPins { .. } => {
                ErrorKind::NoRoom
            }
            Self::Timeout { .. } => ErrorKind::TryAgain,
            Self::Ambiguous(_) => ErrorKind::OutcomeUnknown,
            Self::Damaged { .. } | Self::Fabric(_) => ErrorKind::Repair,
        }
    }

    /// The error of a part of an operation without which the operation has no effect, even if the
    /// outcome of that part is unknown.
    pub(crate) fn without_effect(self) -> Self {
        match self {
            Self::Ambiguous(FabricError::OutcomeUnknown { at }) => {
                Self::Fabric(FabricError::Unreachable { region: at.region() })
            }
            error => error,
        }
    }

    /// Whether a verb failed, which may leave memory in any state in which an operation can stop.
    pub(crate) fn is_of_the_fabric(&self) -> bool {
        matches!(self, Self::Ambiguous(_) | Self::Fabric(_))
    }
}

impl From<FabricError> for EngineError {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::OutcomeUnknown { .. } => Self::Ambiguous(error),
            error => Self::Fabric(error),
        }
    }
}

/// The reasons why a region cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The memory is not a region at all.
    #[error("it is not a Loch region (its first word is {found:#018x})")]
    NotARegion {
        /// The first word.
        found: u64,
    },
    /// Another version of Loch made the region.
    #[error("its layout is version {found}, this program reads version {reads}")]
    Version {
        /// The region's version.
        found: u32,
        /// The version that this program reads.
        reads: u32,
    },
    /// The header or directory was damaged.
    #[error("its {what} is damaged")]
    Damaged {
        /// The damaged part.
        what: String,
    },
    /// A declared table cannot be laid out.
    #[error("{0}")]
    Geometry(String),
}
