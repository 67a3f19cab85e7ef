//! The interface of a system in the simulator: its memory, its clients and its workers.

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

use super::costs::Costs;
use super::host::{Card, Host, Turn};

/// A system in the simulator.
pub trait Design: Sized {
    /// The system's client.
    type Client: Kv + 'static;

    /// Whether its nodes have workers.
    fn serves(&self) -> bool;

    /// Bytes of each node's region.
    fn region_bytes(&self) -> u64;

    /// Bytes of the region of a host for clients alone.
    fn client_host_bytes(&self) -> u64 {
        self.region_bytes()
    }

    /// The session slot of the `number`-th client of a node.
    fn client_slot(&self, number: u32) -> u32;

    /// The session slot of a worker of a node, if it has one.
    fn worker_slot(&self, worker: u16) -> Option<u32>;

    /// A client. `workers` are all workers' processes, by node and then by worker.
    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Self::Client;

    /// A worker's program, which ends when it is dropped.
    fn serve(&self, seat: Seat, id: WorkerId, meter: Meter) -> impl Future<Output = ()> + 'static;
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

/// A process of a client or a worker.
pub struct Seat {
    /// The cluster.
    pub world: World,
    /// The process.
    pub process: ProcessId,
    /// The host that it is on.
    pub home: RegionId,
    /// The slot of its session there, if it has one, and the session's incarnation.
    pub session: Option<(u32, u64)>,
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
    /// The session of the process.
    ///
    /// # Panics
    /// If it has none.
    pub fn session(&self) -> Session {
        let (slot, incarnation) = self.session.expect("the process has a session");
        Session::new(self.home, slot, incarnation)
    }

    /// The sessions that a worker's node knows.
    pub fn sessions(&self) -> Sessions {
        sessions(&self.slots)
    }

    /// The endpoint of a process that polls.
    pub fn host(&self, costs: Costs) -> Host {
        Host::client(&self.world, self.process, self.home, costs)
    }
}

/// The sessions that every node knows.
pub fn sessions(slots: &Slots) -> Sessions {
    let slots = slots.clone();
    Box::new(move |node, slot| Some(Holder::new(*slots.borrow().get(&(node, slot))?, None)))
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

/// The turns of a worker, as its host sees them.
pub struct Turns {
    /// An endpoint of the worker's process, to let time pass.
    host: Host,
    world: World,
    process: ProcessId,
    meter: Meter,
    turn: Rc<Turn>,
    /// The processor time of the worker at the end of the last turn.
    before_ns: Cell<u64>,
}

impl Turns {
    /// The turns of the worker with this endpoint's process, which notes its work in `turn`.
    pub fn new(host: Host, seat: &Seat, meter: Meter, turn: Rc<Turn>) -> Self {
        let before_ns = Cell::new(seat.world.cpu_ns(seat.process));
        Self { host, world: seat.world.clone(), process: seat.process, meter, turn, before_ns }
    }

    /// Called after a turn: notes the time that the turn took, and waits for the moment of the next
    /// one.
    pub async fn after(&self) {
        let Turn { worked, waited_ns, answered } = &*self.turn;
        let (worked, waited_ns, answered) = (worked.take(), waited_ns.take(), answered.take());
        self.meter.answered.set(self.meter.answered.get() + answered);
        match worked {
            true => self.host.go_on().await,
            false => loch_fabric::Fabric::pause(&self.host, 1).await,
        }
        let now_ns = self.world.cpu_ns(self.process);
        let before_ns = self.before_ns.replace(now_ns);
        if worked {
            let worked_ns = (now_ns - before_ns).saturating_sub(waited_ns);
            self.meter.busy_ns.set(self.meter.busy_ns.get() + worked_ns);
        }
    }
}
