//! The operations of a table, on nodes inside the test's process.

use std::io::Write;
use std::time::{Duration, SystemTime};

use loch::lanes::{block_on, run};
use loch::{
    ByteSize, Cluster, Conditional, EmbeddedConfig, Error, Expect, PutOptions, Table, TableConfig,
    Version,
};

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
fn a_value_is_put_read_and_deleted() {
    let table = table();
    assert_eq!(bytes(&table, b"key"), None);
    let first = table.put(b"key", b"value").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
    let second = table.put(b"key", b"").unwrap();
    assert_ne!(first, second);
    let value = table.get(b"key").unwrap().unwrap();
    assert_eq!((value.len(), value.version(), value.expires_at()), (0, second, None));
    assert!(table.contains(b"key").unwrap());
    assert!(table.delete(b"key").unwrap() && !table.delete(b"key").unwrap());
    assert!(!table.contains(b"key").unwrap());
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
    assert!(matches!(table.get(b""), Err(Error::KeyEmpty)));
    assert!(matches!(table.put(b"", b"v"), Err(Error::KeyEmpty)));
    let long = vec![0; loch::limits::KEY_BYTES_MAX + 1];
    for error in [
        table.get(&long).unwrap_err(),
        table.put(&long, b"v").unwrap_err(),
        table.delete(&long).unwrap_err(),
        table.contains(&long).unwrap_err(),
        table.get_many(&[&long]).unwrap_err(),
        table.reserve(&long, 1).err().unwrap(),
    ] {
        assert!(matches!(error, Error::KeyTooLong { len: 65537 }), "{error}");
    }
    let value = vec![0; 16 << 20];
    let error = table.put(b"key", &value).unwrap_err();
    assert!(matches!(error, Error::ValueTooLong { len, .. } if len == 16 << 20), "{error}");
    assert!(error.to_string().contains("value_max"), "{error}");
    assert!(matches!(table.reserve(b"key", 1 << 40), Err(Error::ValueTooLong { .. })));
    assert!(matches!(table.fetch_add(b"key", 1), Err(Error::NotACounter { len: 5 })));
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
}

#[test]
fn conditions_are_kept() {
    let table = table();
    let Conditional::Done(first) = table.put_if_absent(b"key", b"one").unwrap() else {
        panic!("it was absent");
    };
    let refused = Conditional::Refused(Some(first));
    assert_eq!(table.put_if_absent(b"key", b"two").unwrap(), refused);
    let other = Version::from_u64(first.as_u64() ^ 1);
    assert_eq!(table.put_if_version(b"key", b"two", other).unwrap(), refused);
    let done = table.put_if_version(b"key", b"two", first).unwrap();
    assert!(matches!(done, Conditional::Done(_)));
    assert_eq!(bytes(&table, b"key"), Some(b"two".to_vec()));
    let none = table.put_if_version(b"none", b"x", first).unwrap();
    assert_eq!(none, Conditional::Refused(None));
    let ttl = PutOptions { ttl: Some(Duration::from_secs(60)) };
    let done = table.put_if(b"timed", b"x", Expect::Absent, ttl).unwrap();
    assert!(matches!(done, Conditional::Done(_)));
    assert!(table.get(b"timed").unwrap().unwrap().expires_at().is_some());
}

#[test]
fn a_value_with_a_time_to_live_expires() {
    let table = table();
    let ttl = |ms| PutOptions { ttl: Some(Duration::from_millis(ms)) };
    table.put_with(b"now", b"x", ttl(0)).unwrap();
    assert_eq!(bytes(&table, b"now"), None);
    let before = SystemTime::now();
    table.put_with(b"later", b"x", ttl(60_000)).unwrap();
    let expires = table.get(b"later").unwrap().unwrap().expires_at().unwrap();
    let lives = expires.duration_since(before).unwrap();
    assert!((59_000..62_000).contains(&lives.as_millis()), "{lives:?}");
    let for_ever = PutOptions { ttl: Some(Duration::MAX) };
    table.put_with(b"ever", b"x", for_ever).unwrap();
    assert!(table.contains(b"ever").unwrap());
}

#[test]
fn many_at_a_time_come_back_in_order() {
    let table = table().with_lanes(7);
    let pairs: Vec<_> = (0..1000u32).map(|i| (i.to_le_bytes(), i.to_string())).collect();
    let versions = table.put_many(&pairs).unwrap();
    let keys: Vec<_> = (0..1100u32).map(u32::to_le_bytes).collect();
    let values = table.get_many(&keys).unwrap();
    for (i, value) in values.iter().enumerate() {
        let Some(value) = value else {
            assert!(i >= 1000, "{i} is missing");
            continue;
        };
        assert_eq!(&value[..], i.to_string().as_bytes());
        assert_eq!(value.version(), versions[i]);
    }
    assert!(table.get_many::<&[u8]>(&[]).unwrap().is_empty());
    let wrong = table.put_many(&[(&b"good"[..], &b"v"[..]), (b"", b"v")]);
    assert!(matches!(wrong, Err(Error::KeyEmpty)));
}

#[test]
fn lanes_mix_all_operations() {
    let table = table();
    let lanes = table.asynch();
    let mut last = 0;
    let work = (0..500u64).map(|i| async move {
        let key = (i % 16).to_le_bytes();
        lanes.put(&key, &i.to_le_bytes()).await?;
        assert!(lanes.contains(&key).await?);
        lanes.fetch_add(b"operations", 1).await
    });
    block_on(run(16, work, |before| last = last.max(before.unwrap())));
    assert_eq!(last, 499);
    let mut reserved = block_on(lanes.reserve(b"in place", 3)).unwrap();
    reserved.write_at(0, b"abc").unwrap();
    block_on(reserved.commit_async()).unwrap();
    assert_eq!(bytes(&table, b"in place"), Some(b"abc".to_vec()));
}

#[test]
fn a_value_is_written_in_place() {
    let table = table();
    let mut value = table.reserve(b"key", 10).unwrap();
    assert_eq!(value.len(), 10);
    assert!(!value.as_mut_ptr().unwrap().is_null());
    value.write_all(b"01234").unwrap();
    value.write_at(5, b"56789").unwrap();
    let error = value.write_at(6, b"56789").unwrap_err();
    assert!(matches!(error, Error::OutsideReservation { end: 11, len: 10 }), "{error}");
    assert!(value.write_at(usize::MAX, b"x").is_err());
    assert_eq!(value.write(b"5678901").unwrap(), 5);
    assert!(value.write_all(b"x").is_err(), "it is full");
    assert_eq!(bytes(&table, b"key"), None, "it is not committed");
    value.commit().unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"0123456789".to_vec()));
    drop(table.reserve(b"key", 10).unwrap());
    assert_eq!(bytes(&table, b"key"), Some(b"0123456789".to_vec()));
    assert_eq!(table.check().unwrap().unshown, 0, "it leaves nothing behind");
}

#[test]
fn every_thread_has_its_own_table_of_every_node() {
    let cluster = embedded(3);
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let cluster = cluster.with_home(thread % 3).unwrap();
            scope.spawn(move || {
                let table = cluster.table("default").unwrap();
                for i in 0..2000u64 {
                    table.put(&(i % 50).to_le_bytes(), &i.to_le_bytes()).unwrap();
                    table.fetch_add(b"puts", 1).unwrap();
                }
            });
        }
    });
    let table = cluster.table("default").unwrap();
    assert_eq!(table.fetch_add(b"puts", 0).unwrap(), 12_000);
    let report = table.check().unwrap();
    assert_eq!((report.broken, report.values, report.unshown), (vec![], 51, 0));
    let usage = table.usage().unwrap();
    assert_eq!(usage.iter().map(|u| u.entries).sum::<u64>(), 51);
    assert_eq!(usage.len(), 3);
    let info = cluster.info();
    assert_eq!((info.nodes.len(), info.nodes[0].sessions_taken), (3, 1));
    assert!(matches!(cluster.with_home(3), Err(Error::ClusterMismatch { .. })));
}

#[test]
fn a_table_goes_to_another_thread_and_outlives_its_cluster() {
    let table = table();
    table.put(b"key", b"value").unwrap();
    let moved = std::thread::spawn(move || bytes(&table, b"key"));
    assert_eq!(moved.join().unwrap(), Some(b"value".to_vec()));
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
    assert!(matches!(small.put(b"key", &[0; 101]), Err(Error::ValueTooLong { max: 100, .. })));
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
    assert!(matches!(&error, Error::OutOfMemory { table, .. } if table == "default"), "{error}");
    assert!(stored > 100, "{stored}");
    for key in 0..stored {
        assert_eq!(bytes(&table, &key.to_le_bytes()).map(|v| v.len()), Some(100_000));
    }
    assert!(table.delete(&0u64.to_le_bytes()).unwrap());
    table.put(b"again", &value).unwrap();
}

#[test]
fn what_operations_cost_is_counted() {
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
