//! Two machines and real RDMA verbs. Runs in both guests of
//! `vm/run --hosts 2 --env LOCH_VERBS_TEST=1 -- TEST_BINARY two_machines --nocapture`, which
//! give each other their turns by files in `/shared`; anywhere else it does nothing.

#![cfg(feature = "verbs")]

mod guest;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loch::{
    Cluster, ConnectOptions, EngineError, Error, Expiry, Node, NodeConfig, PutOptions, Table,
};

const SECRET: &str = "LOCH_TEST_SECRET";
const RIGHT: &str = "the secret of both hosts";
const KEYS: u32 = 40;
const ADDS: u64 = 20;

fn host() -> usize {
    std::env::var("HOST").expect("the guest says which it is").parse().unwrap()
}

fn socket() -> PathBuf {
    guest::socket(host())
}

fn config(secret: &str) -> NodeConfig {
    let file = Path::new("/tmp/loch.secret");
    std::fs::write(file, secret).unwrap();
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    guest::config(host(), file)
}

/// Not a test: a node, until it is killed.
#[test]
#[ignore = "a helper: the test of this file runs it as a process"]
fn node_process() {
    let secret = std::env::var(SECRET).expect("only as a helper");
    let _node = Node::start(config(&secret)).unwrap();
    println!("ready");
    std::thread::sleep(Duration::from_secs(3600));
}

/// Not a test: a client that is killed in the middle of its work.
#[test]
#[ignore = "a helper: the test of this file runs it as a process"]
fn client_process() {
    let table = open(false);
    println!("ready");
    for round in 0u64.. {
        let key = (round % 16).to_le_bytes();
        table.put(&[b"killed", &key[..]].concat(), &vec![1; 3000]).unwrap();
        // Entries that nobody is told of.
        std::mem::forget(table.reserve(b"lost", 100).unwrap());
    }
}

fn spawn(helper: &str, secret: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", helper, "--ignored", "--nocapture"])
        .env(SECRET, secret)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let ready = stdout.lines().map_while(Result::ok).any(|line| line.contains("ready"));
    assert!(ready, "{helper} did not come up");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn options() -> ConnectOptions {
    ConnectOptions { connect_timeout: Duration::from_secs(60), ..ConnectOptions::default() }
}

fn open(read_only: bool) -> Table {
    let options = ConnectOptions { read_only, ..options() };
    Cluster::connect_with(socket(), options).unwrap().table("default").unwrap()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "it never came about: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the other host.
fn meet(at: &str) {
    println!("host {}: {at}", host());
    std::fs::write(format!("/shared/{at}.{}", host()), "").unwrap();
    eventually(at, || (1..=2).all(|host| Path::new(&format!("/shared/{at}.{host}")).exists()));
}

fn bytes(table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    table.get(key).unwrap().map(|value| value.into_vec())
}

/// Runs `first` on host 1 while host 2 waits, then `second` on host 2 while host 1 waits.
fn in_turn(at: &str, first: impl FnOnce(), second: impl FnOnce()) {
    meet(&format!("{at}-begins"));
    if host() == 1 {
        first();
    }
    meet(&format!("{at}-first"));
    if host() == 2 {
        second();
    }
    meet(&format!("{at}-second"));
}

#[test]
fn two_machines() {
    if std::env::var_os("LOCH_VERBS_TEST").is_none() {
        println!("skipped: LOCH_VERBS_TEST is not set");
        return;
    }
    let mut node = spawn("node_process", RIGHT);
    let table = open(false);
    values_are_seen_by_both(&table);
    large_values_pass(&table);
    readers_change_nothing();
    a_client_without_the_right_has_expired_values_removed_by_the_worker();
    in_turn("client", a_killed_client_is_fenced_and_scrubbed, || {
        a_killed_client_is_fenced_and_scrubbed();
    });
    node = a_killed_node_comes_back(&table, node);
    node = another_secret_is_refused(node);
    drop(table);
    let cluster = Cluster::connect_with(socket(), options()).unwrap();
    eventually("no session is left", || cluster.info().nodes[host() - 1].sessions_taken == 0);
    meet("end");
    kill(node);
}

fn values_are_seen_by_both(table: &Table) {
    let put = |host: u32| {
        for i in 0..KEYS {
            table.put(&(host << 16 | i).to_le_bytes(), &[i as u8; 200]).unwrap();
        }
    };
    in_turn("put", || put(1), || put(2));
    for host in 1..=2u32 {
        for i in 0..KEYS {
            let value = bytes(table, &(host << 16 | i).to_le_bytes());
            assert_eq!(value, Some(vec![i as u8; 200]), "key {i} of host {host}");
        }
    }
    meet("seen");
    // Each deletes the other's even ones.
    let theirs = 3 - host() as u32;
    for i in (0..KEYS).step_by(2) {
        assert!(table.delete(&(theirs << 16 | i).to_le_bytes()).unwrap());
    }
    meet("deleted");
    for host in 1..=2u32 {
        for i in 0..KEYS {
            let there = table.contains(&(host << 16 | i).to_le_bytes()).unwrap();
            assert_eq!(there, i % 2 == 1, "key {i} of host {host}");
        }
    }
    for _ in 0..ADDS {
        table.fetch_add(b"counter", 1).unwrap();
    }
    meet("added");
    assert_eq!(table.fetch_add(b"counter", 0).unwrap(), 2 * ADDS);
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

fn large_values_pass(table: &Table) {
    let large = |seed: u8| (0..1 << 20).map(|i: u32| i as u8 ^ seed).collect::<Vec<u8>>();
    let reserve = || {
        let mut value = table.reserve(b"large", 1 << 20).unwrap();
        value.write_at(0, &large(2)).unwrap();
        value.commit().unwrap();
    };
    in_turn(
        "large",
        || {
            table.put(b"large", &large(1)).unwrap();
        },
        || {
            assert!(bytes(table, b"large") == Some(large(1)));
            reserve();
        },
    );
    assert!(bytes(table, b"large") == Some(large(2)));
    meet("large-seen");
}

fn readers_change_nothing() {
    let reader = open(true);
    assert!(reader.contains(b"counter").unwrap());
    assert_eq!(reader.put(b"counter", b"x").unwrap_err().engine(), Some(&EngineError::ReadOnly));
    assert_eq!(reader.check().unwrap().broken, Vec::<String>::new());
}

/// A client of nessie-hybrid has no right to write the table.
fn a_client_without_the_right_has_expired_values_removed_by_the_worker() {
    let cluster = Cluster::connect_with(socket(), options()).unwrap();
    let table = cluster.table("hybrid").unwrap();
    let key = |host: usize, i: u8| [host as u8, i];
    let soon = PutOptions { expiry: Expiry::In(Duration::from_millis(1)) };
    // Of both nodes.
    for i in 0..8 {
        table.put_with(&key(host(), i), b"gone soon", soon).unwrap();
    }
    meet("expiring");
    for i in 0..8 {
        eventually("it is gone", || table.get(&key(3 - host(), i)).unwrap().is_none());
    }
    meet("expired");
    // Removed, and not only past its time.
    assert_eq!(table.check().unwrap().values, 0);
    meet("removed");
}

/// Its session's slot is free again, so both nodes have fenced it, and its entries are found.
fn a_killed_client_is_fenced_and_scrubbed() {
    let cluster = Cluster::connect_with(socket(), options()).unwrap();
    let taken = || cluster.info().nodes[host() - 1].sessions_taken;
    // Sessions of the steps before count until both nodes have fenced them.
    eventually("the test's own table is the only one", || taken() == 1);
    let client = spawn("client_process", RIGHT);
    assert_eq!(taken(), 2);
    kill(client);
    eventually("its slot is free", || taken() == 1);
    let table = open(false);
    eventually("its entries are scrubbed", || {
        let report = table.check().unwrap();
        assert_eq!(report.broken, Vec::<String>::new());
        report.unshown == 0 && report.tentative == 0 && report.moving == 0
    });
}

fn a_killed_node_comes_back(table: &Table, node: Child) -> Child {
    meet("node-lives");
    let mut node = Some(node);
    if host() == 1 {
        kill(node.take().expect("it is this host's"));
    }
    meet("node-is-dead");
    if host() == 2 {
        // Some keys' slots are there: they are told apart from those that are not, within bounds.
        let begun = Instant::now();
        let outcomes: Vec<_> = (0..3u32).map(|i| table.get(&(1 << 16 | i).to_le_bytes())).collect();
        println!("host 2: {outcomes:?} after {:?}", begun.elapsed());
        for error in outcomes.into_iter().filter_map(Result::err) {
            let Error::NodeUnreachable { socket, .. } = &error else { panic!("{error}") };
            assert_eq!(*socket, Path::new("10.9.0.1:7400"), "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    meet("node-was-missed");
    let node = node.unwrap_or_else(|| spawn("node_process", RIGHT));
    meet("node-is-back");
    // A client connects again after a pause, and its operations fail until then.
    let is_met = |host: u32| table.get(&(host << 16 | 1).to_le_bytes()).is_ok();
    eventually("both nodes are met", || (1..=2).all(is_met));
    for host in 1..=2u32 {
        for i in (1..KEYS).step_by(2) {
            let value = bytes(table, &(host << 16 | i).to_le_bytes());
            assert_eq!(value, Some(vec![i as u8; 200]), "key {i} of host {host}");
        }
    }
    // A CAS on a connection whose node died may have been executed; this PUT may be repeated.
    let key = format!("after {}", host());
    let put = || table.put(key.as_bytes(), b"value");
    let done = match put() {
        Err(Error::Table { source: EngineError::Ambiguous(_), .. }) => put(),
        done => done,
    };
    assert!(done.is_ok(), "{done:?}");
    meet("node-serves");
    assert!(table.contains(b"after 1").unwrap() && table.contains(b"after 2").unwrap());
    node
}

fn another_secret_is_refused(node: Child) -> Child {
    meet("secrets");
    let mut node = Some(node);
    if host() == 2 {
        kill(node.take().expect("it is this host's"));
        node = Some(spawn("node_process", "another secret, as long"));
    }
    meet("other-secret");
    if host() == 1 {
        let error = Cluster::connect_with(socket(), options()).map(|cluster| cluster.info());
        println!("host 1: {error:?}");
        let refused = |info: loch::ClusterInfo| !info.nodes[1].up;
        eventually("the stranger is refused", || {
            Cluster::connect_with(socket(), options()).map_or(true, |c| refused(c.info()))
        });
    }
    meet("secret-refused");
    if host() == 2 {
        kill(node.take().expect("it is this host's"));
    }
    let node = node.unwrap_or_else(|| spawn("node_process", RIGHT));
    meet("secrets-agree");
    let table = open(false);
    eventually("both are up", || table.get(b"counter").is_ok());
    node
}
