//! A node whose memory is reached over a network: its device, its control plane, and its scrubber's
//! way to the memory of the other nodes.

mod reply_links;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use loch_fabric::RegionId;
use loch_fabric::verbs::{Device, Grant, Host, Offer, Transport, VerbsEndpoint};
use serde_json::Value;

use super::{Node, NodeServices, prepare, read};
use crate::layout::memory::{ClusterMemory, Member, TableView};
use crate::node::control::network::Network;
use crate::node::control::registry::{Acceptor, Admission, all_of};
use crate::node::control::{ControlParts, ControlPlane, ControlThreads};
use crate::node::control_client::{Caller, ControlClient};
use crate::node::plan::NodePlan;
use crate::node::scrubber::{ClusterAccess, Scrubber};
use crate::node::sessions::Sessions;
use crate::node::workers::transport::NodeTransport;
use crate::node::workers::{self, Workers};
use crate::session::device::{connect, of_verbs, open_device};
use crate::session::slot::SessionId;
use crate::session::wire::{Code, Connect, DeviceChoice, Refused};
use crate::{Error, NodeConfig, Result};
use reply_links::VerbsTransport;

/// The fabric of a node: a device, or a stand-in for one in tests.
pub(super) trait NodeFabric {
    /// The scrubber's way to memory.
    type ClusterAccess: ClusterAccess;
    /// The workers' way to memory.
    type Transport: NodeTransport;
    /// Returns the acceptor of connections.
    fn acceptor(&self) -> Arc<dyn Acceptor>;
    /// Returns the scrubber's way to memory.
    fn cluster(&self, plane: Arc<ControlPlane>) -> Self::ClusterAccess;
    /// Returns the workers' way to memory.
    fn transport(&self, plane: Arc<ControlPlane>) -> Self::Transport;
}

/// The network parts of a node.
pub(super) struct NodeNetwork {
    control: ControlThreads,
    device: DeviceChoice,
}

impl NodeNetwork {
    /// The control plane, as the node's server uses it.
    pub fn control(&self) -> Arc<dyn ControlClient> {
        self.control.plane().clone()
    }

    /// The device that the node's clients choose.
    pub fn device(&self) -> DeviceChoice {
        self.device.clone()
    }
}

/// Starts a node whose memory is reached over a network.
///
/// # Errors
/// As [`Node::start`].
pub(super) fn start_node(config: &NodeConfig, plan: &NodePlan, network: Network) -> Result<Node> {
    // The device is opened first, so a host without a device is left as it was.
    let device = open_device(&network.device)?;
    let card = |own: &Member| VerbsFabric::new(device, own);
    Node::start_networked(config, plan, network, card)
}

impl Node {
    pub(in crate::node) fn start_networked<M: NodeFabric>(
        config: &NodeConfig,
        plan: &NodePlan,
        network: Network,
        fabric: impl FnOnce(&Member) -> Result<M>,
    ) -> Result<Self> {
        let (listener, region, pages) = prepare(plan, config.ephemeral)?;
        let own = read(&config.name, &plan.socket, &region)?;
        let fabric = fabric(&own)?;
        let services = NodeServices::networked(network, own, plan, region.warm, &fabric)?;
        Self::serve(config, plan, listener, region, pages, services)
    }
}

impl NodeServices {
    /// Starts the parts of a node whose memory is reached over a network.
    fn networked(
        network: Network,
        own: Member,
        plan: &NodePlan,
        warm: bool,
        fabric: &impl NodeFabric,
    ) -> Result<Self> {
        let (sessions, ended) = Sessions::restore(&own, true);
        let sessions = Arc::new(sessions);
        let device = network.device.clone();
        let (control, scrubber) = start(network, own.clone(), sessions.clone(), fabric)?;
        if warm {
            scrubber.handle().ended(ended > 0);
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
            network: Some(NodeNetwork { control, device }),
        })
    }
}

/// Starts control plane and scrubber of a node.
///
/// # Errors
/// [`Error::Os`].
fn start(
    network: Network,
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
        addresses: network.addresses,
        listen: network.listen,
        credentials: network.credentials,
    })?;
    let cluster = fabric.cluster(control.plane().clone());
    let scrubber = Scrubber::start(node, sessions, cluster)
        .map_err(Error::os("start a thread for", &socket))?;
    control.plane().set_scrubber(scrubber.handle());
    Ok((control, scrubber))
}

/// The fabric of a node with an RDMA device.
pub(super) struct VerbsFabric {
    device: Arc<Device>,
    host: Arc<LentRegion>,
    own: Member,
}

impl VerbsFabric {
    /// Registers the region with all rights that clients can get. A failure shows here, and not
    /// when the first client comes.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::LockedMemory`].
    pub fn new(device: Arc<Device>, own: &Member) -> Result<Self> {
        tracing::info!(device = ?device.describe(), "the region is lent by way of a device");
        let failed = |error| of_verbs(error, own.header.region_bytes);
        let host = Host::new(device.clone(), own.region().clone()).map_err(failed)?;
        let home = RegionId(own.header.node as u8);
        let endpoint =
            VerbsEndpoint::new(device.clone(), home, own.region().clone()).map_err(failed)?;
        for table in 0..own.tables.len() {
            let grants = all_of(own, table);
            let offer = endpoint.offer(home).map_err(failed)?;
            drop(host.accept(&offer, &grants).map_err(failed)?);
        }
        Ok(Self { device, host: Arc::new(LentRegion(host)), own: own.clone() })
    }
}

impl NodeFabric for VerbsFabric {
    type ClusterAccess = VerbsAccess;
    type Transport = VerbsTransport;

    fn acceptor(&self) -> Arc<dyn Acceptor> {
        self.host.clone()
    }

    fn cluster(&self, plane: Arc<ControlPlane>) -> VerbsAccess {
        VerbsAccess { plane, device: self.device.clone(), own: self.own.clone() }
    }

    fn transport(&self, plane: Arc<ControlPlane>) -> VerbsTransport {
        VerbsTransport::new(plane, self.device.clone(), self.host.clone(), self.own.clone())
    }
}

/// The node's memory, as its device lends it.
pub(super) struct LentRegion(pub Host);

impl Acceptor for LentRegion {
    fn accept(&self, offer: &Value, grants: &[Grant]) -> Result<(Admission, Value), String> {
        let offer: Offer = serde_json::from_value(offer.clone()).map_err(|e| e.to_string())?;
        let (accepted, answer) = self.0.accept(&offer, grants).map_err(|e| e.to_string())?;
        let answer = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
        Ok((Box::new(accepted), answer))
    }
}

/// The scrubber's way to the memory of all nodes that are up.
pub(super) struct VerbsAccess {
    plane: Arc<ControlPlane>,
    device: Arc<Device>,
    own: Member,
}

impl ClusterAccess for VerbsAccess {
    type Endpoint = VerbsEndpoint;

    fn memory(&mut self) -> Result<Arc<ClusterMemory>> {
        let home = self.own.header.node as usize;
        ClusterMemory::join(self.plane.members.up(), home).map(Arc::new)
    }

    fn endpoint(
        &mut self,
        memory: &ClusterMemory,
        table: &TableView,
        session: SessionId,
    ) -> Result<VerbsEndpoint> {
        let home = RegionId(self.own.header.node as u8);
        let endpoint = VerbsEndpoint::new(self.device.clone(), home, self.own.region().clone())
            .map_err(|error| of_verbs(error, self.own.header.region_bytes))?;
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
            connect(&endpoint, member, Transport::Reliable, ask, asked)?;
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
