//! Computations of kv-direct's tables, where their values are.

use std::time::Duration;

use loch::engines::kv_direct::Options;
use loch::lanes::{block_on, run};
use loch::{
    ByteSize, Cluster, Conditional, EmbeddedConfig, EngineError, Error, Lambda, Number, Table,
    TableConfig,
};

fn cluster(nodes: u16, options: Options) -> Cluster {
    cluster_of(nodes, TableConfig::new("default", options))
}

fn cluster_of(nodes: u16, table: TableConfig) -> Cluster {
    let config = EmbeddedConfig {
        nodes,
        memory: ByteSize::new(16 << 20),
        sessions: 16,
        // Tests are run on busy machines.
        operation_timeout: Duration::from_secs(60),
        tables: vec![table],
        ..EmbeddedConfig::default()
    };
    Cluster::embedded(config).unwrap()
}

fn open() -> Table {
    cluster(1, Options::default()).table("default").unwrap()
}

#[test]
fn one_number_is_updated_and_was_what_it_was() {
    let table = open();
    assert_eq!(table.update(b"n", Lambda::add(5u64)).unwrap(), 0);
    assert_eq!(table.update(b"n", Lambda::subtract(6u64)).unwrap(), 5);
    assert_eq!(table.update(b"n", Lambda::saturating_add(9u64)).unwrap(), u64::MAX);
    assert_eq!(table.update(b"n", Lambda::xor(1u64)).unwrap(), u64::MAX);
    assert_eq!(table.fetch_add(b"n", 1).unwrap(), u64::MAX - 1);
    assert_eq!(table.get(b"n").unwrap().unwrap()[..], u64::MAX.to_le_bytes());
    // As narrow as its type says.
    assert_eq!(table.update(b"b", Lambda::max(-3i8)).unwrap(), 0);
    assert_eq!(table.update(b"b", Lambda::exchange(-3i8)).unwrap(), 0);
    assert_eq!(table.update(b"b", Lambda::min(-100i8)).unwrap(), -3);
    assert_eq!(table.get(b"b").unwrap().unwrap()[..], (-100i8).to_le_bytes());
    assert_eq!(table.update(b"f", Lambda::add(0.25f32)).unwrap(), 0.0);
    assert_eq!(table.update(b"f", Lambda::subtract(1f32)).unwrap(), 0.25);
    assert_eq!(table.update(b"f", Lambda::compare_swap(-0.75, 8f32)).unwrap(), -0.75);
    assert_eq!(table.update(b"f", Lambda::compare_swap(-0.75, 9f32)).unwrap(), 8.0);
}

#[test]
fn many_numbers_are_updated_reduced_and_filtered() {
    let table = open();
    let numbers: Vec<i32> = (-500..500).collect();
    table.put(b"v", &Number::bytes(&numbers)).unwrap();
    assert_eq!(table.reduce(b"v", Lambda::add(0i32)).unwrap(), Some(-500));
    assert_eq!(table.reduce(b"v", Lambda::max(i32::MIN)).unwrap(), Some(499));
    let most = table.filter(b"v", Lambda::greater(496i32)).unwrap();
    assert_eq!(most, Some(vec![497, 498, 499]));
    assert_eq!(table.update_all(b"v", Lambda::add(1i32)).unwrap(), Some(1000));
    let before = table.fetch_update_all(b"v", Lambda::exchange(7i32)).unwrap().unwrap();
    assert!(before.iter().zip(&numbers).all(|(now, was)| *now == was + 1));
    assert_eq!(table.update_each(b"v", Lambda::subtract(0i32), &numbers).unwrap(), Some(1000));
    let before = table.fetch_update_each(b"v", Lambda::add(0i32), &numbers).unwrap().unwrap();
    assert!(before.iter().zip(&numbers).all(|(now, number)| *now == 7 - number));
    assert_eq!(i32::of_bytes(&table.get(b"v").unwrap().unwrap()), [7; 1000]);
    assert_eq!(table.filter(b"v", Lambda::not_equal(7i32)).unwrap(), Some(vec![]));
    // Nothing is made of nothing.
    table.put(b"empty", b"").unwrap();
    assert_eq!(table.reduce(b"empty", Lambda::add(3u8)).unwrap(), Some(3));
    assert_eq!(table.update_all(b"empty", Lambda::add(3u8)).unwrap(), Some(0));
    for key in [&b"none"[..], b"nobody"] {
        assert_eq!(table.update_all(key, Lambda::add(1u8)).unwrap(), None);
        assert_eq!(table.fetch_update_each(key, Lambda::add(1u8), &[1]).unwrap(), None);
        assert_eq!(table.reduce(key, Lambda::add(1u8)).unwrap(), None);
        assert_eq!(table.filter(key, Lambda::less(1u8)).unwrap(), None);
    }
}

#[test]
fn a_function_that_cannot_be_computed_is_named_and_changes_nothing() {
    let table = open();
    table.put(b"v", &[1; 10]).unwrap();
    for error in [
        table.update(b"v", Lambda::add(1u64)).unwrap_err(),
        table.update_all(b"v", Lambda::add(1u32)).unwrap_err(),
        table.update_each(b"v", Lambda::add(1u8), &[1; 11]).unwrap_err(),
        table.reduce(b"v", Lambda::add(1u64)).unwrap_err(),
        table.filter(b"v", Lambda::less(1f32)).unwrap_err(),
    ] {
        assert!(matches!(error.engine(), Some(EngineError::NotAVector { len: 10, .. })), "{error}");
    }
    let error = table.update_all(b"v", Lambda::greater(1u8)).unwrap_err();
    assert_eq!(error.engine(), Some(&EngineError::UnfitFunction), "{error}");
    let error = table.filter(b"v", Lambda::add(1u8)).unwrap_err();
    assert_eq!(error.engine(), Some(&EngineError::UnfitFunction), "{error}");
    let error = table.update_all(b"v", Lambda::user(9, 1u8)).unwrap_err();
    assert_eq!(error.engine(), Some(&EngineError::NoFunction { number: 9 }), "{error}");
    assert_eq!(
        table.reduce(b"", Lambda::add(1u8)).unwrap_err().engine(),
        Some(&EngineError::KeyEmpty)
    );
    assert_eq!(table.get(b"v").unwrap().unwrap()[..], [1; 10]);
}

/// `apply` is v + 3 d, `keep` says whether v is a multiple of d and traps if that is 0.
#[cfg(feature = "functions")]
const MODULE: &str = r#"(module
    (func (export "apply") (param i64 i64) (result i64)
        (i64.add (local.get 0) (i64.mul (local.get 1) (i64.const 3))))
    (func (export "keep") (param i64 i64) (result i32)
        (i64.eqz (i64.rem_u (local.get 0) (local.get 1)))))"#;

#[test]
#[cfg(feature = "functions")]
fn functions_of_users_are_compiled_when_the_nodes_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.wasm");
    std::fs::write(&path, wat::parse_str(MODULE).unwrap()).unwrap();
    let function = loch::FunctionConfig { number: 7, path: path.clone() };
    let declared = Options { functions: vec![function.clone()], ..Options::default() };
    let table = cluster(2, declared).table("default").unwrap();
    for key in 0..8u8 {
        table.put(&[key], &[1, 2, 3, 4]).unwrap();
        assert_eq!(table.update_all(&[key], Lambda::user(7, 2u8)).unwrap(), Some(4));
        assert_eq!(table.get(&[key]).unwrap().unwrap()[..], [7, 8, 9, 10]);
        assert_eq!(table.reduce(&[key], Lambda::user(7, 0u8)).unwrap(), Some(102));
        assert_eq!(table.filter(&[key], Lambda::user(7, 4u8)).unwrap(), Some(vec![8]));
        let error = table.filter(&[key], Lambda::user(7, 0u8)).unwrap_err();
        assert_eq!(error.engine(), Some(&EngineError::FunctionFailed { number: 7 }), "{error}");
        let error = table.filter(&[key], Lambda::user(8, 1u8)).unwrap_err();
        assert_eq!(error.engine(), Some(&EngineError::NoFunction { number: 8 }), "{error}");
    }
    let refused = |functions| {
        let table = TableConfig::new("default", Options { functions, ..Options::default() });
        let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
        Cluster::embedded(config).err().expect("it must not start").to_string()
    };
    let twice = refused(vec![function.clone(), function]);
    assert!(twice.contains("function 7") && twice.contains("f.wasm"), "{twice}");
    let none = refused(vec![loch::FunctionConfig { number: 1, path: dir.path().join("none") }]);
    assert!(none.contains("cannot read"), "{none}");
    std::fs::write(&path, "no module").unwrap();
    let damaged = refused(vec![loch::FunctionConfig { number: 1, path }]);
    assert!(damaged.contains("function 1") && damaged.contains("default"), "{damaged}");
}

#[test]
fn tables_of_other_engines_say_which_can() {
    for engine in ["nessie", "nessie-server", "nessie-hybrid", "herd", "pilaf"] {
        let table = TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() };
        let memory = ByteSize::new(16 << 20);
        let config = EmbeddedConfig { tables: vec![table], memory, ..EmbeddedConfig::default() };
        let table = Cluster::embedded(config).unwrap().table("default").unwrap();
        for error in [
            table.update(b"k", Lambda::add(1u64)).unwrap_err(),
            table.reduce(b"k", Lambda::add(1u64)).unwrap_err(),
        ] {
            assert!(matches!(error, Error::OtherEngine { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(engine) && text.contains("kv-direct"), "{text}");
        }
    }
}

#[test]
fn without_versions_a_value_has_none_and_conditions_on_them_are_refused() {
    let table = Options { versions: Some(false), ..Options::default() };
    let table = cluster(1, table).table("default").unwrap();
    let version = table.put(b"k", b"v").unwrap();
    assert_eq!((version.as_u64(), &table.get(b"k").unwrap().unwrap()[..]), (0, &b"v"[..]));
    let error = table.put_if_version(b"k", b"w", version).unwrap_err();
    assert_eq!(error.engine(), Some(&EngineError::NoVersions), "{error}");
    assert!(error.to_string().contains("versions = true"), "{error}");
    let refused = table.put_if_absent(b"k", b"w").unwrap();
    assert!(matches!(refused, Conditional::Refused(_)));
    assert!(matches!(table.put_if_absent(b"l", b"w").unwrap(), Conditional::Done(_)));
}

#[test]
fn keys_of_one_length_are_all_that_a_table_of_them_takes() {
    let table = Options { key_bytes: Some(8), ..Options::default() };
    let table = cluster(1, table).table("default").unwrap();
    for key in 0..1000u64 {
        table.put(&key.to_le_bytes(), &key.to_be_bytes()).unwrap();
    }
    for key in 0..1000u64 {
        let value = table.get(&key.to_le_bytes()).unwrap().unwrap();
        assert_eq!(value[..], key.to_be_bytes());
    }
    for error in [table.put(b"short", b"v").unwrap_err(), table.get(b"short").unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("has 5 bytes") && text.contains("has 8 (key_bytes)"), "{text}");
    }
}

#[test]
fn lanes_of_many_threads_update_the_same_numbers_once_each() {
    let table = TableConfig::new("default", Options::default());
    let cluster = cluster_of(2, TableConfig { workers: Some(2), ..table });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cluster = cluster.with_home(thread % 2).unwrap();
            scope.spawn(move || {
                let table = cluster.table("default").unwrap();
                let lanes = table.asynch();
                let work = (0..2000u64).map(|i| async move {
                    let key = [b'0' + (i % 4) as u8];
                    lanes.update(&key, Lambda::add(i)).await
                });
                block_on(run(64, work, |before| assert!(before.is_ok())));
            });
        }
    });
    let table = cluster.table("default").unwrap();
    let sum: u64 = (0..4u8).map(|key| table.fetch_add(&[b'0' + key], 0).unwrap()).sum();
    assert_eq!(sum, 4 * (0..2000).sum::<u64>());
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

#[test]
fn operations_of_lanes_at_the_same_time_go_in_few_packets() {
    let counted = |batch| {
        let config = EmbeddedConfig {
            // Requests to the client's own node are no verbs.
            nodes: 2,
            batch,
            tables: vec![TableConfig {
                engine: "kv-direct".parse().unwrap(),
                ..TableConfig::default()
            }],
            ..EmbeddedConfig::default()
        };
        let table = Cluster::embedded(config).unwrap().table("default").unwrap().with_lanes(64);
        let verbs = || table.counters().verbs.verbs;
        // Answers of the other node alone decide which lanes ask together: those of the client's
        // own node would let lanes ask one by one.
        let is_far = |key: &[u8; 4]| {
            let before = verbs();
            assert!(!table.contains(key).unwrap());
            verbs() > before
        };
        let keys: Vec<_> = (0u32..).map(u32::to_le_bytes).filter(is_far).take(640).collect();
        let before = verbs();
        assert!(table.get_many(&keys).unwrap().iter().all(Option::is_none));
        verbs() - before
    };
    // A request and a reply for each of them, or for some dozens.
    let (alone, packed) = (counted(1), counted(256));
    assert!(alone >= 2 * 640, "{alone} verbs");
    assert!(packed * 8 <= alone, "{packed} verbs, {alone} without packets");
}
