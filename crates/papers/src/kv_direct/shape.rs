//! How a table's memory is divided for key-values of one size: hash index ratio and inline
//! threshold, which the paper tunes before each measurement (kv-direct §5.2.1).
//!
//! The index takes as much memory as possible: the rest are the slabs that the key-values and the
//! chained buckets need (kv-direct §5.1.1).

use loch_engines::kv_direct::bucket::{INLINE_BYTES_MAX, SLOT_BYTES, SLOTS};
use loch_engines::kv_direct::slab::Class;
use loch_engines::kv_direct::storage::{Options, Plan};
use loch_engines::lines::LINE_BYTES;

use super::workload::Workload;

/// The share of memory that is key-values (kv-direct §5.2.1: "until 50 % memory utilization").
pub const UTILISATION: f64 = 0.5;
/// Key-values up to this many bytes are inline.
const INLINE_THRESHOLD: usize = 25;
/// Bytes of a slab besides the key-value (kv-direct §5.2.1).
const SLAB_HEADER_BYTES: usize = 2;
/// Lines of slabs that are on their way between processor and daemon, at most.
const SPARE_LINES: f64 = 512.0;
/// The share of the other slabs that may be used, so that a free one is there when it is needed.
const SLABS_FILLED: f64 = 0.97;
/// Steps in which the hash index ratio is searched for.
const RATIO_STEPS: u32 = 1000;

/// Key-values of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    bytes: usize,
    key_bytes: usize,
    /// Lines of memory.
    lines: f64,
    /// Key-values for each of them.
    per_line: f64,
}

impl Shape {
    /// The key-values of a workload's part, in `lines` lines.
    pub fn of(workload: &Workload, lines: u32) -> Self {
        let keys = workload.keys as f64 / f64::from(workload.part.0);
        let bytes = workload.key_bytes + workload.value_bytes;
        let lines = f64::from(lines);
        Self { bytes, key_bytes: workload.key_bytes, lines, per_line: keys / lines }
    }

    /// How many key-values of `bytes` bytes fill `lines` lines to half.
    pub fn keys(bytes: usize, lines: u32) -> u64 {
        (f64::from(lines) * UTILISATION * LINE_BYTES as f64 / bytes as f64) as u64
    }

    /// Whether they are inline.
    pub fn is_inline(&self) -> bool {
        self.bytes <= INLINE_THRESHOLD
    }

    /// The plan of its memory.
    pub fn plan(&self) -> Plan {
        let options = Options {
            bytes: self.lines as u64 * LINE_BYTES as u64,
            index_ratio: self.index_ratio(),
            inline_bytes_max: if self.is_inline() { INLINE_THRESHOLD as u16 } else { 0 },
            versions: false,
            value_bytes_max: (self.bytes - self.key_bytes) as u64,
            key_bytes: Some(self.key_bytes as u16),
        };
        Plan::new(&options).expect("these options are in range")
    }

    /// The largest hash index ratio that leaves room for the slabs.
    fn index_ratio(&self) -> f64 {
        let (slots, slab_lines) = match self.is_inline() {
            true => (self.bytes.div_ceil(SLOT_BYTES), 0.0),
            false => {
                let class = Class::holding((self.bytes + SLAB_HEADER_BYTES) as u64);
                let bytes = class.expect("the paper's sizes have classes").bytes();
                (1, self.per_line * bytes as f64 / LINE_BYTES as f64)
            }
        };
        let room = SLOTS as usize / slots;
        let fits = |ratio: f64| {
            let chained = ratio * chained(self.per_line / ratio, room);
            ratio + (chained + slab_lines) / SLABS_FILLED + SPARE_LINES / self.lines <= 1.0
        };
        let ratio = (1..RATIO_STEPS).rev().map(|step| f64::from(step) / f64::from(RATIO_STEPS));
        ratio
            .into_iter()
            .find(|ratio| fits(*ratio))
            .expect("these key-values fit into half of memory")
    }
}

/// Chained buckets of a bucket with `mean` key-values on average, if a bucket has room for `room`
/// of them: Poisson's law.
fn chained(mean: f64, room: usize) -> f64 {
    let mut sum = 0.0;
    let mut share = (-mean).exp();
    for count in 0..(8.0 * mean) as usize + 8 * room {
        let more = count.saturating_sub(room).div_ceil(room);
        sum += share * more as f64;
        share *= mean / (count + 1) as f64;
    }
    sum
}

const _: () = assert!(INLINE_THRESHOLD <= INLINE_BYTES_MAX);
