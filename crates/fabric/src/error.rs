//! Errors of verbs, split by what the caller must do.

use crate::{RegionId, RemoteAddr};

/// The result of a verb.
pub type Result<T, E = FabricError> = std::result::Result<T, E>;

/// A verb that did not complete.
///
/// Variants that say "unknown" mean the peer may have executed the verb; all others mean it did
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No region of that number is attached to this endpoint. Attach it first.
    #[error("node {} is not attached", .region.0)]
    Unattached {
        /// The region that was named.
        region: RegionId,
    },
    /// The bytes named are not all inside the region, or not aligned as the verb needs. Nothing was
    /// touched; repeating the verb repeats the error.
    #[error("{len} bytes at {at} are outside the region ({region_bytes} bytes) or misaligned")]
    OutOfBounds {
        /// First byte named.
        at: RemoteAddr,
        /// Bytes named.
        len: u64,
        /// Bytes the region has.
        region_bytes: u64,
    },
    /// The region was attached for reading only.
    #[error("{at} was attached read-only")]
    ReadOnly {
        /// First byte named.
        at: RemoteAddr,
    },
    /// The peer grants no such right to these bytes. If the peer's card refused the verb, the
    /// connection broke and has to be made again.
    #[error("the peer grants no access to {at}")]
    AccessDenied {
        /// First byte named.
        at: RemoteAddr,
    },
    /// The transfer is longer than a verb carries.
    #[error("a transfer of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Bytes a verb carries.
        max: u64,
    },
    /// Messages cannot be sent to such an address. Ask for it again.
    #[error("no messages can be sent to that address: {why}")]
    BadAddress {
        /// The reason.
        why: &'static str,
    },
    /// The peer, or this end, has no place left for another peer. Nothing was done.
    #[error("there is no room for another peer beside {max} others")]
    PeersExhausted {
        /// The number of its places.
        max: u64,
    },
    /// The peer could not be reached, or does not take as much at the moment. The verb had no
    /// effect: it never left this node, or it was a READ.
    #[error("node {} is unreachable", .region.0)]
    Unreachable {
        /// The region whose node is gone.
        region: RegionId,
    },
    /// The connection broke while the verb was under way; the peer may or may not have executed it.
    /// The verb changes memory.
    #[error("outcome of a verb at {at} is unknown: the connection broke, or nobody answered")]
    OutcomeUnknown {
        /// The address of the verb.
        at: RemoteAddr,
    },
}

impl FabricError {
    /// The region to which there is no connection, or the one whose connection broke under the
    /// verb.
    pub fn out_of_reach(&self) -> Option<RegionId> {
        match self {
            Self::Unattached { region } | Self::Unreachable { region } => Some(*region),
            Self::OutcomeUnknown { at } => Some(at.region()),
            _ => None,
        }
    }

    /// The error of a verb at `at` whose connection broke while the verb was under way. A READ has
    /// no effect that could be unknown, whether or not the peer has executed it.
    pub(crate) fn lost(at: RemoteAddr, mutates: bool) -> Self {
        match mutates {
            true => Self::OutcomeUnknown { at },
            false => Self::Unreachable { region: at.region() },
        }
    }
}
