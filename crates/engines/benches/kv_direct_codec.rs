//! Micro-benchmarks of what kv-direct does besides memory: packets, and functions on vectors.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::vector::{filter, reduce, update_all, update_each};
use loch_engines::operation::{Operation, Outcome, PutOptions, Version};
use loch_engines::requests::packet::{Cursor, OutcomeWriter, Outcomes, Writer};

/// Operations of a packet.
const BATCH: u64 = 256;

fn keys() -> Vec<[u8; 8]> {
    (0..BATCH).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Key and value have 16 bytes together.
fn packets(c: &mut Criterion) {
    let keys = keys();
    let add = Function::Builtin(Builtin::Add);
    let lambda = Lambda { function: add, element: Element::U64, operand: 1, second: 0 };
    type Make = fn(&[u8; 8], Lambda) -> Operation<'_>;
    let cases: [(&str, Make); 3] = [
        ("get", |_, _| Operation::Get),
        ("put", |key, _| Operation::Put { value: key, options: PutOptions::default() }),
        ("update", |_, lambda| Operation::Update(lambda)),
    ];
    let mut group = c.benchmark_group("packet");
    group.throughput(Throughput::Elements(BATCH));
    for (name, make) in cases {
        let mut packet = Writer::default();
        let pack = |packet: &mut Writer| {
            packet.clear();
            for key in &keys {
                packet.push(key, &make(key, lambda));
            }
        };
        group.bench_function(BenchmarkId::new("pack", name), |b| b.iter(|| pack(&mut packet)));
        pack(&mut packet);
        group.bench_function(BenchmarkId::new("unpack", name), |b| {
            b.iter(|| {
                let mut cursor = Cursor::new(packet.bytes()).expect("it was packed");
                while let Some(operation) = cursor.next(packet.bytes()) {
                    let operation = operation.expect("it was packed");
                    black_box(operation.key(packet.bytes()));
                    black_box(operation.operation(packet.bytes()));
                }
            });
        });
    }
    replies(&mut group, &keys);
    group.finish();
}

fn replies(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    values: &[[u8; 8]],
) {
    let mut packet = OutcomeWriter::default();
    let pack = |packet: &mut OutcomeWriter| {
        packet.clear();
        for value in values {
            packet.push(&Ok(Outcome::Found {
                version: Version::from_u64(0),
                expires_at_ms: None,
                value,
            }));
        }
    };
    group.bench_function(BenchmarkId::new("reply", "get"), |b| b.iter(|| pack(&mut packet)));
    pack(&mut packet);
    group.bench_function(BenchmarkId::new("unpack reply", "get"), |b| {
        b.iter(|| {
            for reply in Outcomes::new(values.len()).all(packet.bytes()) {
                _ = black_box(reply.expect("it was packed"));
            }
        });
    });
}

fn vectors(c: &mut Criterion) {
    for bytes in [1 << 10, 64 << 10, 1 << 20] {
        let mut group = c.benchmark_group(format!("vector of {} KiB", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        // Values stand anywhere.
        let mut value = vec![0; bytes + 3];
        let operands = value.clone();
        let (value, operands) = (&mut value[3..], &operands[1..=bytes]);
        for element in [Element::U8, Element::U32, Element::U64, Element::F32, Element::F64] {
            let operand = 3;
            let with = |function| Lambda {
                function: Function::Builtin(function),
                element,
                operand,
                second: 0,
            };
            let (add, max) = (with(Builtin::Add), with(Builtin::Max));
            let mut bench = |what: &str, work: &mut dyn FnMut(&mut [u8])| {
                let id = BenchmarkId::new(what, format!("{element:?}"));
                group.bench_function(id, |b| b.iter(|| work(black_box(&mut *value))));
            };
            bench("add to all", &mut |value| update_all(&add, value, &()).expect("it fits"));
            bench("add to each", &mut |value| {
                update_each(&add, operands, value, &()).expect("it fits");
            });
            bench("max of all", &mut |value| update_all(&max, value, &()).expect("it fits"));
            let mut fold = |what, lambda: &Lambda| {
                bench(what, &mut |value| {
                    black_box(reduce(lambda, value, &()).expect("it fits"));
                });
            };
            fold("sum", &add);
            fold("greatest", &max);
            let mut out = Vec::new();
            bench("keep the greater", &mut |value| {
                out.clear();
                filter(&with(Builtin::Greater), value, &mut out, &()).expect("it fits");
                black_box(&out);
            });
        }
    }
}

criterion_group!(benches, packets, vectors);
criterion_main!(benches);
