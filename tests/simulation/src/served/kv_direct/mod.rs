//! kv-direct: processors with little memory whose accesses take time, and clients with many lanes
//! and packets.

mod operations;

use std::rc::Rc;

use loch::ByteSize;
use loch_engines::kv_direct::Options;
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::region::TableParams;
use loch_engines::requests::Timing;
use loch_engines::serve::Tuning;
use loch_fabric::sim::Faults;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::operations::Asker;
use super::design::Design;
use super::memory::{Kind, Memory};
use super::script::{Client, Program};
use super::setting::Setting;

/// The longest value that is written: a value that is read in two parts.
const VALUE_BYTES_MAX: usize = 5_000;
/// Bytes of every key.
const KEY_BYTES: u16 = 5;
/// Bytes of a line.
const LINE_BYTES: u64 = 64;

/// The configuration of processors and clients.
#[derive(Clone, Debug)]
struct Config {
    /// Lines of a processor's memory.
    lines: u64,
    in_flight: usize,
    waiting: usize,
    versions: bool,
    memory: Kind,
    /// Operations whose futures are dropped before they are over.
    cancels: f64,
}

/// A table of kv-direct.
struct KvDirect {
    setting: Setting,
    config: Rc<Config>,
}

fn one_of<T: Copy>(random: &mut ChaCha8Rng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// Processors that in most runs have so little memory that it runs out.
pub fn draw(random: &mut ChaCha8Rng) -> Rc<dyn Design> {
    let mut setting = Setting::draw(random, false);
    let buckets = one_of(random, &[1, 2, 3, 16]);
    let lines = buckets + one_of(random, &[4, 16, 40, 120, 1_000]);
    let versions = random.random_bool(0.7);
    setting.table.value_max = Some(ByteSize::new(VALUE_BYTES_MAX as u64));
    setting.table.workers = Some(random.random_range(1..=3));
    let setting = setting.of(Options {
        index_ratio: Some(buckets as f64 / lines as f64),
        inline_bytes: Some(one_of(random, &[0, 16, 25, 35, 50])),
        key_bytes: random.random_bool(0.3).then_some(KEY_BYTES),
        versions: Some(versions),
        packet_bytes: Some(ByteSize::new(one_of(random, &[400, 2_000, 20_000]))),
        out_of_order: Some(random.random_bool(0.75)),
        ..Options::default()
    });
    let config = Config {
        lines,
        in_flight: one_of(random, &[2, 3, 16, 256]),
        waiting: one_of(random, &[1, 2, 8, 768]),
        versions,
        memory: Kind {
            is_near: random.random_bool(0.5),
            polls_max: one_of(random, &[1, 3, 20]),
            cached: one_of(random, &[0.0, 0.5, 1.0]),
            cache_lines: one_of(random, &[1, 3, 64]),
        },
        cancels: if random.random_bool(0.2) { 0.05 } else { 0.0 },
    };
    Rc::new(KvDirect { setting: busy(setting, random), config: Rc::new(config) })
}

/// Clients with many lanes and packets, on links that are cut for a short time.
fn busy(mut setting: Setting, random: &mut ChaCha8Rng) -> Setting {
    setting.batch = one_of(random, &[1, 2, 8, 64]);
    setting.lanes = one_of(random, &[1, 3, 8, 16]);
    setting.ops = 60;
    // The search for an explanation is exponential in the concurrent operations on a key.
    setting.keys = random.random_range(3..=8).max(setting.lanes as u64);
    setting.timing = Timing { resend_us: random.random_range(20..400), ..setting.timing };
    setting.housekeeping = one_of(random, &[0.01, 0.3, 1.0]);
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

impl Design for KvDirect {
    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn shrink(&self, params: &mut TableParams) {
        params.words[0] = LINE_BYTES * self.config.lines;
    }

    fn tuning(&self) -> Tuning {
        let Config { in_flight, waiting, .. } = *self.config;
        Tuning { in_flight, waiting, ..Tuning::default() }
    }

    fn lines(&self, lines: u32, seed: u64) -> Memory {
        self.config.memory.memory(lines, seed)
    }

    fn program(&self, client: Client) -> Box<dyn Program> {
        Box::new(Asker::new(client, self.config.clone()))
    }

    fn key_name(&self, key: u64) -> Vec<u8> {
        format!("{key:00$}", usize::from(KEY_BYTES)).into_bytes()
    }

    fn owner(&self, seed: u64, key: &[u8], workers: u32) -> Option<u32> {
        Some(KeyHash::of(seed, key).partition(workers))
    }

    fn told(&self) -> String {
        format!("{:?}", self.config)
    }
}
