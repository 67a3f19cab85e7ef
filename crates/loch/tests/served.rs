//! Tables that workers serve, at nodes with sockets and regions: nodes that stop and start, come
//! late, come back with other memory; who only reads; what a configuration may say.

mod host;

use std::path::{Path, PathBuf};
use std::time::Duration;

use host::{Host, eventually, impatient};
use loch::engines::pilaf;
use loch::{
    ByteSize, Cluster, ConnectOptions, EngineError, Error, ErrorKind, Node, NodeConfig,
    TableConfig, WorkersConfig,
};

fn table(engine: &str) -> TableConfig {
    TableConfig { engine: engine.parse().unwrap(), sessions: Some(8), ..TableConfig::default() }
}

/// A table of pilaf with a log.
fn logging(log: &Path, sync: bool) -> TableConfig {
    let options = pilaf::Options { log: Some(log.into()), sync, ..Default::default() };
    TableConfig { sessions: Some(8), ..TableConfig::new("default", options) }
}

fn config(host: &Host, name: &str, table: TableConfig) -> NodeConfig {
    NodeConfig { tables: vec![table], ..host.config(name) }
}

fn start(host: &Host, name: &str, engine: &str) -> Node {
    Node::start(config(host, name, table(engine))).unwrap()
}

const SERVED: [&str; 5] = ["nessie-server", "nessie-hybrid", "herd", "pilaf", "kv-direct"];

/// A client that does not wait long for workers.
fn brief(host: &Host, name: &str) -> Cluster {
    let options = ConnectOptions {
        operation_timeout: Duration::from_millis(200),
        ..ConnectOptions::default()
    };
    Cluster::connect_with(host.socket(name), options).unwrap()
}

#[test]
fn clients_of_two_nodes_use_one_table() {
    for engine in SERVED {
        let host = Host::of(&["a", "b"]);
        // The second one comes later.
        let mut nodes = vec![start(&host, "a", engine)];
        nodes.push(start(&host, "b", engine));
        let [a, b] = ["a", "b"].map(|name| host.connect(name).table("default").unwrap());
        for i in 0..200u64 {
            a.put(&i.to_le_bytes(), &[engine.len() as u8; 40]).unwrap();
            assert!(b.contains(&i.to_le_bytes()).unwrap(), "{engine} {i}");
            assert_eq!(b.fetch_add(b"n", 1).unwrap(), 2 * i);
            assert_eq!(a.fetch_add(b"n", 1).unwrap(), 2 * i + 1);
        }
        let report = a.check().unwrap();
        assert_eq!((report.values, report.broken), (201, vec![]), "{engine}");
        let usage = b.usage().unwrap();
        assert_eq!(usage.iter().map(|usage| usage.entries).sum::<u64>(), 201, "{engine}");
        assert!(usage.iter().all(|usage| usage.entries > 50), "{engine}: both own keys");
        let info = host.connect("a").info();
        assert_eq!((&info.tables[0].engine[..], info.tables[0].workers), (engine, 1));
        assert_eq!(info.nodes[0].sessions_taken, 1, "workers take no client's session");
    }
}

#[test]
fn a_node_that_is_away_is_named_and_its_table_is_used_again_when_it_is_back() {
    for engine in SERVED {
        let host = Host::new();
        let node = start(&host, "a", engine);
        let cluster = brief(&host, "a");
        let table = cluster.table("default").unwrap();
        table.put(b"key", b"value").unwrap();
        node.stop();
        let error = table.put(b"other", b"value").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{engine}: {error}");
        if engine == "nessie-hybrid" {
            assert!(table.contains(b"key").unwrap(), "GETs are the client's own");
        } else if engine != "pilaf" {
            let error = table.get(b"key").unwrap_err();
            assert!(matches!(error, Error::NodeUnreachable { .. }), "{engine}: {error}");
        }
        let _node = start(&host, "a", engine);
        let keeps = engine.starts_with("nessie");
        eventually("the table works again", || table.put(b"again", b"value").is_ok());
        assert_eq!(table.contains(b"key").unwrap(), keeps, "{engine}");
        let anew = host.connect("a").table("default").unwrap();
        assert_eq!(anew.contains(b"key").unwrap(), keeps, "{engine}");
        assert_eq!(anew.check().unwrap().broken, Vec::<String>::new());
    }
}

#[test]
fn a_logged_table_has_everything_after_an_orderly_stop() {
    let host = Host::new();
    for sync in [false, true] {
        let log = host.dir.path().join(format!("log-{sync}"));
        let logged = logging(&log, sync);
        let config = config(&host, "a", logged);
        let node = Node::start(config.clone()).unwrap();
        let table = host.connect("a").table("default").unwrap();
        for i in 0..100u64 {
            table.put(&i.to_le_bytes(), &i.to_string().into_bytes()).unwrap();
        }
        assert!(table.delete(&7u64.to_le_bytes()).unwrap());
        node.stop();
        // Even its memory may be lost.
        std::fs::remove_file(host.region("a")).unwrap();
        let node = Node::start(config).unwrap();
        let table = host.connect("a").table("default").unwrap();
        for i in 0..100u64 {
            let value = table.get(&i.to_le_bytes()).unwrap();
            assert_eq!(value.map(|v| v.to_vec()), (i != 7).then(|| i.to_string().into_bytes()));
        }
        drop(node);
        std::fs::remove_file(host.region("a")).unwrap();
    }
}

#[test]
fn a_start_that_fails_leaves_no_region_that_it_has_made() {
    let host = Host::new();
    let file = host.dir.path().join("file");
    std::fs::write(&file, "in the log's way").unwrap();
    let fails = |ephemeral, log: &Path| {
        let pilaf = logging(log, false);
        let config = NodeConfig { ephemeral, ..config(&host, "a", pilaf) };
        let error = Node::start(config).err().expect("a file is no folder");
        assert!(matches!(error, Error::WorkerFailed { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("log/node-0") && text.contains("another folder (log)"), "{text}");
        assert!(!host.socket("a").exists());
    };
    for ephemeral in [true, false] {
        fails(ephemeral, &file.join("log"));
        assert!(!host.region("a").exists(), "it was made in vain");
    }
    let pilaf = logging(&host.dir.path().join("log"), false);
    Node::start(config(&host, "a", pilaf)).unwrap().stop();
    fails(true, &file.join("log"));
    assert!(host.region("a").exists(), "it may hold what an earlier node has left");
}

/// Where others have to be known first, a worker begins after the start, and its failure stops the
/// node.
#[test]
fn a_worker_that_cannot_begin_in_a_cluster_loses_no_region() {
    let host = Host::of(&["a", "b"]);
    let file = host.dir.path().join("file");
    std::fs::write(&file, "in the log's way").unwrap();
    let node = |name, ephemeral, log: PathBuf| {
        let pilaf = logging(&log, false);
        Node::start(NodeConfig { ephemeral, ..config(&host, name, pilaf) })
    };
    let _other = node("b", false, host.dir.path().join("log")).unwrap();
    node("a", false, host.dir.path().join("log")).unwrap().stop();
    for ephemeral in [false, true] {
        // If the other node was found in time, the start itself fails; else the node fails later.
        let error = match node("a", ephemeral, file.join("log")) {
            Err(error) => error,
            Ok(fails) => {
                let error = fails.watch().wait().expect("a file is no folder");
                fails.stop();
                error
            }
        };
        assert!(matches!(error, Error::WorkerFailed { .. }), "{error}");
        assert!(host.region("a").exists(), "it may hold what an earlier node has left");
    }
}

#[test]
fn two_tables_with_one_log_folder_are_refused_by_name() {
    let host = Host::new();
    let real = host.dir.path().join("real");
    let link = host.dir.path().join("link");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let pilaf = |name: &str, log: &Path| TableConfig { name: name.into(), ..logging(log, false) };
    let start = |one: &Path, other: &Path| {
        Node::start(NodeConfig {
            memory: ByteSize::new(64 << 20),
            tables: vec![pilaf("one", one), pilaf("other", other)],
            ..host.config("a")
        })
    };
    for (one, other) in [(&real, &real), (&real, &link)] {
        // One that is there, and one that is not yet.
        for (one, other) in [(one.clone(), other.clone()), (one.join("new"), other.join("new"))] {
            let error = start(&one, &other).err().expect("one log is one table's");
            assert!(matches!(error, Error::Config { .. }), "{error}");
            let text = error.to_string();
            let named = ["\"one\"", "\"other\"", &other.display().to_string(), "of its own"];
            assert!(named.iter().all(|word| text.contains(word)), "{text}");
            assert!(!host.region("a").exists() && !host.socket("a").exists());
        }
    }
    start(&real.join("one"), &link.join("other")).unwrap();
}

#[test]
fn a_damaged_log_keeps_the_node_from_starting() {
    let host = Host::new();
    let log = host.dir.path().join("log");
    let config = config(&host, "a", logging(&log, true));
    let node = Node::start(config.clone()).unwrap();
    let table = host.connect("a").table("default").unwrap();
    for i in 0..100u64 {
        table.put(&i.to_le_bytes(), &[1; 100]).unwrap();
    }
    node.stop();
    let segment = std::fs::read_dir(log.join("node-0")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some()).max().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let error = Node::start(config).err().expect("it must not start").to_string();
    assert!(error.contains("damaged") && error.contains("default"), "{error}");
}

#[test]
fn a_node_that_comes_back_with_other_memory_is_served_again() {
    for engine in SERVED {
        let host = Host::of(&["a", "b"]);
        let _a = start(&host, "a", engine);
        let b = start(&host, "b", engine);
        let table = host.connect("a").table("default").unwrap();
        table.put(b"key", b"value").unwrap();
        drop(table);
        b.stop();
        std::fs::remove_file(host.region("b")).unwrap();
        let _b = start(&host, "b", engine);
        // Clients of the new memory are answered by the old node's workers, once they have it.
        let cluster = brief(&host, "b");
        eventually("both answer", || {
            let Ok(table) = cluster.table("default") else { return false };
            (0..20u8).all(|i| table.put(&[i], b"value").is_ok())
        });
    }
}

/// The first session of the new memory had the number of the old memory's first one, and the other
/// node's worker took it for that one: it answered what it had answered last, and executed nothing.
#[test]
fn a_client_of_new_memory_is_not_taken_for_one_of_the_old() {
    for engine in SERVED {
        let host = Host::of(&["a", "b"]);
        let _a = start(&host, "a", engine);
        let b = start(&host, "b", engine);
        let old = brief(&host, "b").table("default").unwrap();
        (0..6u8).for_each(|key| _ = old.put(&[key], b"old").unwrap());
        drop(old);
        b.stop();
        std::fs::remove_file(host.region("b")).unwrap();
        let _b = start(&host, "b", engine);
        let mut opened = None;
        eventually("the table is opened", || {
            opened = brief(&host, "b").table("default").ok();
            opened.is_some()
        });
        let new = opened.unwrap();
        for key in 100..110u8 {
            eventually("it is put", || new.put(&[key], b"new").is_ok());
            let found = new.get(&[key]).unwrap();
            assert_eq!(found.as_deref(), Some(&b"new"[..]), "{engine}: acknowledged, key {key}");
        }
    }
}

/// Only the table's housekeeper puts pieces of memory together, and it sleeps until a worker wakes
/// it.
#[test]
fn memory_that_was_cut_for_short_values_has_room_for_long_ones_later() {
    let host = Host::new();
    let (memory, value_max) = (Some(ByteSize::new(8 << 20)), Some(ByteSize::new(8 << 10)));
    let small = TableConfig { memory, value_max, ..table("kv-direct") };
    let _node = Node::start(config(&host, "a", small)).unwrap();
    let table = host.connect("a").table("default").unwrap();
    let mut keys = 0u32..;
    let error = keys.find_map(|key| table.put(&key.to_le_bytes(), &[7; 450]).err()).unwrap();
    assert!(matches!(error.engine(), Some(EngineError::OutOfMemory { .. })), "{error}");
    for key in 0..keys.start {
        table.delete(&key.to_le_bytes()).unwrap();
    }
    for key in 0..100u32 {
        table.put(&key.to_le_bytes(), &[7; 8 << 10]).unwrap();
    }
}

#[test]
fn a_reading_client_reads_tables_whose_gets_are_its_own_work() {
    for engine in SERVED {
        let host = Host::new();
        let _node = start(&host, "a", engine);
        host.connect("a").table("default").unwrap().put(b"key", b"value").unwrap();
        let options = ConnectOptions { read_only: true, ..impatient() };
        let cluster = Cluster::connect_with(host.socket("a"), options).unwrap();
        let table = cluster.table("default").unwrap();
        if ["herd", "kv-direct"].contains(&engine) {
            let error = table.get(b"key").unwrap_err();
            assert_eq!(error.engine(), Some(&EngineError::NeedsSession), "{error}");
            assert!(error.to_string().contains("attach for writing"), "{error}");
        } else {
            assert_eq!(&table.get(b"key").unwrap().unwrap()[..], b"value", "{engine}");
            assert!(table.contains(b"key").unwrap() && !table.contains(b"none").unwrap());
        }
        assert_eq!(
            table.put(b"key", b"x").unwrap_err().engine(),
            Some(&EngineError::ReadOnly),
            "{engine}"
        );
        let refused = table.reserve(b"key", 1).err().unwrap();
        assert_eq!(refused.engine(), Some(&EngineError::ReadOnly), "{engine}");
        let entries: u64 = table.usage().unwrap().iter().map(|usage| usage.entries).sum();
        assert_eq!(entries, 1, "{engine}");
    }
}

#[test]
fn a_session_beyond_the_tables_is_refused_and_given_back() {
    let host = Host::new();
    let few = TableConfig { sessions: Some(2), ..table("herd") };
    let _node = Node::start(config(&host, "a", few)).unwrap();
    let cluster = host.connect("a");
    let _tables = [(); 2].map(|()| cluster.table("default").unwrap());
    let error = cluster.table("default").err().unwrap();
    assert!(matches!(error, Error::SessionsExhausted { sessions: 2, .. }), "{error}");
    eventually("its session ends", || cluster.info().nodes[0].sessions_taken == 2);
}

#[test]
fn the_default_memory_makes_a_table_of_every_engine() {
    for engine in ["nessie-server", "nessie-hybrid+", "herd", "pilaf", "kv-direct"] {
        let host = Host::new();
        let default = NodeConfig::default();
        let config = NodeConfig {
            memory: default.memory,
            sessions: default.sessions,
            tables: vec![TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() }],
            ..host.config("a")
        };
        let _node = Node::start(config).unwrap();
        let cluster = host.connect("a");
        let max = cluster.info().tables[0].value_bytes_max;
        let table = cluster.table("default").unwrap();
        let len = max as usize - if engine == "herd" { 10 } else { 0 };
        table.put(b"key", &vec![7; len]).unwrap();
        assert_eq!(table.get(b"key").unwrap().unwrap().len(), len, "{engine}");
        println!("{engine}: values up to {}", ByteSize::new(max));
    }
}

#[test]
fn a_worker_that_cannot_be_bound_keeps_the_node_from_starting() {
    let host = Host::new();
    let workers = WorkersConfig { cores: vec![1000], ..WorkersConfig::default() };
    let config = NodeConfig { workers, ..config(&host, "a", table("herd")) };
    let error = Node::start(config.clone()).err().expect("there is no such processor");
    assert!(matches!(&error, Error::Config { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("workers: cores") && text.contains("processor 1000"), "{text}");
    assert!(!config.region_path().exists(), "no memory was prepared");
}
