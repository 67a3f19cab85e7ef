//! The reasons why an operation was refused or did not finish.

use loch_fabric::FabricError;

/// The error of an engine's operation. Unless a variant says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A key has at least one byte.
    #[error("the key is empty: a key has 1 to {} bytes", crate::limits::KEY_BYTES_MAX)]
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
        "the value has {len} bytes, the table takes up to {max} with this key: declare it with a \
         larger value_max, or with another engine if this one takes no more"
    )]
    ValueTooLong {
        /// Bytes of the value.
        len: u64,
        /// The table's limit.
        max: u64,
    },
    /// The key has no free slot, and no move of other entries could free one.
    #[error(
        "the index is full: no slot of {slots} for this key after moving up to {moves} entries; \
         delete keys or declare the table with more memory for its index (index_slots)"
    )]
    IndexFull {
        /// Slots of the whole index.
        slots: u64,
        /// Moves that were allowed.
        moves: usize,
    },
    /// There is no memory for an entry of this size.
    #[error(
        "no memory for an entry of {bytes} bytes: the data tables have {capacity} bytes in all; \
         delete keys, drop pins or start the nodes with more memory"
    )]
    OutOfMemory {
        /// Bytes of the entry.
        bytes: u64,
        /// Bytes of all data tables this client can allocate from.
        capacity: u64,
    },
    /// Other clients changed the key's entries, or took the memory that became free, again and
    /// again until the deadline passed. Nothing was changed.
    #[error(
        "not done within {timeout_us} us: other clients kept changing the same entries, or took \
         all memory that became free"
    )]
    Timeout {
        /// The time that the operation may take.
        timeout_us: u64,
    },
    /// The session has as many values pinned as it can.
    #[error(
        "{max} values are pinned already, which is as many as one session can: drop some of them, \
         copy them, or open the table another time"
    )]
    TooManyPins {
        /// Pins of a session.
        max: usize,
    },
    /// The value under the key is not a counter of 8 bytes.
    #[error("the value has {len} bytes: fetch_add needs a value of 8 bytes")]
    NotACounter {
        /// Bytes of the value.
        len: u64,
    },
    /// The value is not made of elements of this size.
    #[error(
        "the value has {len} bytes, which {wanted} does not divide or equal: name the element that \
         the value is made of, and as many operands as it has elements"
    )]
    NotAVector {
        /// Bytes of the value.
        len: u64,
        /// Bytes of an element, or of all operands.
        wanted: u64,
    },
    /// No function was registered under this number.
    #[error("function {number} is not registered: declare it with the table (functions)")]
    NoFunction {
        /// The number.
        number: u16,
    },
    /// A registered function trapped, or took longer than it may. Nothing was changed.
    #[error("function {number} trapped or used up its fuel; the value is as it was")]
    FunctionFailed {
        /// The number.
        number: u16,
    },
    /// The function is not for such elements, or not for such an operation.
    #[error(
        "the function cannot be applied: floats have no bitwise functions, comparisons are for \
         filters, all others for updates and reductions"
    )]
    UnfitFunction,
    /// The table keeps no versions.
    #[error("the table keeps no versions: declare it with versions = true")]
    NoVersions,
    /// The client was attached for reading only.
    #[error("this client was attached read-only")]
    ReadOnly,
    /// The client has no session, and in this engine even a read is a request to a worker.
    #[error("this client has no session, and a read is a request: attach for writing")]
    NeedsSession,
    /// The worker does not do this: its engine has no such operation, or the key belongs to another
    /// worker.
    #[error(
        "the worker does not do this: its engine has no such operation, or the key is another's"
    )]
    Unsupported,
    /// The table is of a protocol without scans.
    #[error("the table is of protocol \"published\", which has no scans")]
    NoScans,
    /// An entry contradicts the index in a way no race explains: the memory is damaged.
    #[error("damaged memory: {what}; run `loch check`")]
    Damaged {
        /// A description of the damage.
        what: String,
    },
    /// A mutation may or may not have happened: the fabric lost the answer.
    #[error("the outcome is unknown: {0}")]
    Ambiguous(FabricError),
    /// The fabric refused or failed.
    #[error(transparent)]
    Fabric(FabricError),
}

impl EngineError {
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
