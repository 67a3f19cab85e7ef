//! Random interleavings of accesses, couriers and gatherers.

use std::cell::Cell;

use loch_engines::kv_direct::storage::Storage;
use loch_fabric::lanes::{block_on, run};

use super::gatherers::STRIPE_LINES;
use super::reference::{self, Random, Reference, line_of, pending, random, up_to};
use super::*;

/// The transport between threads of one host: nothing has to travel, and a batch goes when all
/// lanes have had this many turns and did not fill it.
struct OneHost {
    turns: u32,
}

impl Courier for OneHost {
    async fn send(&self, _: usize) {}

    async fn fetch(&self, _: usize) {}

    async fn linger(&self) {
        pending(self.turns).await;
    }
}

/// A courier that takes a random time.
struct Jittery(Random);

impl Courier for Jittery {
    async fn send(&self, _: usize) {
        pending(up_to(&self.0, 9)).await;
    }

    async fn fetch(&self, _: usize) {
        pending(up_to(&self.0, 9)).await;
    }

    async fn linger(&self) {
        pending(up_to(&self.0, 9)).await;
    }
}

/// Lets gatherers take their turns at random, until `ended`.
async fn gather(gatherers: &Gatherers, random: &Random, ended: &Cell<bool>) -> u64 {
    while !ended.get() {
        let gatherer = up_to(random, gatherers.len() as u32 - 1) as usize;
        if let Some(batch) = gatherers.take(gatherer) {
            gatherers.perform(gatherer, batch);
        }
        pending(up_to(random, 2) + 1).await;
    }
    0
}

fn check(seed: u64, lines: u32, gatherers: usize, accesses: usize, width: usize) -> Carried {
    let random = random(seed);
    let gatherers = Gatherers::new(lines, gatherers);
    let memory = Gathered {
        accesses_max: accesses,
        ..Gathered::new(gatherers.clone(), Jittery(random.clone()))
    };
    let reference = Reference::new(lines);
    let ended = Cell::new(false);
    let mut done = 0;
    block_on(async {
        let operations = async {
            let work = (0..300).map(|_| reference.operate(&memory, &random));
            run(width, work, |one| done += one).await;
            ended.set(true);
            0
        };
        let both: [std::pin::Pin<Box<dyn Future<Output = u64>>>; 2] =
            [Box::pin(operations), Box::pin(gather(&gatherers, &random, &ended))];
        run(2, both, |_| ()).await;
    });
    assert!(done > 30, "{done} operations of seed {seed}");
    for (at, line) in reference.lines().iter().enumerate() {
        assert_eq!(memory.peek(at as u32), *line, "line {at} of seed {seed}");
    }
    memory.carried.get()
}

#[test]
fn what_is_read_was_last_written() {
    let mut most = 0.0f64;
    for seed in 0..300 {
        let of = |salt: u64, values: &[u32]| values[(seed / salt % values.len() as u64) as usize];
        let (lines, gatherers) = (of(1, &[20, 150, 400]), of(3, &[1, 2, 3]) as usize);
        let carried = check(
            seed,
            lines,
            gatherers,
            of(9, &[1, 3, 256]) as usize,
            of(27, &[1, 5, 40]) as usize,
        );
        most = most.max(carried.accesses as f64 / carried.batches as f64);
    }
    assert!(most > 5.0, "{most} accesses a batch");
}

#[test]
fn entries_are_kept_in_gathered_memory() {
    for seed in 0..20 {
        let random = random(seed);
        let plan = reference::plan(400);
        let gatherers = Gatherers::new(plan.lines(), 2);
        let memory = Gathered::new(gatherers.clone(), Jittery(random.clone()));
        let storage = Storage::new(memory, &plan, plan.pools());
        let ended = Cell::new(false);
        block_on(async {
            let operations = async {
                reference::entries(&storage, &random, 400, 16).await;
                ended.set(true);
                0
            };
            let both: [std::pin::Pin<Box<dyn Future<Output = u64>>>; 2] =
                [Box::pin(operations), Box::pin(gather(&gatherers, &random, &ended))];
            run(2, both, |_| ()).await;
        });
    }
}

#[test]
fn accesses_travel_together() {
    let gatherers = Gatherers::new(1024, 1);
    let memory = Gathered::new(gatherers.clone(), OneHost { turns: 3 });
    let chance = random(1);
    let ended = Cell::new(false);
    block_on(async {
        let accesses = async {
            memory.write_line(Purpose::Index, 700, &line_of([7, 8])).await;
            let reads = (0..600).map(|at| memory.read_line(Purpose::Index, at + 200));
            let mut found = 0;
            run(600, reads, |line| found += usize::from(line == line_of([7, 8]))).await;
            assert_eq!(found, 1);
            ended.set(true);
            0
        };
        let both: [std::pin::Pin<Box<dyn Future<Output = u64>>>; 2] =
            [Box::pin(accesses), Box::pin(gather(&gatherers, &chance, &ended))];
        run(2, both, |_| ()).await;
    });
    // One write, and 600 reads in two full batches and a partial one.
    let carried = memory.carried.get();
    assert_eq!((carried.batches, carried.accesses), (4, 601));
    assert_eq!((carried.sent_bytes, carried.fetched_bytes), (601 * 8 + 64, 600 * 64));
    assert_eq!(memory.counts().index.all(), 601);
}

#[test]
fn stripes_of_gatherers_are_all_lines() {
    for (lines, gatherers) in [(1, 1), (64, 2), (1000, 3), (129, 4)] {
        let gatherers = Gatherers::new(lines, gatherers);
        let mut places: Vec<(usize, u32)> = Vec::new();
        for at in 0..lines {
            let (gatherer, own, rest) = gatherers.place(at);
            assert_eq!(rest, STRIPE_LINES - at % STRIPE_LINES);
            assert_eq!(gatherers.peek(at), Line::ZERO);
            places.push((gatherer, own));
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), lines as usize);
    }
}

#[test]
#[should_panic(expected = "there is no line")]
fn what_is_not_memory_is_not_accessed() {
    let memory = Gathered::new(Gatherers::new(10, 1), OneHost { turns: 0 });
    block_on(memory.read_line(Purpose::Index, 10));
}

#[test]
fn threads_of_the_host_gather() {
    let gatherers = Gatherers::new(1024, 1);
    let memory = Gathered::new(gatherers.clone(), OneHost { turns: 1 });
    let gatherer = std::thread::spawn(move || {
        while Arc::strong_count(&gatherers) > 1 {
            if let Some(batch) = gatherers.take(0) {
                gatherers.perform(0, batch);
            }
        }
    });
    block_on(async {
        memory.write_line(Purpose::Index, 3, &line_of([7, 7])).await;
        assert_eq!(memory.read_line(Purpose::Index, 3).await, line_of([7, 7]));
    });
    drop(memory);
    gatherer.join().unwrap();
}
