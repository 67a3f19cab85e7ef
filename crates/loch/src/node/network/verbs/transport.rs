//! A worker's connections between machines: to its own node's card for atomics, and to the nodes of
//! its clients, into whose memory it WRITEs replies.
//!
//! # Invariants
//! 1. A worker never waits for another node. The threads of the control plane ask other nodes, and
//!    the worker looks at their answers between two turns.
//! 2. A connection replaces another only when the other one's passive end is gone. The passive end
//!    at home belongs to the worker; the registry of another node ends it there.
//!
//! # Faults
//! A connection breaks, or its node is away. Replies over it are lost, and the clients ask again.
//! The worker makes the connection again when the node is up. A node that comes back with other
//! memory is attached anew
//! ([`LatestMemory`](crate::node::attacher::LatestMemory)).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Instant;

use loch_engines::epoch::Session;
use loch_engines::requests::Sessions;
use loch_engines::serve::{WorkerError, WorkerSite, WorkerTransport};
use loch_fabric::verbs::{Accepted, Datagrams, VerbsEndpoint, VerbsError};
use loch_fabric::{RegionId, RemoteAddr};

use super::super::sessions_of;
use super::lent::LentRegion;
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{ASK_TIMEOUT, RECONNECT_PAUSE};
use crate::node::control::ControlPlane;
use crate::node::control::registry::all_of;
use crate::node::control_client::{Caller, ControlClient};
use crate::node::workers::transport::NodeTransport;
use crate::session::endpoint::Yielding;
use crate::session::medium::{Linked, Links, Medium};
use crate::session::slot::SessionId;
use crate::session::verbs::Card;
use crate::session::wire::{Connect, Reply};
use crate::{Error, Result};

/// A node's device, as its workers use it.
#[derive(Clone)]
pub(in crate::node) struct VerbsTransport {
    plane: Arc<ControlPlane>,
    card: Card,
    host: Arc<LentRegion>,
    own: Member,
}

/// The connections of one worker.
pub(in crate::node) struct ReplyLinks {
    memory: Arc<ClusterMemory>,
    caller: SessionId,
    home: HomeLink,
    /// By node; the entry of the worker's own node is unused, see `home`.
    links: Vec<ReplyLink>,
}

/// A worker's connection to its own node's card. Both ends are in this process.
pub(in crate::node) struct HomeLink {
    host: Arc<LentRegion>,
    own: Member,
    table: usize,
    /// The passive end, if there is one.
    end: RefCell<Option<Accepted>>,
    /// When to try again.
    due: Cell<Instant>,
}

impl Links<Card> for HomeLink {
    fn wait(&self, endpoint: &VerbsEndpoint) {
        self.mend(endpoint);
    }
}

/// The state of one connection.
enum ReplyLink {
    /// There is none; the time of the next try.
    Lacking(Instant),
    /// Its node was asked.
    Asked(Receiver<Reply>),
    /// There is one, although it may have broken.
    Made,
}

impl HomeLink {
    /// Makes the connection if there is none, or if it broke.
    fn mend(&self, endpoint: &VerbsEndpoint) {
        let home = RegionId(self.own.header.node as u8);
        let is_made = self.end.borrow().is_some() && !endpoint.broken().contains(&home);
        if is_made || Instant::now() < self.due.get() {
            return;
        }
        if let Err(error) = self.make(endpoint, home) {
            tracing::debug!(%error, "a worker has no connection to its own node's card");
            self.due.set(Instant::now() + RECONNECT_PAUSE);
        }
    }

    fn make(&self, endpoint: &VerbsEndpoint, home: RegionId) -> Result<(), VerbsError> {
        let offer = endpoint.offer(home)?;
        // The old passive end goes before another takes its place.
        self.end.take();
        let (end, answer) = self.host.0.accept(&offer, &all_of(&self.own, self.table))?;
        endpoint.connect(home, self.own.header.region_bytes, &answer)?;
        self.end.replace(Some(end));
        Ok(())
    }
}

impl VerbsTransport {
    pub fn new(plane: Arc<ControlPlane>, card: Card, host: Arc<LentRegion>, own: Member) -> Self {
        Self { plane, card, host, own }
    }

    fn home(&self) -> RegionId {
        RegionId(self.own.header.node as u8)
    }

    fn home_link(&self, table: usize) -> HomeLink {
        HomeLink {
            host: self.host.clone(),
            own: self.own.clone(),
            table,
            end: RefCell::default(),
            due: Cell::new(Instant::now()),
        }
    }

    /// Advances one connection as far as that is possible now.
    fn tend_one(&self, links: &mut ReplyLinks, endpoint: &VerbsEndpoint, node: usize) {
        let next = match &links.links[node] {
            ReplyLink::Made => return,
            ReplyLink::Lacking(until) if Instant::now() < *until => return,
            ReplyLink::Lacking(_) => self.ask(links, endpoint, node),
            ReplyLink::Asked(answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Ok(later()),
                Ok(reply) => self.take(&links.memory, endpoint, node, reply),
            },
        };
        links.links[node] = next.unwrap_or_else(|error| {
            tracing::debug!(node, %error, "a worker has no connection to a node");
            later()
        });
    }

    /// Has a node asked for a connection.
    fn ask(&self, links: &ReplyLinks, endpoint: &VerbsEndpoint, node: usize) -> Result<ReplyLink> {
        if !self.plane.members.is_up(node) {
            return Ok(later());
        }
        let member = links.memory.nodes[node].as_ref().expect("all nodes are known");
        let header = &member.header;
        let ask = Connect {
            session: None,
            secret: None,
            endpoint: 0,
            node: header.node,
            identity: header.identity,
            table: links.home.table as u32,
            unreliable: false,
            offer: self.card.offer(endpoint, member, false)?,
        };
        let (sender, answer) = mpsc::channel();
        // A worker that has ended has dropped the receiver.
        let reply = move |reply| drop(sender.send(reply));
        self.plane.enqueue(Caller::Worker(links.caller), ask, Box::new(reply));
        Ok(ReplyLink::Asked(answer))
    }

    fn take(
        &self,
        memory: &ClusterMemory,
        endpoint: &VerbsEndpoint,
        node: usize,
        reply: Reply,
    ) -> Result<ReplyLink> {
        let member = memory.nodes[node].as_ref().expect("all nodes are known");
        let answer = match reply {
            Reply::Connected { answer } => answer,
            Reply::Refused(refused) => {
                let (socket, reason) = (member.socket.clone(), refused.text);
                return Err(Error::Refused { socket, reason });
            }
            other => unreachable!("{other:?} is no reply to a request for a connection"),
        };
        let address = self.plane.members.address(node);
        let dialed = Card::dial(member, address, answer, ASK_TIMEOUT)?;
        self.card.install(endpoint, member, dialed)?;
        Ok(ReplyLink::Made)
    }
}

fn later() -> ReplyLink {
    ReplyLink::Lacking(Instant::now() + RECONNECT_PAUSE)
}

impl WorkerTransport for VerbsTransport {
    type Memory = Arc<ClusterMemory>;
    type Endpoint = VerbsEndpoint;
    type ReplyLinks = ReplyLinks;
    type Mail = Yielding<Linked<Card, HomeLink>, Datagrams>;

    fn endpoint(
        &self,
        memory: &Arc<ClusterMemory>,
        site: &WorkerSite,
        session: &Session,
    ) -> Result<(VerbsEndpoint, ReplyLinks), WorkerError> {
        let (endpoint, now) = (self.card.endpoint(&self.own)?, Instant::now());
        let mut links = ReplyLinks {
            memory: memory.clone(),
            caller: SessionId { slot: session.slot(), incarnation: session.incarnation() },
            home: self.home_link(site.table),
            links: memory.nodes.iter().map(|_| ReplyLink::Lacking(now)).collect(),
        };
        self.tend(&endpoint, &mut links);
        Ok((endpoint, links))
    }

    fn tend(&self, endpoint: &VerbsEndpoint, links: &mut ReplyLinks) {
        for region in endpoint.broken() {
            let link = &mut links.links[usize::from(region.0)];
            if matches!(link, ReplyLink::Made) {
                *link = ReplyLink::Lacking(Instant::now());
            }
        }
        links.home.mend(endpoint);
        for node in (0..links.links.len()).filter(|node| RegionId(*node as u8) != self.home()) {
            self.tend_one(links, endpoint, node);
        }
    }

    fn mail(
        &self,
        _: &Arc<ClusterMemory>,
        site: &WorkerSite,
        _: RemoteAddr,
    ) -> Result<Self::Mail, WorkerError> {
        let endpoint = self.card.endpoint(&self.own)?;
        let datagrams = self.card.messages(&endpoint)?;
        Ok(Yielding::new(Linked::new(endpoint, self.home_link(site.table)), datagrams))
    }

    fn tend_mail(&self, mail: &Self::Mail) {
        let linked = mail.endpoint();
        linked.links().mend(linked.endpoint());
    }

    /// Replies go to the address from which the request came.
    fn attach(&self, _: &Self::Mail, _: &Arc<ClusterMemory>) -> Result<(), WorkerError> {
        Ok(())
    }

    fn sessions(&self, site: &WorkerSite) -> Sessions {
        sessions_of(&self.plane, site.table)
    }
}

impl NodeTransport for VerbsTransport {
    fn session_ended(&self) {
        self.plane.sessions_ended();
    }
}
