//! Micro-benchmarks of the kv-direct engine: one processor on one core, from packets in its request
//! slots to results in its clients' reply slots.
//!
//! Large tables want huge pages. Without a line of code, glibc gives them with
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::disallowed_types, reason = "a bench measures real time")]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::item::{Format, Item};
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::storage::{Options, Plan, Storage};
use loch_engines::kv_direct::tuning::Corpus;
use loch_engines::kv_direct::{Settings, Worker, service};
use loch_engines::lines::{Line, Near};
use loch_engines::operation::{Operation, PutOptions, Version};
use loch_engines::requests::packet::Writer;
use loch_engines::requests::{Area, Body, Holder, RequestMap, Seal, Ticket, Turns, WorkerId};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Buf, RegionId, RemoteAddr};
use rand::distr::Distribution;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 7;
/// Keys of 8 bytes and values of 8: the 16-byte key-values of the paper's tiny ones (kv-direct
/// §5.2.2).
const VALUE: [u8; 8] = [7; 8];
const PUT: Operation<'_> =
    Operation::Put { value: &VALUE, options: PutOptions { expires_at_ms: None } };
const GET: Operation<'_> = Operation::Get;
const COUNT: Operation<'_> = Operation::Update(Lambda {
    function: Function::Builtin(Builtin::Add),
    element: Element::U64,
    operand: 1,
    second: 0,
});

fn key_of(item: u64) -> [u8; 8] {
    item.to_le_bytes()
}

/// A partition with so many items, which take a quarter of its memory, and tuned for that: two of
/// them fill a bucket.
fn filled(items: u64) -> Storage<Near<Vec<Line>>> {
    const SHARE: u64 = 4;
    let format = Format { key_bytes: Some(8), versions: false };
    let corpus = Corpus::of_one_size(format, 8, VALUE.len(), 1.0 / SHARE as f64);
    let tuned = corpus.tune().expect("there is room");
    let options = Options {
        bytes: items * 16 * SHARE,
        index_ratio: tuned.index_ratio,
        inline_bytes_max: tuned.inline_bytes_max,
        versions: false,
        value_bytes_max: 64,
        key_bytes: Some(8),
    };
    let plan = Plan::new(&options).expect("it can be laid out");
    let memory = Near::new(vec![Line::ZERO; plan.lines() as usize]);
    let storage = Storage::new(memory, &plan, plan.pools());
    let mut item = Item::default();
    for number in 0..items {
        let (key, hash) = (key_of(number), KeyHash::of(SEED, &key_of(number)));
        block_on(async {
            let mut lookup = storage.lookup(hash, &key, &mut item).await.expect("it is sound");
            storage
                .store(&mut lookup, &key, &VALUE, Version::from_u64(0), None)
                .await
                .expect("there is room");
        });
    }
    storage
}

/// Keys that are drawn before anything is timed.
fn uniform(items: u64, len: usize) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    (0..len).map(|_| random.random_range(0..items)).collect()
}

fn zipf(items: u64, len: usize) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let zipf = rand_distr::Zipf::new(items as f64, 0.99).expect("it is one");
    // Popular keys are not neighbours.
    let scatter = |rank: f64| (rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % items;
    (0..len).map(|_| scatter(zipf.sample(&mut random))).collect()
}

/// A processor, and packets of many clients in its slots.
struct Served<'a> {
    region: Arc<Region>,
    map: Arc<RequestMap>,
    turns: Box<dyn Turns + 'a>,
    executed: Box<dyn Fn() -> u64 + 'a>,
    number: u64,
    asked: u64,
    packet: Writer,
}

impl Served<'_> {
    const CLIENTS: u32 = 8;
    const WINDOW: u16 = 8;
    const NODE: RegionId = RegionId(0);
    const ID: WorkerId = WorkerId { node: 0, worker: 0 };

    /// Serves with `storage` as long as the process lives.
    fn new(storage: Storage<Near<Vec<Line>>>, settings: Settings) -> Served<'static> {
        let area = Area::new(service(1, Self::WINDOW, Self::CLIENTS, 8192, 200).unwrap(), 1);
        let area = area.expect("it is small");
        let base = 1 << 16;
        let region = Arc::new(Region::anonymous(base + area.bytes()).expect("there is memory"));
        region.populate();
        let mut fabric = ShmEndpoint::new(Self::NODE);
        fabric.attach(Self::NODE, region.clone());
        let map = Arc::new(RequestMap::new(area, vec![RemoteAddr::new(Self::NODE, base)]));
        let sessions = Box::new(|_, _| Some(Holder::new(1, None)));
        let worker = Worker::open(fabric, &map, Self::ID, storage, (), SEED, settings, sessions);
        let worker: &'static _ = Box::leak(Box::new(worker.expect("it is mapped")));
        Served {
            region,
            map,
            turns: Box::new(worker.serve()),
            executed: Box::new(|| worker.counts().executed),
            number: 1,
            asked: 0,
            packet: Writer::default(),
        }
    }

    /// Writes a windowful of packets of each client.
    fn ask(&mut self, keys: &[u64], operation: Operation<'_>, batch: usize) {
        let incarnation = self.region.word(self.map.incarnation_addr(Self::ID).offset());
        let worker = incarnation.load(std::sync::atomic::Ordering::Relaxed) as u32;
        let slot_bytes = u64::from(self.map.area().service().request_bytes);
        let mut batches = keys.chunks_exact(batch);
        for client in 0..Self::CLIENTS {
            for number in self.number..self.number + u64::from(Self::WINDOW) {
                self.packet.clear();
                let keys = batches.next().expect("keys for each packet");
                keys.iter().for_each(|key| self.packet.push(&key_of(*key), &operation));
                self.asked += batch as u64;
                let bytes = self.packet.bytes();
                let body = Body::Packet { bytes, is_read: self.packet.is_read() };
                let mut ticket = Ticket::new(client, 1, &body);
                (ticket.worker, ticket.number) = (worker, number);
                let mut message = Buf::new();
                ticket.write(&body, Seal::CHECKSUM, &mut message);
                let end = self.map.request_addr(Self::ID, client, number).offset() + slot_bytes;
                self.region.copy_in(end - message.len() as u64, &message);
            }
        }
        self.number += u64::from(Self::WINDOW);
    }

    /// Takes turns until everything that was asked has been answered. A function of its own, so
    /// that its instructions can be counted.
    #[inline(never)]
    fn work(&mut self) {
        while (self.executed)() < self.asked {
            self.turns.turn().expect("the region is mapped");
        }
        while self.turns.turn().expect("the region is mapped") {}
    }
}

/// Packets that are asked at once.
const PACKETS: usize = Served::CLIENTS as usize * Served::WINDOW as usize;
const TABLES: [(&str, u64); 2] = [("10 thousand", 10_000), ("16 million", 16 << 20)];

/// As a table without versions has them.
fn settings() -> Settings {
    Settings { versions: false, ..Settings::default() }
}

/// The gain from popular keys, by turns, so that other load of the machine does not matter.
fn popularity(c: &mut Criterion) {
    const BATCH: usize = 64;
    let mut group = c.benchmark_group("popular keys");
    for (name, items) in TABLES {
        let mut table = None;
        group.bench_function(BenchmarkId::new("uniform, and zipf", name), |b| {
            let (served, traces) = table.get_or_insert_with(|| {
                let traces = [uniform(items, 1 << 22), zipf(items, 1 << 22)];
                (Served::new(filled(items), settings()), traces)
            });
            b.iter_custom(|rounds| {
                let mut spent = [Duration::ZERO; 2];
                for round in 0..rounds as usize {
                    for (trace, spent) in traces.iter().zip(&mut spent) {
                        let at = round * PACKETS * BATCH % trace.len();
                        served.ask(&trace[at..][..PACKETS * BATCH], GET, BATCH);
                        let from = Instant::now();
                        served.work();
                        *spent += from.elapsed();
                    }
                }
                let [uniform, zipf] = spent.map(|it| it.as_secs_f64());
                println!("{rounds} rounds: zipf 0.99 does {:.2} times as many", uniform / zipf);
                spent[0] + spent[1]
            })
        });
    }
}

fn processor(c: &mut Criterion) {
    for (name, items) in TABLES {
        for batch in [1, 16, 64] {
            let mut group = c.benchmark_group(format!("{name} 16-byte items, {batch} in a packet"));
            let operations = PACKETS * batch;
            group.throughput(Throughput::Elements(operations as u64)).sample_size(20);
            let mut served = None;
            for (verb, operation) in [("get", GET), ("put", PUT), ("count", COUNT)] {
                for (dist, keys) in [("uniform", uniform as fn(u64, usize) -> _), ("zipf", zipf)] {
                    let trace = keys(items, 1 << 20);
                    let mut batches = trace.chunks_exact(operations).cycle();
                    group.bench_function(BenchmarkId::new(verb, dist), |b| {
                        let new = || Served::new(filled(items), settings());
                        let served = RefCell::new(served.get_or_insert_with(new));
                        b.iter_batched(
                            || {
                                let keys = batches.next().expect("a cycle does not end");
                                served.borrow_mut().ask(keys, operation, batch)
                            },
                            |()| served.borrow_mut().work(),
                            BatchSize::PerIteration,
                        )
                    });
                }
            }
        }
    }
}

criterion_group!(benches, processor, popularity);
criterion_main!(benches);
