//! The places of a served nessie table's parts.

use std::sync::Arc;

use loch_fabric::{RegionId, RemoteAddr};

use crate::error::LayoutError;
use crate::nessie::geometry::Shape;
use crate::nessie::hash::{KeyHash, TableMap};
use crate::requests::{Area, RequestMap, Service, WorkerId};

/// A nessie table whose nodes serve requests: on each node the table, followed by its requests.
#[derive(Clone, Debug)]
pub struct Served {
    /// The nessie table.
    pub table: Arc<TableMap>,
    /// The requests.
    pub requests: Arc<RequestMap>,
}

impl Served {
    /// Bytes of table and requests on one node.
    pub fn bytes(shape: &Shape, area: &Area) -> u64 {
        shape.bytes() + area.bytes()
    }

    /// The map of a table that starts at `nodes[i].0` on node `i`, which has `nodes[i].1` session
    /// slots.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if the table is not coupled, or the service is not valid.
    ///
    /// # Panics
    /// If the number of `nodes` is not the geometry's.
    pub fn new(
        shape: Shape,
        service: Service,
        nodes: &[(RemoteAddr, u32)],
    ) -> Result<Self, LayoutError> {
        if !shape.coupled {
            return Err(LayoutError::Geometry("a table that is served is coupled".into()));
        }
        if service.request_bytes == 0 || service.reply_bytes == 0 {
            let text = "request_bytes or reply_bytes is 0: requests and replies need slots";
            return Err(LayoutError::Geometry(text.into()));
        }
        let area = Area::new(service, shape.geometry.nodes)?;
        let bases = nodes.iter().map(|(at, _)| at.add(shape.bytes())).collect();
        let requests = Arc::new(RequestMap::new(area, bases));
        Ok(Self { table: Arc::new(TableMap::new(shape, nodes)), requests })
    }

    /// The worker that serves a key with this hash.
    #[inline]
    pub fn worker_of(&self, hash: &KeyHash) -> WorkerId {
        let workers = u64::from(self.requests.area().service().workers);
        let node = u16::from(hash.owner(&self.table));
        WorkerId { node, worker: (hash.name() % workers) as u16 }
    }

    /// The node of the map to which a region belongs.
    ///
    /// # Panics
    /// If it belongs to no node.
    pub fn node_of(&self, region: RegionId) -> u16 {
        self.table.dti_of(region).expect("the region is in the map").into()
    }
}
