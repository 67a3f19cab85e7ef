//! Micro-benchmarks of the shm fabric: what a verb costs when its lines are near.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr, lanes};

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

criterion_group!(benches, verbs, copies);
criterion_main!(benches);
