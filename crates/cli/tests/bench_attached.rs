//! `loch bench --attach`: a cluster that runs already is measured, and left as it is.

#[path = "../../../tests/support/mod.rs"]
mod support;

use serde_json::Value;
use support::{Ended, Node, loch, private_dir, run, socket_of};

fn bench(line: &str) -> Ended {
    let mut command = loch();
    command.arg("bench").args(line.split_whitespace());
    run(&mut command, b"")
}

fn object(line: &str) -> Value {
    bench(&format!("{line} --json --verify")).expect(0, &[]).json()
}

#[test]
fn records_lie_beside_those_of_others_and_stay() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "32MiB"]);
    node.loch(&["put", "colour", "green"]).expect(0, &[]);
    let attached = format!("--attach {} --records 500", socket_of(dir.path(), "n").display());
    let first = object(&format!("{attached} --clients 2 --ops 2000 --reads 0.5"));
    assert_eq!((&first["fabric"], &first["nodes"]), (&"shm".into(), &1.into()), "{first}");
    assert_eq!((&first["ops"], &first["errors"]), (&2000.into(), &0.into()), "{first}");
    assert_eq!(first["gets"], first["get_hits"], "{first}");
    assert!(first["round_trips_per_get"].as_f64() >= Some(2.0), "{first}");
    assert!(first["limit_ops_per_s"].as_f64() > first["ops_per_s"].as_f64(), "{first}");
    // The node is here, so its time is known: it slept.
    assert!(first["server_cpu_s"].as_f64() < Some(0.2), "{first}");

    // Others' keys are as they were, the bench's are there for the next run, and it has left.
    assert_eq!(node.loch(&["get", "colour"]).expect(0, &[]).text(), "green");
    let again = object(&format!("{attached} --ops 300 --reads 1 --load no"));
    assert_eq!((&again["gets"], &again["get_hits"]), (&300.into(), &300.into()), "{again}");
    let others = object(&format!("{attached} --ops 300 --reads 1 --load no --key-size 24"));
    assert_eq!(others["get_hits"], 0, "other keys: {others}");
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert_eq!(stats["tables"][0]["entries"], 501, "{stats}");
    node.loch(&["check"]).expect(0, &[]);
}

/// More entries were told than slots.
#[test]
fn an_index_that_has_grown_is_told_with_all_its_slots() {
    let dir = private_dir();
    let flags = ["--memory", "16MiB", "--engine", "pilaf", "--index-slots", "64"];
    let node = Node::start(dir.path(), "n", &flags);
    let socket = socket_of(dir.path(), "n");
    object(&format!("--attach {} --engine pilaf --records 500 --ops 10", socket.display()));
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    let table = &stats["tables"][0];
    let bytes = |of: &Value, field: &str| of[field].as_u64().expect("a number");
    let all = |of: &Value| bytes(of, "index_bytes") + bytes(of, "data_bytes");
    assert_eq!(all(table), all(&table["usage"][0]), "the index lies in the arena: {table}");
    let slots = bytes(&table["usage"][0], "index_bytes") / 64;
    assert!(slots >= 500, "{table}");
    let words = format!("500 entries in {slots} slots");
    let stats = node.loch(&["stats"]);
    assert!(stats.expect(0, &[]).text().contains(&words), "{words}: {}", stats.text());
}

#[test]
fn both_nodes_of_a_cluster_are_measured() {
    let dir = private_dir();
    let sockets = ["a", "b"].map(|name| socket_of(dir.path(), name).display().to_string());
    let cluster = sockets.join(",");
    let flags = ["--memory", "16MiB", "--cluster", &cluster, "--table", "t"];
    let _nodes = ["a", "b"].map(|name| Node::start(dir.path(), name, &flags));
    let line = format!("--attach {} --table t --records 400 --ops 400 --clients 3", sockets[1]);
    let object = object(&line);
    assert_eq!((&object["nodes"], &object["clients"]), (&2.into(), &3.into()), "{object}");
    assert_eq!((&object["ops"], &object["errors"]), (&400.into(), &0.into()), "{object}");
    if cfg!(feature = "verbs") {
        bench(&format!("{line} --fabric verbs")).expect(2, &["--fabric shm"]);
    }
    bench(&line.replace("--table t", "")).expect(2, &["--table default", "it has t"]);
}

#[test]
fn a_table_of_the_published_protocol_is_measured_by_its_name() {
    let dir = private_dir();
    let config = dir.path().join("n.toml");
    let declared = "memory = \"32MiB\"\n[[table]]\nprotocol = \"published\"\n";
    std::fs::write(&config, format!("{declared}previous_versions = false\n")).expect("a file");
    let node = Node::start(dir.path(), "n", &["--config", &config.display().to_string()]);
    node.loch(&["put", "colour", "green"]).expect(0, &[]);
    let line = format!("--attach {} --records 500 --ops 1000", node.socket.display());
    let object = object(&format!("{line} --engine nessie-published --reads 0.5"));
    assert_eq!((&object["errors"], &object["gets"]), (&0.into(), &object["get_hits"]), "{object}");
    bench(&line).expect(2, &["--engine nessie:", "give --engine nessie-published"]);
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    let table = &stats["tables"][0];
    assert_eq!((&table["engine"], &table["protocol"]), (&"nessie".into(), &"published".into()));
    assert!(node.loch(&["stats"]).expect(0, &[]).text().contains("by the published protocol"));
    node.loch(&["check"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "colour"]).expect(0, &[]).text(), "green");
}

/// A miss is followed by a PUT, as in caches, and the bench says what it found.
#[test]
fn a_table_that_evicts_is_measured_as_a_cache() {
    let dir = private_dir();
    let flags = ["--memory", "16MiB", "--eviction", "sieve", "--engine", "nessie-server"];
    let node = Node::start(dir.path(), "n", &flags);
    let line = format!("--attach {} --records 500000 --ops 100000", node.socket.display());
    bench(&line).expect(2, &["--engine nessie:", "give --engine nessie-server"]);
    let object = object(&format!("{line} --engine nessie-server --reads 1 --dist uniform"));
    let number = |field: &str| object[field].as_f64().expect("a number");
    assert!((0.05..0.9).contains(&number("hit_ratio")), "{object}");
    assert!(number("evicted") > 10_000.0 && number("values_held") > 10_000.0, "{object}");
    assert_eq!(number("errors"), 0.0, "{object}");
}

#[test]
fn what_contradicts_the_cluster_is_refused() {
    let dir = private_dir();
    let _node = Node::start(dir.path(), "n", &["--memory", "16MiB", "--value-max", "1KiB"]);
    let attached = format!("--attach {}", socket_of(dir.path(), "n").display());
    for (options, word) in [
        ("--nodes 2", "--nodes"),
        ("--peer redis", "--peer"),
        ("--cache on", "--cache"),
        ("--bucket-slots 1", "--bucket-slots"),
        ("--fabric sim", "--fabric sim"),
        ("--value-size 2KiB", "up to 1024 bytes"),
    ] {
        bench(&format!("{attached} {options}")).expect(2, &[word]);
    }
    bench("--load no").expect(2, &["--attach"]);
    bench("--attach /nowhere/a.sock").expect(3, &["/nowhere/a.sock"]);
}
