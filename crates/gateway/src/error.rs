//! The errors of starting a gateway.

use std::path::PathBuf;

use crate::address::Address;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody can listen at the address.
    #[error("cannot listen at {address}: {cause}; another process may, or choose another address")]
    Listen {
        /// The address.
        address: Address,
        /// The system's word.
        cause: std::io::Error,
    },
    /// Other hosts would reach the gateway without a password.
    #[error(
        "{address} can be reached from other hosts: give a password (--password FILE), or listen on \
         loopback or at a unix socket"
    )]
    Open {
        /// The address.
        address: Address,
    },
    /// The password cannot be read.
    #[error("password file {}: {problem}", path.display())]
    Password {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The certificate or its key cannot be used.
    #[error("{}: {problem}; give a certificate and its key, in PEM", path.display())]
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
