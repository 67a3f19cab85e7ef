//! HERD: requests by WRITE, replies by SEND.

use std::sync::Arc;

use loch_engines::herd::storage::{Mode, Partition, Plan};
use loch_engines::herd::{self, Settings, Worker};
use loch_engines::limits::{HERD_DEPTH, HERD_ITEM_BYTES_MAX};
use loch_engines::requests::{Area, BySend, ByUnreliableWrite, RequestMap, Service, WorkerId};
use loch_fabric::sim::ProcessId;

use super::costs::Costs;
use super::design::{Design, Meter, Place, Seat, after_turn, service, timing_by_send};
use super::host::Host;
use super::nessie::places;
use crate::error::TargetError;
use crate::spec::Spec;

/// Index slots for each record. They and the log are so large that next to nothing is evicted,
/// because the bench does not measure the hits of a cache here.
const SLOTS_A_RECORD: u64 = 4;
const ENTRY_OVERHEAD_BYTES: u64 = 64;
/// The cost of a poll in vain. A worker counts these before it flushes its pipeline, so each has
/// its real cost.
const POLL_NS: u64 = 10;
/// The log has room for this many times the records, and for some more bytes.
const LAPS: u64 = 4;
const LOG_BYTES_MIN: u64 = 4 << 20;

/// Its requests, and the shape of each worker's partition.
pub struct Herd {
    map: Arc<RequestMap>,
    plan: Plan,
    costs: Costs,
    seed: u64,
}

/// A client.
pub type Client = herd::Client<Host, ByUnreliableWrite>;

impl Design for Herd {
    type Client = Client;
    const SERVES: bool = true;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        if spec.key_size + spec.value_size > HERD_ITEM_BYTES_MAX {
            return Err(TargetError::Impossible(format!(
                "--value-size {}: herd's requests hold keys and values up to {HERD_ITEM_BYTES_MAX} \
                 bytes together",
                spec.value_size
            )));
        }
        let impossible =
            |error: loch_engines::error::LayoutError| TargetError::Impossible(error.to_string());
        let Service { workers, window, .. } = service(spec, place.sessions);
        let service = herd::service(workers, window, place.sessions, false);
        let area = Area::new(service, spec.nodes as u16).map_err(impossible)?;
        let bases = places(spec, place).into_iter().map(|(at, _)| at).collect();
        // Twice a fair share: hashes are not that even.
        let partitions = u64::from(workers) * u64::from(spec.nodes);
        let records = spec.records.div_ceil(partitions) * 2;
        let entry = (spec.key_size + spec.value_size) as u64 + ENTRY_OVERHEAD_BYTES;
        let slots = records * SLOTS_A_RECORD;
        let bytes = slots * 8 + records * entry * LAPS + LOG_BYTES_MIN;
        let plan = Plan::new(Mode::Cache, bytes, slots).map_err(impossible)?;
        let map = Arc::new(RequestMap::new(area, bases));
        Ok(Self { map, plan, costs: Costs::of(spec), seed: spec.seed })
    }

    fn bytes(&self) -> u64 {
        self.map.area().bytes()
    }

    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Client {
        let (host, home) = (seat.host(self.costs), seat.home);
        let per_node = self.map.area().service().workers;
        let workers = BySend::new(workers, per_node);
        let requests = ByUnreliableWrite { home };
        let (map, session) = (self.map.clone(), &seat.session);
        herd::Client::new(
            host,
            map,
            session,
            seat.node,
            requests,
            workers,
            timing_by_send(),
            self.seed,
        )
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        let costs = Costs { poll_ns: POLL_NS, ..self.costs };
        // It writes nothing but datagrams.
        let host = seat.host(costs).worker(u64::MAX, seat.card.clone());
        let partition = Partition::new(vec![0; self.plan.words()], &self.plan);
        let settings = Settings { seed: self.seed, depth: HERD_DEPTH };
        let worker = Worker::open(host, &self.map, id, partition, settings, seat.sessions());
        let mut worker = worker.expect("its own memory is there");
        let (world, process) = (seat.world, seat.process);
        async move {
            let mut before_ns = world.cpu_ns(process);
            loop {
                worker.turn().await.expect("its own memory is there");
                after_turn(worker.fabric(), &world, process, &busy, &mut before_ns).await;
            }
        }
    }
}
