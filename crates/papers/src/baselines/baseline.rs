//! The trait of a baseline, and the parts that all of them share.

use std::sync::Arc;

use loch_bench::error::TargetError;
use loch_bench::spec::Spec;
use loch_engines::epoch::Session;
use loch_engines::error::LayoutError;
use loch_engines::herd::key::KeyHash;
use loch_engines::limits::REPLIES_MAX;
use loch_engines::requests::message::{REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES};
use loch_engines::requests::{Area, RequestMap, Service, Sessions, Timing, WorkerId};
use loch_engines::{EngineError, Kv};
use loch_fabric::limits::MAIL_MESSAGE_BYTES_MAX;
use loch_fabric::sim::DATAGRAM_BYTES_MAX;
use loch_fabric::{Fabric, Messages, RemoteAddr, UnreliableWrites};

/// The endpoint and messages of a baseline's thread.
pub trait Thread: Fabric + Messages + UnreliableWrites + 'static {}

impl<F: Fabric + Messages + UnreliableWrites + 'static> Thread for F {}

/// A system that Loch's engines are compared with.
pub trait Baseline: Sized + Sync + 'static {
    /// Its client.
    type Client<F: Thread>: Kv + 'static;
    /// Its worker.
    type Server<F: Thread>: Serve<F> + 'static;
    /// Whether replies are SENT: then the first is lost if the request arrives before the client
    /// has introduced itself.
    const REPLIES_BY_SEND: bool;

    /// Lays it out.
    ///
    /// # Errors
    /// [`TargetError::Impossible`] for a workload that it cannot hold.
    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError>;

    /// Bytes that it needs on each host.
    fn bytes(&self) -> u64;

    /// The offset of its requests and replies from its first byte; no table lies behind it.
    fn messages_at(&self) -> u64;

    /// The client that holds `session`, on the host of that number. `workers` receive at these
    /// peers.
    fn client<F: Thread>(
        &self,
        fabric: F,
        session: &Session,
        host: u16,
        workers: &[F::Peer],
        timing: Timing,
    ) -> Self::Client<F>;

    /// A worker, which starts now.
    ///
    /// # Errors
    /// The fabric's.
    fn server<F: Thread>(
        &self,
        fabric: F,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Self::Server<F>, EngineError>;
}

/// A worker of a baseline.
pub trait Serve<F> {
    /// Does one round; returns whether there was anything to do.
    ///
    /// # Errors
    /// The fabric's, after which the worker cannot be used any more.
    fn turn(&mut self) -> Result<bool, EngineError>;
}

/// The place of a baseline.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its first byte on each host: on the hosts of the nodes, followed by the hosts for clients
    /// alone.
    pub bases: Vec<RemoteAddr>,
    /// Clients and workers of a host, at most.
    pub sessions: u32,
}

/// Finds the worker that serves a key: each has a part of the table.
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    seed: u64,
    /// Nodes.
    pub nodes: u32,
    /// Workers of a node.
    pub workers: u32,
}

impl Owners {
    /// The owners of a run.
    pub fn of(spec: &Spec) -> Self {
        Self { seed: spec.seed, nodes: spec.nodes, workers: spec.servers.workers.into() }
    }

    #[inline]
    /// The worker of this key.
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        let part = KeyHash::of(self.seed, key).partition(self.nodes * self.workers);
        WorkerId { node: (part / self.workers) as u16, worker: (part % self.workers) as u16 }
    }
}

/// Requests and replies at `offset` from the first byte; each goes by WRITE if it has slots.
pub fn requests(
    spec: &Spec,
    place: &Place,
    offset: u64,
    (by_send, replies_by_send): (bool, bool),
) -> Result<Arc<RequestMap>, TargetError> {
    let (key, value) = (spec.key_size as u64, spec.value_size as u64);
    let request_bytes = Service::request_bytes_for(key, value).map_err(impossible)?;
    let reply_bytes = Service::reply_bytes_for(value).map_err(impossible)?;
    let service = Service {
        request_bytes: if by_send { 0 } else { request_bytes },
        reply_bytes: if replies_by_send { 0 } else { reply_bytes },
        ..service(spec, place.sessions)
    };
    let area = Area::new(service, place.bases.len() as u16).map_err(impossible)?;
    let bases = place.bases.iter().map(|base| base.add(offset)).collect();
    Ok(Arc::new(RequestMap::new(area, bases)))
}

/// Whether all messages fit datagrams.
pub fn check_datagrams(name: &str, spec: &Spec) -> Result<(), TargetError> {
    let longest = REQUEST_OVERHEAD_BYTES.max(REPLY_TRAILER_BYTES) + spec.key_size + spec.value_size;
    let max = DATAGRAM_BYTES_MAX.min(MAIL_MESSAGE_BYTES_MAX);
    if longest <= max {
        return Ok(());
    }
    Err(TargetError::Impossible(format!(
        "--value-size {}: messages of {name} are datagrams and have up to {max} bytes",
        spec.value_size
    )))
}

/// The most requests that a client has under way at one worker by default: as many as it has lanes.
const WINDOW_DEFAULT_MAX: usize = 16;

/// How requests are served, except for the slots.
fn service(spec: &Spec, sessions: u32) -> Service {
    Service {
        workers: spec.servers.workers,
        window: spec.servers.window.unwrap_or(spec.lanes.min(WINDOW_DEFAULT_MAX) as u16),
        replies: spec.lanes.min(REPLIES_MAX.into()) as u16,
        sessions_per_node: sessions,
        ..Service::default()
    }
}

fn impossible(error: LayoutError) -> TargetError {
    TargetError::Impossible(error.to_string())
}
