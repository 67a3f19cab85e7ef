//! The errors of starting a gateway.

use std::path::PathBuf;

use crate::address::Address;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody can listen at the address.
    #[error("cannot listen at {address}: {cause}; {}", way_out(cause))]
    Listen {
        /// The address.
        address: Address,
        /// The system's word.
        cause: std::io::Error,
    },
    /// An address is given twice.
    #[error("address {address} is given twice: every listener needs one of its own")]
    Twice {
        /// The address.
        address: Address,
    },
    /// Other hosts would reach the gateway without a password.
    #[error(
        "{address} can be reached from other hosts: give a password (--password FILE, or the \
         variable LOCH_PASSWORD), or listen on loopback or at a unix socket; --no-password lets \
         everybody in who reaches it"
    )]
    Open {
        /// The address.
        address: Address,
    },
    /// The password cannot be read or used.
    #[error("password: {problem}")]
    Password {
        /// The problem.
        problem: String,
    },
    /// The certificate or its key cannot be used.
    #[error("{}: {problem}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A gateway without any address, or with a number of threads that it cannot have.
    #[error("{0}")]
    Usage(&'static str),
    /// The cluster, or its table.
    #[error(transparent)]
    Cluster(#[from] loch::Error),
    /// The system refused something else.
    #[error("{what}: {cause}")]
    System {
        /// The thing that was refused.
        what: &'static str,
        /// The system's word.
        cause: std::io::Error,
    },
}

/// What helps if nobody can listen at an address.
fn way_out(cause: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{
        AddrInUse, AddrNotAvailable, AlreadyExists, InvalidFilename, NotFound, PermissionDenied,
    };
    match cause.kind() {
        AddrInUse => "another process listens there: end it, or choose another address",
        AddrNotAvailable => "this host has no such address: choose one that it has",
        AlreadyExists => "choose a path where nothing is",
        InvalidFilename => "the path of a socket has 107 bytes at most: choose a shorter one",
        NotFound => "make the folder of the socket first",
        PermissionDenied => "choose a port from 1024 on, or a folder that this user may write to",
        _ => "choose another address",
    }
}
