//! Errors of setting up connections.

use std::io;

/// A connection, or an agent, that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The other end told what cannot be true.
    #[error("the other end told {what}")]
    Hostile {
        /// What it told.
        what: &'static str,
    },
    /// The node does not let this client in.
    #[error(transparent)]
    Unwelcome(super::Unwelcome),
    /// Rights to change a region that is mapped read-only were to be given.
    #[error("the region is mapped read-only")]
    ReadOnlyRegion,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The answer.
        source: io::Error,
    },
}
