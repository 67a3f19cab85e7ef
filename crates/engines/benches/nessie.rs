//! Micro-benchmarks of the nessie engine: one operation at a time, on lines that are near.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

#[path = "../tests/cluster/mod.rs"]
mod cluster;

use std::hint::black_box;

use cluster::{Plan, TestCluster};
use criterion::{Criterion, criterion_group, criterion_main};
use loch_engines::nessie::PutOptions;
use loch_engines::nessie::hash::Candidates;
use loch_fabric::{Buf, lanes::block_on};

fn operations(c: &mut Criterion) {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    let (key, value) = (b"a key of 16 byte", [7; 64]);
    let put = || block_on(client.put(key, &value, PutOptions::default())).expect("it fits");
    put();
    c.bench_function("candidates of a key", |b| {
        b.iter(|| Candidates::of(&cluster.map, black_box(key)))
    });
    c.bench_function("get", |b| {
        let mut buf = Some(Buf::with_capacity(256));
        b.iter(|| {
            let found = block_on(client.get(black_box(key), buf.take().unwrap_or_default()));
            buf = found.expect("shm does not fail").map(|f| f.into_buf());
        });
    });
    c.bench_function("get, absent", |b| {
        b.iter(|| block_on(client.get(black_box(b"absent"), Buf::new())))
    });
    c.bench_function("put, update", |b| b.iter(put));
    c.bench_function("delete and put, insert", |b| {
        b.iter(|| {
            block_on(client.delete(key)).expect("shm does not fail");
            put()
        });
    });
    c.bench_function("fetch_add", |b| b.iter(|| block_on(client.fetch_add(b"counter", 1))));
}

criterion_group!(benches, operations);
criterion_main!(benches);
