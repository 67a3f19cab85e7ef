//! A node whose memory is reached over a network: its fabric, its control plane, and its scrubber's
//! way to the memory of the other nodes.

mod tcp;
#[cfg(test)]
mod tests;
#[cfg(feature = "verbs")]
mod verbs;

use std::sync::Arc;

use loch_engines::requests::Sessions as ClientSessions;
use loch_fabric::tcp::AgentOptions;
use serde_json::Value;

use super::{Node, NodeServices, prepare, read};
use crate::layout::memory::{ClusterMemory, Member, TableView};
use crate::limits::ADMIT_TIMEOUT;
use crate::node::control::network::Network;
use crate::node::control::registry::Acceptor;
use crate::node::control::{ControlParts, ControlPlane, ControlPort, ControlThreads};
use crate::node::control_client::{Caller, ControlClient};
use crate::node::plan::NodePlan;
#[cfg(feature = "verbs")]
use crate::node::plan::encrypted_verbs;
use crate::node::region::OwnedRegion;
use crate::node::scrubber::{ClusterAccess, Scrubber};
use crate::node::sessions::Sessions;
use crate::node::workers::transport::NodeTransport;
use crate::node::workers::{self, Workers};
use crate::session::medium::{Medium, connect};
use crate::session::opened::{AnyMedium, Chosen};
use crate::session::slot::SessionId;
use crate::session::wire::{Code, Connect, Refused};
use crate::{Error, NodeConfig, Result};

/// The fabric of a node, or a stand-in for one in tests.
pub(super) trait NodeFabric {
    /// The scrubber's way to memory.
    type ClusterAccess: ClusterAccess;
    /// The workers' way to memory.
    type Transport: NodeTransport;
    /// Returns the acceptor of connections.
    fn acceptor(&self) -> Arc<dyn Acceptor>;
    /// Returns where links from other nodes come in, for a node that listens at this address.
    fn control_port(&self, listen: String) -> ControlPort {
        ControlPort::Listen(listen)
    }
    /// Returns the scrubber's way to memory.
    fn cluster(&self, plane: Arc<ControlPlane>) -> Self::ClusterAccess;
    /// Returns the workers' way to memory.
    fn transport(&self, plane: Arc<ControlPlane>) -> Self::Transport;
}

/// The network parts of a node.
pub(super) struct NodeNetwork {
    control: ControlThreads,
    /// The fabric that the node's clients use.
    pub chosen: Chosen,
}

impl NodeNetwork {
    /// The control plane, as the node's server uses it.
    pub fn control(&self) -> Arc<dyn ControlClient> {
        self.control.plane().clone()
    }
}

/// Starts a node whose memory is reached over a network.
///
/// # Errors
/// As [`Node::start`].
pub(super) fn start_node(config: &NodeConfig, plan: &NodePlan, network: Network) -> Result<Node> {
    // What may fail comes first, so a host without a device is left as it was.
    let (mut chosen, opened) = Chosen::open(network.medium.clone(), &network.device)?;
    if config.encrypt {
        chosen.reason.push_str("; data connections are encrypted");
    }
    let Chosen { medium, reason } = &chosen;
    tracing::info!(fabric = medium.name(), reason, "the node is on a network");
    match opened {
        AnyMedium::Tcp(tcp) => {
            let listener = tcp::listen(network.listen.as_deref())?;
            let (threads, encrypt) = (network.agent_threads.into(), config.encrypt);
            let options = AgentOptions { threads, encrypt, others: None };
            let fabric = |own: &Member| tcp::TcpFabric::new(tcp, own, listener, options);
            Node::start_networked(config, plan, (network, chosen), fabric)
        }
        #[cfg(feature = "verbs")]
        AnyMedium::Verbs(_) if config.encrypt => Err(encrypted_verbs()),
        #[cfg(feature = "verbs")]
        AnyMedium::Verbs(card) => {
            let fabric = |own: &Member| verbs::VerbsFabric::new(card, own);
            Node::start_networked(config, plan, (network, chosen), fabric)
        }
    }
}

impl Node {
    pub(in crate::node) fn start_networked<M: NodeFabric>(
        config: &NodeConfig,
        plan: &NodePlan,
        (network, chosen): (Network, Chosen),
        fabric: impl FnOnce(&Member) -> Result<M>,
    ) -> Result<Self> {
        let (listener, mut region, pages) = prepare(plan)?;
        let own = read(&config.name, &plan.socket, &region)?;
        let fabric = fabric(&own)?;
        let services = NodeServices::networked((network, chosen), own, plan, &mut region, &fabric)?;
        Self::serve(config, plan, listener, region, pages, services)
    }
}

impl NodeServices {
    /// Starts the parts of a node whose memory is reached over a network.
    fn networked(
        (network, chosen): (Network, Chosen),
        own: Member,
        plan: &NodePlan,
        region: &mut OwnedRegion,
        fabric: &impl NodeFabric,
    ) -> Result<Self> {
        let (sessions, _) = Sessions::restore(&own, true);
        let sessions = Arc::new(sessions);
        let name = chosen.medium.name();
        let (control, scrubber) = start(network, name, own.clone(), sessions.clone(), fabric)?;
        // The control plane lets clients of other nodes in, and the region may have their data.
        region.in_vain &= plan.ephemeral;
        if region.warm {
            scrubber.handle().ended(true);
        }
        let workers = if workers::are_needed(&own) {
            let plane = control.plane();
            let (transport, around) = (fabric.transport(plane.clone()), plane.latest_memory());
            let workers = Workers::start(&own, &plan.workers, &sessions, around, &transport)?;
            plane.set_inspector(workers.inspector().clone());
            Some((workers, None))
        } else {
            None
        };
        Ok(Self {
            own,
            sessions,
            workers,
            scrubber,
            network: Some(NodeNetwork { control, chosen }),
        })
    }
}

/// Starts control plane and scrubber of a node.
///
/// # Errors
/// [`Error::Os`].
fn start(
    network: Network,
    name: &'static str,
    own: Member,
    sessions: Arc<Sessions>,
    fabric: &impl NodeFabric,
) -> Result<(ControlThreads, Scrubber)> {
    let node = own.header.node as usize;
    let socket = own.socket.clone();
    let control = ControlThreads::start(ControlParts {
        own,
        sessions: sessions.clone(),
        acceptor: fabric.acceptor(),
        fabric: name,
        addresses: network.addresses,
        port: network.listen.map(|address| fabric.control_port(address)),
        credentials: network.credentials,
    })?;
    let cluster = fabric.cluster(control.plane().clone());
    let scrubber = Scrubber::start(node, sessions, cluster)
        .map_err(Error::os("start a thread for", &socket))?;
    control.plane().set_scrubber(scrubber.handle());
    Ok((control, scrubber))
}

/// The node's knowledge of the sessions of a table's clients, for the table's workers.
fn sessions_of(plane: &Arc<ControlPlane>, table: usize) -> ClientSessions {
    let plane = plane.clone();
    Box::new(move |node, slot| plane.holder(table, node, slot))
}

/// The scrubber's way to the memory of all nodes that are up.
pub(super) struct RemoteAccess<M> {
    plane: Arc<ControlPlane>,
    medium: M,
    own: Member,
}

impl<M: Medium> ClusterAccess for RemoteAccess<M> {
    type Endpoint = M::Endpoint;

    fn memory(&mut self) -> Result<Arc<ClusterMemory>> {
        let home = self.own.header.node as usize;
        ClusterMemory::join(self.plane.members.up(), home).map(Arc::new)
    }

    fn endpoint(
        &mut self,
        memory: &ClusterMemory,
        table: &TableView,
        session: SessionId,
    ) -> Result<M::Endpoint> {
        let endpoint = self.medium.endpoint(&self.own)?;
        let number = memory.tables.iter().position(|it| it.name == table.name);
        for member in memory.nodes.iter().flatten() {
            let ask = Connect {
                session: Some((session.slot, session.incarnation)),
                secret: None,
                endpoint: 0,
                node: member.header.node,
                identity: member.header.identity,
                table: number.expect("the table is this memory's") as u32,
                unreliable: false,
                offer: Value::Null,
            };
            let asked = |ask| {
                let answer = self.plane.connect_own(Caller::Session(session), ask);
                answer.map_err(|refused| of_refused(member, refused))
            };
            let address = self.plane.members.address(member.header.node.into());
            connect(&self.medium, &endpoint, (member, address), ask, ADMIT_TIMEOUT, asked)?;
        }
        Ok(endpoint)
    }
}

fn of_refused(member: &Member, refused: Refused) -> Error {
    let socket = member.socket.clone();
    match refused.code {
        Code::Away => Error::NodeUnreachable { socket, remedy: refused.text },
        _ => Error::Refused { socket, reason: refused.text },
    }
}
