//! What a user's function costs for each element, beside the built-in one that does the same.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loch::{FunctionInstance, FunctionLimits, Functions};
use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::vector::{filter, reduce, scalar, update_all};

const ADD: &str = r#"(module
    (func (export "apply") (param i64 i64) (result i64)
        (i64.add (local.get 0) (local.get 1)))
    (func (export "keep") (param i64 i64) (result i32)
        (i64.gt_u (local.get 0) (local.get 1))))"#;

fn functions(c: &mut Criterion) {
    let mut functions = Functions::new(FunctionLimits::default()).expect("a known machine");
    let module = wat::parse_str(ADD).expect("a module");
    functions.register(1, &module).expect("a good one");
    let user = FunctionInstance::new(Arc::new(functions));
    let mut group = c.benchmark_group("function");
    for (name, function, keeps) in [
        ("built in", Function::Builtin(Builtin::Add), Function::Builtin(Builtin::Greater)),
        ("of a user", Function::User(1), Function::User(1)),
    ] {
        let lambda = Lambda { function, element: Element::U64, operand: 3, second: 0 };
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("scalar", name), |b| {
            b.iter(|| scalar(&lambda, black_box(7), &user));
        });
        let mut value = vec![5; 64 << 10];
        group.throughput(Throughput::Bytes(value.len() as u64));
        group.bench_function(BenchmarkId::new("update", name), |b| {
            b.iter(|| update_all(&lambda, black_box(&mut value), &user));
        });
        group.bench_function(BenchmarkId::new("reduce", name), |b| {
            b.iter(|| reduce(&lambda, black_box(&value), &user));
        });
        let keeps = Lambda { function: keeps, ..lambda };
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::new("filter", name), |b| {
            b.iter(|| {
                out.clear();
                filter(&keeps, black_box(&value), &mut out, &user)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, functions);
criterion_main!(benches);
