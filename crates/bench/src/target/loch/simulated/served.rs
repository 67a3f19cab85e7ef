//! The engines whose nodes' workers serve a nessie table: nessie-server and nessie-hybrid.

use std::future::Future;

use loch_engines::limits::WORKER_LANES;
use loch_engines::nessie::geometry::Protocol;
use loch_engines::nessie::{self, CacheLimits};
use loch_engines::nessie_server::{self, Worker};
use loch_engines::requests::{Service, Turns, WorkerId};
use loch_engines::{nessie_hybrid, nessie_server::Served};
use loch_fabric::sim::ProcessId;

use super::costs::Costs;
use super::design::{Design, Meter, Place, Seat, after_turn, service, timeout_us, timing};
use super::host::Host;
use super::nessie::places;
use crate::error::TargetError;
use crate::spec::Spec;
use crate::target::loch::plan::{self, Writers};

/// A table that workers serve.
struct Table {
    map: Served,
    costs: Costs,
    /// The first byte of requests and replies on every node.
    requests_at: u64,
}

impl Table {
    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        let impossible =
            |error: loch_engines::error::LayoutError| TargetError::Impossible(error.to_string());
        let writers = Writers { a_node: spec.servers.workers.into(), lanes: WORKER_LANES };
        let shape = plan::simulated_table(spec, Protocol::Loch, writers)?;
        let shape = shape.geometry.coupled().validate().map_err(impossible)?;
        let (key, value) = (spec.key_size as u64, spec.value_size as u64);
        let service = Service {
            request_bytes: Service::request_bytes_for(key, value).map_err(impossible)?,
            reply_bytes: Service::reply_bytes_for(value).map_err(impossible)?,
            ..service(spec, place.sessions)
        };
        let map = Served::new(shape, service, &places(spec, place)).map_err(impossible)?;
        let requests_at = place.offset + map.table.shape.bytes();
        Ok(Self { map, costs: Costs::of(spec), requests_at })
    }

    fn bytes(&self) -> u64 {
        Served::bytes(&self.map.table.shape, self.map.requests.area())
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        let host = seat.host(self.costs).worker(self.requests_at, seat.card.clone());
        let (map, cache) = (self.map.clone(), CacheLimits::default());
        let sessions = seat.sessions();
        let table = map.table.clone();
        let client = nessie::Client::new(host, table, seat.session, cache, timeout_us());
        let (world, process) = (seat.world, seat.process);
        async move {
            let worker = Worker::open(client, map, id, sessions).expect("its own memory is there");
            let mut turns = worker.serve(WORKER_LANES);
            let mut before_ns = world.cpu_ns(process);
            loop {
                turns.turn().expect("its own memory is there");
                let host = worker.client().fabric();
                after_turn(host, &world, process, &busy, &mut before_ns).await;
            }
        }
    }
}

/// Its clients send requests for all operations.
pub struct ServerDriven(Table);

/// Its clients GET by themselves and send requests for the rest.
pub struct Hybrid(Table);

impl Design for ServerDriven {
    type Client = nessie_server::Client<Host>;
    const SERVES: bool = true;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        Table::lay_out(spec, place).map(Self)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn client(&self, seat: Seat, _: &[ProcessId]) -> Self::Client {
        let host = seat.host(self.0.costs);
        nessie_server::Client::new(host, self.0.map.clone(), &seat.session, timing())
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        self.0.serve(seat, id, busy)
    }
}

impl Design for Hybrid {
    type Client = nessie_hybrid::Client<Host>;
    const SERVES: bool = true;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        Table::lay_out(spec, place).map(Self)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn client(&self, seat: Seat, _: &[ProcessId]) -> Self::Client {
        let (host, cache) = (seat.host(self.0.costs), CacheLimits::default());
        nessie_hybrid::Client::new(host, self.0.map.clone(), seat.session, cache, timing())
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        self.0.serve(seat, id, busy)
    }
}
