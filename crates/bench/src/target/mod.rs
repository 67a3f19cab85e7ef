//! The interface between the bench and a store.
//!
//! A store has three sides. Its [`System`] has its name, and makes the other two. Its [`Service`]
//! lives in the bench's own process: it starts servers, knows how to reach them, and ends them when
//! dropped. Its [`Target`] lives in each client's process: it executes operations. One file per
//! store; the socket peers share [`pipeline`] and [`server`].

mod gateway;
mod lmdb;
pub mod loch;
mod maps;
mod memcached;
mod peers;
mod pipeline;
mod protocol;
mod redis;
mod server;
pub mod starting;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::error::TargetError;
use crate::measure::Run;
use crate::measured::{Limits, Measured};
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::Fabric;
use crate::tally::{Traffic, Usage};
use crate::trace::Trace;
use crate::tuning::{Cores, Tuning};
use crate::workload::Workload;

/// What a system does, or why not.
pub type Result<T, E = TargetError> = std::result::Result<T, E>;

/// How the names of temporary directories begin.
const DIR_PREFIX: &str = "loch-bench-";

/// Refuses keys that are longer than a peer takes.
fn check_key_size(peer: &'static str, spec: &Spec, max: usize) -> Result<()> {
    if spec.key_size <= max {
        return Ok(());
    }
    let reason = format!("--key-size {} is above its limit of {max} bytes", spec.key_size);
    Err(TargetError::Unsuitable { peer, reason })
}

/// A store that can be measured: one row of a result.
pub trait System: Sync {
    /// The name in results.
    fn name(&self) -> &'static str;

    /// Whether it runs on Loch's fabric, so that its verbs are counted.
    fn is_loch(&self) -> bool;

    /// Whether GETs read values in place over this fabric, if that is asked for.
    fn reads_in_place(&self, _fabric: Fabric) -> bool {
        false
    }

    /// Starts the servers. `interrupted` ends the wait early.
    ///
    /// # Errors
    /// Why it cannot be measured.
    fn start(&self, spec: &Spec, interrupted: &AtomicBool) -> Result<Box<dyn Service>>;

    /// Connects client number `client`.
    ///
    /// # Errors
    /// Why it cannot be measured.
    fn connect(&self, spec: &Spec, endpoint: &Endpoint, client: u32) -> Result<Box<dyn Target>>;

    /// Runs servers and clients in virtual time, in this process.
    ///
    /// # Errors
    /// Why it cannot be measured.
    fn simulate(
        &self,
        spec: &Spec,
        progress: &Progress,
        interrupted: &AtomicBool,
    ) -> Result<Measured>;
}

/// The server side of a store, owned by the bench's process.
///
/// Dropping it ends every process and removes every file it made.
pub trait Service {
    /// The data that a client's process needs to connect.
    fn endpoint(&self) -> Endpoint;

    /// CPU seconds that all server processes have used so far; `None` for a store without a server.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Sockets of the servers, or the directory of an embedded store.
    pub paths: Vec<PathBuf>,
    /// Where the other ends of the bare loop listen: one for each node of Loch that is reached over
    /// TCP.
    pub echoes: Vec<SocketAddr>,
}

impl Endpoint {
    /// Of a store that is not reached over Loch's fabric `tcp`.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, ..Self::default() }
    }
}

/// A client's connection to a store, used by one thread.
///
/// Calls are made once per phase, so they are dynamic; inside, `load` and
/// `run` loop without any.
pub trait Target {
    /// Stores every record of `records` at version 0, as fast as the store allows; reports to
    /// `progress` now and then how many are done.
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()>;

    /// Runs a closed loop with the spec's number of lanes: keeps that many operations of
    /// [`Run::next`] outstanding until there are no more, and finishes every one.
    fn run(&mut self, run: &Run<'_>) -> Result<()>;

    /// Sets whether to spin a while before sleeping for an answer.
    fn set_spinning(&mut self, _spinning: bool) {}

    /// Whether outstanding operations form batches.
    fn batches(&self) -> bool {
        false
    }

    /// One operation in this many is timed. Sockets cost microseconds an operation, so there all
    /// are timed.
    fn time_every(&self) -> u32 {
        1
    }

    /// Why the store refused an operation of the last `run`, if it did.
    fn refusal(&self) -> Option<String> {
        None
    }

    /// Executes the operations of `run` as [`Self::run`] does, and counts the traffic of GETs and
    /// of PUTs over the fabric, each by themselves. This takes longer, so nothing is timed. Without
    /// a fabric it executes nothing and returns `None`.
    fn traffic(&mut self, _run: &Run<'_>) -> Result<Option<Traffic>> {
        Ok(None)
    }

    /// What the store holds and has evicted; `None` for a store that does not evict.
    fn usage(&mut self) -> Result<Option<Usage>> {
        Ok(None)
    }

    /// The rates of bare loops. Where the store's memory is mapped, they are single-thread loops
    /// of the memory accesses that GETs of the keys of `trace` cannot avoid, and each call goes on
    /// in the trace. Over TCP they exchange messages like those of the workload's operations, and
    /// all clients are asked at once.
    fn limits(&mut self, _workload: &Workload, _trace: &Trace) -> Result<Option<Limits>> {
        Ok(None)
    }
}
