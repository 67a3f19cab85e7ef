//! Errors that end a bench run early, split by what the caller must do, and errors of stores that
//! cannot be measured.

use std::io;

/// An error of `loch bench`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The command line asks for something impossible: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The user (or a signal) asked it to stop; all processes that it started were ended.
    #[error("interrupted; everything it started was ended")]
    Interrupted,
    /// A server or an embedded store could not be started or used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A client process reported that it cannot continue.
    #[error("{system}: client {client}: {message}")]
    Client {
        /// Name of the measured system.
        system: &'static str,
        /// Number of the client, from 0.
        client: usize,
        /// The client's message.
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
    /// A phase of the run took longer than its limit.
    #[error("{system}: clients did not end their {phase} within {limit_s} s; the run was stopped")]
    Stuck {
        /// Name of the measured system.
        system: &'static str,
        /// The phase.
        phase: &'static str,
        /// The bound that passed.
        limit_s: u64,
    },
    /// The operating system refused something the bench itself needs.
    #[error("cannot {action}: {source}")]
    Os {
        /// The action that failed.
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

    /// The exit code of a program that ends with it: 2 for a call that has to be corrected, 3 for a
    /// cluster or host that failed; 130 is the shell's code for SIGINT.
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

/// Why a store cannot be measured (further).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The peer's program is not on this host; the bench goes on without it.
    #[error("{peer} is not installed: install the Debian package {package} to measure it")]
    NotInstalled {
        /// The peer.
        peer: &'static str,
        /// Its Debian package.
        package: &'static str,
    },
    /// The peer cannot hold this workload; the bench goes on without it.
    #[error("{peer} cannot run this workload: {reason}")]
    Unsuitable {
        /// The peer.
        peer: &'static str,
        /// The option, the limit and the way out.
        reason: String,
    },
    /// The engine is not in this build, or cannot be measured over this fabric.
    #[error(
        "--engine {engine} with --fabric {fabric} is not in this build of loch, which has {there} \
         there, and with --fabric sim {simulated}"
    )]
    EngineUnavailable {
        /// The engine.
        engine: &'static str,
        /// The fabric.
        fabric: &'static str,
        /// The engines that can be measured over that fabric.
        there: String,
        /// The engines that can be simulated.
        simulated: String,
    },
    /// The fabric is not in this build.
    #[error(
        "--fabric {fabric} is not in this build of loch, which has shm and sim: build it with \
         --features verbs"
    )]
    FabricUnavailable {
        /// The fabric.
        fabric: &'static str,
    },
    /// Loch cannot hold this workload; says which option to change.
    #[error("{0}")]
    Impossible(String),
    /// A server did not start.
    #[error("{server} did not start: {reason}")]
    NotStarted {
        /// The server.
        server: &'static str,
        /// Its message, or how it ended.
        reason: String,
    },
    /// The store cannot be reached or ended the connection.
    #[error("{store}: cannot {action}: {reason}")]
    Lost {
        /// The store.
        store: &'static str,
        /// The action that failed.
        action: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The store's answer violates its protocol.
    #[error("{store} answered what its protocol does not allow: {answer}")]
    Protocol {
        /// The store.
        store: &'static str,
        /// The beginning of its answer.
        answer: String,
    },
    /// The store refused a record while loading.
    #[error("{store} refused {refused} of the records while loading: {answer}")]
    Refused {
        /// The store.
        store: &'static str,
        /// How many.
        refused: u64,
        /// Its last reason.
        answer: String,
    },
}

impl TargetError {
    /// Why a store cannot do `action`.
    pub fn lost<E: ToString>(store: &'static str, action: &'static str) -> impl Fn(E) -> Self {
        move |error| TargetError::Lost { store, action, reason: error.to_string() }
    }

    /// Whether the bench goes on without this store.
    pub fn is_skip(&self) -> bool {
        matches!(self, TargetError::NotInstalled { .. } | TargetError::Unsuitable { .. })
    }
}
