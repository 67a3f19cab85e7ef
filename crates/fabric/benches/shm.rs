//! Micro-benchmarks of the shm fabric: what a verb, and a message, costs when its lines are near.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch_fabric::shm::{MailboxShape, Region, ShmEndpoint, ShmMessages};
use loch_fabric::{Buf, Fabric, Messages, RegionId, RemoteAddr, lanes};

fn endpoint() -> ShmEndpoint {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let region = Region::create(&dir.path().join("region"), 64 << 20).expect("64 MiB");
    let mut fabric = ShmEndpoint::new(RegionId(0));
    fabric.attach(RegionId(0), Arc::new(region));
    fabric
}

fn verbs(c: &mut Criterion) {
    let fabric = endpoint();
    let at = |offset| RemoteAddr::new(RegionId(0), offset);
    c.bench_function("read_bucket", |b| {
        b.iter(|| lanes::block_on(fabric.read_bucket(black_box(at(4096)), 4)));
    });
    c.bench_function("read_words of 3 buckets", |b| {
        let from = [at(0), at(8192), at(16384)];
        let mut words = [0; 12];
        b.iter(|| lanes::block_on(fabric.read_words(black_box(&from), &mut words)));
    });
    c.bench_function("compare_swap", |b| {
        b.iter(|| lanes::block_on(fabric.compare_swap(black_box(at(64)), 0, 0)));
    });
}

fn copies(c: &mut Criterion) {
    let fabric = endpoint();
    let mut group = c.benchmark_group("read");
    for len in [64, 112, 1 << 10, 16 << 10, 128 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |b, len| {
            let mut buf = Some(Buf::with_capacity(*len));
            b.iter(|| {
                let mut taken = buf.take().expect("given back below");
                taken.clear();
                let at = RemoteAddr::new(RegionId(0), 1 << 20);
                buf = Some(lanes::block_on(fabric.read(at, *len, taken)).0);
            });
        });
    }
    group.finish();
}

/// A worker and so many clients, each with a mailbox for all of them.
fn ends(clients: u32) -> (ShmMessages, Vec<ShmMessages>) {
    let shape = MailboxShape::new(clients, 16 << 10);
    let bytes = u64::from(clients + 1) * shape.bytes();
    let region = Arc::new(Region::anonymous(bytes).expect("there is memory"));
    region.populate();
    let end = |number: u32| {
        let offset = u64::from(number) * shape.bytes();
        shape.format(&region, offset);
        let regions = [(RegionId(0), region.clone())];
        ShmMessages::open(regions, RemoteAddr::new(RegionId(0), offset)).expect("just formatted")
    };
    (end(0), (1..=clients).map(end).collect())
}

/// Takes a message; whether there was one.
fn take(end: &ShmMessages, buf: &mut Option<Buf>) -> bool {
    let mut taken = buf.take().expect("given back below");
    taken.clear();
    let result = end.try_receive(taken);
    let there_is = result.is_ok();
    *buf = Some(result.map_or_else(|back| back, |(_, message)| message));
    there_is
}

/// Sending and taking by one thread: the work, without the way from core to core.
fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("message");
    group.throughput(Throughput::Elements(1));
    for len in [8, 64, 256, 1024, 4096] {
        let (worker, clients) = ends(1);
        let to = clients[0].peer(&worker.address()).expect("it has a ring");
        let (message, mut buf) = (vec![7; len], Some(Buf::with_capacity(4096)));
        group.bench_function(BenchmarkId::new("sent and taken", len), |b| {
            b.iter(|| {
                clients[0].send(to, black_box(&message)).expect("it is short");
                black_box(take(&worker, &mut buf))
            });
        });
    }
    for count in [16, 256] {
        let (worker, clients) = ends(count);
        let to: Vec<_> =
            clients.iter().map(|c| c.peer(&worker.address()).expect("a ring")).collect();
        let mut buf = Some(Buf::with_capacity(4096));
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(BenchmarkId::new("one of 64 bytes each, senders", count), |b| {
            b.iter(|| {
                for (client, to) in clients.iter().zip(&to) {
                    client.send(*to, black_box(&[7; 64])).expect("it is short");
                }
                while take(&worker, &mut buf) {}
            });
        });
    }
    group.finish();
}

/// From one thread to another, as fast as it goes: what is lost is not counted.
fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("message to another thread");
    group.throughput(Throughput::Elements(1));
    for together in [1, 16] {
        group.bench_function(BenchmarkId::new("64 bytes, in a doorbell", together), |b| {
            b.iter_custom(|count| stream(count, together));
        });
    }
    group.finish();
}

fn stream(count: u64, together: usize) -> Duration {
    let (worker, mut clients) = ends(1);
    let client = clients.pop().expect("there is one");
    let (address, is_over) = (worker.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let to = client.peer(&address).expect("it has a ring");
            let some = vec![(to, &[7u8; 64][..]); together];
            while !is_over.load(Ordering::Relaxed) {
                let before = client.lost();
                client.send_all(&some).expect("they are short");
                if client.lost() > before {
                    std::hint::spin_loop();
                }
            }
        });
        let mut buf = Some(Buf::with_capacity(64));
        while !take(&worker, &mut buf) {}
        let began = Instant::now();
        let mut taken = 0;
        while taken < count {
            taken += u64::from(take(&worker, &mut buf));
        }
        is_over.store(true, Ordering::Relaxed);
        began.elapsed()
    })
}

criterion_group!(benches, verbs, copies, messages, streams);
criterion_main!(benches);
