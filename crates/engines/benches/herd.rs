//! Micro-benchmarks of the herd engine: the storage of one worker, on lines that are near and on a
//! table that is much larger than all caches; what the pipeline hides; a whole worker over shm; and
//! one that only polls.
//!
//! Large tables want huge pages. Without a line of code, glibc gives them with
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch_engines::herd::key::KeyHash;
use loch_engines::herd::storage::{Mode, Partition, Plan};
use loch_engines::herd::{Pipeline, Settings, Worker};
use loch_engines::limits::{HERD_DEPTH, HERD_SLOT_BYTES};
use loch_engines::operation::{Operation, Outcome, PutOptions, Version};
use loch_engines::requests::{Area, Body, Holder, RequestMap, Seal, Service, Ticket, WorkerId};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::{MailboxShape, Region, ShmEndpoint, ShmMessages, ShmThread};
use loch_fabric::{Buf, Messages, RegionId, RemoteAddr, prefetch_read};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::xxh3_64;

const SEED: u64 = 7;
/// Keys of 16 bytes and values of 32: the paper's items (herd §5.3).
const VALUE: [u8; 32] = [7; 32];
const PUT: Operation<'_> =
    Operation::Put { value: &VALUE, options: PutOptions { expires_at_ms: None } };
/// Operations between two looks at the clock.
const BATCH: usize = 4096;

fn key_of(item: u64) -> [u8; 16] {
    let mut key = [0x6b; 16];
    key[..8].copy_from_slice(&item.to_le_bytes());
    key
}

/// Keys to be asked for: drawn before anything is timed.
fn trace(items: u64, len: usize) -> Vec<[u8; 16]> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    (0..len).map(|_| key_of(random.random_range(0..items))).collect()
}

/// A partition with so many items, which all fit.
fn filled(mode: Mode, items: u64) -> Partition {
    let slots = items * 2;
    let plan = Plan::new(mode, slots * 40 + items * 80 + (1 << 20), slots).expect("it fits");
    let mut partition = Partition::new(vec![0; plan.words()], &plan);
    for item in 0..items {
        let key = key_of(item);
        let put =
            partition.execute(KeyHash::of(SEED, &key), &key, PUT, Version::from_u64(item + 1), 0);
        put.expect("there is room for all");
    }
    partition
}

/// One operation after the other, as they come out of a pipeline of this depth; how many hit.
fn run(
    partition: &mut Partition,
    keys: &[[u8; 16]],
    operation: Operation<'_>,
    depth: usize,
) -> u64 {
    let mut pipeline = Pipeline::new(depth);
    let mut hits = 0;
    // As the worker: a cache replaces an entry without a look at it.
    let looks = !(partition.loses() && matches!(operation, Operation::Put { .. }));
    let ends = std::iter::repeat_n(None, 2 * depth);
    for key in keys.iter().map(Some).chain(ends) {
        let staged = key.map(|key| (KeyHash::of(SEED, key), key));
        if let Some((hash, _)) = staged
            && depth > 0
        {
            prefetch_read(partition.bucket_line(hash));
        }
        let out = pipeline.push(staged, |(hash, _)| {
            if looks && let Some(line) = partition.entry_line(*hash) {
                prefetch_read(line);
                prefetch_read(line.get(8..).unwrap_or_default());
            }
        });
        if let Some((hash, key)) = out {
            let outcome = partition.execute(hash, key, operation, Version::from_u64(1), 0);
            let sum = match outcome {
                Ok(Outcome::Found { value, .. }) => u64::from(value[0] == 7),
                Ok(Outcome::Stored(version)) => version.as_u64(),
                _ => 0,
            };
            hits += sum;
        }
    }
    hits
}

fn near(c: &mut Criterion) {
    let mut group = c.benchmark_group("48-byte items, 10 thousand");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, mode) in [("cache", Mode::Cache), ("store", Mode::Store)] {
        let keys = trace(10_000, BATCH);
        let mut partition = None;
        for (verb, operation) in [("get", Operation::Get), ("put", PUT)] {
            group.bench_function(BenchmarkId::new(verb, name), |b| {
                let partition = partition.get_or_insert_with(|| filled(mode, 10_000));
                b.iter(|| black_box(run(partition, &keys, operation, 0)))
            });
        }
    }
}

fn far(c: &mut Criterion) {
    const ITEMS: u64 = 8 << 20;
    let mut group = c.benchmark_group("48-byte items, 8 million");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
    let trace = trace(ITEMS, 1 << 22);
    for (name, mode) in [("cache", Mode::Cache), ("store", Mode::Store)] {
        // Filled for the first benchmark that is asked for.
        let mut partition = None;
        for (verb, operation) in [("get", Operation::Get), ("put", PUT)] {
            for depth in [0, 1, 4, 8, 16, 32] {
                let mut batches = trace.chunks_exact(BATCH).cycle();
                group.bench_function(BenchmarkId::new(format!("{verb}, {name}"), depth), |b| {
                    let partition = partition.get_or_insert_with(|| filled(mode, ITEMS));
                    b.iter(|| {
                        let keys = batches.next().expect("a cycle does not end");
                        black_box(run(partition, keys, operation, depth))
                    })
                });
            }
        }
    }
}

/// Figure 7: a request that makes so many random accesses, each depending on the one before, and is
/// answered with a message. With prefetching, the accesses of eight requests overlap.
fn accesses(c: &mut Criterion) {
    const WORDS: usize = 1 << 27;
    const REQUESTS: usize = 8;
    let fill = || {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        (0..WORDS).map(|_| random.random_range(0..WORDS as u64)).collect::<Vec<u64>>()
    };
    let mut memory = None;
    let mut group = c.benchmark_group("random accesses of a request");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
    let mut message = [0u8; 96];
    let mut asked = 0u64;
    let mut answer = |word: u64| {
        // The message's own cost: it is composed and its checksum computed. It has a number, or the
        // accesses would soon go round in a circle.
        asked += 1;
        message[..8].copy_from_slice(&word.to_le_bytes());
        message[8..16].copy_from_slice(&asked.to_le_bytes());
        xxh3_64(&message)
    };
    let accesses = |count| format!("{count} access{}", if count == 1 { "" } else { "es" });
    for count in 1..=8 {
        let mut start = 1u64;
        group.bench_function(BenchmarkId::new("without prefetching", accesses(count)), |b| {
            let memory = memory.get_or_insert_with(fill);
            b.iter(|| {
                for _ in 0..BATCH {
                    let mut at = start % WORDS as u64;
                    (0..count).for_each(|_| at = memory[at as usize]);
                    // The next request is known when this one is answered.
                    start = answer(at);
                }
            })
        });
        group.bench_function(BenchmarkId::new("with prefetching", accesses(count)), |b| {
            let memory = memory.get_or_insert_with(fill);
            b.iter(|| {
                for _ in 0..BATCH / REQUESTS {
                    let mut at = [0; REQUESTS];
                    for (n, at) in at.iter_mut().enumerate() {
                        *at = (start ^ (n as u64) << 20) % WORDS as u64;
                        prefetch_read(&memory[*at as usize]);
                    }
                    for _ in 0..count {
                        for at in &mut at {
                            *at = memory[*at as usize];
                            prefetch_read(&memory[*at as usize]);
                        }
                    }
                    start = at.into_iter().map(&mut answer).fold(0, |a, b| a ^ b);
                }
            })
        });
    }
}

/// A worker's requests from many clients, written into its slots, and its replies.
struct Served {
    region: Arc<Region>,
    map: RequestMap,
    worker: Worker<ShmThread>,
    /// Where all clients' replies go.
    replies: ShmMessages,
    /// The number of the next request of each client.
    number: u64,
}

impl Served {
    const CLIENTS: u32 = 64;
    const WINDOW: u16 = 8;
    const NODE: RegionId = RegionId(0);
    const ID: WorkerId = WorkerId { node: 0, worker: 0 };

    fn new(partition: Partition, depth: usize) -> Self {
        let service = Service {
            workers: 1,
            window: Self::WINDOW,
            replies: Self::WINDOW,
            sessions_per_node: Self::CLIENTS,
            request_bytes: HERD_SLOT_BYTES as u32,
            ..Service::default()
        };
        let area = Area::new(service, 1);
        let area = area.expect("it is small");
        let (mailboxes, shape) = (1 << 16, MailboxShape::new(2, 1 << 20));
        let base = mailboxes + 2 * shape.bytes();
        let region = Region::anonymous(base + area.bytes()).expect("there is memory");
        let region = Arc::new(region);
        region.populate();
        let [own, replies] = [0, 1].map(|n| {
            let at = mailboxes + n * shape.bytes();
            shape.format(&region, at);
            let regions = [(Self::NODE, region.clone())];
            ShmMessages::open(regions, RemoteAddr::new(Self::NODE, at)).expect("it is formatted")
        });
        let mut memory = ShmEndpoint::new(Self::NODE);
        memory.attach(Self::NODE, region.clone());
        let fabric = ShmThread { memory, messages: own };
        let to = replies.peer(&fabric.address()).expect("it is there");
        for client in 0..Self::CLIENTS {
            let mut hello = Buf::new();
            let mut ticket = Ticket::new(client, 1, &Body::Hello);
            ticket.number = 1;
            ticket.write(&Body::Hello, Seal::CHECKSUM, &mut hello);
            replies.send(to, &hello).expect("it is short");
        }
        let map = RequestMap::new(area, vec![RemoteAddr::new(Self::NODE, base)]);
        let settings = Settings { seed: SEED, depth };
        let sessions = Box::new(|_, _| Some(Holder::new(1, None)));
        let worker = Worker::open(fabric, &map, Self::ID, partition, settings, sessions)
            .expect("it is mapped");
        Self { region, map, worker, replies, number: 1 }
    }

    /// Writes a windowful of requests of each client, one for each key, and forgets the replies to
    /// those before.
    fn ask(&mut self, keys: &[[u8; 16]], operation: Operation<'_>) {
        let mut buf = Buf::new();
        while let Ok((_, mut reply)) = self.replies.try_receive(std::mem::take(&mut buf)) {
            reply.clear();
            buf = reply;
        }
        let incarnation = self.region.word(self.map.incarnation_addr(Self::ID).offset());
        let worker = incarnation.load(std::sync::atomic::Ordering::Relaxed) as u32;
        let slot_bytes = u64::from(self.map.area().service().request_bytes);
        let mut keys = keys.iter();
        for client in 0..Self::CLIENTS {
            for number in self.number..self.number + u64::from(Self::WINDOW) {
                let key = keys.next().expect("a key for each request");
                let mut ticket = Ticket::new(client, 1, &Body::one(key, operation));
                (ticket.worker, ticket.number) = (worker, number);
                let mut message = Buf::new();
                ticket.write(&Body::one(key, operation), Seal::CHECKSUM, &mut message);
                let end = self.map.request_addr(Self::ID, client, number).offset() + slot_bytes;
                self.region.copy_in(end - message.len() as u64, &message);
            }
        }
        self.number += u64::from(Self::WINDOW);
    }

    /// Takes turns until everything that was asked has been executed. A function of its own, so
    /// that its instructions can be counted.
    #[inline(never)]
    fn work(&mut self) {
        let until = (self.number - 1) * u64::from(Self::CLIENTS);
        while self.worker.executed() < until {
            block_on(self.worker.turn()).expect("the region is mapped");
        }
    }
}

/// The worker alone, on one core: what it does from a request in its slot to the reply in the
/// client's mailbox.
fn worker(c: &mut Criterion) {
    const REQUESTS: usize = Served::CLIENTS as usize * Served::WINDOW as usize;
    for (name, items) in [("10 thousand", 10_000), ("8 million", 8 << 20)] {
        let mut group = c.benchmark_group(format!("a worker with {name} 48-byte items"));
        group.throughput(Throughput::Elements(REQUESTS as u64)).sample_size(20);
        let trace = trace(items, 1 << 20);
        for depth in [0, 1, 8, 16] {
            let mut served = None;
            for (verb, operation) in [("get", Operation::Get), ("put", PUT)] {
                let mut batches = trace.chunks_exact(REQUESTS).cycle();
                let deep = format!("{depth} deep");
                group.bench_function(BenchmarkId::new(verb, deep), |b| {
                    let new = || Served::new(filled(Mode::Cache, items), depth);
                    let served = RefCell::new(served.get_or_insert_with(new));
                    b.iter_batched(
                        || {
                            let keys = batches.next().expect("a cycle does not end");
                            served.borrow_mut().ask(keys, operation)
                        },
                        |()| served.borrow_mut().work(),
                        BatchSize::PerIteration,
                    )
                });
            }
        }
    }
}

/// The cost of polling for requests where there are none: slots polled, of clients that had
/// one lately.
fn polls(c: &mut Criterion) {
    const TURNS: u64 = 1000;
    const REQUESTS: usize = Served::CLIENTS as usize * Served::WINDOW as usize;
    let mut group = c.benchmark_group("slots polled by a worker without requests");
    group.throughput(Throughput::Elements(TURNS * u64::from(Served::CLIENTS))).sample_size(20);
    let trace = trace(10_000, REQUESTS);
    let mut served = None;
    group.bench_function(BenchmarkId::new("polls", format!("{} clients", Served::CLIENTS)), |b| {
        let new = || Served::new(filled(Mode::Cache, 10_000), HERD_DEPTH);
        let served = RefCell::new(served.get_or_insert_with(new));
        b.iter_batched(
            || {
                let mut served = served.borrow_mut();
                served.ask(&trace, Operation::Get);
                served.work();
                assert_eq!(served.worker.active(), Served::CLIENTS as usize, "all are polled");
            },
            |()| {
                let worker = &mut served.borrow_mut().worker;
                for _ in 0..TURNS {
                    assert!(!block_on(worker.turn()).expect("the region is mapped"), "all is done");
                }
            },
            BatchSize::PerIteration,
        )
    });
}

criterion_group!(benches, near, far, accesses, worker, polls);
criterion_main!(benches);
