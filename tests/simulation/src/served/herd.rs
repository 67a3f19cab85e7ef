//! The herd engine, as a store and as a cache, with requests by WRITE and by SEND.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use loch_engines::herd::key::KeyHash;
use loch_engines::herd::{Mode, Options, RequestWay};
use loch_engines::region::{SEED, TableParams};
use loch_engines::requests::Timing;
use loch_engines::serve::Tuning;
use loch_fabric::sim::Faults;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::design::{Design, Hostile};
use super::setting::Setting;

const NODES: u16 = 2;
const WORKERS: u16 = 2;
const VALUE_BYTES: &[usize] = &[16, 80, 160, 240, 320, 400, 480];

struct Herd {
    setting: Setting,
    by_send: bool,
    /// For each worker's life.
    depths: RefCell<ChaCha8Rng>,
}

/// A table with room for everything, or a cache with so little memory that values are evicted all
/// the time.
pub fn draw(random: &mut ChaCha8Rng, mode: Mode) -> Rc<dyn Design> {
    let by_send = random.random_bool(0.4);
    let requests = if by_send { RequestWay::Send } else { RequestWay::Write };
    let options = Options { mode: Some(mode), requests: Some(requests), index_slots: None };
    let mut setting = Setting::draw(random, true).of(options);
    setting.nodes = NODES;
    (setting.table.workers, setting.table.value_max) = (Some(WORKERS), None);
    setting.evicts = mode == Mode::Cache && random.random_bool(0.7);
    setting.keys = if setting.evicts { 24 } else { 6 };
    setting.numbers_from = setting.keys - setting.keys / 4;
    (setting.value_bytes, setting.clients) = (VALUE_BYTES, 4);
    setting.timing = Timing { resend_us: 30, timeout_us: 20_000 };
    setting.turns_a_report = 1_000;
    let has_deaths = random.random_bool(0.6);
    (setting.kill_every_us, setting.down_us_max) = (0, 100);
    setting.restart_every_us = if has_deaths { 1_100 } else { 0 };
    let mut rate =
        |most: f64| if random.random_bool(0.5) { random.random_range(0.0..most) } else { 0.0 };
    setting.faults = Faults {
        torn: rate(0.5),
        tear_ns: 3_000,
        delays: rate(0.2),
        delay_ns: 20_000,
        slow_stores: rate(0.3),
        store_ns: 2_000,
        deaths: if has_deaths { rate(0.01) } else { 0.0 },
        pauses: rate(0.01),
        pause_ns: 200_000,
        lost_messages: rate(0.3),
        doubled_messages: rate(0.3),
        wall_skew_ms: 10,
        ..Faults::default()
    };
    let depths = RefCell::new(ChaCha8Rng::seed_from_u64(random.random()));
    Rc::new(Herd { setting, by_send, depths })
}

impl Design for Herd {
    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn shrink(&self, params: &mut TableParams) {
        let sizes = if self.setting.evicts { [4_096, 8] } else { [256 << 10, 1 << 10] };
        params.words[1..3].copy_from_slice(&sizes);
    }

    fn tuning(&self) -> Tuning {
        let depth = [0, 1, 4][self.depths.borrow_mut().random_range(0..3)];
        Tuning { depth, ..Tuning::default() }
    }

    fn hostile(&self) -> Option<Hostile> {
        self.by_send.then_some(Hostile::Forger)
    }

    fn key_name(&self, key: u64) -> Vec<u8> {
        match key {
            0 | 1 => TWINS.with(|twins| twins[key as usize].clone()),
            _ => format!("key number {key}").into_bytes(),
        }
    }

    fn owner(&self, seed: u64, key: &[u8], workers: u32) -> Option<u32> {
        Some(KeyHash::of(seed, key).partition(workers))
    }
}

thread_local! {
    /// Two keys of one partition with the same tag. Where an index has one bucket, only comparing
    /// the keys tells them apart; in larger indexes they are in different buckets.
    static TWINS: [Vec<u8>; 2] = twins();
}

fn twins() -> [Vec<u8>; 2] {
    let mut seen = HashMap::new();
    for number in 0u32.. {
        let key = format!("twin {number}").into_bytes();
        // The same computation as in `herd/key.rs`.
        let low = xxh3_128_with_seed(&key, SEED) as u64;
        let partition = KeyHash::of(SEED, &key).partition(u32::from(NODES * WORKERS));
        let (sister, other) = seen.entry((partition, low as u16)).or_insert((key.clone(), low));
        if *other >> 60 != low >> 60 {
            return [sister.clone(), key];
        }
    }
    unreachable!("tags have 16 bits")
}
