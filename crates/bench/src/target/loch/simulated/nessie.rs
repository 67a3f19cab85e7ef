//! The engines whose nodes lend memory and do nothing: Nessie with Loch's protocol, and as
//! published.

use std::future::Future;
use std::sync::Arc;

use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{self, CacheLimits, published};
use loch_engines::requests::WorkerId;
use loch_fabric::sim::{ProcessId, SimEndpoint};
use loch_fabric::{RegionId, RemoteAddr};

use super::design::{Design, Meter, Place, Seat, timeout_us};
use crate::error::TargetError;
use crate::spec::Spec;
use crate::system::Engine;
use crate::target::loch::plan::{self, Writers};

/// A table with Loch's protocol.
pub struct Nessie(Arc<TableMap>, CacheLimits);

/// A table with the published protocol.
pub struct Published(Arc<TableMap>, CacheLimits);

fn table(spec: &Spec, place: Place, engine: Engine) -> Result<Arc<TableMap>, TargetError> {
    let writers = Writers { a_node: place.sessions, lanes: spec.lanes };
    let shape = plan::simulated_table(spec, plan::protocol(engine, spec), writers)?;
    Ok(Arc::new(TableMap::new(shape, &places(spec, place))))
}

impl Design for Nessie {
    type Client = nessie::Client<SimEndpoint>;
    const SERVES: bool = false;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        Ok(Self(table(spec, place, Engine::Nessie)?, spec.table.cache_limits()))
    }

    fn bytes(&self) -> u64 {
        self.0.shape.bytes()
    }

    fn client(&self, seat: Seat, _: &[ProcessId]) -> Self::Client {
        let endpoint = seat.world.endpoint(seat.process);
        nessie::Client::new(endpoint, self.0.clone(), seat.session, self.1, timeout_us())
    }

    /// There are no workers.
    fn serve(&self, _: Seat, _: WorkerId, _: Meter) -> impl Future<Output = ()> + 'static {
        std::future::pending()
    }
}

impl Design for Published {
    type Client = published::Client<SimEndpoint>;
    const SERVES: bool = false;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        Ok(Self(table(spec, place, Engine::NessiePublished)?, spec.table.cache_limits()))
    }

    fn bytes(&self) -> u64 {
        self.0.shape.bytes()
    }

    fn client(&self, seat: Seat, _: &[ProcessId]) -> Self::Client {
        let endpoint = seat.world.endpoint(seat.process);
        published::Client::new(endpoint, self.0.clone(), seat.session, self.1, timeout_us())
    }

    /// There are no workers.
    fn serve(&self, _: Seat, _: WorkerId, _: Meter) -> impl Future<Output = ()> + 'static {
        std::future::pending()
    }
}

/// The table's first bytes and sessions on all nodes.
pub fn places(spec: &Spec, place: Place) -> Vec<(RemoteAddr, u32)> {
    let at = |node| (RemoteAddr::new(RegionId(node as u8), place.offset), place.sessions);
    (0..spec.nodes).map(at).collect()
}
