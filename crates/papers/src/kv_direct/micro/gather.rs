//! CPU-assisted scatter-gather by payload and cores (kv-direct §6.1, Figure 18).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::lines::{HostMemory, LINE_BYTES, Line, Purpose};
use loch_fabric::lanes;
use loch_fabric::sim::{CardProfile, SimCard, SimEndpoint};
use loch_fabric::{Fabric, RegionId};

use super::{Bench, CardCourier};
use crate::kv_direct::gathered::{BATCH_ACCESSES, Batch, Gathered, Gatherers};

/// Accesses under way for each core: one batch is filled, one is at the host, and one travels.
const WIDTH_A_CORE: usize = 3 * BATCH_ACCESSES;
/// Accesses under way without cores: more than there are tags and credits.
const WIDTH: usize = 1024;
/// Virtual time before and while accesses are counted.
const PHASES_NS: [u64; 2] = [200_000, 1_000_000];
/// The same phases for the card's own DMAs.
const BYPASS_PHASES_NS: [u64; 2] = [20_000, 100_000];
/// Lines of host memory for each core.
const LINES_A_CORE: u32 = 1 << 13;
/// How long a batch waits to be filled.
const LINGER_NS: f64 = 10_000.0;

/// The costs of a core of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreCosts {
    /// The source of the numbers.
    pub source: &'static str,
    /// An access to a random line.
    pub access_ns: f64,
    /// Each line after its first.
    pub line_ns: f64,
    /// To find a batch, to ring the doorbell for it, and all other costs of a batch.
    pub batch_ns: f64,
}

impl CoreCosts {
    /// The paper's host.
    pub const PAPER: CoreCosts = CoreCosts {
        source: "KV-Direct: 29.3 M random 64-byte accesses a second (§2.2); the lines after the first \
                 at an eighth of a socket's 60.3 GB/s (Table 4); 600 ns a batch for an MMIO write and \
                 to find the next, with which 256 accesses take 9.3 us: \"10 us\" (§6.1). The last two \
                 are assumptions",
        access_ns: 1e3 / 29.3,
        line_ns: LINE_BYTES as f64 / (60.3 / 8.0),
        batch_ns: 600.0,
    };

    fn of(&self, batch: &Batch) -> f64 {
        let more = (batch.lines() - batch.accesses()) as f64;
        batch.accesses() as f64 * self.access_ns + more * self.line_ns + self.batch_ns
    }
}

/// The result for one payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Bytes of each access.
    pub payload_bytes: usize,
    /// Cores that gather; 0 is the card's own DMA.
    pub cores: usize,
    /// Whether the accesses are writes.
    pub is_write: bool,
    /// Millions of accesses a second.
    pub accesses_per_us: f64,
    /// Time from the request of an access to its end, on average.
    pub latency_us: f64,
}

/// Counts accesses and their time.
#[derive(Default)]
struct Tally {
    done: Rc<Cell<u64>>,
    ns: Rc<Cell<u64>>,
}

/// One access, timed.
async fn access<M: HostMemory>(
    memory: &M,
    card: &SimCard,
    [at, lines]: [u32; 2],
    is_write: bool,
    ns: &Cell<u64>,
) {
    let began_ns = card.now_ns();
    let mut content = vec![Line::ZERO; lines as usize];
    match is_write {
        true => memory.write(Purpose::Data, at, &content).await,
        false => memory.read(Purpose::Data, at, &mut content).await,
    }
    ns.set(ns.get() + card.now_ns() - began_ns);
}

/// A core of the host: looks for batches, and takes its time for each.
async fn core(endpoint: SimEndpoint, gatherers: Arc<Gatherers>, number: usize, costs: CoreCosts) {
    let mut owed_ns = 0.0;
    loop {
        let Some(batch) = gatherers.take(number) else {
            endpoint.pause(1).await;
            continue;
        };
        owed_ns += costs.of(&batch);
        endpoint.work(owed_ns as u64);
        owed_ns = owed_ns.fract();
        endpoint.pause(0).await;
        gatherers.perform(number, batch);
    }
}

/// Measures accesses that `cores` cores gather.
///
/// # Panics
/// If `cores` is 0, or the payload is not whole lines.
pub fn gathered(
    profile: CardProfile,
    costs: CoreCosts,
    payload_bytes: usize,
    cores: usize,
    is_write: bool,
) -> Outcome {
    assert!(payload_bytes.is_multiple_of(LINE_BYTES), "a payload is whole lines");
    let bench = Bench::new(profile, 1);
    let lines = LINES_A_CORE * cores as u32;
    let gatherers = Gatherers::new(lines, cores);
    for number in 0..cores {
        let process = bench.world.add_process(RegionId(0));
        let endpoint = bench.world.endpoint(process);
        bench.world.start(process, core(endpoint, gatherers.clone(), number, costs));
    }
    let courier = CardCourier { card: bench.card.clone(), linger_ns: LINGER_NS };
    let memory = Gathered::new(gatherers, courier);
    let (card, tally) = (bench.card.clone(), Tally::default());
    let (done, ns) = (tally.done.clone(), tally.ns.clone());
    let each = (payload_bytes / LINE_BYTES) as u32;
    let program = async move {
        // Places far from each other, each as large as its access, so that writes go to different
        // places.
        let places = (0u32..).map(|n| n.wrapping_mul(0x9E37_79B1) % (lines / each) * each);
        let accesses = places.map(|at| access(&memory, &card, [at, each], is_write, &ns));
        lanes::run(WIDTH_A_CORE * cores, accesses, |()| done.set(done.get() + 1)).await;
    };
    let counters = || [tally.done.get(), tally.ns.get()];
    let [accesses_per_us, ns] = bench.rates(program, counters, PHASES_NS);
    let latency_us = ns / accesses_per_us / 1e3;
    Outcome { payload_bytes, cores, is_write, accesses_per_us, latency_us }
}

/// Measures accesses by the card's own DMA.
pub fn bypassing(profile: CardProfile, payload_bytes: usize, is_write: bool) -> Outcome {
    let bench = Bench::new(profile, 1);
    let (card, tally) = (bench.card.clone(), Tally::default());
    let (done, ns) = (tally.done.clone(), tally.ns.clone());
    let program = async move {
        let access = || async {
            let began_ns = card.now_ns();
            match is_write {
                true => card.dma_write(payload_bytes).await,
                false => card.dma_read(payload_bytes).await,
            }
            ns.set(ns.get() + card.now_ns() - began_ns);
        };
        let accesses = std::iter::repeat_with(access);
        lanes::run(WIDTH, accesses, |()| done.set(done.get() + 1)).await;
    };
    let counters = || [tally.done.get(), tally.ns.get()];
    let [accesses_per_us, ns] = bench.rates(program, counters, BYPASS_PHASES_NS);
    let latency_us = ns / accesses_per_us / 1e3;
    Outcome { payload_bytes, cores: 0, is_write, accesses_per_us, latency_us }
}

/// Payloads of Figure 18.
pub const PAYLOADS: [usize; 4] = [64, 128, 256, 512];

/// Figure 18: each payload by the card's own DMA and by 1 to `cores_max` cores, over one link.
pub fn figure_18(costs: CoreCosts, cores_max: usize, is_write: bool) -> Vec<Outcome> {
    let profile = CardProfile::KV_DIRECT.with_links(1);
    let of = |cores: usize, payload: usize| match cores {
        0 => bypassing(profile, payload, is_write),
        _ => gathered(profile, costs, payload, cores, is_write),
    };
    let all = (0..=cores_max).flat_map(|cores| PAYLOADS.map(|payload| (cores, payload)));
    all.map(|(cores, payload)| of(cores, payload)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_gather_more_than_the_card_alone() {
        let all = figure_18(CoreCosts::PAPER, 4, false);
        let rate = |cores: usize, payload: usize| {
            let found = all.iter().find(|o| (o.cores, o.payload_bytes) == (cores, payload));
            found.expect("it was measured").accesses_per_us
        };
        // Up to 79 % more than without (§6.1), at the smallest payload.
        let gain = rate(4, 64) / rate(0, 64);
        assert!((1.70..1.88).contains(&gain), "{gain}");
        // Cores are the bottleneck until the link is.
        assert!((rate(2, 64) / rate(1, 64) - 2.0).abs() < 0.1);
        assert!(rate(1, 64) < rate(0, 64) && rate(3, 64) > rate(0, 64));
        // The rate of the link in TLPs of 256 bytes limits all.
        for payload in PAYLOADS {
            let limit = 7.87e3 / 282.0 * 256.0 / payload as f64;
            assert!(rate(4, payload) < 1.02 * limit, "{payload}");
        }
        // Latency is about 20 us (§6.1), most of it in turn for a core.
        let each = all.iter().filter(|o| o.cores > 0 && o.payload_bytes == 64);
        assert!(each.into_iter().all(|o| (15.0..35.0).contains(&o.latency_us)), "{all:?}");
        for payload in [256, 512] {
            assert!(
                (rate(4, payload) / rate(0, payload) - 1.0).abs() < 0.06,
                "no gain at {payload}"
            );
        }
    }

    #[test]
    fn writes_gain_less() {
        let profile = CardProfile::KV_DIRECT.with_links(1);
        let alone = bypassing(profile, 64, true);
        let gathered = gathered(profile, CoreCosts::PAPER, 64, 4, true);
        let gain = gathered.accesses_per_us / alone.accesses_per_us;
        // Addresses travel beside the written bytes.
        let limit = 7.87e3 / 282.0 * 256.0 / 72.0;
        assert!((1.0..limit * 1.02 / alone.accesses_per_us).contains(&gain), "{gathered:?}");
    }
}
