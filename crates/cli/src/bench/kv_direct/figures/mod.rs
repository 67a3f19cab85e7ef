//! The figures, one in a file.

pub mod batching;
pub mod cards;
pub mod dispatch;
pub mod dma;
pub mod gather;
pub mod latency;
pub mod out_of_order;
pub mod ratios;
pub mod throughput;
pub mod vectors;

use loch_fabric::sim::CardProfile;

use super::clients::Pace;
use super::run::{Load, Measured, Setup, measure};
use super::shape::Shape;
use super::workload::{Kind, Popularity, Workload};

/// What the paper says in its text; its figures are pictures.
pub mod paper {
    /// READs of 64 bytes over one link (§2.4, Figure 3a), and what the bytes on it allow.
    pub const DMA_MOPS: [f64; 2] = [60.0, 87.0];
    /// Latency of READs of 64 bytes, cached and random (§2.4).
    pub const DMA_NS: [f64; 2] = [800.0, 1050.0];
    /// What gathering gains at most, in percent, and its latency (§6.1).
    pub const GATHERING: (f64, f64) = (79.0, 20.0);
    /// One operation a clock (§4).
    pub const CLOCK_MOPS: f64 = 180.0;
    /// Atomics on one key if the pipeline stalls (§5.1.3).
    pub const STALLED_MOPS: f64 = 0.94;
    /// What is gained by executing out of order (§5.1.3).
    pub const OUT_OF_ORDER_GAIN: f64 = 191.0;
    /// Atomics on one key by an RDMA NIC (§5.1.3).
    pub const RDMA_MOPS: f64 = 2.24;
    /// GETs and PUTs of 10 bytes, long-tail (Table 3).
    pub const LONG_TAIL_MOPS: [f64; 2] = [180.0, 114.0];
    /// GETs and PUTs of ten cards (Table 3).
    pub const TEN_CARDS_MOPS: [f64; 2] = [1220.0, 610.0];
    /// Gain of network batching (§5.1.5), and the latency below which it stays.
    pub const BATCHING_GAIN: f64 = 4.0;
    pub const BATCHING_US: f64 = 3.5;
    /// Bytes of a vector, and what Table 2 says of it in GB/s: update with return, without, one key
    /// for each element, fetched to the client.
    pub const VECTORS: [(usize, [f64; 4]); 5] = [
        (64, [11.52, 4.37, 2.09, 0.03]),
        (128, [11.52, 4.53, 2.09, 0.06]),
        (256, [11.52, 4.62, 2.09, 0.12]),
        (512, [11.52, 4.66, 2.09, 0.24]),
        (1024, [11.52, 4.68, 2.09, 0.46]),
    ];
}

/// Operations in a packet where as many as fit are wanted.
const FULL: usize = 1024;
/// Operations that clients have under way, where they are to saturate the processor: more than it can
/// hold, and than the network holds in its latency.
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
            ratio: dispatch::RATIO,
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
