//! A node whose memory is reached over a network: its device, its control plane, and how its
//! scrubber comes to the memory of the others.

mod reply_links;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use loch_fabric::RegionId;
use loch_fabric::verbs::{Device, Grant, Host, Offer, Transport, VerbsEndpoint};
use serde_json::Value;

use super::{Behind, Node, prepare, read};
use crate::layout::memory::{Member, Memory, TableView};
use crate::node::control::gate::{Admission, Gate, all_of};
use crate::node::control::network::Network;
use crate::node::control::{Control, Hub, Parts};
use crate::node::control_client::{Caller, ControlClient};
use crate::node::plan::NodePlan;
use crate::node::scrubber::{Reach, Scrubber};
use crate::node::sessions::Sessions;
use crate::node::workers::transport::NodeTransport;
use crate::node::workers::{self, Workers};
use crate::session::device::{connect, of_verbs, open_device};
use crate::session::slot::Opened;
use crate::session::wire::{Code, Connect, DeviceChoice, Refused};
use crate::{Error, NodeConfig};
use reply_links::Connected;

/// What a control plane needs of a machine; or of what stands for one in tests.
pub(super) trait Machine {
    /// How the scrubber comes to memory.
    type Reach: Reach;
    /// How workers do.
    type Transport: NodeTransport;
    /// What lets connections in.
    fn gate(&self) -> Arc<dyn Gate>;
    /// The scrubber's way.
    fn reach(&self, hub: Arc<Hub>) -> Self::Reach;
    /// The workers' way.
    fn transport(&self, hub: Arc<Hub>) -> Self::Transport;
}

/// A node's part in a network.
pub(super) struct Networking {
    control: Control,
    device: DeviceChoice,
}

impl Networking {
    /// What the node's server asks.
    pub fn control(&self) -> Arc<dyn ControlClient> {
        self.control.hub().clone()
    }

    /// The device that its clients choose.
    pub fn device(&self) -> DeviceChoice {
        self.device.clone()
    }
}

/// Starts a node whose memory is reached over a network.
///
/// # Errors
/// As [`Node::start`].
pub(super) fn start_node(
    config: &NodeConfig,
    plan: &NodePlan,
    network: Network,
) -> Result<Node, Error> {
    // Before anything is made: a host without a device is left as it was.
    let device = open_device(&network.device)?;
    let card = |own: &Member| Card::new(device, own);
    Node::start_networked(config, plan, network, card)
}

impl Node {
    pub(in crate::node) fn start_networked<M: Machine>(
        config: &NodeConfig,
        plan: &NodePlan,
        network: Network,
        machine: impl FnOnce(&Member) -> Result<M, Error>,
    ) -> Result<Self, Error> {
        let (listener, region, pages) = prepare(plan, config.ephemeral)?;
        let own = read(&config.name, &plan.socket, &region)?;
        let machine = machine(&own)?;
        let behind = Behind::networked(network, own, plan, region.warm, &machine)?;
        Self::serve(config, plan, listener, region, pages, behind)
    }
}

impl Behind {
    /// Memory is reached over a network.
    fn networked(
        network: Network,
        own: Member,
        plan: &NodePlan,
        warm: bool,
        machine: &impl Machine,
    ) -> Result<Self, Error> {
        let (sessions, ended) = Sessions::restore(&own, true);
        let sessions = Arc::new(sessions);
        let device = network.device.clone();
        let (control, scrubber) = start(network, own.clone(), sessions.clone(), machine)?;
        if warm {
            scrubber.bell().ended(ended > 0);
        }
        let workers = if workers::are_needed(&own) {
            let hub = control.hub();
            let (transport, around) = (machine.transport(hub.clone()), hub.surroundings());
            let workers = Workers::start(&own, &plan.workers, &sessions, around, &transport)?;
            hub.set_orders(workers.orders().clone());
            Some((workers, None))
        } else {
            None
        };
        Ok(Self { own, sessions, workers, scrubber, network: Some(Networking { control, device }) })
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
    machine: &impl Machine,
) -> Result<(Control, Scrubber), Error> {
    let node = own.header.node as usize;
    let socket = own.socket.clone();
    let control = Control::start(Parts {
        own,
        sessions: sessions.clone(),
        gate: machine.gate(),
        addresses: network.addresses,
        listen: network.listen,
        credentials: network.credentials,
    })?;
    let reach = machine.reach(control.hub().clone());
    let scrubber =
        Scrubber::start(node, sessions, reach).map_err(Error::os("start a thread for", &socket))?;
    control.hub().set_bell(scrubber.bell());
    Ok((control, scrubber))
}

/// A machine with an RDMA device.
pub(super) struct Card {
    device: Arc<Device>,
    host: Arc<Lent>,
    own: Member,
}

impl Card {
    /// Registers the region, as those need it who write. What cannot be is found out here, and not
    /// when the first client comes.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::LockedMemory`].
    pub fn new(device: Arc<Device>, own: &Member) -> Result<Self, Error> {
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
        Ok(Self { device, host: Arc::new(Lent(host)), own: own.clone() })
    }
}

impl Machine for Card {
    type Reach = Networked;
    type Transport = Connected;

    fn gate(&self) -> Arc<dyn Gate> {
        self.host.clone()
    }

    fn reach(&self, hub: Arc<Hub>) -> Networked {
        Networked { hub, device: self.device.clone(), own: self.own.clone() }
    }

    fn transport(&self, hub: Arc<Hub>) -> Connected {
        Connected::new(hub, self.device.clone(), self.host.clone(), self.own.clone())
    }
}

/// The node's memory, lent by way of its device.
pub(super) struct Lent(pub Host);

impl Gate for Lent {
    fn accept(&self, offer: &Value, grants: &[Grant]) -> Result<(Admission, Value), String> {
        let offer: Offer = serde_json::from_value(offer.clone()).map_err(|e| e.to_string())?;
        let (accepted, answer) = self.0.accept(&offer, grants).map_err(|e| e.to_string())?;
        let answer = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
        Ok((Box::new(accepted), answer))
    }
}

/// The scrubber's way to the memory of all nodes that are up.
pub(super) struct Networked {
    hub: Arc<Hub>,
    device: Arc<Device>,
    own: Member,
}

impl Reach for Networked {
    type Endpoint = VerbsEndpoint;

    fn memory(&mut self) -> Result<Arc<Memory>, Error> {
        let home = self.own.header.node as usize;
        Memory::join(self.hub.roster.members_up(), home).map(Arc::new)
    }

    fn endpoint(
        &mut self,
        memory: &Memory,
        table: &TableView,
        session: Opened,
    ) -> Result<VerbsEndpoint, Error> {
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
                let answer = self.hub.connect_own(Caller::Session(session), ask);
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
