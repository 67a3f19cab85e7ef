//! The baselines, simulated: their processes have the same costs as those of Loch's engines.

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use loch_bench::error::TargetError;
use loch_bench::measured::Measured;
use loch_bench::progress::Progress;
use loch_bench::spec::Spec;
use loch_bench::target::loch::simulated::costs::Costs;
use loch_bench::target::loch::simulated::design::{
    Design, Meter, Seat, Turns, timing, timing_by_send,
};
use loch_bench::target::loch::simulated::host::{Host, Turn};
use loch_bench::target::loch::simulated::{Setting, measure_design};
use loch_engines::region::tables_offset;
use loch_engines::requests::WorkerId;
use loch_fabric::sim::ProcessId;
use loch_fabric::{RegionId, RemoteAddr};

use super::baseline::{self, Baseline, Serve};
use super::name::{BaselineName, Visit, visit};

/// The cost of a poll in vain: a worker counts these, as HERD's does.
const POLL_NS: u64 = 10;

/// Simulates a run of a baseline.
pub fn measure(
    name: BaselineName,
    spec: &Spec,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Measured, TargetError> {
    visit(name, Simulating(Setting { name: name.as_str(), spec, progress, interrupted }))
}

struct Simulating<'a>(Setting<'a>);

impl Visit for Simulating<'_> {
    type Output = Result<Measured, TargetError>;

    fn visit<B: Baseline>(self) -> Self::Output {
        measure_design(self.0, Simulated::<B>::new(self.0.spec)?)
    }
}

/// A baseline in the simulator.
struct Simulated<B> {
    baseline: B,
    /// Its first byte on each host.
    offset: u64,
    workers: u32,
    costs: Costs,
}

impl<B: Baseline> Simulated<B> {
    /// Lays it out behind the sessions of each host: those of workers first, then those of clients.
    fn new(spec: &Spec) -> Result<Self, TargetError> {
        let workers = u32::from(spec.servers.workers);
        // A node without a client has a client while it is loaded.
        let sessions = spec.clients.div_ceil(spec.nodes) + workers;
        let offset = tables_offset(sessions);
        let hosts = spec.nodes + spec.servers.client_hosts;
        let bases = (0..hosts).map(|host| RemoteAddr::new(RegionId(host as u8), offset)).collect();
        let baseline = B::lay_out(spec, baseline::Place { bases, sessions })?;
        Ok(Self { baseline, offset, workers, costs: Costs::of(spec) })
    }
}

impl<B: Baseline> Design for Simulated<B> {
    type Client = B::Client<Host>;

    fn serves(&self) -> bool {
        true
    }

    fn region_bytes(&self) -> u64 {
        self.offset + self.baseline.bytes()
    }

    fn client_slot(&self, number: u32) -> u32 {
        self.workers + number
    }

    fn worker_slot(&self, worker: u16) -> Option<u32> {
        Some(worker.into())
    }

    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Self::Client {
        let (fabric, host) = (seat.host(self.costs), seat.home.0.into());
        let timing = if B::REPLIES_BY_SEND { timing_by_send() } else { timing() };
        self.baseline.client(fabric, &seat.session(), host, workers, timing)
    }

    fn serve(&self, seat: Seat, id: WorkerId, meter: Meter) -> impl Future<Output = ()> + 'static {
        let costs = Costs { poll_ns: POLL_NS, ..self.costs };
        let replies_at = match B::REPLIES_BY_SEND {
            true => u64::MAX,
            false => self.offset + self.baseline.messages_at(),
        };
        let turn = Rc::<Turn>::default();
        let turns = Turns::new(seat.host(costs), &seat, meter, turn.clone());
        let host = seat.host(costs).worker(replies_at, seat.card.clone(), turn);
        let server = self.baseline.server(host, id, seat.sessions());
        let mut server = server.expect("its own memory is there");
        async move {
            loop {
                server.turn().expect("its own memory is there");
                turns.after().await;
            }
        }
    }
}
