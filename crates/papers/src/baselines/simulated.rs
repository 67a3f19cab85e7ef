//! The baselines, simulated: their processes have the same costs as those of Loch's engines.

use std::future::Future;
use std::sync::atomic::AtomicBool;

use loch_bench::error::TargetError;
use loch_bench::measured::Measured;
use loch_bench::progress::Progress;
use loch_bench::spec::Spec;
use loch_bench::target::loch::simulated::costs::Costs;
use loch_bench::target::loch::simulated::design::{
    Design, Meter, Place, Seat, after_turn, timing, timing_by_send,
};
use loch_bench::target::loch::simulated::host::Host;
use loch_bench::target::loch::simulated::{Setting, measure_as};
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
        measure_as::<Simulated<B>>(self.0)
    }
}

/// A baseline in the simulator.
struct Simulated<B> {
    baseline: B,
    /// Its first byte on each host.
    offset: u64,
    costs: Costs,
}

impl<B: Baseline> Design for Simulated<B> {
    type Client = B::Client<Host>;
    const SERVES: bool = true;

    fn lay_out(spec: &Spec, Place { offset, sessions }: Place) -> Result<Self, TargetError> {
        let hosts = spec.nodes + spec.servers.client_hosts;
        let bases = (0..hosts).map(|host| RemoteAddr::new(RegionId(host as u8), offset)).collect();
        let baseline = B::lay_out(spec, baseline::Place { bases, sessions })?;
        Ok(Self { baseline, offset, costs: Costs::of(spec) })
    }

    fn bytes(&self) -> u64 {
        self.baseline.bytes()
    }

    fn client_host_bytes(&self) -> u64 {
        self.bytes()
    }

    fn client(&self, seat: Seat, workers: &[ProcessId]) -> Self::Client {
        let (fabric, host) = (seat.host(self.costs), seat.home.0.into());
        let timing = if B::REPLIES_BY_SEND { timing_by_send() } else { timing() };
        self.baseline.client(fabric, &seat.session, host, workers, timing)
    }

    fn serve(&self, seat: Seat, id: WorkerId, busy: Meter) -> impl Future<Output = ()> + 'static {
        let costs = Costs { poll_ns: POLL_NS, ..self.costs };
        let replies_at = match B::REPLIES_BY_SEND {
            true => u64::MAX,
            false => self.offset + self.baseline.messages_at(),
        };
        let host = seat.host(costs).worker(replies_at, seat.card.clone());
        let server = self.baseline.server(host, id, seat.sessions());
        let mut server = server.expect("its own memory is there");
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
