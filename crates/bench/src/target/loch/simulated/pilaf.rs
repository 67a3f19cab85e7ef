//! Pilaf: clients READ values themselves, and SEND other requests to the one server of the key's
//! node.
//!
//! There is no log: the time of a disk is not simulated.

use std::future::Future;
use std::sync::Arc;

use loch_engines::pilaf::{self, Access, Logging, NoStorage, Shape, Worker};
use loch_engines::requests::{Area, BySend, RequestMap, Service, WorkerId};
use loch_fabric::RemoteAddr;
use loch_fabric::sim::{DATAGRAM_BYTES_MAX, ProcessId};

use super::costs::Costs;
use super::design::{Design, Meter, Place, Seat, after_turn, service, timing_by_send};
use super::host::Host;
use super::nessie::places;
use crate::error::TargetError;
use crate::spec::Spec;
use crate::target::loch::plan::pilaf_shape;

/// Roots begin at multiples of this.
const ROOT_ALIGN_BYTES: u64 = 64;
/// A table.
pub struct Pilaf {
    map: Arc<RequestMap>,
    shapes: Vec<Shape>,
    costs: Costs,
}

/// A client.
pub type Client = pilaf::Client<Host>;

impl Design for Pilaf {
    type Client = Client;
    const SERVES: bool = true;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        let impossible =
            |error: loch_engines::error::LayoutError| TargetError::Impossible(error.to_string());
        let (key, value) = (spec.key_size as u64, spec.value_size as u64);
        let service = Service {
            request_bytes: Service::request_bytes_for(key, value).map_err(impossible)?,
            ..service(spec, place.sessions)
        };
        let area = Area::new(service, spec.nodes as u16).map_err(impossible)?;
        let bases: Vec<_> = places(spec, place).into_iter().map(|(at, _)| at).collect();
        let root_at = area.bytes().next_multiple_of(ROOT_ALIGN_BYTES);
        let shape = |(node, base): (usize, &RemoteAddr)| {
            pilaf_shape(spec, place.sessions, base.add(root_at), node)
        };
        let shapes = bases.iter().enumerate().map(shape).collect();
        let map = Arc::new(RequestMap::new(area, bases));
        Ok(Self { map, shapes, costs: Costs::of(spec) })
    }

    fn bytes(&self) -> u64 {
        self.map.area().bytes().next_multiple_of(ROOT_ALIGN_BYTES) + self.shapes[0].bytes()
    }

    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Client {
        let access = Access {
            roots: self.shapes.iter().map(|shape| shape.root).collect(),
            map: self.map.clone(),
            servers: BySend::new(workers, 1),
            seed: self.shapes[0].seed,
            value_bytes_max: self.shapes[0].value_bytes_max,
            send_bytes_max: DATAGRAM_BYTES_MAX,
        };
        pilaf::Client::new(seat.host(self.costs), access, &seat.session, timing_by_send())
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        let host = seat.host(self.costs).worker(u64::MAX, seat.card.clone());
        let shape = self.shapes[usize::from(id.node)];
        let log: Option<Logging<NoStorage>> = None;
        let server = Worker::open(host, &self.map, id.node, shape, log, seat.sessions());
        let mut server = server.expect("its arena was made to measure");
        let (world, process) = (seat.world, seat.process);
        async move {
            let mut before_ns = world.cpu_ns(process);
            loop {
                server.turn().expect("its own memory is there");
                after_turn(server.fabric(), &world, process, &busy, &mut before_ns).await;
            }
        }
    }
}
