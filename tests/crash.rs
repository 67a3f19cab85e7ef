//! Clients and nodes are killed while others work. The others go on, nothing that was acknowledged
//! is lost, and what the dead left behind is found and freed.
//!
//! `LOCH_LONG=1` kills a client every second for a minute, and every node ten times.

mod load;
mod support;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use load::{Load, Report};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{Node, is_long, private_dir, socket_of, wait_for};

/// No operation of a client that lives takes longer, on two busy cores with three clients and eight
/// lanes each, whatever happens to others. Without crashes it is the scheduler's time slices; a
/// crash adds what an insert waits for a dead client's tentative entry, half a millisecond.
const STALL_MAX: Duration = Duration::from_millis(500);

/// What dead clients left is freed by then. A node scrubs two seconds after the last scrub at the
/// earliest.
const LEAKS_RETURN_MAX: Duration = Duration::from_secs(10);

/// The nodes, and where their clients attach.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Operations of a client that show that it goes on.
const ALIVE_OPS: u64 = 2000;

/// Tests of this file take turns: each needs the processors for itself.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// Not a test of its own: the process of a client.
#[test]
#[ignore = "started by the other tests"]
fn worker_process() {
    load::work_if_told();
}

struct Cluster {
    dir: tempfile::TempDir,
    nodes: Vec<Node>,
}

impl Cluster {
    fn start() -> Self {
        let dir = private_dir();
        let nodes = NAMES.iter().map(|name| start_node(dir.path(), name)).collect();
        Self { dir, nodes }
    }

    /// Starts the client of `writer`, at the node of the same number.
    fn load(&self, writer: usize, seed: u64) -> Load {
        let socket = &self.nodes[writer].socket;
        Load::start(self.dir.path(), socket, writer, seed, "worker_process")
    }

    fn check(&self) -> serde_json::Value {
        let check = self.nodes[0].loch(&["check", "--json"]);
        assert_eq!(check.code, Some(0), "{}\n{}", check.text(), check.stderr);
        check.json()["tables"][0].clone()
    }

    /// After the clients have ended: all is well, and what was leaked since `killed` returns.
    fn check_afterwards(&mut self, killed: Instant, told: &str) {
        let begun = self.check();
        let leaks = || {
            let table = self.check();
            let left = ["unshown", "tentative", "moving"].map(|field| table[field].as_u64());
            (left == [Some(0); 3]).then_some(())
        };
        wait_for("leaked entries to be freed", leaks);
        let returned = killed.elapsed();
        let values = load::verify_all(self.dir.path(), &self.nodes[0].socket);
        assert_eq!(self.check()["values"], values);
        let stats = self.nodes[0].loch(&["stats", "--json"]).expect(0, &[]).json();
        for node in stats["nodes"].as_array().expect("a list") {
            assert_eq!(node["sessions_taken"], 0, "{stats}");
        }
        for node in &mut self.nodes {
            assert_eq!(node.process.try_ended(), None, "{}", node.log());
        }
        println!(
            "{told}; {} unshown, {} tentative, {} moving at first, all gone {:.1} s after the last \
             kill; {values} values",
            begun["unshown"],
            begun["tentative"],
            begun["moving"],
            returned.as_secs_f64()
        );
        assert!(returned <= LEAKS_RETURN_MAX, "it took {returned:?}");
    }
}

fn start_node(dir: &Path, name: &str) -> Node {
    let sockets: Vec<PathBuf> = NAMES.iter().map(|name| socket_of(dir, name)).collect();
    let sockets: Vec<&str> = sockets.iter().filter_map(|s| s.to_str()).collect();
    // The index is three quarters full, so that inserts have to move others.
    let flags = ["--memory", "64MiB", "--index-slots", "3072", "--cluster"];
    Node::start(dir, name, &[&flags[..], &[&sockets.join(",")]].concat())
}

fn check_stalls(reports: &[Report]) -> String {
    let slowest = reports.iter().max_by_key(|report| report.longest).expect("some clients");
    assert!(slowest.longest <= STALL_MAX, "{slowest:?}");
    let ops: u64 = reports.iter().map(|report| report.ops).sum();
    let ms = slowest.longest.as_secs_f64() * 1e3;
    format!("{ops} operations, the slowest a {} of {ms:.1} ms", slowest.longest_op)
}

#[test]
fn a_client_that_is_killed_again_and_again_harms_nobody() {
    let _turn = turn();
    let (kills, interval_ms) = if is_long() { (60, 1000) } else { (12, 400) };
    let mut cluster = Cluster::start();
    let mut survivors = [cluster.load(0, 1), cluster.load(1, 2)];
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut killed = Instant::now();
    for kill in 0..kills {
        let mut victim = cluster.load(2, 100 + kill);
        victim.wait_for_ops(1);
        let at = Duration::from_millis(random.random_range(interval_ms / 2..interval_ms * 3 / 2));
        wait_for("its hour", || (killed.elapsed() >= at).then_some(()));
        victim.kill();
        killed = Instant::now();
    }
    for survivor in &mut survivors {
        survivor.wait_for_ops(ALIVE_OPS);
    }
    let told = check_stalls(&survivors.map(Load::stop));
    cluster.check_afterwards(killed, &format!("{kills} kills, {told}"));
}

#[test]
fn clients_go_on_while_a_node_is_down() {
    let _turn = turn();
    let rounds = if is_long() { 10 } else { 1 };
    let mut cluster = Cluster::start();
    let mut clients: Vec<Load> = (0..3).map(|n| cluster.load(n, 10 + n as u64)).collect();
    let mut killed = Instant::now();
    for round in 0..rounds {
        for down in 0..NAMES.len() {
            clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
            cluster.nodes[down].process.kill();
            clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
            // The last client dies while nobody is there who could notice.
            let orphan = (down == 2).then(|| clients.pop().expect("the last client"));
            if let Some(orphan) = orphan {
                orphan.kill();
                killed = Instant::now();
            }
            cluster.nodes[down] = start_node(cluster.dir.path(), NAMES[down]);
            if down == 2 {
                clients.push(cluster.load(2, 1000 + round));
            }
            clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
            cluster.check();
        }
    }
    let told = check_stalls(&clients.into_iter().map(Load::stop).collect::<Vec<_>>());
    cluster.check_afterwards(killed, &format!("{} nodes killed, {told}", rounds * 3));
}

#[test]
fn a_cluster_that_is_killed_as_a_whole_has_everything_afterwards() {
    let _turn = turn();
    let mut cluster = Cluster::start();
    let mut clients: Vec<Load> = (0..3).map(|n| cluster.load(n, 20 + n as u64)).collect();
    clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
    for node in &mut cluster.nodes {
        node.process.kill();
    }
    clients.into_iter().for_each(Load::kill);
    for (node, name) in cluster.nodes.iter_mut().zip(NAMES) {
        *node = start_node(cluster.dir.path(), name);
    }
    cluster.check_afterwards(Instant::now(), "everybody killed");
}
