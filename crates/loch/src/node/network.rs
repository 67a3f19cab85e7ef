//! A node whose memory is reached over a network: its device, its control plane, and how its
//! scrubber comes to the memory of the others.

use std::sync::Arc;

use loch_fabric::RegionId;
use loch_fabric::verbs::{Device, Grant, Host, Offer, Transport, VerbsEndpoint};
use serde_json::Value;

use super::courier::Caller;
use super::reply_links::Connected;
use super::scrubber::{Reach, Scrubber};
use super::sessions::{Opened, Sessions};
use super::workers::transport::NodeTransport;
use crate::Error;
use crate::control::gate::{Admission, Gate, all_of};
use crate::control::network::Network;
use crate::control::{Control, Hub, Parts};
use crate::memory::{Member, Memory, TableView};
use crate::network::verbs::{connect, of_verbs};
use crate::wire::{Code, Connect, Refused};

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

/// Starts control plane and scrubber of a node.
///
/// # Errors
/// [`Error::Os`].
pub(super) fn start(
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
