//! Tests of the engine `nessie` alone, on nodes inside the test's process. The
//! tests for every engine are in `behaviour.rs`.

use std::time::Duration;

use loch::{ByteSize, Cluster, EmbeddedConfig, EngineError, Error, Table, TableConfig};

fn embedded(nodes: u16) -> Cluster {
    Cluster::embedded(EmbeddedConfig {
        nodes,
        memory: ByteSize::new(16 << 20),
        sessions: 16,
        // Tests are run on busy machines.
        operation_timeout: Duration::from_secs(60),
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

fn table() -> Table {
    embedded(1).table("default").unwrap()
}

fn bytes(table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    table.get(key).unwrap().map(|value| value.into_vec())
}

#[test]
fn values_of_every_length_come_back_whole() {
    let table = table();
    let mut into = Vec::new();
    for len in [0, 1, 63, 64, 1000, 4096, 4097, 100_000, 3 << 20] {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let version = table.put(b"key", &value).unwrap();
        assert_eq!(bytes(&table, b"key").as_ref(), Some(&value), "{len}");
        assert_eq!(table.get_into(b"key", &mut into).unwrap(), Some(version));
        assert!(into == value, "{len}");
    }
    assert_eq!(table.get_into(b"none", &mut into).unwrap(), None);
    assert!(into.is_empty());
    let longest_key = vec![b'k'; loch::limits::KEY_BYTES_MAX];
    table.put(&longest_key, b"value").unwrap();
    assert_eq!(bytes(&table, &longest_key), Some(b"value".to_vec()));
}

#[test]
fn wrong_arguments_are_named_and_change_nothing() {
    let table = table();
    table.put(b"key", b"value").unwrap();
    assert_eq!(table.get(b"").unwrap_err().engine(), Some(&EngineError::KeyEmpty));
    assert_eq!(table.put(b"", b"v").unwrap_err().engine(), Some(&EngineError::KeyEmpty));
    let long = vec![0; loch::limits::KEY_BYTES_MAX + 1];
    for error in [
        table.get(&long).unwrap_err(),
        table.put(&long, b"v").unwrap_err(),
        table.delete(&long).unwrap_err(),
        table.contains(&long).unwrap_err(),
        table.get_many(&[&long]).unwrap_err(),
        table.reserve(&long, 1).err().unwrap(),
    ] {
        assert!(
            matches!(error.engine(), Some(EngineError::KeyTooLong { len: 65537, .. })),
            "{error}"
        );
    }
    let value = vec![0; 16 << 20];
    let error = table.put(b"key", &value).unwrap_err();
    assert!(
        matches!(error.engine(), Some(EngineError::ValueTooLong { len, .. }) if *len == 16 << 20),
        "{error}"
    );
    assert!(error.to_string().contains("value_max"), "{error}");
    assert!(matches!(
        table.reserve(b"key", 1 << 40),
        Err(Error::Table { source: EngineError::ValueTooLong { .. }, .. })
    ));
    assert_eq!(
        table.fetch_add(b"key", 1).unwrap_err().engine(),
        Some(&EngineError::NotACounter { len: 5 })
    );
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
}

#[test]
fn sessions_run_out_and_come_back() {
    let cluster = embedded(1);
    let mut tables: Vec<_> = (0..16).map(|_| cluster.table("default").unwrap()).collect();
    let error = cluster.table("default").err().unwrap();
    assert!(matches!(error, Error::SessionsExhausted { sessions: 16, .. }), "{error}");
    tables.pop();
    cluster.table("default").unwrap().put(b"key", b"value").unwrap();
}

#[test]
fn tables_are_apart() {
    let named = |name: &str, value_max| TableConfig {
        name: name.into(),
        value_max: Some(ByteSize::new(value_max)),
        ..TableConfig::default()
    };
    let cluster = Cluster::embedded(EmbeddedConfig {
        tables: vec![named("small", 100), named("large", 1 << 20)],
        ..EmbeddedConfig::default()
    })
    .unwrap();
    assert_eq!(cluster.tables(), ["small", "large"]);
    let (small, large) = (cluster.table("small").unwrap(), cluster.table("large").unwrap());
    small.put(b"key", b"s").unwrap();
    large.put(b"key", &[b'l'; 101]).unwrap();
    assert_eq!(bytes(&small, b"key"), Some(b"s".to_vec()));
    assert!(matches!(
        small.put(b"key", &[0; 101]),
        Err(Error::Table { source: EngineError::ValueTooLong { max: 100, .. }, .. })
    ));
    let error = cluster.table("medium").err().unwrap();
    assert!(error.to_string().contains("small, large"), "{error}");
}

#[test]
fn a_full_table_says_so_and_has_room_again() {
    let table = table();
    let value = vec![1; 100_000];
    let mut stored = 0u64;
    let error = loop {
        match table.put(&stored.to_le_bytes(), &value) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 1000);
    };
    assert!(matches!(error.engine(), Some(EngineError::OutOfMemory { .. })), "{error}");
    assert!(error.to_string().starts_with("table \"default\": no memory for"), "{error}");
    assert!(stored > 100, "{stored}");
    for key in 0..stored {
        assert_eq!(bytes(&table, &key.to_le_bytes()).map(|v| v.len()), Some(100_000));
    }
    assert!(table.delete(&0u64.to_le_bytes()).unwrap());
    table.put(b"again", &value).unwrap();
}

#[test]
fn costs_of_operations_are_counted() {
    let table = table();
    table.put(b"key", b"value").unwrap();
    table.get(b"key").unwrap();
    let before = table.counters();
    table.get(b"key").unwrap();
    let cost = table.counters().verbs - before.verbs;
    assert_eq!((cost.round_trips, cost.writes, cost.atomics), (2, 0, 0));
    assert_eq!(table.counters().retries, 0);
}

#[test]
fn a_configuration_that_cannot_be_is_an_error() {
    for config in [
        EmbeddedConfig { nodes: 0, ..EmbeddedConfig::default() },
        EmbeddedConfig { memory: ByteSize::new(4096), ..EmbeddedConfig::default() },
        EmbeddedConfig { sessions: 0, ..EmbeddedConfig::default() },
    ] {
        assert!(matches!(Cluster::embedded(config), Err(Error::Config { .. })));
    }
}
