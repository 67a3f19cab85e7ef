//! The interface of an engine in the simulator: the layout of its table, its clients and its
//! workers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;

use loch::ConnectOptions;
use loch_engines::Kv;
use loch_engines::epoch::Session;
use loch_engines::requests::{Holder, Sessions, Timing, WorkerId};
use loch_fabric::RegionId;
use loch_fabric::sim::{ProcessId, World};

use super::host::{Card, Host, Work};
use crate::error::TargetError;
use crate::spec::Spec;
pub use crate::target::loch::plan::service;
use crate::target::loch::simulated::costs::Costs;

/// An engine in the simulator.
pub trait Design: Sized {
    /// Its client.
    type Client: Kv + 'static;
    /// Whether its nodes have workers.
    const SERVES: bool;

    /// Lays out the table of a run, which begins at `place` on every node.
    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError>;

    /// Bytes of the table on each node.
    fn bytes(&self) -> u64;

    /// Bytes that clients use of a host of their own.
    fn client_host_bytes(&self) -> u64 {
        0
    }

    /// A client. `workers` are all workers' processes, by node and then by worker.
    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Self::Client;

    /// A worker's program, which ends when it is dropped.
    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static;
}

/// The place of a table on every node.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its first byte.
    pub offset: u64,
    /// Session slots of each node.
    pub sessions: u32,
}

/// The work of a worker so far.
pub type Meter = Rc<Load>;

/// A worker's work.
#[derive(Debug, Default)]
pub struct Load {
    /// Processor nanoseconds spent on requests: not on polls in vain, nor on waiting for its card.
    pub busy_ns: Cell<u64>,
    /// Requests answered.
    pub answered: Cell<u64>,
}

/// A process that has a session.
pub struct Seat {
    /// The cluster.
    pub world: World,
    /// The process.
    pub process: ProcessId,
    /// The host that it is on.
    pub home: RegionId,
    /// Its session there.
    pub session: Session,
    /// The node among whose clients it counts: the node of its host, if there is one.
    pub node: u16,
    /// The card of its host.
    pub card: Card,
    /// All sessions.
    pub slots: Slots,
}

/// The incarnation of the session in each slot of each node, and of each host.
pub type Slots = Rc<RefCell<HashMap<(u16, u32), u64>>>;

impl Seat {
    /// The sessions that a worker's node knows.
    pub fn sessions(&self) -> Sessions {
        let slots = self.slots.clone();
        Box::new(move |node, slot| Some(Holder::new(*slots.borrow().get(&(node, slot))?, None)))
    }
}

impl Seat {
    /// The endpoint of a process that polls.
    pub fn host(&self, costs: Costs) -> Host {
        Host::client(&self.world, self.process, self.home, costs)
    }
}

/// How long an operation may take.
pub fn timeout_us() -> u64 {
    ConnectOptions::default().operation_timeout.as_micros() as u64
}

/// The timeouts of clients whose requests and replies are WRITTEN. Nothing is lost in these
/// simulations, and a request that waits behind long values must not be sent again.
pub fn timing() -> Timing {
    Timing { resend_us: timeout_us() / 2, timeout_us: timeout_us() }
}

/// The timeouts of clients that are answered by SEND. The first reply is lost if the request
/// arrives before the client has introduced itself.
pub fn timing_by_send() -> Timing {
    Timing { timeout_us: timeout_us(), ..Timing::default() }
}

/// Called after a worker's turn: notes the time that it took, and waits for the moment of the next
/// turn. `before_ns` is the processor time of the worker at the last note.
pub async fn after_turn(
    host: &Host,
    world: &World,
    process: ProcessId,
    busy: &Meter,
    before_ns: &mut u64,
) {
    let Work { worked, waited_ns, answered } = host.take_work();
    busy.answered.set(busy.answered.get() + answered);
    match worked {
        true => host.go_on().await,
        false => loch_fabric::Fabric::pause(host, 1).await,
    }
    let now_ns = world.cpu_ns(process);
    if worked {
        let worked_ns = (now_ns - *before_ns).saturating_sub(waited_ns);
        busy.busy_ns.set(busy.busy_ns.get() + worked_ns);
    }
    *before_ns = now_ns;
}
