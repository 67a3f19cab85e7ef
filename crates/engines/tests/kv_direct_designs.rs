//! The hash tables whose accesses `cargo bench --bench kv_direct_accesses` counts are correct
//! stores: each against a map, in memory so small that it is full most of the time. And what the
//! paper says of them in numbers is so (kv-direct §3.3.2, §5.1.1).

#[path = "../benches/kv_direct_accesses/designs/mod.rs"]
mod designs;
#[allow(dead_code, reason = "the figures need more of it")]
#[path = "../benches/kv_direct_accesses/run.rs"]
mod run;

use std::collections::HashMap;

use designs::slots::SLOTS;
use designs::{Cuckoo, Design, Hopscotch, KEY_BYTES, KvDirect, Sizes};
use loch_engines::kv_direct::storage::Options;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use run::{Kvs, Run};

const LINE_BYTES: usize = 64;

/// Does random operations on `design` and a map, and looks at all keys again and again. Returns how
/// many puts were refused, and how many keys there were at most.
fn exercise(mut design: impl Design, value_bytes: usize, seed: u64, keys: u64) -> (u64, usize) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    let (mut refused, mut most, mut value) = (0, 0, Vec::new());
    for step in 0..20_000 {
        let accesses = design.counts().all();
        let number = random.random_range(0..keys);
        let key: [u8; KEY_BYTES] = number.to_le_bytes();
        // Fills and empties in turn.
        let puts = if step / 2_000 % 2 == 0 { 0.8 } else { 0.3 };
        if random.random_bool(puts) {
            let new: Vec<u8> = (0..value_bytes).map(|_| random.random()).collect();
            if design.put(&key, &new) {
                model.insert(number, new);
            } else {
                assert!(!model.contains_key(&number), "a value in place of another has room");
                refused += 1;
            }
        } else {
            assert_eq!(design.delete(&key), model.remove(&number).is_some(), "step {step}");
        }
        assert!(design.counts().all() > accesses, "step {step} was for nothing");
        most = most.max(model.len());
        if step % 500 == 0 {
            for number in 0..keys {
                let found = design.get(&number.to_le_bytes(), &mut value).then_some(&value);
                assert_eq!(found, model.get(&number), "key {number} after step {step}");
            }
        }
    }
    assert!(most * (KEY_BYTES + value_bytes) < design.bytes() as usize);
    (refused, most)
}

fn sizes(lines: u32, index_ratio: f64, value_bytes: usize) -> Sizes {
    Sizes { lines, index_ratio, value_bytes, slab_bytes_min: 2 }
}

#[test]
fn cuckoo_is_a_store() {
    for (seed, value_bytes) in [(1, 2usize), (2, 7), (3, 64), (4, 246)] {
        // Slabs for as many values as the 16 buckets have slots.
        let slabs = (16 * SLOTS * value_bytes.next_power_of_two()).div_ceil(LINE_BYTES) as u32;
        let lines = 16 + slabs;
        let table = Cuckoo::new(&sizes(lines, 16.0 / f64::from(lines), value_bytes), seed);
        let (refused, most) = exercise(table, value_bytes, seed, 100);
        assert!(refused > 0 && most > 16 * SLOTS * 9 / 10, "{refused} refused, {most} at most");
    }
}

#[test]
fn cuckoo_of_one_bucket_is_a_store() {
    let table = Cuckoo::new(&sizes(2, 0.5, 8), 5);
    assert_eq!(exercise(table, 8, 5, 10).1, SLOTS);
}

#[test]
fn hopscotch_is_a_store() {
    for (seed, value_bytes) in [(1, 2usize), (2, 7), (3, 64), (4, 246)] {
        let slabs = (16 * SLOTS * value_bytes.next_power_of_two()).div_ceil(LINE_BYTES) as u32;
        let lines = 16 + slabs;
        let table = Hopscotch::new(&sizes(lines, 16.0 / f64::from(lines), value_bytes), seed);
        let (refused, most) = exercise(table, value_bytes, seed, 100);
        assert!(refused > 0 && most > 16 * SLOTS / 2, "{refused} refused, {most} at most");
    }
}

#[test]
fn hopscotch_chains_what_its_buckets_cannot_hold() {
    // Two buckets are all there is, one of them home to all: eight entries, the others in blocks.
    let table = Hopscotch::new(&sizes(40, 0.05, 8), 7);
    let (refused, most) = exercise(table, 8, 7, 100);
    assert!(refused == 0 && most > 64, "{refused} refused, {most} at most");
}

#[test]
fn kv_direct_is_a_store() {
    for (seed, value_bytes, inline_bytes_max) in
        [(1, 2usize, 10), (2, 7, 15), (3, 40, 0), (4, 246, 0)]
    {
        let options = Options {
            bytes: 64 * (KEY_BYTES + value_bytes).next_power_of_two().max(32) as u64,
            index_ratio: 0.25,
            inline_bytes_max,
            versions: false,
            value_bytes_max: value_bytes as u64,
            key_bytes: Some(KEY_BYTES as u16),
        };
        let (refused, most) = exercise(KvDirect::new(&options, seed), value_bytes, seed, 200);
        assert!(refused > 0 && most > 40, "{refused} refused, {most} at most");
    }
}

const MEMORY_BYTES: u64 = 4 << 20;

/// kv-direct with keys of 8 bytes, and keys and values of `bytes` together.
fn kv_direct(bytes: usize, inline_bytes_max: usize, index_ratio: f64) -> Run<KvDirect> {
    let options = Options {
        bytes: MEMORY_BYTES,
        index_ratio,
        inline_bytes_max: inline_bytes_max as u16,
        versions: false,
        value_bytes_max: (bytes - KEY_BYTES) as u64,
        key_bytes: Some(KEY_BYTES as u16),
    };
    Run::new(KvDirect::new(&options, 1), &kvs(bytes, inline_bytes_max), 1)
}

fn kvs(bytes: usize, inline_bytes_max: usize) -> Kvs {
    Kvs { key_bytes: KEY_BYTES, bytes: bytes..=bytes, inline_bytes_max }
}

#[test]
fn inline_entries_take_close_to_one_access_and_two() {
    let mut run = kv_direct(10, 10, 0.78);
    assert!(run.fill_to(0.5));
    let measured = run.measure(5_000);
    assert!(measured.is_steady());
    let (get, put) = (measured.get.mean(), measured.put());
    assert!((1.0..1.2).contains(&get) && (2.0..2.4).contains(&put), "GET {get}, PUT {put}");
}

#[test]
fn entries_in_slabs_take_one_more_and_slabs_nearly_none() {
    for (bytes, index_ratio, full) in [(30, 0.2, 0.6), (254, 0.1, 0.8)] {
        let mut run = kv_direct(bytes, 0, index_ratio);
        assert!(run.fill_to(full));
        assert!(run.slabs_each() < 0.07, "{} of {bytes} B", run.slabs_each());
        let measured = run.measure(5_000);
        assert!(measured.is_steady() && measured.slabs_each() < 0.07);
        let (get, put) = (measured.get.mean(), measured.put());
        assert!((2.0..2.1).contains(&get) && (2.99..3.1).contains(&put), "GET {get}, PUT {put}");
    }
}

#[test]
fn others_fill_no_more_than_55_percent_with_ten_bytes() {
    let lines = (MEMORY_BYTES / 16 / LINE_BYTES as u64) as u32;
    for index_ratio in [0.5, 0.7, 0.85, 0.88, 0.9, 0.95] {
        let sizes = sizes(lines, index_ratio, 2);
        let mut cuckoo = Run::new(Cuckoo::new(&sizes, 1), &kvs(10, 10), 1);
        cuckoo.fill();
        let mut hopscotch = Run::new(Hopscotch::new(&sizes, 1), &kvs(10, 10), 1);
        hopscotch.fill();
        let full = [cuckoo.utilisation(), hopscotch.utilisation()];
        assert!(full.iter().all(|full| (0.2..0.55).contains(full)), "{full:?} at {index_ratio}");
    }
    let mut run = kv_direct(10, 10, 0.6);
    assert!(run.fill_to(0.58), "kv-direct fills {}", run.utilisation());
}
