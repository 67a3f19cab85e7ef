//! The fabric of a node without an RDMA device: an agent, to which clients connect over TCP.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use loch_engines::epoch::Session;
use loch_engines::registry::EngineId;
use loch_engines::requests::{Sessions, WorkerId};
use loch_engines::serve::{WorkerError, WorkerSite, WorkerTransport};
use loch_fabric::shm::Bell;
use loch_fabric::tcp::{Agent, AgentEndpoint, AgentOptions, Client, Replies, SeatId, TcpMailbox};
use loch_fabric::{Access, Grant, RegionId, RemoteAddr};
use serde::Deserialize;
use serde_json::Value;

use super::{NodeFabric, RemoteAccess, sessions_of};
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::PROBE_BYTES;
use crate::node::control::arrivals::Arrivals;
use crate::node::control::registry::{Acceptor, Admission, Visit};
use crate::node::control::{ControlPlane, ControlPort, listen_at};
use crate::node::control_client::ControlClient;
use crate::node::workers::transport::NodeTransport;
use crate::session::endpoint::{WhileWaiting, Yielding};
use crate::session::tcp::{Tcp, TcpOffer};
use crate::{Error, Result};

/// Listens where the agent and the control plane of a node are reached.
///
/// # Errors
/// [`Error::Config`] without an address, [`Error::Os`].
pub(super) fn listen(address: Option<&str>) -> Result<TcpListener> {
    let Some(address) = address else {
        let problem = "fabric \"tcp\" is for nodes that others reach: give the address of this one, \
                       or choose fabric \"shm\"";
        return Err(Error::config("listen", problem));
    };
    listen_at(address)
}

/// The fabric of a node that is reached over TCP.
pub(super) struct TcpFabric {
    tcp: Tcp,
    agent: Arc<Agent>,
    own: Member,
    seats: Arc<Seats>,
    /// The port for the other nodes' links, which the agent passes on, until the control plane
    /// takes it.
    control_port: Mutex<Option<ControlPort>>,
}

impl TcpFabric {
    /// Starts the agent, with so many threads.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn new(
        tcp: Tcp,
        own: &Member,
        listener: TcpListener,
        mut options: AgentOptions,
    ) -> Result<Self> {
        let arrivals = Arc::new(Arrivals::default());
        let links = arrivals.clone();
        options.others = Some(Box::new(move |stream, from| links.push(stream, from)));
        let (threads, encrypt) = (options.threads, options.encrypt);
        let agent = Agent::start(own.region().clone(), listener, options)
            .map_err(|error| Error::Device { problem: error.to_string() })?;
        tracing::info!(address = %agent.address(), threads, "the region is lent over TCP");
        if encrypt {
            tracing::info!("data connections are encrypted: no client is let in without");
        } else if !agent.address().ip().is_loopback() {
            tracing::warn!(
                "keys and values are not encrypted on the way: trust the network, or set `encrypt`"
            );
        }
        let control_port = Mutex::new(Some(ControlPort::Passed(arrivals)));
        let seats = Arc::new(Seats::of(&agent, own));
        Ok(Self { tcp, agent: Arc::new(agent), own: own.clone(), seats, control_port })
    }
}

/// The seats of the workers whose clients do nothing but send them requests. Such a worker drives
/// the connections of its clients.
struct Seats {
    /// By table, and then by worker.
    seats: Vec<Vec<SeatId>>,
    /// How many connections have got one.
    given: AtomicUsize,
}

impl Seats {
    fn of(agent: &Agent, own: &Member) -> Self {
        let of_table = |table: usize| {
            let engine = EngineId::of(&own.tables[table]);
            match engine.is_some_and(|engine| engine.needs().requests_only) {
                true => bells(own, table).into_iter().map(|bell| agent.seat(bell)).collect(),
                false => Vec::new(),
            }
        };
        let seats = (0..own.tables.len()).map(of_table).collect();
        Self { seats, given: AtomicUsize::new(0) }
    }

    /// The seat of a worker.
    fn of_worker(&self, site: &WorkerSite) -> Option<SeatId> {
        self.seats[site.table].get(usize::from(site.id.worker)).copied()
    }

    /// The seat for the next connection of a table's clients: they go round the workers.
    fn next(&self, table: usize) -> Option<SeatId> {
        let seats = self.seats.get(table).filter(|seats| !seats.is_empty())?;
        Some(seats[self.given.fetch_add(1, Ordering::Relaxed) % seats.len()])
    }
}

impl NodeFabric for TcpFabric {
    type ClusterAccess = RemoteAccess<Tcp>;
    type Transport = TcpTransport;

    fn acceptor(&self) -> Arc<dyn Acceptor> {
        let (agent, own, seats) = (self.agent.clone(), self.own.clone(), self.seats.clone());
        Arc::new(LentRegion { agent, own, seats })
    }

    fn control_port(&self, _: String) -> ControlPort {
        let mut port = self.control_port.lock().expect("nothing panics while it is held");
        port.take().expect("a node has one control plane")
    }

    fn cluster(&self, plane: Arc<ControlPlane>) -> RemoteAccess<Tcp> {
        RemoteAccess { plane, medium: self.tcp.clone(), own: self.own.clone() }
    }

    fn transport(&self, plane: Arc<ControlPlane>) -> TcpTransport {
        let (agent, own, seats) = (self.agent.clone(), self.own.clone(), self.seats.clone());
        TcpTransport { plane, agent, own, seats }
    }
}

/// The node's memory, as its agent lends it.
struct LentRegion {
    agent: Arc<Agent>,
    own: Member,
    seats: Arc<Seats>,
}

impl LentRegion {
    /// The reply slots of a client that says where they begin. It can only say so of memory of its
    /// own node.
    fn replies(&self, visit: &Visit<'_>, offset: u64) -> Option<Replies> {
        let parts = self.own.parts(visit.table)?;
        let service = parts.requests()?.area().service();
        let len = u64::from(service.replies) * u64::from(service.reply_bytes);
        let at = RemoteAddr::new(RegionId(visit.home as u8), offset);
        let len = len.try_into().unwrap_or(u32::MAX);
        (len > 0).then_some(Replies { at, len })
    }
}

/// The bells of the workers of a table.
fn bells(own: &Member, table: usize) -> Vec<Bell> {
    let Some(parts) = own.parts(table) else { return Vec::new() };
    let Some(requests) = parts.requests() else { return Vec::new() };
    let workers = 0..requests.area().service().workers;
    workers.map(|worker| bell(own, table, worker)).collect()
}

/// The bell at which a worker sleeps.
fn bell(own: &Member, table: usize, worker: u16) -> Bell {
    let parts = own.parts(table).expect("it is one of its own");
    let requests = parts.requests().expect("workers serve it");
    let at = requests.bell_addr(WorkerId { node: 0, worker });
    Bell::new(own.region().clone(), at).expect("a worker's line is in its node's region")
}

impl Acceptor for LentRegion {
    fn accept(&self, visit: &Visit<'_>) -> Result<(Admission, Value), String> {
        let offer = TcpOffer::deserialize(visit.offer).map_err(|e| e.to_string())?;
        let client = Client {
            grants: visit.grants,
            replies: offer.replies.and_then(|offset| self.replies(visit, offset)),
            bells: bells(&self.own, visit.table),
            seat: self.seats.next(visit.table),
        };
        let (accepted, answer) = self.agent.accept(client).map_err(|e| e.to_string())?;
        let answer = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
        Ok((Box::new(accepted), answer))
    }

    fn accept_probe(&self) -> Result<(Admission, Value), String> {
        let len = PROBE_BYTES.min(self.own.header.region_bytes);
        let grants = &[Grant { offset: 0, len, access: Access::Read }];
        let client = Client { grants, replies: None, bells: Vec::new(), seat: None };
        let (accepted, answer) = self.agent.accept(client).map_err(|e| e.to_string())?;
        let answer = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
        Ok((Box::new(accepted), answer))
    }
}

/// The workers' way to their clients: the connections that these have made.
#[derive(Clone)]
pub(super) struct TcpTransport {
    plane: Arc<ControlPlane>,
    agent: Arc<Agent>,
    own: Member,
    seats: Arc<Seats>,
}

impl TcpTransport {
    fn home(&self) -> RegionId {
        RegionId(self.own.header.node as u8)
    }

    fn endpoint_at(&self, site: &WorkerSite) -> Result<AgentEndpoint, WorkerError> {
        let endpoint = self.agent.endpoint(self.home(), self.seats.of_worker(site));
        Ok(endpoint.map_err(|error| Error::Device { problem: error.to_string() })?)
    }
}

impl WhileWaiting for AgentEndpoint {
    fn tend(&self) {
        std::thread::yield_now();
    }
}

impl WorkerTransport for TcpTransport {
    type Memory = Arc<ClusterMemory>;
    type Endpoint = AgentEndpoint;
    type ReplyLinks = ();
    type Mail = Yielding<AgentEndpoint, TcpMailbox>;

    fn endpoint(
        &self,
        _: &Arc<ClusterMemory>,
        site: &WorkerSite,
        _: &Session,
    ) -> Result<(AgentEndpoint, ()), WorkerError> {
        Ok((self.endpoint_at(site)?, ()))
    }

    /// The replies of the turn before leave, and requests come.
    fn tend(&self, endpoint: &AgentEndpoint, (): &mut ()) {
        endpoint.turn();
    }

    fn mail(
        &self,
        _: &Arc<ClusterMemory>,
        site: &WorkerSite,
        _: RemoteAddr,
    ) -> Result<Self::Mail, WorkerError> {
        let bell = bell(&self.own, site.table, site.id.worker);
        let mailbox = self.agent.mailbox(self.home(), Some(bell));
        Ok(Yielding::new(self.endpoint_at(site)?, mailbox))
    }

    fn tend_mail(&self, mail: &Self::Mail) {
        mail.messages().flush();
        mail.endpoint().turn();
    }

    /// Replies go on the connection on which the request came.
    fn attach(&self, _: &Self::Mail, _: &Arc<ClusterMemory>) -> Result<(), WorkerError> {
        Ok(())
    }

    fn sessions(&self, site: &WorkerSite) -> Sessions {
        sessions_of(&self.plane, site.table)
    }
}

impl NodeTransport for TcpTransport {
    /// Clients of this host ring, and for those of other hosts the agent does.
    const IS_RUNG: bool = true;

    fn session_ended(&self) {
        self.plane.sessions_ended();
    }
}
