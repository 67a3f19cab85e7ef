//! The death of a client, step by step: what the client leaves, and how it is put in order. And
//! what a dead node leaves to the next.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use loch_engines::epoch::Session;
use loch_engines::nessie::Client;
use loch_engines::region::{session_addr, session_left_addr};
use loch_engines::requests::WorkerId;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Fabric, ForkMark, RegionId};

use super::Node;
use crate::layout::memory::{ClusterMemory, Member};
use crate::session::connection::Connection;
use crate::session::slot::{SessionId, free_own_slot};
use crate::{ByteSize, CacheLimits, Cluster, ConnectOptions, Error, NodeConfig, TableConfig};

fn config(dir: &tempfile::TempDir) -> NodeConfig {
    NodeConfig {
        socket: dir.path().join("s"),
        region: Some(dir.path().join("r")),
        memory: ByteSize::new(16 << 20),
        sessions: 4,
        ..NodeConfig::default()
    }
}

/// A client that ends with its connection, without the orderly end of a table.
fn raw_client(node: &Node) -> (Connection, Client<ShmEndpoint>, SessionId) {
    let wait = Duration::from_secs(5);
    let admitted = Connection::open(node.socket(), false, Instant::now(), wait).unwrap();
    let (connection, _, mapped) = admitted.map(false).unwrap();
    let SessionId { slot, incarnation } = connection.open_session(4, wait).unwrap();
    let memory = ClusterMemory::join(vec![Some(mapped)], 0).unwrap();
    let map = memory.tables[0].nessie().unwrap().clone();
    let session = Session::new(RegionId(0), slot, incarnation);
    let client = Client::new(memory.endpoint(0), map, session, CacheLimits::default(), 1_000_000);
    (connection, client, SessionId { slot, incarnation })
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it never came about: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Puts a value, takes two entries that it never installs, and dies.
fn die_with_entries(node: &Node) {
    let (connection, client, _) = raw_client(node);
    block_on(client.put(b"kept", b"value", Default::default())).unwrap();
    for len in [100, 5000] {
        let reserved = block_on(client.reserve(b"lost", len, Default::default())).unwrap();
        std::mem::forget(reserved);
    }
    drop(connection);
}

/// A signal during the start of a node with much memory was heard only when all of it was filled.
#[test]
fn a_node_that_is_stopped_while_it_prepares_its_memory_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let stopped = || {
        let started = Node::start_unless(config.clone(), Arc::new(true.into()));
        assert!(matches!(started.err(), Some(Error::StartStopped)));
        assert!(!config.socket.exists());
    };
    stopped();
    assert!(!config.region_path().exists(), "the memory is free, and any configuration may follow");
    let node = Node::start(config.clone()).unwrap();
    Cluster::connect(node.socket()).unwrap().table("default").unwrap().put(b"k", b"v").unwrap();
    node.stop();
    stopped();
    let node = Node::start(config.clone()).unwrap();
    assert!(node.is_warm());
    let table = Cluster::connect(node.socket()).unwrap().table("default").unwrap();
    assert_eq!(table.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// The next start with another configuration was refused because of a region without any data.
#[test]
fn a_start_that_fails_removes_the_region_that_it_has_made_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    std::fs::write(&log, "no folder").unwrap();
    let text = format!("engine = 'pilaf'\nlog = {:?}", log.display());
    let tables = vec![TableConfig::from_toml(&text).unwrap()];
    let config = NodeConfig { tables, ..config(&dir) };
    let fails = || {
        let failed = Node::start(config.clone());
        assert!(matches!(failed.err(), Some(Error::WorkerFailed { .. })));
    };
    fails();
    assert!(!config.region_path().exists());
    std::fs::remove_file(&log).unwrap();
    Node::start(config.clone()).unwrap().stop();
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, "no folder").unwrap();
    fails();
    assert!(config.region_path().exists(), "it may have data");
}

#[test]
fn memory_of_a_dead_client_is_released_and_scrubbed() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let cluster = Cluster::connect(node.socket()).unwrap();
    let table = cluster.table("default").unwrap();
    die_with_entries(&node);
    eventually("its slot is free", || cluster.info().nodes[0].sessions_taken == 1);
    eventually("its slabs are abandoned", || {
        let usage = &table.usage().unwrap()[0];
        usage.leased_slabs == 0 && usage.abandoned_slabs == 3
    });
    eventually("its entries are free", || table.check().unwrap().unshown == 0);
    assert_eq!(table.usage().unwrap()[0].entries, 1);
    assert_eq!(&table.get(b"kept").unwrap().unwrap()[..], b"value");
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

#[test]
fn a_second_death_is_scrubbed_too_though_later() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let cluster = Cluster::connect(node.socket()).unwrap();
    let table = cluster.table("default").unwrap();
    for _ in 0..2 {
        die_with_entries(&node);
        eventually("its entries are free", || {
            table.check().unwrap().unshown == 0 && table.usage().unwrap()[0].entries == 1
        });
    }
}

#[test]
fn a_scrub_that_had_to_wait_is_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let cluster = Cluster::connect(node.socket()).unwrap();
    let table = cluster.table("default").unwrap();
    // The client is in the middle of an operation, so no grace period passes.
    let reserved = table.reserve(b"slow", 10).unwrap();
    die_with_entries(&node);
    eventually("its slabs are abandoned", || table.usage().unwrap()[0].abandoned_slabs == 3);
    assert_eq!(table.check().unwrap().unshown, 3);
    drop(reserved);
    eventually("its entries are free", || table.check().unwrap().unshown == 0);
}

#[test]
fn sessions_that_died_with_their_node_are_put_in_order_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let (connection, client, opened) = raw_client(&node);
    std::mem::forget(block_on(client.reserve(b"lost", 100, Default::default())).unwrap());
    node.stop();
    // The slot names a session that no process holds, as if the process had died meanwhile.
    let region = client.fabric().region(RegionId(0)).unwrap();
    free_own_slot(region, opened);
    drop(connection);
    let node = Node::start(config(&dir)).unwrap();
    let cluster = Cluster::connect(node.socket()).unwrap();
    let table = cluster.table("default").unwrap();
    eventually("its slab is abandoned", || {
        let usage = &table.usage().unwrap()[0];
        (usage.leased_slabs, usage.abandoned_slabs) == (0, 1)
    });
}

/// The scrubber had taken the session's word back, and the next one did not know of it.
#[test]
fn what_a_session_has_left_is_scrubbed_although_the_node_stops_in_the_middle_of_that() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let table = Cluster::connect(node.socket()).unwrap().table("default").unwrap();
    let (_connection, client, SessionId { slot, incarnation }) = raw_client(&node);
    // The operation announces its epoch, so the scrub waits for a grace period.
    std::mem::forget(block_on(client.reserve(b"lost", 100, Default::default())).unwrap());
    let (home, fabric) = (RegionId(0), client.fabric());
    Session::new(home, slot, incarnation).leaves(fabric);
    eventually("a scrub begins", || fabric.load(session_left_addr(home, slot)) == Ok(0));
    node.stop();
    // The operation has ended, and the client lives on.
    fabric.store(session_addr(home, slot).add(8), &[&[0; 8]]).unwrap();
    let _node = Node::start(config(&dir)).unwrap();
    eventually("its entry is free", || table.check().unwrap().unshown == 0);
    assert_eq!(fabric.load(session_addr(home, slot)), Ok(incarnation));
}

/// The session's slot was free again, and the scrub for it had not come, when the node stopped.
#[test]
fn what_a_scrub_was_to_find_is_found_after_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let (_connection, client, SessionId { slot, .. }) = raw_client(&node);
    std::mem::forget(block_on(client.reserve(b"lost", 100, Default::default())).unwrap());
    node.stop();
    client.fabric().store(session_addr(RegionId(0), slot), &[&[0; 16]]).unwrap();
    let node = Node::start(config(&dir)).unwrap();
    let table = Cluster::connect(node.socket()).unwrap().table("default").unwrap();
    eventually("its entry is free", || table.check().unwrap().unshown == 0);
}

/// A node with a table of herd.
fn serving(dir: &tempfile::TempDir) -> NodeConfig {
    serving_by("herd", dir)
}

fn serving_by(engine: &str, dir: &tempfile::TempDir) -> NodeConfig {
    let table = TableConfig::from_toml(&format!("engine = '{engine}'")).unwrap();
    NodeConfig { tables: vec![table], ..config(dir) }
}

/// The node's region, and the offset of the incarnation of its worker.
fn incarnation(dir: &tempfile::TempDir) -> (Arc<Region>, u64) {
    let region = Arc::new(Region::open(&dir.path().join("r"), true).unwrap());
    let member = Member::read(String::new(), PathBuf::new(), region.clone()).unwrap();
    let requests = member.parts(0).unwrap().requests().unwrap().clone();
    let worker = WorkerId { node: 0, worker: 0 };
    (region, requests.incarnation_addr(worker).offset())
}

/// Its workers begin when the other node's memory is known. Until then no client may take a worker
/// of the node before for one that works.
#[test]
fn a_node_that_starts_forgets_the_incarnations_of_earlier_workers_and_nothing_else() {
    for engine in ["herd", "kv-direct", "pilaf", "nessie-server", "nessie-hybrid"] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = vec![dir.path().join("s"), dir.path().join("other")];
        let of_two = NodeConfig { cluster, ..serving_by(engine, &dir) };
        Node::start(of_two.clone()).unwrap().stop();
        let (region, at) = incarnation(&dir);
        let member = Member::read(String::new(), PathBuf::new(), region.clone()).unwrap();
        // Where the index is, if clients or workers keep it here.
        let first = member.tables[0].offset;
        for at in [first, at] {
            region.word(at).store(77, Ordering::SeqCst);
        }
        let _node = Node::start(of_two).unwrap();
        assert_eq!(region.word(at).load(Ordering::SeqCst), 0, "{engine}");
        assert!(at == first || region.word(first).load(Ordering::SeqCst) == 77, "{engine}");
    }
}

#[test]
fn a_table_is_opened_when_its_workers_have_started() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(serving(&dir)).unwrap();
    let connect_timeout = Duration::from_millis(100);
    let options = ConnectOptions { connect_timeout, ..ConnectOptions::default() };
    let cluster = Cluster::connect_with(node.socket(), options).unwrap();
    let (region, at) = incarnation(&dir);
    let started = region.word(at).swap(0, Ordering::SeqCst);
    let error = cluster.table("default").err().expect("no worker has started").to_string();
    assert!(error.contains("its workers have not started"), "{error}");
    region.word(at).store(started, Ordering::SeqCst);
    cluster.table("default").unwrap().put(b"key", b"value").unwrap();
}

#[test]
fn a_child_that_drops_its_parents_node_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(config(&dir)).unwrap();
    let socket = node.socket().to_owned();
    node.mark = ForkMark::of_a_parent().unwrap();
    drop(node);
    let table = Cluster::connect(socket).unwrap().table("default").unwrap();
    table.put(b"still", b"serving").unwrap();
}
