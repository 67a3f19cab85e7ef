//! The slab allocator of kv-direct: what an allocation costs; and, printed before that, accesses to
//! host memory for each (§3.3.1: below 0.1, §3.3.2: below 0.07), and what the daemon's core does
//! (§5.1.2, Figure 12), one JSON object a line, as a file of results has them.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::disallowed_types, reason = "a rate needs a clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use loch_engines::kv_direct::slab::{Class, Place, Pools, SlabDaemon, Slabs};
use loch_engines::lines::{HostMemory, Line, Near};
use loch_fabric::lanes::block_on;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Allocations and frees between two turns of the daemon.
const OPERATIONS_A_TURN: u64 = 1000;

/// 256 MiB.
const PLACES: u32 = 1 << 23;

struct Rig {
    memory: Near<Vec<Line>>,
    slabs: Slabs,
    daemon: SlabDaemon,
    used: Vec<(Place, Class)>,
    operations: u64,
    /// Accesses of allocations, and how many those were; then of frees.
    accesses: [(u64, u64); 2],
}

impl Rig {
    fn new(places: u32) -> Self {
        // The daemon keeps nothing back that a test may ask for.
        let largest = Class::new(places.ilog2() as u8).expect("a class");
        let pools = Pools::new(places..2 * places, largest);
        let (slabs, daemon) = (Slabs::new(pools.clone()), SlabDaemon::new(pools));
        let memory = Near::new(Vec::new());
        Self { memory, slabs, daemon, used: Vec::new(), operations: 0, accesses: [(0, 0); 2] }
    }

    fn count(&mut self, kind: usize, before: u64) {
        self.accesses[kind].0 += self.memory.counts().slabs.all() - before;
        self.accesses[kind].1 += 1;
        self.operations += 1;
        if self.operations.is_multiple_of(OPERATIONS_A_TURN) {
            self.daemon.turn();
        }
    }

    fn allocate(&mut self, number: u8) {
        let class = Class::new(number).expect("a class");
        let before = self.memory.counts().slabs.all();
        for _ in 0..3 {
            if let Some(place) = block_on(self.slabs.allocate(&self.memory, class)) {
                self.used.push((place, class));
                return self.count(0, before);
            }
            self.merge();
        }
        panic!("no memory for {class:?}");
    }

    fn free(&mut self, index: usize) -> Class {
        let before = self.memory.counts().slabs.all();
        let (place, class) = self.used.swap_remove(index);
        block_on(self.slabs.free(&self.memory, place, class));
        self.count(1, before);
        class
    }

    fn free_last(&mut self) {
        self.free(self.used.len() - 1);
    }

    /// The daemon's turns until it has answered.
    fn merge(&mut self) {
        while self.slabs.starving() {
            self.daemon.turn();
        }
    }

    fn report(&mut self, workload: &str) {
        for (kind, series) in ["allocation", "free"].into_iter().enumerate() {
            let (accesses, operations) = std::mem::take(&mut self.accesses[kind]);
            if operations == 0 {
                continue;
            }
            let each = accesses as f64 / operations as f64;
            point("Accesses of the slab allocator (kv-direct §3.3.2)", series, workload, "", each);
        }
    }
}

fn point(group: &str, series: &str, parameter: &str, unit: &str, value: f64) {
    println!(
        r#"{{"group":"{group}","series":"{series}","parameter":"{parameter}","unit":"{unit}","value":{value}}}"#
    );
}

fn accesses() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut rig = Rig::new(PLACES);
    (0..500_000).for_each(|number| rig.allocate((number % 5) as u8));
    rig.report("filling, 32 B to 512 B");
    for _ in 0..1_000_000 {
        let index = rng.random_range(0..rig.used.len());
        let class = rig.free(index);
        rig.allocate(class.number());
    }
    rig.report("steady: one freed, one of the same size allocated");
    for _ in 0..1_000_000 {
        let index = rng.random_range(0..rig.used.len());
        rig.free(index);
        rig.allocate(rng.random_range(0..5));
    }
    rig.report("steady: one freed, one of any size allocated");
    let mut is_freeing = false;
    for _ in 0..1_000_000 {
        let before = rig.memory.counts().slabs.all();
        if is_freeing {
            rig.free_last();
        } else {
            rig.allocate(1);
        }
        is_freeing ^= rig.memory.counts().slabs.all() > before;
    }
    rig.report("alternating: back after each exchange");
    for _ in 0..20 {
        (0..50_000).for_each(|_| rig.allocate(2));
        (0..50_000).for_each(|_| rig.free_last());
    }
    rig.report("bursts of 50,000");
    for (number, workload) in [
        (0, "shifting to 32 B"),
        (4, "shifting from 32 B to 512 B"),
        (0, "shifting from 512 B to 32 B"),
    ] {
        while !rig.used.is_empty() {
            let index = rng.random_range(0..rig.used.len());
            rig.free(index);
        }
        (0..(PLACES / 10 * 9) >> number).for_each(|_| rig.allocate(number));
        rig.report(workload);
    }
}

/// Everything is free, as slabs of 32 bytes in no order, and the largest slab is wanted.
fn merging() {
    for millions in [1, 4, 16] {
        let mut rig = Rig::new(millions << 20);
        (0..millions << 20).for_each(|_| rig.allocate(0));
        rig.used.shuffle(&mut ChaCha8Rng::seed_from_u64(2));
        for (place, class) in rig.used.drain(..) {
            block_on(rig.slabs.free(&rig.memory, place, class));
        }
        let largest = rig.slabs.pools().largest();
        assert_eq!(block_on(rig.slabs.allocate(&rig.memory, largest)), None, "it is in pieces");
        let start = Instant::now();
        rig.merge();
        let seconds = start.elapsed().as_secs_f64();
        rig.allocate(largest.number());
        let named = format!("{millions} Mi free slabs");
        let rate = f64::from(millions << 20) / seconds / 1e6;
        point("Merging on one core (kv-direct Figure 12)", "radix sort", &named, "M/s", rate);
    }
}

/// Slabs of 512 bytes become slabs of 32 as fast as the processor takes them.
fn splitting() {
    let mut rig = Rig::new(PLACES);
    (0..PLACES / 16).for_each(|_| rig.allocate(4));
    while !rig.used.is_empty() {
        rig.free_last();
    }
    let (mut turning, mut turns) = (Duration::ZERO, 0u32);
    let class = Class::SMALLEST;
    for number in 0..PLACES / 10 * 9 {
        block_on(rig.slabs.allocate(&rig.memory, class)).expect("there is memory");
        if number.is_multiple_of(1 << 15) {
            let start = Instant::now();
            rig.daemon.turn();
            turning += start.elapsed();
            turns += 1;
        }
    }
    let rate = f64::from(PLACES / 10 * 9) / turning.as_secs_f64() / 1e6;
    let named = format!("{turns} turns");
    point("Splitting on one core (kv-direct §5.1.2)", "slots of 32 B", &named, "M/s", rate);
}

fn slabs(c: &mut Criterion) {
    accesses();
    merging();
    splitting();
    let rig = Rig::new(PLACES);
    let (memory, slabs) = (&rig.memory, &rig.slabs);
    c.bench_function("allocate and free, 1,000 times", |b| {
        b.iter(|| {
            block_on(async {
                for _ in 0..1000 {
                    let place = slabs.allocate(memory, black_box(Class::SMALLEST)).await;
                    let place = place.expect("there is memory");
                    slabs.free(memory, place, black_box(Class::SMALLEST)).await;
                }
            })
        });
    });
    let mut places = Vec::with_capacity(1000);
    c.bench_function("allocate 1,000 and free them, exchanges included", |b| {
        b.iter(|| {
            block_on(async {
                for _ in 0..1000 {
                    places.extend(slabs.allocate(memory, Class::SMALLEST).await);
                }
                for place in places.drain(..) {
                    slabs.free(memory, place, Class::SMALLEST).await;
                }
            })
        });
    });
}

criterion_group!(benches, slabs);
criterion_main!(benches);
