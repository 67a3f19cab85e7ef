//! Why a bench run ended early, split by what the caller must do.

use std::io;

use super::target::TargetError;

/// An error of `loch bench`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The command line asks for something that cannot be: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The user (or a signal) asked it to stop; everything started was ended.
    #[error("interrupted; everything it started was ended")]
    Interrupted,
    /// A server or an embedded store could not be started or used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A client process reported why it cannot go on.
    #[error("{system}: client {client}: {message}")]
    Client {
        /// Name of the measured system.
        system: &'static str,
        /// Number of the client, from 0.
        client: usize,
        /// What the client said.
        message: String,
    },
    /// A client process ended without a word.
    #[error("{system}: client {client} (pid {pid}) ended early: {status}; the run was stopped")]
    ClientDied {
        /// Name of the measured system.
        system: &'static str,
        /// Number of the client, from 0.
        client: usize,
        /// Its process.
        pid: u32,
        /// Exit status or signal, in words.
        status: String,
    },
    /// A phase of the run took longer than it can.
    #[error("{system}: clients did not end their {phase} within {limit_s} s; the run was stopped")]
    Stuck {
        /// Name of the measured system.
        system: &'static str,
        /// What they were doing.
        phase: &'static str,
        /// The bound that passed.
        limit_s: u64,
    },
    /// The operating system refused something the bench itself needs.
    #[error("cannot {action}: {source}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Every system asked for was skipped.
    #[error("nothing was measured: every store asked for was skipped (see above)")]
    NothingMeasured,
}

impl BenchError {
    /// A usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        BenchError::Usage(message.into())
    }

    /// For `map_err`: an operating system error while doing `action`.
    pub fn os(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| BenchError::Os { action, source }
    }

    /// The exit code, as in [`crate::outcome`]; 130 is the shell's for SIGINT.
    pub fn exit_code(&self) -> u8 {
        match self {
            BenchError::Usage(_)
            | BenchError::Target(
                TargetError::Impossible(_) | TargetError::EngineUnavailable { .. },
            ) => 2,
            BenchError::Interrupted => 130,
            _ => 3,
        }
    }
}
