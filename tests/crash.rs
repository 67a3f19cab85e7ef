//! Clients and nodes are killed while others work. The others go on, nothing that was acknowledged
//! is lost, and what the dead left behind is found and freed.
//!
//! `LOCH_LONG=1` kills a client every second for a minute, and every node ten times.

mod load;
mod support;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use load::{Lengths, Load, Report, Scale, Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use support::{Node, is_long, private_dir, socket_of, wait_for};

/// No operation of a client that lives takes longer, whatever happens to others; the time in which
/// its thread waited for a processor is not counted, for that is the business of this machine. What
/// remains is work, and waiting for others: half a millisecond for a dead client's tentative entry,
/// and as long as it takes for a live one that waits for a processor itself.
const STALL_MAX: Duration = Duration::from_millis(500);

/// Memory of dead clients is free by then. A node scrubs two seconds after the last scrub at the
/// earliest.
const LEAKS_RETURN_MAX: Duration = Duration::from_secs(10);

/// How much of the data tables a client fills with values of one length, after others used them for
/// values of all lengths and died: what is left in whole slabs of other lengths is taken apart.
const REFILLED_MIN: f64 = 0.75;

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
    memory: &'static str,
    lengths: Lengths,
    scale: Scale,
    nodes: Vec<Node>,
}

impl Cluster {
    fn start(memory: &'static str, lengths: Lengths) -> Self {
        let (dir, scale) = (private_dir(), Scale::USUAL);
        let mut cluster = Self { dir, memory, lengths, scale, nodes: Vec::new() };
        cluster.nodes = (0..NAMES.len()).map(|node| cluster.start_node(node)).collect();
        cluster
    }

    fn start_node(&self, node: usize) -> Node {
        let sockets = NAMES.map(|name| socket_of(self.dir.path(), name));
        let sockets = sockets.each_ref().map(|socket| socket.to_str().expect("text")).join(",");
        // The index is three quarters full, so that inserts have to move others.
        let flags = ["--memory", self.memory, "--index-slots", "3072", "--cluster", &sockets];
        Node::start(self.dir.path(), NAMES[node], &flags)
    }

    fn restart_node(&mut self, node: usize) {
        self.nodes[node] = self.start_node(node);
        assert!(self.nodes[node].ready.contains("taken over"), "{}", self.nodes[node].ready);
    }

    /// Starts the client of `writer`; the first ones are at the nodes of the same numbers.
    fn load(&self, writer: usize, seed: u64) -> Load {
        let socket = self.nodes[writer % self.nodes.len()].socket.clone();
        let (dir, lengths, scale) = (self.dir.path().into(), self.lengths, self.scale);
        Load::start(Task { dir, socket, writer, lengths, scale, seed }, "worker_process")
    }

    fn check(&self) -> serde_json::Value {
        self.nodes[0].checked_tables()[0].clone()
    }

    /// After the clients have ended: all is well, and what was leaked since `killed` returns.
    fn check_afterwards(&mut self, killed: Instant, told: &str) {
        let begun = self.check();
        wait_for("leaked entries to be freed", || self.nodes[0].is_clean().then_some(()));
        let returned = killed.elapsed();
        let values =
            load::verify_all(self.dir.path(), &self.nodes[0].socket, self.lengths, self.scale);
        assert_eq!(self.check()["values"], values);
        self.nodes[0].assert_no_sessions();
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

fn check_stalls(reports: &[Report]) -> String {
    let own = reports.iter().max_by_key(|report| report.longest_own).expect("some clients");
    assert!(own.longest_own <= STALL_MAX, "{own:?}");
    let longest = reports.iter().map(|report| report.longest).max().unwrap_or_default();
    let ops: u64 = reports.iter().map(|report| report.ops).sum();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{ops} operations, the longest {:.1} ms, of its own a {} with {:.1} ms",
        ms(longest),
        own.longest_own_op,
        ms(own.longest_own)
    )
}

/// Kills client 2 as often, at random moments about as far apart; when it was killed last.
fn kill_again_and_again(cluster: &Cluster, kills: u64, apart_ms: u64) -> Instant {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut killed = Instant::now();
    for kill in 0..kills {
        let mut victim = cluster.load(2, 100 + kill);
        victim.wait_for_ops(1);
        let hour = Duration::from_millis(random.random_range(apart_ms / 2..apart_ms * 3 / 2));
        wait_for("its hour", || (killed.elapsed() >= hour).then_some(()));
        victim.kill();
        killed = Instant::now();
    }
    killed
}

#[test]
fn a_client_that_is_killed_again_and_again_harms_nobody() {
    let _turn = turn();
    let (kills, apart_ms) = if is_long() { (60, 1000) } else { (12, 400) };
    let mut cluster = Cluster::start("64MiB", Lengths::Few);
    let mut survivors = [cluster.load(0, 1), cluster.load(1, 2)];
    let killed = kill_again_and_again(&cluster, kills, apart_ms);
    survivors.iter_mut().for_each(|survivor| survivor.wait_for_ops(ALIVE_OPS));
    let told = check_stalls(&survivors.map(Load::stop));
    cluster.check_afterwards(killed, &format!("{kills} kills, {told}"));
}

/// Clients take memory from each other, and die in the middle of that. What they wait for then is
/// memory, which is not bounded by [`STALL_MAX`].
#[test]
fn a_client_that_is_killed_while_memory_is_short_takes_none_of_it_along() {
    let _turn = turn();
    let (kills, apart_ms) = if is_long() { (60, 1000) } else { (12, 400) };
    let mut cluster = Cluster::start("8MiB", Lengths::Many);
    let mut survivors = [cluster.load(0, 1), cluster.load(1, 2)];
    let killed = kill_again_and_again(&cluster, kills, apart_ms);
    survivors.iter_mut().for_each(|survivor| survivor.wait_for_ops(1));
    let reports = survivors.map(Load::stop);
    let [ops, refused] = [|r: &Report| r.ops, |r: &Report| r.refused]
        .map(|count| reports.iter().map(count).sum::<u64>());
    let told = format!("{kills} kills, {ops} operations, {refused} of them refused");
    cluster.check_afterwards(killed, &told);
    let filled = load::refill(&cluster.nodes[0].socket, cluster.scale);
    println!("{filled:.2} of the memory filled afterwards");
    assert!(filled >= REFILLED_MIN);
    assert_eq!(cluster.check()["unshown"], 0);
}

/// Six processes of sixteen lanes each, of which one is killed every moment, where all values of
/// all keys would fill so many percent of the memory. `LOCH_STRESS_SECONDS` says for how long.
fn stress(percent: usize) {
    const WRITERS: usize = 6;
    const LANES: usize = 16;
    /// Of all operations that change a key nine in ten are PUTs: so many percent of the keys have a
    /// value.
    const PRESENT_PERCENT: usize = 90;
    /// A client is killed that often, on the average.
    const APART_MS: u64 = 250;
    let _turn = turn();
    let seconds = std::env::var("LOCH_STRESS_SECONDS").map_or(4, |s| s.parse().expect("seconds"));
    let mut cluster = Cluster::start("4MiB", Lengths::One);
    // A chunk of 64 KiB holds 31 entries of values of this length, with their headers and keys.
    let entry_bytes = (64 << 10) / ((64 << 10) / (load::ONE + 100));
    let room = load::data_bytes(&cluster.nodes[0].socket) as usize / entry_bytes;
    let keys = room * percent / PRESENT_PERCENT / WRITERS / LANES * LANES;
    cluster.scale = Scale { writers: WRITERS, keys, lanes: LANES };
    let mut loads: Vec<Load> = (0..WRITERS).map(|n| cluster.load(n, 300 + n as u64)).collect();
    let mut random = ChaCha8Rng::seed_from_u64(percent as u64);
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let (pause, killed) = (random.random_range(0..2 * APART_MS), Instant::now());
        wait_for("the next kill", || (killed.elapsed().as_millis() as u64 >= pause).then_some(()));
        let victim = random.random_range(0..WRITERS);
        // It may still look at what its last process left; and all others go on.
        loads.remove(victim).kill();
        loads.insert(victim, cluster.load(victim, 1000 + kills));
        loads.iter_mut().for_each(|load| _ = load.ops());
        kills += 1;
    }
    let killed = Instant::now();
    loads.iter_mut().for_each(|load| load.wait_for_ops(1));
    let reports: Vec<Report> = loads.into_iter().map(Load::stop).collect();
    let [ops, refused] = [|r: &Report| r.ops, |r: &Report| r.refused]
        .map(|count| reports.iter().map(count).sum::<u64>());
    let told = format!("{percent} %: {kills} kills, {ops} operations, {refused} of them refused");
    cluster.check_afterwards(killed, &told);
}

#[test]
fn nothing_is_lost_where_six_are_killed_in_memory_that_is_70_percent_full() {
    stress(70);
}

#[test]
fn nothing_is_lost_where_six_are_killed_in_memory_that_is_90_percent_full() {
    stress(90);
}

#[test]
fn nothing_is_lost_where_six_are_killed_in_memory_for_which_there_are_105_percent() {
    stress(105);
}

#[test]
fn clients_go_on_while_a_node_is_down() {
    let _turn = turn();
    let rounds = if is_long() { 10 } else { 1 };
    let mut cluster = Cluster::start("64MiB", Lengths::Few);
    let mut clients: Vec<Load> = (0..3).map(|n| cluster.load(n, 10 + n as u64)).collect();
    let all_go_on = |clients: &mut Vec<Load>| {
        clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
    };
    let mut killed = Instant::now();
    for round in 0..rounds {
        all_go_on(&mut clients);
        cluster.nodes[0].process.kill();
        all_go_on(&mut clients);
        cluster.restart_node(0);

        // In order is no different.
        all_go_on(&mut clients);
        cluster.nodes[1].process.signal(Signal::TERM);
        assert_eq!(cluster.nodes[1].process.ended().code(), Some(0));
        all_go_on(&mut clients);
        cluster.restart_node(1);

        // This one's client dies while nobody is there who could notice.
        all_go_on(&mut clients);
        cluster.nodes[2].process.kill();
        all_go_on(&mut clients);
        clients.pop().expect("the last client").kill();
        all_go_on(&mut clients);
        killed = Instant::now();
        cluster.restart_node(2);
        clients.push(cluster.load(2, 1000 + round));
        all_go_on(&mut clients);
        cluster.check();
    }
    let told = check_stalls(&clients.into_iter().map(Load::stop).collect::<Vec<_>>());
    cluster.check_afterwards(killed, &format!("{} nodes down, {told}", rounds * 3));
}

#[test]
fn a_cluster_that_is_killed_as_a_whole_has_everything_afterwards() {
    let _turn = turn();
    let mut cluster = Cluster::start("64MiB", Lengths::Few);
    let mut clients: Vec<Load> = (0..3).map(|n| cluster.load(n, 20 + n as u64)).collect();
    clients.iter_mut().for_each(|client| client.wait_for_ops(ALIVE_OPS));
    cluster.nodes.iter_mut().for_each(|node| node.process.kill());
    clients.into_iter().for_each(Load::kill);
    (0..NAMES.len()).for_each(|node| cluster.restart_node(node));
    cluster.check_afterwards(Instant::now(), "everybody killed");
}
