//! A node that has nothing to do sleeps: clients do their operations themselves.
//!
//! `LOCH_LONG=1` looks for a minute instead of three seconds.

mod support;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use loch::Cluster;
use support::{Node, Process, is_long, loch, private_dir, wait_for};

/// CPU time of a process, in the kernel's ticks, and how often its threads were woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Effort {
    ticks: u64,
    switches: u64,
}

fn effort(pid: u32) -> Effort {
    let process = Path::new("/proc").join(pid.to_string());
    let stat = fs::read_to_string(process.join("stat")).expect("it lives");
    // The name, in parentheses, may hold anything. utime and stime are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields = fields.split_ascii_whitespace().skip(11).take(2);
    let mut switches = 0;
    for thread in fs::read_dir(process.join("task")).expect("it has threads") {
        let status = thread.expect("a thread").path().join("status");
        let status = fs::read_to_string(status).expect("it lives");
        let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        switches += lines.map(|(_, count)| number(count)).sum::<u64>();
    }
    Effort { ticks: fields.map(number).sum(), switches }
}

fn number(text: &str) -> u64 {
    text.trim().parse().expect("a number")
}

/// Waits until the node has not been woken for a while, and then looks for much longer.
fn assert_sleeps(node: &Node, when: &str) {
    let pid = node.process.pid();
    let (mut last, mut since) = (effort(pid), Instant::now());
    wait_for("the node to sleep", || {
        let now = effort(pid);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() >= Duration::from_millis(300)).then_some(())
    });
    let time = Duration::from_secs(if is_long() { 60 } else { 3 });
    let before = effort(pid);
    // The test is that nothing happens in this time.
    thread::sleep(time);
    let after = effort(pid);
    println!(
        "{when}: {} ticks and {} wake-ups in {} s",
        after.ticks - before.ticks,
        after.switches - before.switches,
        time.as_secs()
    );
    assert_eq!(after.ticks, before.ticks, "{when}: CPU time of a node at rest");
}

#[test]
fn a_node_at_rest_uses_no_cpu() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the node is up");
    for key in 0..10_000_u32 {
        table.put(&key.to_le_bytes(), &[7; 64]).expect("there is room");
    }
    assert_sleeps(&node, "with an idle client");

    // Clients come, go and die; then there is nothing to do again.
    assert_eq!(node.loch(&["put", "k", "v"]).code, Some(0));
    let mut dying = loch();
    dying.env("LOCH_SOCKET", &node.socket).args(["put", "k", "-"]);
    let stdin = std::process::Stdio::piped();
    let mut dying = Process::new(dying.stdin(stdin).spawn().expect("it starts"));
    let stats = || node.loch(&["stats", "--json"]).json()["nodes"][0]["sessions_taken"].clone();
    wait_for("its session", || (stats() == 2).then_some(()));
    dying.kill();
    wait_for("its session to end", || (stats() == 1).then_some(()));
    assert_sleeps(&node, "after a client died");
    assert!(table.get(&1_u32.to_le_bytes()).expect("it can be read").is_some());
}

/// The share of a processor that a worker without work may take: documented are one to two percent,
/// on a machine that has nothing else to do.
const WORKER_AT_REST_MAX: f64 = 0.1;

#[test]
fn workers_at_rest_use_next_to_no_cpu() {
    let dir = private_dir();
    for (engine, workers) in [("nessie-server", 2), ("herd", 2), ("pilaf", 1), ("kv-direct", 2)] {
        let count = workers.to_string();
        let options = ["--memory", "64MiB", "--engine", engine, "--workers", &count];
        let node = Node::start(dir.path(), engine, &options);
        let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
        let table = table.expect("the node is up");
        for key in 0..1000_u32 {
            table.put(&key.to_le_bytes(), &[7; 64]).expect("there is room");
        }
        let pid = node.process.pid();
        let time = Duration::from_secs(if is_long() { 60 } else { 2 });
        let before = effort(pid);
        // The test is how little happens in this time, while no client sends anything.
        thread::sleep(time);
        let ticks = effort(pid).ticks - before.ticks;
        let share = ticks as f64
            / rustix::param::clock_ticks_per_second() as f64
            / time.as_secs_f64()
            / f64::from(workers);
        println!("{engine}: {:.1} % of a processor for each worker", share * 100.0);
        assert!(share < WORKER_AT_REST_MAX, "{engine}: {share}");
        // And they are there at once.
        assert!(table.get(&1_u32.to_le_bytes()).expect("it can be read").is_some());
    }
}

#[test]
fn a_busy_client_costs_its_node_nothing() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the node is up");
    let pid = node.process.pid();
    let before = effort(pid);
    for key in 0..200_000_u32 {
        let key = (key % 10_000).to_le_bytes();
        table.put(&key, &[7; 64]).expect("there is room");
        assert!(table.get(&key).expect("it can be read").is_some());
    }
    assert_eq!(effort(pid).ticks, before.ticks, "CPU time of a node whose client works");
}
