//! PCIe random DMA by payload (kv-direct §2.4, Figure 3).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_fabric::lanes;
use loch_fabric::sim::{CardProfile, SimCard};

use super::Bench;

/// DMAs under way: more than there are tags and credits.
const WIDTH: usize = 1024;
/// Virtual time before and while DMAs are counted.
const PHASES_NS: [u64; 2] = [20_000, 100_000];

/// The throughput of DMAs of one payload, in millions a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Bytes of each.
    pub payload_bytes: usize,
    /// READs of random places.
    pub reads_per_us: f64,
    /// WRITEs.
    pub writes_per_us: f64,
    /// The rate that the bytes on the links would allow.
    pub limit_per_us: f64,
}

/// The throughput of each of `payloads` (Figure 3a).
pub fn throughput(profile: CardProfile, payloads: &[usize]) -> Vec<Throughput> {
    let of = |payload_bytes: usize| Throughput {
        payload_bytes,
        reads_per_us: rate(profile, move |card| card.dma_read(payload_bytes)),
        writes_per_us: rate(profile, move |card| card.dma_write(payload_bytes)),
        limit_per_us: profile.on_links_per_us(payload_bytes as u64),
    };
    payloads.iter().copied().map(of).collect()
}

fn rate<O: Future<Output = ()>>(
    profile: CardProfile,
    dma: impl Fn(&SimCard) -> O + 'static,
) -> f64 {
    let bench = Bench::new(profile, 1);
    let (card, done) = (bench.card.clone(), Rc::new(Cell::new(0)));
    let count = done.clone();
    let program = async move {
        let dmas = std::iter::repeat_with(|| dma(&card));
        lanes::run(WIDTH, dmas, |()| count.set(count.get() + 1)).await;
    };
    let [rate] = bench.rates(program, || [done.get()], PHASES_NS);
    rate
}

/// The latency of READs of one payload, one after the other, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Bytes of each.
    pub payload_bytes: usize,
    /// On average.
    pub mean_ns: f64,
    /// Percentiles 5, 50, 95 and 99.
    pub percentiles_ns: [u64; 4],
}

/// The latency of `samples` READs of bytes that the host's processor has cached, or of random
/// places (Figure 3b).
pub fn latency(
    profile: CardProfile,
    payload_bytes: usize,
    cached: bool,
    samples: usize,
) -> Latency {
    let bench = Bench::new(profile, 1);
    let (card, times) = (bench.card.clone(), Rc::new(RefCell::new(Vec::new())));
    let all = times.clone();
    bench.world.start(bench.logic, async move {
        for _ in 0..samples {
            let began_ns = card.now_ns();
            match cached {
                true => card.dma_read_cached(payload_bytes).await,
                false => card.dma_read(payload_bytes).await,
            }
            all.borrow_mut().push(card.now_ns() - began_ns);
        }
    });
    while !bench.world.has_ended(bench.logic) {
        assert!(bench.world.step(), "a READ never ends");
    }
    let mut times = times.take();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    Latency {
        payload_bytes,
        mean_ns: times.iter().sum::<u64>() as f64 / times.len() as f64,
        percentiles_ns: [5, 50, 95, 99].map(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_reads_are_limited_by_tags_and_large_ones_by_the_link() {
        let all = throughput(CardProfile::KV_DIRECT.with_links(1), &[16, 32, 64, 128, 256, 512]);
        for Throughput { payload_bytes, reads_per_us, writes_per_us, limit_per_us } in &all {
            let reads = reads_per_us / limit_per_us.min(61.0);
            assert!((0.96..1.01).contains(&reads), "READs of {payload_bytes}: {reads_per_us}");
            // Below 64 bytes the credits' return, and the engine's clock, are the limit.
            if *payload_bytes >= 64 {
                let writes = writes_per_us / limit_per_us;
                assert!(
                    (0.98..1.01).contains(&writes),
                    "WRITEs of {payload_bytes}: {writes_per_us}"
                );
            }
        }
        assert!((all[2].reads_per_us / 60.0 - 1.0).abs() < 0.03, "60 M/s in Figure 3a: {all:?}");
        assert!((all[2].limit_per_us - 87.0).abs() < 1.0, "87 M/s in section 2.4: {all:?}");
    }

    #[test]
    fn latency_is_what_the_paper_measured() {
        let cached = latency(CardProfile::KV_DIRECT, 64, true, 10);
        assert!((cached.mean_ns - 800.0).abs() < 2.0, "{cached:?}");
        let random = latency(CardProfile::KV_DIRECT, 64, false, 2000);
        assert!((random.mean_ns / 1050.0 - 1.0).abs() < 0.01, "{random:?}");
        assert!(random.percentiles_ns[0] > 800 && random.percentiles_ns[3] < 1305, "{random:?}");
    }
}
