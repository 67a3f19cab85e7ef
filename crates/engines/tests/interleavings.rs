//! The protocol under every kind of interleaving, verb by verb, with clients that die: random
//! schedules, each from a seed, each history checked for linearizability.
//!
//! The index is so small and full that entries move all the time, and memory is so scarce that
//! entries are reused at once.

mod cluster;
mod stepped;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::nessie::geometry::Options;
use loch_engines::nessie::{Client, Conditional, Expect, PutOptions};
use loch_engines::operation::Version;
use loch_fabric::lanes::block_on;
use loch_fabric::{Buf, Fabric};
use loch_history::{Answer, Ask, History, Operation, Outcome, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stepped::{Run, Stepped};

const KEYS: u8 = 3;
const CLIENTS: usize = 4;
const OPERATIONS: usize = 7;
/// A schedule that takes longer than this is stuck.
const STEPS_MAX: u64 = 200_000;
/// Configurations the checker may look at for a key of one schedule.
const BUDGET: u64 = 1_000_000;
/// A version that no value ever has.
const NO_VERSION: u64 = 1 << 63;

/// Keys that nobody asks for. The first client puts and deletes them, so that others have to move.
fn in_the_way(key: u8) -> [u8; 2] {
    [b'x', key]
}

fn ask(random: &mut ChaCha8Rng, value: u64) -> Ask {
    match random.random_range(0..15) {
        0..5 => Ask::Get,
        5..8 => Ask::Put(value),
        8 => Ask::PutIfAbsent(value),
        9 => Ask::PutIfVersion { version: NO_VERSION, value },
        // The version is put in when it is asked.
        10 => Ask::PutIfVersion { version: 0, value },
        11 => Ask::Delete,
        12 if value.is_multiple_of(2) => Ask::DeleteIfVersion(0),
        12 => Ask::Delete,
        _ => Ask::Add(value),
    }
}

async fn answer<F: Fabric>(client: &Client<F>, key: &[u8], ask: Ask) -> Answer {
    let plain = PutOptions::default();
    let number = |v: &[u8]| u64::from_le_bytes(v.try_into().expect("all values are numbers"));
    let conditional = |conditional| match conditional {
        Conditional::Done(version) => Answer::Stored(version.as_u64()),
        Conditional::Refused(version) => Answer::Refused(version.map(Version::as_u64)),
    };
    let done = match ask {
        Ask::Get => {
            let found = client.get(key, Buf::new()).await;
            found.map(|found| Answer::Found(found.map(|v| (number(&v), v.version().as_u64()))))
        }
        Ask::Put(v) => {
            client.put(key, &v.to_le_bytes(), plain).await.map(|it| Answer::Stored(it.as_u64()))
        }
        Ask::PutIfAbsent(v) => {
            let done = client.put_if(key, &v.to_le_bytes(), Expect::Absent, plain).await;
            done.map(conditional)
        }
        Ask::PutIfVersion { version, value } => {
            let expect = Expect::Version(Version::from_u64(version));
            let done = client.put_if(key, &value.to_le_bytes(), expect, plain).await;
            done.map(conditional)
        }
        Ask::Delete => client.delete(key).await.map(Answer::Deleted),
        Ask::DeleteIfVersion(version) => {
            client.delete_if(key, Version::from_u64(version)).await.map(Answer::Deleted)
        }
        Ask::Add(n) => client.fetch_add(key, n).await.map(Answer::Before),
        Ask::Append(_) | Ask::Touch(_) | Ask::Update(_) | Ask::Expire(_) | Ask::Forget => {
            unreachable!("none is asked for")
        }
    };
    match done {
        Ok(answer) => answer,
        Err(
            EngineError::IndexFull { .. }
            | EngineError::OutOfMemory { .. }
            | EngineError::Timeout { .. },
        ) => Answer::NoEffect,
        Err(error) => panic!("{error}"),
    }
}

/// The version that somebody was told of last.
fn told(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Found(found) => found.map(|(_, version)| version),
        Answer::Stored(version) => Some(version),
        Answer::Refused(version) => version,
        _ => None,
    }
}

struct Shape {
    ways: u8,
    bucket_slots: u8,
    cache: bool,
    batched: bool,
    crash: bool,
}

/// Runs one schedule. Panics with the history if it is not linearizable.
#[expect(clippy::too_many_lines, reason = "a scenario, in order")]
fn run(seed: u64, shape: &Shape) -> (u64, u64) {
    let options = Options {
        cache: Some(shape.cache),
        batched_reads: Some(shape.batched),
        ..Options::default()
    };
    let (ways, bucket_slots) = (shape.ways, shape.bucket_slots);
    let plan = Plan {
        ways,
        bucket_slots,
        options,
        // Hardly more slots than keys: whoever inserts has to move somebody.
        tiny_index: Some(if bucket_slots == 1 { 5 } else { 4 }),
        table_bytes: 1536 << 10,
        ..Plan::default()
    };
    let cluster = TestCluster::new(plan);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let run = Rc::new(Run { steps: Cell::new(0), random: ChaCha8Rng::seed_from_u64(!seed).into() });
    let setup = cluster.client(0);
    let slots = cluster.map.shape.geometry.index_slots();
    let crowd = slots as u8;
    for key in 0..crowd - 2 {
        let _ = block_on(setup.put(&in_the_way(key), &[0; 8], PutOptions::default()));
    }
    block_on(setup.detach()).unwrap();

    let history = RefCell::new(Vec::<Operation>::new());
    let clients: Vec<Client<Stepped>> = (0..CLIENTS)
        .map(|_| cluster.client_over(0, |shm| Stepped::new(shm, run.clone())))
        .collect();
    let mut value = 1000;
    let mut works: Vec<Option<Pin<Box<dyn Future<Output = ()> + '_>>>> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let work: Vec<(u8, Ask)> = (0..OPERATIONS)
            .map(|_| {
                value += 1;
                (random.random_range(0..KEYS), ask(&mut random, value))
            })
            .collect();
        let (run, history) = (&run, &history);
        client.set_quarantine(0);
        if number == 0 {
            let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed ^ 0xc70d));
            works.push(Some(Box::pin(async move {
                for _ in 0..4 * OPERATIONS {
                    let key = in_the_way(random.borrow_mut().random_range(0..crowd));
                    let ask = if random.borrow_mut().random() { Ask::Put(0) } else { Ask::Delete };
                    answer(client, &key, ask).await;
                }
            })));
            continue;
        }
        works.push(Some(Box::pin(async move {
            let mut versions = [NO_VERSION; KEYS as usize];
            for (key, mut ask) in work {
                if let Ask::PutIfVersion { version: version @ 0, .. }
                | Ask::DeleteIfVersion(version @ 0) = &mut ask
                {
                    *version = versions[key as usize];
                }
                let at = history.borrow().len();
                history.borrow_mut().push(Operation {
                    client: number as u32,
                    key: key as u64,
                    ask,
                    called: run.steps.get(),
                    returned: u64::MAX,
                    outcome: Outcome::Unknown,
                });
                let answer = answer(client, &[key], ask).await;
                let told = told(answer).unwrap_or(versions[key as usize]);
                versions[key as usize] = told;
                let operation = &mut history.borrow_mut()[at];
                operation.returned = run.steps.get();
                operation.outcome = Outcome::Known(answer);
            }
        })));
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut alive: Vec<usize> = (0..CLIENTS).collect();
    let (mut pick, mut turn) = (0, 0u32);
    while !alive.is_empty() {
        // Turns of one step, and long ones: somebody else does much between two steps of a client.
        if turn == 0 || pick >= alive.len() {
            pick = random.random_range(0..alive.len());
            turn = if random.random() { 1 } else { random.random_range(2..40) };
        }
        turn -= 1;
        let client = alive[pick];
        run.steps.set(run.steps.get() + 1);
        assert!(run.steps.get() < STEPS_MAX, "seed {seed}: stuck");
        let work = works[client].as_mut().expect("only the living are polled");
        let ended = work.as_mut().poll(&mut cx).is_ready();
        let dies = shape.crash && client > 1 && random.random_range(0..150) == 0;
        if ended || dies {
            alive.swap_remove(pick);
        }
        if dies && !ended {
            // As a killed process: nothing of it runs any more, not even a destructor.
            std::mem::forget(works[client].take());
            cluster.kill(clients[client].incarnation());
            end_unanswered(&mut history.borrow_mut(), client, run.steps.get());
        }
    }
    let moves: u64 = clients.iter().map(|c| c.counts().moves.get() + c.counts().helped.get()).sum();
    let history = History::from(history.take());
    let verdict = check(&history, BUDGET);
    assert!(verdict.is_linearizable(), "seed {seed}: {verdict}");
    let report = block_on(setup.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new(), "seed {seed}");
    (history.len() as u64, moves)
}

/// An operation that was under way when its client died happened by then, if ever.
fn end_unanswered(history: &mut [Operation], client: usize, now: u64) {
    let of_client = history.iter_mut().filter(|operation| operation.client == client as u32);
    for operation in of_client.filter(|operation| operation.outcome == Outcome::Unknown) {
        operation.outcome = Outcome::UnknownUntil(now);
    }
}

fn seeds() -> u64 {
    std::env::var("LOCH_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1000)
}

/// Runs many schedules of a shape; `LOCH_SEED=n` runs only that one.
fn explore(shape: &Shape) {
    if let Ok(seed) = std::env::var("LOCH_SEED") {
        run(seed.parse().expect("a seed is a number"), shape);
        return;
    }
    let totals = (0..seeds()).map(|seed| run(seed, shape));
    let (operations, moves) = totals.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!(
        "{} schedules, {operations} operations, {moves} moves made, completed or undone",
        seeds()
    );
    assert!(moves > seeds() / 20, "hardly anything moved");
}

#[test]
fn plain_cuckoo_one_by_one() {
    explore(&Shape { ways: 3, bucket_slots: 1, cache: false, batched: false, crash: false });
}

#[test]
fn plain_cuckoo_together_with_cache() {
    explore(&Shape { ways: 3, bucket_slots: 1, cache: true, batched: true, crash: false });
}

#[test]
fn buckets_of_two_with_deaths() {
    explore(&Shape { ways: 2, bucket_slots: 2, cache: false, batched: false, crash: true });
}

#[test]
fn plain_cuckoo_with_cache_and_deaths() {
    explore(&Shape { ways: 3, bucket_slots: 1, cache: true, batched: true, crash: true });
}

#[test]
fn the_default_shape_with_deaths() {
    explore(&Shape { ways: 3, bucket_slots: 4, cache: false, batched: false, crash: true });
}
