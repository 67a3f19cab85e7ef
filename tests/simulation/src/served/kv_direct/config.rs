//! The configuration of a kv-direct table that a seed draws.

use loch_engines::kv_direct::storage::Options;
use loch_engines::kv_direct::{Settings, service};
use loch_engines::requests::Timing;
use loch_fabric::sim::Faults;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::served::setting::{KEY_BYTES_MAX, SESSIONS, Setting};

/// The longest value that is written: a value that is read in two parts.
pub const VALUE_BYTES_MAX: usize = 5_000;

/// The configuration of processors and clients.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most operations in a packet.
    pub batch: usize,
    pub settings: Settings,
    pub options: Options,
    /// Whether memory is loaded, not accessed by DMA.
    pub is_near: bool,
    /// The most polls that an access by DMA takes.
    pub polls_max: u32,
    /// The share of memory that the card's memory caches, and the lines of the card's memory.
    pub cached: f64,
    pub cache_lines: usize,
    /// Turns of the host's daemon for each turn of the processor.
    pub daemon_turns: f64,
    /// Operations whose futures are dropped before they are over.
    pub cancels: f64,
}

fn one_of<T: Copy>(random: &mut ChaCha8Rng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// The cluster.
pub fn setting(random: &mut ChaCha8Rng) -> Setting {
    let mut setting = Setting::draw(random, false);
    let (workers, window) = (random.random_range(1..=3), random.random_range(1..=4));
    let packet_bytes = one_of(random, &[400, 2_000, 20_000]);
    let longest = (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64;
    setting.service = service(workers, window, SESSIONS, packet_bytes, longest).unwrap();
    setting.lanes = one_of(random, &[1, 3, 8, 16]);
    setting.ops = 60;
    // The search for an explanation is exponential in the concurrent operations on a key.
    setting.keys = random.random_range(3..=8).max(setting.lanes as u64);
    setting.timing = Timing { resend_us: random.random_range(20..400), ..setting.timing };
    if random.random_bool(0.3) {
        setting.cut_every_us = random.random_range(200..1_000);
    }
    // Operations that are under way with a process that dies have unknown outcomes.
    setting.restart_every_us *= 4;
    setting.kill_every_us *= if setting.lanes > 3 { 3 } else { 1 };
    let pauses = if random.random_bool(0.4) { random.random_range(0.0..0.01) } else { 0.0 };
    setting.faults = Faults { pauses, pause_ns: 200_000, ..setting.faults };
    setting
}

impl Config {
    /// The configuration of a table in that cluster.
    pub fn draw(setting: &Setting) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(setting.draw);
        let buckets = one_of(random, &[1, 2, 3, 16]);
        // In most runs there is so little memory that it runs out.
        let lines = buckets + one_of(random, &[4, 16, 40, 120, 1_000]);
        let versions = random.random_bool(0.7);
        Self {
            batch: one_of(random, &[1, 2, 8, 64]),
            settings: Settings {
                in_flight: one_of(random, &[2, 3, 16, 256]),
                waiting: one_of(random, &[1, 2, 8, 768]),
                out_of_order: random.random_bool(0.75),
                versions,
            },
            options: Options {
                bytes: 64 * lines,
                index_ratio: buckets as f64 / lines as f64,
                inline_bytes_max: one_of(random, &[0, 16, 25, 35, 50]),
                versions,
                value_bytes_max: VALUE_BYTES_MAX as u64,
                key_bytes: random.random_bool(0.3).then_some(KEY_BYTES),
            },
            polls_max: one_of(random, &[1, 3, 20]),
            cached: one_of(random, &[0.0, 0.5, 1.0]),
            cache_lines: one_of(random, &[1, 3, 64]),
            daemon_turns: one_of(random, &[0.01, 0.3, 1.0]),
            cancels: if random.random_bool(0.2) { 0.05 } else { 0.0 },
            is_near: random.random_bool(0.5),
        }
    }
}

/// Bytes of every key.
pub const KEY_BYTES: u16 = 5;
