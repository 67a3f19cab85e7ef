//! Errors outside the data path: opening devices, and setting up connections.

use std::io;

use crate::RegionId;

/// Why there is no device to use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// rdma-core is not installed, or too old.
    #[error(
        "cannot use libibverbs.so.1 ({why}): install Debian's libibverbs1 and ibverbs-providers, \
         or what your system calls rdma-core, version 32 or later"
    )]
    Library {
        /// The loader's message, or the function that is missing.
        why: String,
    },
    /// The kernel has no RDMA, or its modules are not loaded.
    #[error("the kernel offers no RDMA ({source}): load ib_uverbs and the card's module")]
    Kernel {
        /// The answer.
        source: io::Error,
    },
    /// No device of this host can be used, or the chosen one cannot.
    #[error("no usable RDMA device: {}", if .passed_over.is_empty() {
        "there is none".to_owned()
    } else {
        .passed_over.join("; ")
    })]
    NoneUsable {
        /// Every device, port and GID that was looked at, and why it was passed over.
        passed_over: Vec<String>,
    },
    /// The device refused.
    #[error("cannot {action} {device}: {source}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The device.
        device: String,
        /// The answer.
        source: io::Error,
    },
}

/// Why a connection, or an end of one, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The other end sent an impossible message. Nothing was done; do not repeat it.
    #[error("the peer offers {what}")]
    Hostile {
        /// The impossible part of the message.
        what: &'static str,
    },
    /// The grants ask for rights that the region cannot give: it is mapped read-only.
    #[error("the region is mapped read-only: it can be lent for reading only")]
    ReadOnlyRegion,
    /// An answer came to an offer that was not made, or was replaced by another.
    #[error("there is no offer to the node {} that this answers", .region.0)]
    NoOffer {
        /// The node's region.
        region: RegionId,
    },
    /// A connection to this process's own region must name its real size.
    #[error("region {} has {have} bytes here, the answer is for {want}", .region.0)]
    OtherRegion {
        /// The region.
        region: RegionId,
        /// Bytes it has.
        have: u64,
        /// Bytes that were named.
        want: u64,
    },
    /// Memory could not be registered.
    #[error(
        "cannot register {bytes} bytes for RDMA: {source} (locked memory may be limited: ulimit -l)"
    )]
    Register {
        /// Bytes that were to be registered.
        bytes: u64,
        /// The answer.
        source: io::Error,
    },
    /// The device refused.
    #[error("cannot {action}: {source}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The answer.
        source: io::Error,
    },
}
