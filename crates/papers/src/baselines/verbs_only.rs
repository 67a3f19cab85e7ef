//! Pilaf-VO: Pilaf whose clients send requests for all operations, GETs too, by messages (pilaf
//! §5.1).
//!
//! Server and table are those of the engine `pilaf`, without a log.

use std::sync::Arc;

use loch::VerbCount;
use loch_bench::error::TargetError;
use loch_bench::spec::Spec;
use loch_engines::epoch::Session;
use loch_engines::operation::{Done, Operation};
use loch_engines::pilaf::{self, Access, NoStorage, Shape};
use loch_engines::requests::{BySend, RequestMap, Sessions, Timing, WorkerId};
use loch_engines::serve::WorkerError;
use loch_engines::{EngineError, Kv};
use loch_fabric::{Buf, RemoteAddr};

use super::baseline::{Baseline, Place, Serve, Thread, check_datagrams, requests};

/// Requests begin at multiples of this.
const ALIGN_BYTES: u64 = 64;
/// A pilaf table.
pub struct VerbsOnly {
    map: Arc<RequestMap>,
    shapes: Vec<Shape>,
}

/// A client that READs nothing.
pub struct Client<F: Thread>(pilaf::Client<F>);

/// The server.
pub struct Worker<F: Thread>(pilaf::Worker<F, NoStorage>);

impl Baseline for VerbsOnly {
    type Client<F: Thread> = Client<F>;
    type Server<F: Thread> = Worker<F>;
    const REPLIES_BY_SEND: bool = true;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        check_datagrams("pilaf-vo", spec)?;
        let nodes = place.bases.iter().copied().take(spec.nodes as usize);
        let shape = |(node, base)| pilaf_shape(spec, place.sessions, base, node);
        let shapes: Vec<_> = nodes.enumerate().map(shape).collect();
        let map = requests(spec, &place, requests_at(&shapes), (false, true))?;
        Ok(Self { map, shapes })
    }

    fn bytes(&self) -> u64 {
        self.messages_at() + self.map.area().bytes()
    }

    fn messages_at(&self) -> u64 {
        requests_at(&self.shapes)
    }

    fn client<F: Thread>(
        &self,
        fabric: F,
        session: &Session,
        _: u16,
        workers: &[F::Peer],
        timing: Timing,
    ) -> Client<F> {
        let access = Access {
            roots: self.shapes.iter().map(|shape| shape.root).collect(),
            map: self.map.clone(),
            servers: BySend::new(workers, 1),
            seed: self.shapes[0].seed,
            value_bytes_max: self.shapes[0].value_bytes_max,
            send_bytes_max: fabric.message_bytes_max(),
            batch: 1,
        };
        Client(pilaf::Client::new(fabric, access, session, timing))
    }

    fn server<F: Thread>(
        &self,
        fabric: F,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Worker<F>, EngineError> {
        let shape = self.shapes[usize::from(id.node)];
        let server = pilaf::Worker::open(fabric, &self.map, id.node, shape, None, sessions);
        server.map(Worker).map_err(without_log)
    }
}

/// Bytes of an index slot of pilaf.
const PILAF_SLOT_BYTES: u64 = 64;
const PILAF_INDEX_SLOTS_MIN: u64 = 8;
/// Extents are powers of two, and a PUT needs the old and the new one at the same time; and keys'
/// hashes are not even.
const PILAF_EXTENTS_A_RECORD: u64 = 4;
const PILAF_EXTENT_OVERHEAD_BYTES: u64 = 64;

/// A node's part of a table of pilaf whose clients have `sessions` sessions there.
fn pilaf_shape(spec: &Spec, sessions: u32, root: RemoteAddr, node: usize) -> Shape {
    let (key, value) = (spec.key_size as u64, spec.value_size as u64);
    let records = spec.records.div_ceil(spec.nodes.into());
    let slots = records * 100 / u64::from(spec.table.index_fill);
    let index_slots = slots.max(PILAF_INDEX_SLOTS_MIN).next_power_of_two();
    let extent = (key + value + PILAF_EXTENT_OVERHEAD_BYTES).next_power_of_two();
    let extents = (records + u64::from(sessions)) * PILAF_EXTENTS_A_RECORD * extent;
    Shape {
        root,
        // Room for the index to double.
        arena_bytes: (extents + 4 * index_slots * PILAF_SLOT_BYTES).next_power_of_two(),
        index_slots,
        value_bytes_max: value,
        seed: spec.seed,
        node: node as u8,
    }
}

/// Behind the table.
fn requests_at(shapes: &[Shape]) -> u64 {
    shapes[0].bytes().next_multiple_of(ALIGN_BYTES)
}

fn without_log(error: WorkerError) -> EngineError {
    match error {
        WorkerError::Engine(error) => error,
        WorkerError::Fabric(error) => error.into(),
        other => EngineError::Damaged { what: other.to_string() },
    }
}

impl<F: Thread> Serve<F> for Worker<F> {
    fn turn(&mut self) -> Result<bool, EngineError> {
        self.0.turn().map_err(without_log)
    }
}

impl<F: Thread> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        self.0.fabric()
    }

    fn counted(&self) -> VerbCount {
        self.0.counted()
    }

    fn retries(&self) -> u64 {
        self.0.retries()
    }

    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> impl Future<Output = Result<Done, EngineError>> {
        self.0.ask(key, operation, buf)
    }
}
