//! The fabric of a node with an RDMA device.

mod lent;
#[cfg(test)]
mod rights;
mod transport;

use std::sync::Arc;

use loch_fabric::RegionId;
use loch_fabric::verbs::{Host, VerbsEndpoint};

use self::lent::LentRegion;
use self::transport::VerbsTransport;
use super::{NodeFabric, RemoteAccess};
use crate::Result;
use crate::layout::memory::Member;
use crate::node::control::ControlPlane;
use crate::node::control::registry::{Acceptor, all_of};
use crate::session::verbs::{Card, of_verbs};

/// The fabric of a node with an RDMA device.
pub(super) struct VerbsFabric {
    card: Card,
    host: Arc<LentRegion>,
    own: Member,
}

impl VerbsFabric {
    /// Registers the region with all rights that clients can get. A failure shows here, and not
    /// when the first client comes.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device),
    /// [`Error::LockedMemory`](crate::Error::LockedMemory).
    pub fn new(card: Card, own: &Member) -> Result<Self> {
        let Card(device) = &card;
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
        Ok(Self { card, host: Arc::new(LentRegion(host)), own: own.clone() })
    }
}

impl NodeFabric for VerbsFabric {
    type ClusterAccess = RemoteAccess<Card>;
    type Transport = VerbsTransport;

    fn acceptor(&self) -> Arc<dyn Acceptor> {
        self.host.clone()
    }

    fn cluster(&self, plane: Arc<ControlPlane>) -> RemoteAccess<Card> {
        RemoteAccess { plane, medium: self.card.clone(), own: self.own.clone() }
    }

    fn transport(&self, plane: Arc<ControlPlane>) -> VerbsTransport {
        VerbsTransport::new(plane, self.card.clone(), self.host.clone(), self.own.clone())
    }
}
