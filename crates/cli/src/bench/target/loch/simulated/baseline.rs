//! The baselines, simulated: every process has the costs of those of Loch's engines.

use std::future::Future;

use loch_engines::requests::WorkerId;
use loch_fabric::sim::ProcessId;
use loch_fabric::{RegionId, RemoteAddr};

use super::costs::Costs;
use super::design::{Design, Meter, Place, Seat, after_turn, timing, timing_by_send};
use super::host::Host;
use crate::bench::spec::Spec;
use crate::bench::target::TargetError;
use crate::bench::target::loch::baselines::{self, Baseline, Serve};

/// A worker counts its looks in vain as HERD's does.
const POLL_NS: u64 = 10;

/// A baseline in the simulator.
pub struct Simulated<B> {
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
        let baseline = B::lay_out(spec, baselines::Place { bases, sessions })?;
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
