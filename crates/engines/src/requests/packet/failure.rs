//! The failures of operations, as replies carry them.

use loch_fabric::{FabricError, RemoteAddr};

use crate::error::EngineError;

/// The reason why a worker did not do an operation: an [`EngineError`] as a reply carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// [`EngineError::ValueTooLong`].
    ValueTooLong {
        /// Bytes of the value.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// [`EngineError::OutOfMemory`].
    OutOfMemory {
        /// Bytes that were needed.
        bytes: u64,
        /// Bytes of the worker's memory.
        capacity: u64,
    },
    /// [`EngineError::NotAVector`].
    NotAVector {
        /// Bytes of the value.
        len: u64,
        /// Bytes of an element, or of the operands.
        wanted: u64,
    },
    /// [`EngineError::NoFunction`].
    NoFunction(u16),
    /// [`EngineError::FunctionFailed`].
    FunctionFailed(u16),
    /// [`EngineError::UnfitFunction`].
    UnfitFunction,
    /// [`EngineError::Unsupported`].
    Unsupported,
    /// The packet could not be read from this operation on, or the key is another worker's.
    Malformed,
    /// [`EngineError::Damaged`]: the worker's log says more.
    Damaged,
    /// The operation is done, but the packet's reply has no room for the value: ask for it alone.
    NoRoom,
    /// [`EngineError::IndexFull`].
    IndexFull {
        /// Slots of the whole index.
        slots: u64,
        /// Moves that were allowed.
        moves: u64,
    },
    /// [`EngineError::Timeout`].
    Timeout {
        /// The time that the operation may take.
        timeout_us: u64,
    },
    /// [`EngineError::NotACounter`].
    NotACounter {
        /// Bytes of the value.
        len: u64,
    },
    /// [`EngineError::NoVersions`].
    NoVersions,
    /// [`EngineError::Ambiguous`].
    Ambiguous,
    /// The worker could not reach its memory. It may work the next time.
    Unreachable,
}

/// The status bytes of failures. An outcome has a smaller one.
pub(in crate::requests) mod status {
    pub const VALUE_TOO_LONG: u8 = 16;
    pub const OUT_OF_MEMORY: u8 = 17;
    pub const NOT_A_VECTOR: u8 = 18;
    pub const NO_FUNCTION: u8 = 19;
    pub const FUNCTION_FAILED: u8 = 20;
    pub const UNFIT_FUNCTION: u8 = 21;
    pub const UNSUPPORTED: u8 = 22;
    pub const MALFORMED: u8 = 23;
    pub const DAMAGED: u8 = 24;
    pub const NO_ROOM: u8 = 25;
    pub const INDEX_FULL: u8 = 26;
    pub const TIMEOUT: u8 = 27;
    pub const NOT_A_COUNTER: u8 = 28;
    pub const NO_VERSIONS: u8 = 29;
    pub const AMBIGUOUS: u8 = 30;
    pub const UNREACHABLE: u8 = 31;
}

impl Failure {
    /// The failure's status, and its words.
    #[cold]
    pub(in crate::requests) fn parts(self) -> (u8, [u64; 2]) {
        match self {
            Self::ValueTooLong { len, max } => (status::VALUE_TOO_LONG, [len, max]),
            Self::OutOfMemory { bytes, capacity } => (status::OUT_OF_MEMORY, [bytes, capacity]),
            Self::NotAVector { len, wanted } => (status::NOT_A_VECTOR, [len, wanted]),
            Self::NoFunction(number) => (status::NO_FUNCTION, [number.into(), 0]),
            Self::FunctionFailed(number) => (status::FUNCTION_FAILED, [number.into(), 0]),
            Self::UnfitFunction => (status::UNFIT_FUNCTION, [0; 2]),
            Self::Unsupported => (status::UNSUPPORTED, [0; 2]),
            Self::Malformed => (status::MALFORMED, [0; 2]),
            Self::Damaged => (status::DAMAGED, [0; 2]),
            Self::NoRoom => (status::NO_ROOM, [0; 2]),
            Self::IndexFull { slots, moves } => (status::INDEX_FULL, [slots, moves]),
            Self::Timeout { timeout_us } => (status::TIMEOUT, [timeout_us, 0]),
            Self::NotACounter { len } => (status::NOT_A_COUNTER, [len, 0]),
            Self::NoVersions => (status::NO_VERSIONS, [0; 2]),
            Self::Ambiguous => (status::AMBIGUOUS, [0; 2]),
            Self::Unreachable => (status::UNREACHABLE, [0; 2]),
        }
    }

    /// The failure with this status and these words; `None` if no failure has the status.
    #[cold]
    pub(in crate::requests) fn of_parts(status: u8, [first, second]: [u64; 2]) -> Option<Self> {
        Some(match status {
            status::VALUE_TOO_LONG => Self::ValueTooLong { len: first, max: second },
            status::OUT_OF_MEMORY => Self::OutOfMemory { bytes: first, capacity: second },
            status::NOT_A_VECTOR => Self::NotAVector { len: first, wanted: second },
            status::NO_FUNCTION => Self::NoFunction(first as u16),
            status::FUNCTION_FAILED => Self::FunctionFailed(first as u16),
            status::UNFIT_FUNCTION => Self::UnfitFunction,
            status::UNSUPPORTED => Self::Unsupported,
            status::MALFORMED => Self::Malformed,
            status::DAMAGED => Self::Damaged,
            status::NO_ROOM => Self::NoRoom,
            status::INDEX_FULL => Self::IndexFull { slots: first, moves: second },
            status::TIMEOUT => Self::Timeout { timeout_us: first },
            status::NOT_A_COUNTER => Self::NotACounter { len: first },
            status::NO_VERSIONS => Self::NoVersions,
            status::AMBIGUOUS => Self::Ambiguous,
            status::UNREACHABLE => Self::Unreachable,
            _ => return None,
        })
    }

    /// The error for the client's caller. `at` is where the request was sent.
    #[cold]
    pub fn into_error(self, at: RemoteAddr) -> EngineError {
        match self {
            Self::ValueTooLong { len, max } => EngineError::ValueTooLong { len, max },
            Self::OutOfMemory { bytes, capacity } => EngineError::OutOfMemory { bytes, capacity },
            Self::NotAVector { len, wanted } => EngineError::NotAVector { len, wanted },
            Self::NoFunction(number) => EngineError::NoFunction { number },
            Self::FunctionFailed(number) => EngineError::FunctionFailed { number },
            Self::UnfitFunction => EngineError::UnfitFunction,
            Self::Unsupported => EngineError::Unsupported,
            Self::Damaged => EngineError::Damaged {
                what: format!("the worker that serves {at} says so: see its log"),
            },
            Self::IndexFull { slots, moves } => {
                EngineError::IndexFull { slots, moves: moves as usize }
            }
            Self::Timeout { timeout_us } => EngineError::Timeout { timeout_us },
            Self::NotACounter { len } => EngineError::NotACounter { len },
            Self::NoVersions => EngineError::NoVersions,
            Self::Ambiguous => EngineError::Ambiguous(FabricError::OutcomeUnknown { at }),
            Self::Unreachable => {
                EngineError::Fabric(FabricError::Unreachable { region: at.region() })
            }
            Self::Malformed | Self::NoRoom => strange_outcomes(),
        }
    }
}

impl From<&EngineError> for Failure {
    #[cold]
    fn from(error: &EngineError) -> Self {
        match *error {
            EngineError::ValueTooLong { len, max } => Self::ValueTooLong { len, max },
            EngineError::OutOfMemory { bytes, capacity } => Self::OutOfMemory { bytes, capacity },
            EngineError::NotAVector { len, wanted } => Self::NotAVector { len, wanted },
            EngineError::NoFunction { number } => Self::NoFunction(number),
            EngineError::FunctionFailed { number } => Self::FunctionFailed(number),
            EngineError::UnfitFunction => Self::UnfitFunction,
            EngineError::Damaged { .. } => Self::Damaged,
            EngineError::IndexFull { slots, moves } => {
                Self::IndexFull { slots, moves: moves as u64 }
            }
            EngineError::Timeout { timeout_us } => Self::Timeout { timeout_us },
            EngineError::NotACounter { len } => Self::NotACounter { len },
            EngineError::NoVersions => Self::NoVersions,
            EngineError::Ambiguous(_) => Self::Ambiguous,
            EngineError::Fabric(_) => Self::Unreachable,
            EngineError::KeyEmpty
            | EngineError::KeyTooLong { .. }
            | EngineError::KeyOfOtherLength { .. }
            | EngineError::ReadOnly
            | EngineError::NeedsSession
            | EngineError::NoScans
            | EngineError::TooManyPins { .. }
            | EngineError::Unsupported => Self::Unsupported,
        }
    }
}

/// The error for outcomes that no worker should have sent.
#[cold]
pub(crate) fn strange_outcomes() -> EngineError {
    EngineError::Damaged { what: "a worker's outcomes are not those of its packet".into() }
}
