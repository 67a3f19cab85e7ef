//! The DRAM load dispatcher, on and off (kv-direct §5.1.4, Figure 14).
//!
//! There are as many operations under way as the reservation station holds. A GET is a read of a
//! random line, a PUT is a read and a write of it, and the clock admits one operation at a time. If
//! a PUT meets another operation on its line, the later one is executed on the other's value, as in
//! the out-of-order engine: it takes a clock and no access.
//!
//! Memory is smaller than the paper's by the same factor on both sides. Before the measurement it
//! is accessed until the card's memory has its steady contents.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_engines::kv_direct::dispatch::{Dispatched, Dispatcher};
use loch_engines::kv_direct::timed::Timed;
use loch_engines::lines::{HostMemory, Line, Purpose};
use loch_fabric::lanes;
use loch_fabric::sim::CardProfile;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Bench;
use crate::kv_direct::timing::{CardTiming, TimedDram};
use loch_bench::zipf::Zipf;

/// Operations under way: as many as the reservation station holds (kv-direct §3.3.3).
const WIDTH: usize = 256;
/// Virtual time before and while operations are counted.
const PHASES_NS: [u64; 2] = [20_000, 100_000];
/// Accesses for each line of the card's memory before that.
const WARM_ACCESSES: u32 = 24;

/// The measured setup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// The card.
    pub profile: CardProfile,
    /// Lines of host memory: a power of two.
    pub host_lines: u32,
    /// Lines of the card's memory; the paper's is a sixteenth.
    pub card_lines: u32,
    /// The share of operations that are GETs.
    pub gets: f64,
    /// The exponent of Zipf's law; without one all lines are equally popular.
    pub zipf: Option<f64>,
    /// The load dispatch ratio; 0 is PCIe alone, 1 a cache of all host memory.
    pub ratio: f64,
}

impl Setup {
    /// The paper's card and ratio of memories, at 1/1024 of their size times 64.
    pub const PAPER: Setup = Setup {
        profile: CardProfile::KV_DIRECT,
        host_lines: 1 << 18,
        card_lines: 1 << 14,
        gets: 1.0,
        zipf: None,
        ratio: 0.0,
    };
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The setup that was measured.
    pub setup: Setup,
    /// Millions of operations a second.
    pub operations_per_us: f64,
    /// Millions of accesses a second, before they were dispatched.
    pub accesses_per_us: f64,
    /// The share of operations that were executed on another's value.
    pub merged: f64,
    /// The share of accesses to cacheable lines that hit the card's memory.
    pub hit_rate: f64,
    /// How many fewer DMAs than accesses there were, as a share of the accesses: write-backs count,
    /// so it may be negative.
    pub served_by_card: f64,
}

/// Picks the lines of operations.
struct Picker {
    random: ChaCha8Rng,
    zipf: Option<Zipf>,
    mask: u32,
    gets: f64,
}

impl Picker {
    fn new(setup: &Setup) -> Self {
        let zipf = setup.zipf.map(|theta| Zipf::new(u64::from(setup.host_lines), theta));
        let (random, mask) = (ChaCha8Rng::seed_from_u64(1), setup.host_lines - 1);
        Self { random, zipf, mask, gets: setup.gets }
    }

    /// A line, and whether it is a GET.
    fn pick(&mut self) -> (u32, bool) {
        let rank = match &self.zipf {
            Some(zipf) => zipf.rank(self.random.random()) as u32,
            None => self.random.random(),
        };
        // Popular lines are anywhere: an odd factor and a shift are one-to-one on the bits of a
        // line.
        let mixed = rank.wrapping_mul(0x9E37_79B1) & self.mask;
        let line = (mixed ^ mixed >> 9).wrapping_mul(0x85EB_CA6B) & self.mask;
        (line, self.random.random_bool(self.gets))
    }
}

type Memory = Dispatcher<Timed<Vec<Line>, CardTiming>, TimedDram>;

struct Machine {
    memory: Memory,
    timing: CardTiming,
    picker: RefCell<Picker>,
    /// GETs at each line, or -1 for a PUT.
    busy: RefCell<Vec<i32>>,
    done: Cell<u64>,
    merged: Cell<u64>,
    accesses: Cell<u64>,
}

impl Machine {
    async fn access(&self, line: u32, is_get: bool) {
        let mut content = self.memory.read_line(Purpose::Index, line).await;
        add(&self.accesses);
        if !is_get {
            content.0[0] = content.0[0].wrapping_add(1);
            self.memory.write_line(Purpose::Index, line, &content).await;
            add(&self.accesses);
        }
    }

    async fn operate(&self) {
        let (line, is_get) = self.picker.borrow_mut().pick();
        self.timing.cycle().await;
        let by = if is_get { 1 } else { -1 };
        let change = |by: i32| self.busy.borrow_mut()[line as usize] += by;
        let busy = self.busy.borrow()[line as usize];
        if busy == 0 || (busy > 0 && is_get) {
            change(by);
            self.access(line, is_get).await;
            change(-by);
        } else {
            add(&self.merged);
        }
        add(&self.done);
    }
}

fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Measures one setup.
///
/// # Panics
/// If the lines of host memory are no power of two.
pub fn measure(setup: Setup) -> Outcome {
    assert!(setup.host_lines.is_power_of_two(), "lines are picked by their bits");
    let bench = Bench::new(setup.profile, 1);
    let timing = CardTiming::new(bench.card.clone());
    let host = Timed::new(vec![Line::ZERO; setup.host_lines as usize], timing.clone());
    let dram = TimedDram::new(setup.card_lines, timing.clone());
    let machine = Rc::new(Machine {
        memory: Dispatcher::new(host, dram, setup.ratio),
        timing: timing.clone(),
        picker: RefCell::new(Picker::new(&setup)),
        busy: RefCell::new(vec![0; setup.host_lines as usize]),
        done: Cell::new(0),
        merged: Cell::new(0),
        accesses: Cell::new(0),
    });
    timing.set_runs(false);
    for _ in 0..setup.card_lines * WARM_ACCESSES {
        let (line, is_get) = machine.picker.borrow_mut().pick();
        lanes::block_on(machine.access(line, is_get));
    }
    timing.set_runs(true);
    let dispatched = machine.memory.dispatched();
    let works = machine.clone();
    let program = async move {
        let operations = std::iter::repeat_with(|| works.operate());
        lanes::run(WIDTH, operations, |()| ()).await;
    };
    let dmas = || machine.memory.host().counts().all();
    let counters = || [machine.done.get(), machine.accesses.get(), machine.merged.get(), dmas()];
    let [operations_per_us, accesses_per_us, merged_per_us, dmas_per_us] =
        bench.rates(program, counters, PHASES_NS);
    Outcome {
        setup,
        operations_per_us,
        accesses_per_us,
        merged: merged_per_us / operations_per_us,
        hit_rate: since(machine.memory.dispatched(), dispatched).hit_rate(),
        served_by_card: 1.0 - dmas_per_us / accesses_per_us,
    }
}

fn since(now: Dispatched, before: Dispatched) -> Dispatched {
    Dispatched {
        read_hits: now.read_hits - before.read_hits,
        read_misses: now.read_misses - before.read_misses,
        write_hits: now.write_hits - before.write_hits,
        write_misses: now.write_misses - before.write_misses,
        write_backs: now.write_backs - before.write_backs,
        dram_reads: now.dram_reads - before.dram_reads,
        dram_writes: now.dram_writes - before.dram_writes,
    }
}

/// Shares of GETs in Figure 14.
pub const GETS: [f64; 4] = [0.0, 0.5, 0.95, 1.0];

/// Figure 14: for uniform and long-tailed popularity (zipf 0.99), and each share of GETs, PCIe
/// alone, each of `ratios`, and a cache of all host memory.
pub fn figure_14(profile: CardProfile, ratios: &[f64]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for zipf in [None, Some(0.99)] {
        for gets in GETS {
            for ratio in std::iter::once(0.0).chain(ratios.iter().copied()).chain([1.0]) {
                outcomes.push(measure(Setup { profile, gets, zipf, ratio, ..Setup::PAPER }));
            }
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(zipf: Option<f64>, gets: f64, ratio: f64) -> Outcome {
        measure(Setup { zipf, gets, ratio, ..Setup::PAPER })
    }

    #[test]
    fn a_long_tail_reaches_the_clock_with_load_dispatch() {
        for gets in [1.0, 0.95] {
            let [pcie, both] = [0.0, 0.6].map(|ratio| measured(Some(0.99), gets, ratio));
            assert!((pcie.accesses_per_us / 122.0 - 1.0).abs() < 0.1, "two links: {pcie:?}");
            // 180 M/s in Figure 14.
            assert!(both.operations_per_us > 177.0, "{both:?}");
            // About 30 % of accesses are served by the card, and 60 % of cacheable ones (§5.1.4,
            // §5.2.2).
            assert!((0.25..0.5).contains(&both.served_by_card), "{both:?}");
            assert!((0.5..0.8).contains(&both.hit_rate), "{both:?}");
        }
    }

    #[test]
    fn uniform_popularity_gains_little_and_a_cache_of_everything_loses() {
        let [pcie, both, cache] = [0.0, 0.6, 1.0].map(|ratio| measured(None, 1.0, ratio));
        let gain = both.operations_per_us / pcie.operations_per_us;
        assert!((1.0..1.12).contains(&gain), "{gain}");
        assert!(cache.operations_per_us < 0.9 * pcie.operations_per_us, "{cache:?}");
    }

    #[test]
    fn puts_want_a_lower_ratio() {
        // A cacheable write takes two accesses to the card's memory: one of them finds the owner of
        // the slot.
        let [pcie, low, high] = [0.0, 0.3, 0.6].map(|ratio| measured(Some(0.99), 0.0, ratio));
        assert!(low.accesses_per_us > 1.1 * pcie.accesses_per_us, "{pcie:?} {low:?}");
        assert!(high.accesses_per_us < pcie.accesses_per_us, "{pcie:?} {high:?}");
    }
}
