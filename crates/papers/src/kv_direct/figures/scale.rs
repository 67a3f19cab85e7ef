//! How large and how long the runs of the figures are.

use loch_fabric::sim::CardProfile;

use crate::kv_direct::clients::Pace;
use crate::kv_direct::run::{Load, Setup, measure};
use crate::kv_direct::shape::Shape;
use crate::kv_direct::totals::Measured;
use crate::kv_direct::workload::{Kind, Popularity, Workload};

/// The load dispatch ratio of most figures: the best of [Figure 14](super::dispatch) for PUTs, and
/// no worse than others for GETs. It is below the 0.5 of the paper's equation, which counts one
/// access to the card's memory for each cacheable line: a miss fills its slot too, and a write
/// looks at it before.
pub const RATIO: f64 = 0.4;
/// Operations in a packet where as many as fit are wanted.
pub const FULL: usize = 1024;
/// Operations that clients have under way, where they are to saturate the processor: more than it
/// can hold, and than the network holds in its latency.
const WINDOW: usize = 3072;

/// How large and how long.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Lines of host memory of a card.
    pub lines: u32,
    /// Operations that are measured at each point.
    pub count: u64,
    /// Whether only the ends of a range are measured.
    pub is_quick: bool,
    /// Decides everything that is random.
    pub seed: u64,
}

impl Scale {
    /// Minutes, or seconds.
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

    /// A saturating load for each of these.
    pub fn ycsb(&self, base: Workload) -> Vec<Load> {
        let load = |gets: &f64| self.saturating(Workload { gets: *gets, ..base });
        self.gets().iter().map(load).collect()
    }

    /// A table of key-values of so many bytes, half full.
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

    /// As much as goes through.
    pub fn saturating(&self, workload: Workload) -> Load {
        Load { workload, pace: Some(Pace::Window(WINDOW)), batch: FULL, count: self.count }
    }
}

/// Measures one load alone.
pub fn measure_one(setup: &Setup, load: Load) -> Measured {
    measure(setup, &[load]).pop().expect("a result for each load")
}
