//! The published protocol, repaired, under every kind of interleaving, verb by verb, with clients
//! that die: random schedules, each from a seed, each history checked for linearizability.
//!
//! The index is so small and full that values are copied from slot to slot all the time, and memory
//! is so scarce that entries are reused at once.

mod cluster;
mod stepped;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::nessie::geometry::{Options, Protocol};
use loch_engines::nessie::{Conditional, Expect, PutOptions, published};
use loch_engines::operation::Version;
use loch_fabric::lanes::block_on;
use loch_fabric::{Buf, Fabric};
use loch_history::{Answer, Ask, History, Operation, Outcome, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stepped::{Run, Stepped};

type Client = published::Client<Stepped>;
/// One client's work. Boxed, because a client that dies leaves it behind.
type Work<'a> = Option<Pin<Box<dyn Future<Output = ()> + 'a>>>;

const KEYS: u8 = 3;
const CLIENTS: usize = 4;
const OPERATIONS: usize = 7;
/// A schedule that takes longer than this is stuck.
const STEPS_MAX: u64 = 400_000;
/// Configurations the checker may look at for a key of one schedule.
const BUDGET: u64 = 1_000_000;

/// Keys that nobody asks for. The first client puts and deletes them, so that others have to move.
fn in_the_way(key: u8) -> [u8; 2] {
    [b'x', key]
}

fn ask(random: &mut ChaCha8Rng, value: u64) -> Ask {
    match random.random_range(0..14) {
        0..5 => Ask::Get,
        5..8 => Ask::Put(value),
        8 => Ask::PutIfAbsent(value),
        // The version is put in when it is asked.
        9 => Ask::PutIfVersion { version: 0, value },
        10 => Ask::Delete,
        11 if value.is_multiple_of(2) => Ask::DeleteIfVersion(0),
        11 => Ask::Delete,
        _ => Ask::Add(value),
    }
}

async fn answer<F: Fabric>(client: &published::Client<F>, key: &[u8], ask: Ask) -> Answer {
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

/// The parameters that distinguish the schedules of one test.
struct Shape {
    ways: u8,
    bucket_slots: u8,
    cache: bool,
    batched: bool,
    previous_versions: bool,
    crash: bool,
}

impl Shape {
    fn plan(&self) -> Plan {
        let Shape { ways, bucket_slots, previous_versions, .. } = *self;
        Plan {
            ways,
            bucket_slots,
            protocol: Protocol::Published { previous_versions },
            options: Options {
                cache: Some(self.cache),
                batched_reads: Some(self.batched),
                ..Options::default()
            },
            // Hardly more slots than keys: whoever inserts has to move somebody.
            tiny_index: Some(if bucket_slots == 1 { 5 } else { 4 }),
            table_bytes: 1536 << 10,
            ..Plan::default()
        }
    }
}

/// A client's operations, noted as they are asked and answered.
async fn operate(
    client: &Client,
    number: usize,
    work: Vec<(u8, Ask)>,
    run: &Run,
    history: &RefCell<Vec<Operation>>,
) {
    let mut versions = [1 << 63; KEYS as usize];
    for (key, mut ask) in work {
        if let Ask::PutIfVersion { version, .. } | Ask::DeleteIfVersion(version) = &mut ask {
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
        versions[key as usize] = told(answer).unwrap_or(versions[key as usize]);
        let operation = &mut history.borrow_mut()[at];
        (operation.returned, operation.outcome) = (run.steps.get(), Outcome::Known(answer));
    }
}

async fn get_in_the_way(client: &Client, crowd: u8, mut random: ChaCha8Rng) {
    for _ in 0..4 * OPERATIONS {
        let key = in_the_way(random.random_range(0..crowd));
        let ask = if random.random() { Ask::Put(0) } else { Ask::Delete };
        answer(client, &key, ask).await;
    }
}

/// Runs one schedule. Panics with the history if it is not linearizable. How many operations there
/// were, and how many moves and aborts.
fn run(seed: u64, shape: &Shape) -> (u64, u64) {
    let cluster = TestCluster::new(shape.plan());
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let run = Rc::new(Run { steps: Cell::new(0), random: ChaCha8Rng::seed_from_u64(!seed).into() });
    let setup = cluster.published_over(0, |shm| shm);
    let crowd = cluster.map.shape.geometry.index_slots() as u8;
    for key in 0..crowd - 2 {
        let _ = block_on(setup.put(&in_the_way(key), &[0; 8], PutOptions::default()));
    }
    block_on(setup.base().detach()).unwrap();

    let history = RefCell::new(Vec::<Operation>::new());
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| cluster.published_over(0, |shm| Stepped::new(shm, run.clone())))
        .collect();
    let mut value = 1000;
    let mut works: Vec<Work<'_>> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        client.base().set_quarantine(0);
        let asked = |_| {
            value += 1;
            (random.random_range(0..KEYS), ask(&mut random, value))
        };
        let work: Vec<(u8, Ask)> = (0..OPERATIONS).map(asked).collect();
        works.push(Some(if number == 0 {
            let random = ChaCha8Rng::seed_from_u64(seed ^ 0xc70d);
            Box::pin(get_in_the_way(client, crowd, random))
        } else {
            Box::pin(operate(client, number, work, &run, &history))
        }));
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut alive: Vec<usize> = (0..CLIENTS).collect();
    let (mut pick, mut turn) = (0, 0u32);
    while !alive.is_empty() {
        // Turns of one step, and long ones: somebody else does much between two steps of a client.
        if turn == 0 || pick >= alive.len() {
            pick = random.random_range(0..alive.len());
            turn = if random.random() { 1 } else { random.random_range(2..60) };
        }
        turn -= 1;
        let client = alive[pick];
        run.steps.set(run.steps.get() + 1);
        if run.steps.get() >= STEPS_MAX {
            // The state of the memory tells whether any client can still go on.
            let report = block_on(setup.check()).unwrap();
            panic!("seed {seed}: stuck: {alive:?} are left; {report:?}; {:?}", history.borrow());
        }
        let work = works[client].as_mut().expect("only the living are polled");
        let ended = work.as_mut().poll(&mut cx).is_ready();
        let dies = shape.crash && client > 1 && random.random_range(0..150) == 0;
        if ended || dies {
            alive.swap_remove(pick);
        }
        if dies && !ended {
            // As a killed process: nothing of it runs any more, not even a destructor.
            std::mem::forget(works[client].take());
            cluster.kill(clients[client].base().incarnation());
            end_unanswered(&mut history.borrow_mut(), client, run.steps.get());
        }
    }
    let counts =
        clients.iter().map(|c| c.base().counts().moves.get() + c.base().counts().helped.get());
    let (history, counts) = (History::from(history.take()), counts.sum());
    let verdict = check(&history, BUDGET);
    assert!(verdict.is_linearizable(), "seed {seed}: {verdict}");
    let report = block_on(setup.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new(), "seed {seed}");
    block_on(setup.scrub(0, 1_000_000)).unwrap();
    let report = block_on(setup.check()).unwrap();
    let left = report.tentative + report.moving + report.unshown;
    assert!(left == 0 && report.broken.is_empty(), "seed {seed}: {report:?}");
    (history.len() as u64, counts)
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
    println!("{} schedules, {operations} operations, {moves} moves and aborts", seeds());
    assert!(moves > seeds() / 20, "hardly anything moved");
}

const PLAIN_CUCKOO: Shape = Shape {
    ways: 3,
    bucket_slots: 1,
    cache: false,
    batched: true,
    previous_versions: true,
    crash: false,
};

#[test]
fn plain_cuckoo_one_by_one() {
    explore(&Shape { batched: false, ..PLAIN_CUCKOO });
}

#[test]
fn plain_cuckoo_together_with_cache() {
    explore(&Shape { cache: true, ..PLAIN_CUCKOO });
}

#[test]
fn plain_cuckoo_one_by_one_with_deaths() {
    explore(&Shape { batched: false, crash: true, ..PLAIN_CUCKOO });
}

#[test]
fn without_previous_versions_with_deaths() {
    explore(&Shape { previous_versions: false, crash: true, ..PLAIN_CUCKOO });
}

#[test]
fn buckets_with_cache_and_deaths() {
    explore(&Shape { ways: 2, bucket_slots: 2, cache: true, crash: true, ..PLAIN_CUCKOO });
}
