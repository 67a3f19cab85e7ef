//! The size and length of the figures' runs.

use loch_fabric::sim::CardProfile;

use crate::kv_direct::clients::Pace;
use crate::kv_direct::run::{Load, Setup, measure};
use crate::kv_direct::shape::Shape;
use crate::kv_direct::totals::Measured;
use crate::kv_direct::workload::{Kind, Popularity, Workload};

/// The load dispatch ratio of most figures: the best of [Figure 14](super::dispatch) for PUTs, and
/// no worse than others for GETs. It is below the 0.5 of the paper's equation, which counts one
/// access to the card's memory for each cacheable line; in fact a miss also fills its slot, and a
/// write reads the slot first.
pub const RATIO: f64 = 0.4;
/// Operations in a packet that should be full.
pub const FULL: usize = 1024;
/// Operations that clients have under way to saturate the processor: more than the processor and
/// the latency of the network can hold.
const WINDOW: usize = 3072;

/// The size and length of runs.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Lines of host memory of a card.
    pub lines: u32,
    /// Operations that are measured at each point.
    pub count: u64,
    /// Whether only the ends of a range are measured.
    pub is_quick: bool,
    /// The seed, which decides everything that is random.
    pub seed: u64,
}

impl Scale {
    /// The scale of runs of minutes, or of seconds.
    pub fn new(is_quick: bool, seed: u64) -> Self {
        let (lines, count) = if is_quick { (1 << 15, 8000) } else { (1 << 20, 50_000) };
        Self { lines, count, is_quick, seed }
    }

    /// Shares of GETs: those of YCSB's workloads B, C and A, and PUTs alone.
    pub fn gets(&self) -> &'static [f64] {
        if self.is_quick { &[1.0, 0.0] } else { &[1.0, 0.95, 0.5, 0.0] }
    }

    /// The heads of columns for these.
    pub fn gets_heads(&self) -> Vec<String> {
        self.gets().iter().map(|gets| format!("{:.0} % GET", gets * 100.0)).collect()
    }

    /// A saturating load for each of these shares.
    pub fn ycsb(&self, base: Workload) -> Vec<Load> {
        let load = |gets: &f64| self.saturating(Workload { gets: *gets, ..base });
        self.gets().iter().map(load).collect()
    }

    /// A table of key-values of `bytes` bytes, half full.
    pub fn workload(&self, bytes: usize, popularity: Popularity) -> Workload {
        let key_bytes = if bytes < 10 { 4 } else { 8 };
        Workload {
            keys: Shape::keys(bytes, self.lines),
            key_bytes,
            value_bytes: bytes - key_bytes,
            popularity,
            gets: 1.0,
            other: Kind::Put,
            part: (1, 0),
        }
    }

    /// A table on the paper's card, with the load dispatched.
    pub fn setup(&self, workload: Workload) -> Setup {
        Setup {
            card: CardProfile::KV_DIRECT,
            lines: self.lines,
            ratio: RATIO,
            out_of_order: true,
            workload,
            seed: self.seed,
        }
    }

    /// A load that saturates the processor.
    pub fn saturating(&self, workload: Workload) -> Load {
        Load { workload, pace: Some(Pace::Window(WINDOW)), batch: FULL, count: self.count }
    }
}

/// Measures one load alone.
pub fn measure_one(setup: &Setup, load: Load) -> Measured {
    measure(setup, &[load]).pop().expect("a result for each load")
}
