//! Attaching to nodes over their sockets; nodes that stop, start and are not there.

mod host;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use host::{Host, eventually, impatient};
use loch::{
    ByteSize, Cluster, ConnectOptions, EngineError, Error, Node, NodeConfig, Table, TableConfig,
};

fn bytes(table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    table.get(key).unwrap().map(|value| value.into_vec())
}

#[test]
fn a_client_attaches_and_two_see_the_same() {
    let host = Host::new();
    let node = host.start("a");
    let (one, two) = (host.connect("a"), host.connect("a"));
    let (one, two) = (one.table("default").unwrap(), two.table("default").unwrap());
    one.put(b"key", b"value").unwrap();
    assert_eq!(bytes(&two, b"key"), Some(b"value".to_vec()));
    let info = host.connect("a").info();
    assert_eq!((info.home, info.nodes.len()), (0, 1));
    assert_eq!((info.nodes[0].sessions, info.nodes[0].sessions_taken), (16, 2));
    assert_eq!(info.nodes[0].name, "a");
    assert!(info.nodes[0].up);
    drop((one, two));
    assert_eq!(host.connect("a").info().nodes[0].sessions_taken, 0);
    node.stop();
    assert!(!host.socket("a").exists() && host.region("a").exists());
}

#[test]
fn a_restart_keeps_all_data() {
    let host = Host::new();
    let node = host.start("a");
    let table = host.connect("a").table("default").unwrap();
    for i in 0..1000u32 {
        table.put(&i.to_le_bytes(), &[i as u8; 100]).unwrap();
    }
    drop(table);
    node.stop();
    let _node = host.start("a");
    let table = host.connect("a").table("default").unwrap();
    for i in 0..1000u32 {
        assert_eq!(bytes(&table, &i.to_le_bytes()), Some(vec![i as u8; 100]));
    }
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

#[test]
fn an_ephemeral_node_leaves_nothing() {
    let host = Host::new();
    let config = NodeConfig { ephemeral: true, ..host.config("a") };
    let node = Node::start(config).unwrap();
    host.assert_serves("a");
    node.stop();
    assert_eq!(std::fs::read_dir(host.dir.path()).unwrap().count(), 0);
}

/// Somebody had tidied its region away, and another node had made one of that name.
#[test]
fn an_ephemeral_node_removes_no_region_but_its_own() {
    let host = Host::of(&["a", "b"]);
    let ephemeral = NodeConfig { ephemeral: true, cluster: vec![], ..host.config("a") };
    let node = Node::start(ephemeral).unwrap();
    std::fs::remove_file(host.region("a")).unwrap();
    let config = NodeConfig { region: Some(host.region("a")), cluster: vec![], ..host.config("b") };
    let other = Node::start(config.clone()).unwrap();
    host.connect("b").table("default").unwrap().put(b"key", b"value").unwrap();
    node.stop();
    other.stop();
    let _other = Node::start(config).unwrap();
    let table = host.connect("b").table("default").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
}

#[test]
fn a_table_outlives_its_node_and_the_cluster_attaches_again() {
    let host = Host::new();
    let node = host.start("a");
    let cluster = Cluster::connect_with(host.socket("a"), impatient()).unwrap();
    let table = cluster.table("default").unwrap();
    node.stop();
    // The process is gone: the table works on, but no other can be opened.
    table.put(b"key", b"while away").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"while away".to_vec()));
    let error = cluster.table("default").err().unwrap();
    assert!(matches!(error, Error::NodeUnreachable { .. }), "{error}");
    assert!(!cluster.info().nodes[0].up);

    let node = host.start("a");
    table.put(b"key", b"back again").unwrap();
    let second = cluster.table("default").unwrap();
    assert_eq!(bytes(&second, b"key"), Some(b"back again".to_vec()));
    assert_eq!(cluster.info().nodes[0].sessions_taken, 2, "the first was kept");
    // Its session is ended over a connection that it was not opened on.
    drop(table);
    assert_eq!(cluster.info().nodes[0].sessions_taken, 1);
    // And this one's by hand, as nobody is there to be told.
    node.stop();
    drop(second);
    assert_eq!(cluster.info().nodes[0].sessions_taken, 0);
    let _node = host.start("a");
    let table = cluster.table("default").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"back again".to_vec()));
    assert_eq!(table.check().unwrap().unshown, 0);
    assert_eq!(table.usage().unwrap()[0].leased_slabs, 0, "all were left in order");
}

#[test]
fn a_node_that_comes_back_with_other_memory_is_noticed() {
    let host = Host::new();
    let node = host.start("a");
    let cluster = host.connect("a");
    let old = cluster.table("default").unwrap();
    old.put(b"key", b"old").unwrap();
    node.stop();
    std::fs::remove_file(host.region("a")).unwrap();
    let _node = host.start("a");
    let new = cluster.table("default").unwrap();
    assert_eq!(bytes(&new, b"key"), None);
    new.put(b"key", b"new").unwrap();
    assert_eq!(bytes(&old, b"key"), Some(b"old".to_vec()), "it has the memory it had");
    drop(old);
    assert_eq!(bytes(&new, b"key"), Some(b"new".to_vec()));
    assert_eq!(cluster.info().nodes[0].sessions_taken, 1);
}

/// Index words of the other node still named entries of the memory that was gone: GETs found
/// nothing, or ended as timeouts, and could have found the values of other keys.
#[test]
fn a_node_that_has_lost_its_memory_is_refused_where_an_index_names_its_entries() {
    let host = Host::of(&["a", "b"]);
    let mut nodes = host.start_all();
    let attached = host.connect("a");
    let put_all = |table: &Table| {
        (0..200u64).for_each(|key| _ = table.put(&key.to_le_bytes(), &[1; 100]).unwrap());
    };
    put_all(&host.connect("b").table("default").unwrap());
    let open = attached.table("default").unwrap();
    // With its memory it is welcome.
    nodes.pop().expect("there are two").stop();
    nodes.push(host.start("b"));
    assert!(attached.table("default").unwrap().contains(&0u64.to_le_bytes()).unwrap());
    nodes.pop().expect("there are two").stop();
    std::fs::remove_file(host.region("b")).unwrap();
    nodes.push(host.start("b"));
    let connect = |name| Cluster::connect_with(host.socket(name), impatient()).map(drop);
    for refused in [connect("a"), connect("b"), attached.table("default").map(drop)] {
        let refusal = refused.unwrap_err();
        assert!(matches!(refusal, Error::ClusterMismatch { .. }), "{refusal:?}");
        let text = refusal.to_string();
        for words in ["\"b\"", "without its memory", "\"default\"", "stop all nodes", "fresh"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    assert!(open.get(&7u64.to_le_bytes()).unwrap().is_some(), "it has the memory it had");
    drop((open, attached));
    nodes.into_iter().for_each(Node::stop);
    for name in ["a", "b"] {
        std::fs::remove_file(host.region(name)).unwrap();
    }
    let _nodes = host.start_all();
    put_all(&host.connect("a").table("default").unwrap());
}

#[test]
fn a_reader_changes_nothing_and_takes_no_session() {
    let host = Host::new();
    let node = host.start("a");
    host.connect("a").table("default").unwrap().put(b"key", b"value").unwrap();
    let options = ConnectOptions { read_only: true, populate: true, ..impatient() };
    let cluster = Cluster::connect_with(host.socket("a"), options).unwrap();
    let table = cluster.table("default").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
    assert!(table.contains(b"key").unwrap());
    assert_eq!(table.get_many(&[b"key", b"non"]).unwrap().iter().flatten().count(), 1);
    for refused in [
        table.put(b"key", b"x").err(),
        table.delete(b"key").err(),
        table.delete(b"none").err(),
        table.fetch_add(b"key", 1).err(),
        table.put_if_absent(b"key", b"x").err(),
        table.reserve(b"key", 1).err(),
        table.put_many(&[(b"key", b"x")]).err(),
    ] {
        assert!(
            matches!(refused, Some(Error::Table { source: EngineError::ReadOnly, .. })),
            "{refused:?}"
        );
    }
    assert_eq!(cluster.info().nodes[0].sessions_taken, 0);
    assert_eq!(table.check().unwrap().values, 1);
    node.stop();
    // It needs nothing of the node but its memory.
    assert!(cluster.table("default").unwrap().contains(b"key").unwrap());
}

#[test]
fn a_client_that_waits_for_ever_waits_long() {
    let host = Host::new();
    let _node = host.start("a");
    let (connect_timeout, operation_timeout) = (Duration::MAX, Duration::MAX);
    let options = ConnectOptions { connect_timeout, operation_timeout, ..impatient() };
    let table = Cluster::connect_with(host.socket("a"), options).unwrap().table("default").unwrap();
    table.put(b"key", b"value").unwrap();
}

#[test]
fn nodes_of_a_cluster_hold_one_table_together() {
    let host = Host::of(&["a", "b", "c"]);
    let mut nodes = host.start_all();
    let (a, b) = (host.connect("a"), host.connect("b"));
    assert_eq!((a.info().home, b.info().home), (0, 1));
    let (from_a, from_b) = (a.table("default").unwrap(), b.table("default").unwrap());
    for i in 0..600u32 {
        let table = if i % 2 == 0 { &from_a } else { &from_b };
        table.put(&i.to_le_bytes(), b"value").unwrap();
    }
    let usage = from_b.usage().unwrap();
    assert_eq!(usage.iter().map(|u| u.entries).collect::<Vec<_>>(), [300, 300, 0]);
    let from_c = a.with_home(2).unwrap().table("default").unwrap();
    assert!((0..600u32).all(|i| from_c.contains(&i.to_le_bytes()).unwrap()));
    assert_eq!(from_c.check().unwrap().broken, Vec::<String>::new());

    // A node that is down is no reason not to open a table at home.
    nodes.remove(1).stop();
    let again = a.table("default").unwrap();
    assert!((0..600u32).all(|i| again.contains(&i.to_le_bytes()).unwrap()));
    // But a client that comes new needs it, and is told which.
    let error = Cluster::connect_with(host.socket("a"), impatient()).err().unwrap();
    let Error::NodeUnreachable { socket, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*socket, host.socket("b"));
}

#[test]
fn a_client_waits_for_nodes_that_are_about_to_start() {
    let host = Host::of(&["a", "b"]);
    std::thread::scope(|scope| {
        let early = scope.spawn(|| host.connect("b").table("default").unwrap().put(b"k", b"v"));
        let nodes = host.start_all();
        early.join().unwrap().unwrap();
        drop(nodes);
    });
}

#[test]
fn nodes_that_do_not_belong_together_are_told_apart() {
    let host = Host::of(&["a", "b"]);
    let _a = host.start("a");
    let with = |change: fn(&mut NodeConfig)| {
        let mut config = host.config("b");
        config.region = Some(host.dir.path().join("other.region"));
        change(&mut config);
        let node = Node::start(config).unwrap();
        let error = Cluster::connect(host.socket("a")).err().unwrap();
        assert!(matches!(error, Error::ClusterMismatch { .. }), "{error}");
        node.stop();
        std::fs::remove_file(host.dir.path().join("other.region")).unwrap();
        error.to_string()
    };
    let memory = with(|c| c.memory = ByteSize::new(32 << 20));
    assert!(memory.contains("table \"default\"") && memory.contains("b.sock"), "{memory}");
    let order = with(|c| c.cluster.reverse());
    assert!(order.contains("same `cluster` list"), "{order}");
    let tables = with(|c| {
        let second = TableConfig { name: "second".into(), ..TableConfig::default() };
        c.tables = vec![TableConfig::default(), second];
    });
    assert!(tables.contains("2 tables"), "{tables}");
    let _b = host.start("b");
    host.assert_serves("a");
}

#[test]
fn a_node_puts_its_region_into_shared_memory() {
    let host = Host::new();
    let name = format!("test-{}", std::process::id());
    let config =
        NodeConfig { region: None, name: name.clone(), ephemeral: true, ..host.config("a") };
    let path = config.region_path();
    assert!(path.starts_with("/dev/shm") && path.to_string_lossy().contains(&name));
    let node = Node::start(config).unwrap();
    assert!(path.exists());
    let folder = path.parent().unwrap();
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o7777, 0o700);
    host.assert_serves("a");
    drop(node);
    assert!(!path.exists());
    // Other regions of this user may be in it.
    let _ = std::fs::remove_dir(folder);
}

#[test]
fn many_clients_come_and_go_at_once() {
    let host = Host::new();
    let _node = host.start("a");
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let host = &host;
            scope.spawn(move || {
                for round in 0..20u64 {
                    let cluster = host.connect("a");
                    let table = cluster.table("default").unwrap();
                    table.put(&thread.to_le_bytes(), &round.to_le_bytes()).unwrap();
                }
            });
        }
    });
    let cluster = host.connect("a");
    eventually("no session is left", || cluster.info().nodes[0].sessions_taken == 0);
    let table = cluster.table("default").unwrap();
    for thread in 0..8u64 {
        assert_eq!(bytes(&table, &thread.to_le_bytes()), Some(19u64.to_le_bytes().to_vec()));
    }
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}
