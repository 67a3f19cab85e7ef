//! What is measured: the seam between the bench and a store.
//!
//! A store has two sides. Its [`Service`] lives in the bench's own process:
//! it starts servers, knows how to reach them and ends them when dropped. Its
//! [`Target`] lives in each client's process: it executes operations. One file
//! per store; the socket peers share [`pipeline`] and [`server`].

mod lmdb;
pub mod loch;
mod memcached;
mod pipeline;
mod protocol;
mod redis;
mod server;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::measure::Run;
use super::spec::Spec;
use super::system::{Peer, System};
use super::trace::Trace;
use super::tuning::{Cores, Tuning};
use super::workload::Workload;

/// The server side of a store, owned by the bench's process.
///
/// Dropping it ends every process and removes every file it made.
pub trait Service {
    /// What a client's process needs to connect.
    fn endpoint(&self) -> Endpoint;

    /// CPU seconds all server processes have used so far; `None` for a store
    /// without a server.
    fn cpu_seconds(&self) -> Option<f64>;

    /// Ways to share cores that are worth trying; the best one is measured.
    fn tunings(&self) -> &'static [Tuning] {
        &[]
    }

    /// Places the server processes.
    fn place(&self, _cores: &Cores, _tuning: Tuning) -> io::Result<()> {
        Ok(())
    }
}

/// How a client reaches a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Sockets of the servers, or the directory of an embedded store.
    pub paths: Vec<PathBuf>,
}

/// A client's connection to a store, used by one thread.
///
/// Calls are made once per phase, so they are dynamic; inside, `load` and
/// `run` loop without any.
pub trait Target {
    /// Stores every record of `records` at version 0, as fast as the store
    /// allows; tells `progress` now and then how many are done.
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), TargetError>;

    /// Runs a closed loop with the spec's number of lanes: keeps so many
    /// operations of [`Run::next`] outstanding until it gives no more, and
    /// finishes every one.
    fn run(&mut self, run: &Run<'_>) -> Result<(), TargetError>;

    /// Whether to spin a while before sleeping for an answer.
    fn set_spinning(&mut self, _spinning: bool) {}

    /// Times one operation in so many. Sockets cost microseconds an
    /// operation, so there all are timed.
    fn time_every(&self) -> u32 {
        1
    }

    /// Why the store refused an operation of the last `run`, if it did.
    fn refusal(&self) -> Option<String> {
        None
    }

    /// Executes the operations of `run` as [`Self::run`] does, and counts what
    /// GETs and PUTs send over the fabric, each by themselves. Takes longer,
    /// so nothing of it is timed; `None`, and nothing is executed, without a
    /// fabric.
    fn traffic(&mut self, _run: &Run<'_>) -> Result<Option<Traffic>, TargetError> {
        Ok(None)
    }

    /// Operations a second of a bare single-thread loop of the memory accesses
    /// that GETs of the keys of `trace` cannot avoid, over this store's own memory.
    fn limit_ops_per_s(
        &mut self,
        _workload: &Workload,
        _trace: &Trace,
    ) -> Result<Option<f64>, TargetError> {
        Ok(None)
    }
}

/// What operations sent over the fabric, GETs and PUTs apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Of GETs.
    pub get: OpTraffic,
    /// Of PUTs.
    pub put: OpTraffic,
}

/// Totals over a number of operations of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpTraffic {
    /// Operations that the totals are about.
    pub ops: u64,
    /// Verbs posted.
    pub verbs: u64,
    /// Doorbells that had to be waited for.
    pub round_trips: u64,
    /// Bytes in and out.
    pub bytes: u64,
}

impl Traffic {
    /// Adds another client's totals.
    pub fn add(&mut self, other: Traffic) {
        self.get.add(other.get);
        self.put.add(other.put);
    }
}

impl OpTraffic {
    /// Adds other totals.
    pub fn add(&mut self, other: OpTraffic) {
        self.ops += other.ops;
        self.verbs += other.verbs;
        self.round_trips += other.round_trips;
        self.bytes += other.bytes;
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
        /// What there is with that fabric.
        there: String,
        /// What can be simulated.
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
        /// What it said, or how it ended.
        reason: String,
    },
    /// The store cannot be reached or ended the connection.
    #[error("{store}: cannot {action}: {reason}")]
    Lost {
        /// The store.
        store: &'static str,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The store answered what its protocol does not allow.
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
    /// Whether the bench goes on without this store.
    pub fn is_skip(&self) -> bool {
        matches!(self, TargetError::NotInstalled { .. } | TargetError::Unsuitable { .. })
    }
}

/// Starts the server side of `system`. `interrupted` ends the wait early.
pub fn start(
    system: System,
    spec: &Spec,
    interrupted: &AtomicBool,
) -> Result<Box<dyn Service>, TargetError> {
    match system {
        System::Engine(engine) => loch::start(engine, spec, interrupted),
        System::Peer(Peer::Memcached) => Ok(Box::new(memcached::start(spec, interrupted)?)),
        System::Peer(Peer::Redis) => Ok(Box::new(redis::start(spec, interrupted)?)),
        System::Peer(Peer::Lmdb) => Ok(Box::new(lmdb::Home::create(spec)?)),
    }
}

/// Connects client number `client` to `system`.
pub fn connect(
    system: System,
    spec: &Spec,
    endpoint: &Endpoint,
    client: u32,
) -> Result<Box<dyn Target>, TargetError> {
    match system {
        System::Engine(engine) => loch::connect(engine, spec, endpoint, client),
        System::Peer(Peer::Memcached) => Ok(Box::new(memcached::connect(spec, endpoint)?)),
        System::Peer(Peer::Redis) => Ok(Box::new(redis::connect(spec, endpoint)?)),
        System::Peer(Peer::Lmdb) => Ok(Box::new(lmdb::Lmdb::open(spec, endpoint)?)),
    }
}
