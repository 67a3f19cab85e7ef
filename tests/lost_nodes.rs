//! One of three nodes over TCP is killed, stopped, or cut off by the network. Meanwhile the
//! gateways at the other two serve everybody who does not need that node, and tell an error to
//! those who do. Afterwards everything is served again.
//!
//! `LOCH_LONG=1` has the node away for a minute, and asks that no PING takes 100 ms: for a machine
//! with nothing else to do.

mod support;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loch_wire::{Hosts, Weather};
use rustix::process::Signal;
use support::gateway::{Gateway, Wire};
use support::{LOCH, Node, is_long, loch, private_dir, wait_for};
use tempfile::TempDir;

/// Keys, of which each node has some.
const KEYS: usize = 64;
/// How long the node is away: longer than a connection may be silent and than an operation then
/// waits for the node, so that there is also the time when operations fail at once.
const AWAY: Duration = Duration::from_secs(14);
const AWAY_LONG: Duration = Duration::from_secs(60);
/// An operation that has taken so long has waited for the node.
const HAS_WAITED: Duration = Duration::from_secs(1);
/// PINGs that are answered while an operation waits so long. There are thousands, if the gateway's
/// thread goes on, and one or two if it does not.
const PINGS_MEANWHILE: u64 = 20;
/// The deadline of an operation, after the 3 s in which a connection may be silent, and as much
/// again for a busy machine.
const DEADLINE: Duration = Duration::from_secs(2 * (3 + 5));
/// What a PING may take at most on a quiet machine.
const PING_MAX: Duration = Duration::from_millis(100);

/// How a node gets lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Killed,
    Stopped,
    CutOff,
}

/// Three nodes, and gateways at the first two. The third is the one that gets lost.
struct Cluster {
    gateways: Vec<Gateway>,
    nodes: Vec<Node>,
    addresses: Vec<String>,
    hosts: Option<Hosts>,
    dir: TempDir,
}

impl Cluster {
    /// Starts it: on this host, or with the third node on a host of its own.
    fn start(engine: &str, hosts: Option<Hosts>) -> Self {
        let dir = private_dir();
        let secret = dir.path().join("secret");
        fs::write(&secret, "the secret of all three").expect("a file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a file");
        let addresses = match &hosts {
            Some(_) => vec!["10.9.0.1:7401".into(), "10.9.0.1:7402".into(), "10.9.0.2:7401".into()],
            None => free_addresses(),
        };
        let mut cluster = Self { gateways: Vec::new(), nodes: Vec::new(), addresses, hosts, dir };
        // Each waits for no other before it is ready.
        cluster.nodes = (0..3).map(|node| cluster.serve(engine, node)).collect();
        let gateway = |node: usize| {
            let (dir, name) = (cluster.dir.path(), format!("g{node}"));
            Gateway::start_by(cluster.on_host_of(0), dir, &cluster.nodes[node], &name)
        };
        cluster.gateways = (0..2).map(gateway).collect();
        cluster
    }

    fn serve(&self, engine: &str, node: usize) -> Node {
        let (dir, secret) = (self.dir.path(), self.dir.path().join("secret"));
        let cluster = self.addresses.join(",");
        let flags = [
            "--fabric",
            "tcp",
            "--memory",
            "64MiB",
            "--listen",
            &self.addresses[node],
            "--cluster",
            &cluster,
            "--secret",
            secret.to_str().expect("text"),
            "--engine",
            engine,
        ];
        Node::start_by(self.on_host_of(node), dir, &format!("n{node}"), &flags)
    }

    /// A command of `loch` where that node runs.
    fn on_host_of(&self, node: usize) -> Command {
        match &self.hosts {
            Some(hosts) => hosts.command(1 + node / 2, LOCH),
            None => loch(),
        }
    }

    fn lose(&mut self, how: Loss) {
        match how {
            Loss::Killed => self.nodes[2].process.kill(),
            Loss::Stopped => self.nodes[2].process.signal(Signal::STOP),
            Loss::CutOff => {
                self.change_neighbours("replace", " lladdr 02:00:00:00:00:99 nud permanent")
            }
        }
    }

    fn bring_back(&mut self, engine: &str, how: Loss) {
        match how {
            Loss::Killed => self.nodes[2] = self.serve(engine, 2),
            Loss::Stopped => self.nodes[2].process.signal(Signal::CONT),
            Loss::CutOff => self.change_neighbours("delete", ""),
        }
    }

    /// Each host sends to the device that its neighbour is said to have, which may be nobody's.
    fn change_neighbours(&self, action: &str, device: &str) {
        let hosts = self.hosts.as_ref().expect("the node has a host of its own");
        for host in [1, 2] {
            let words = format!("neigh {action} 10.9.0.{} dev eth0{device}", 3 - host);
            let status = hosts.command(host, "ip").args(words.split(' ')).status();
            assert!(status.expect("ip is there").success(), "{words}");
        }
    }
}

fn free_addresses() -> Vec<String> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    // All at once, so that each is another.
    let listeners: Vec<_> = (0..3).map(listen).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("it listens").to_string();
    listeners.iter().map(address).collect()
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}

/// The first line of the answer to a command of Redis that has no list for an answer.
fn ask(wire: &mut Wire, words: &[&str]) -> String {
    wire.send(&request(words));
    wire.resp().0
}

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// A connection that is served: the next one gets the next thread of the gateway.
fn connect(gateway: &Gateway) -> Wire {
    let mut wire = Wire::to(&gateway.resp);
    assert_eq!(ask(&mut wire, &["PING"]), "+PONG");
    wire
}

/// What the clients of one gateway have seen that send PINGs, one at each of its threads.
#[derive(Default)]
struct Pings {
    are_over: AtomicBool,
    answered: [AtomicU64; 2],
    longest_us: AtomicU64,
}

impl Pings {
    /// Sends PINGs, each after the answer to the one before.
    fn send(&self, wire: &mut Wire, answered: &AtomicU64) {
        while !self.are_over.load(Ordering::Acquire) {
            let sent = Instant::now();
            assert_eq!(ask(wire, &["PING"]), "+PONG");
            self.longest_us.fetch_max(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn answered(&self) -> [u64; 2] {
        [0, 1].map(|thread| self.answered[thread].load(Ordering::Relaxed))
    }

    /// Asks, and returns the answer and whether that took long. Then both threads have answered
    /// PINGs meanwhile.
    fn beside(&self, wire: &mut Wire, words: &[&str]) -> (String, bool) {
        let (before, sent) = (self.answered(), Instant::now());
        let answer = ask(wire, words);
        let (after, took) = (self.answered(), sent.elapsed());
        assert!(took < DEADLINE, "{words:?} took {took:?}: {answer}");
        let meanwhile = [0, 1].map(|thread| after[thread] - before[thread]);
        let goes_on = meanwhile.iter().all(|count| *count >= PINGS_MEANWHILE);
        let has_waited = took >= HAS_WAITED;
        assert!(goes_on || !has_waited, "{meanwhile:?} PINGs while {words:?} took {took:?}");
        (answer, has_waited)
    }
}

/// Puts and gets each key again and again, until the time is over, and returns for each whether
/// that succeeded the last time.
fn use_all(wire: &mut Wire, pings: &Pings, until: Instant) -> Vec<Option<bool>> {
    let (mut succeeded, mut has_waited) = (vec![None; KEYS], false);
    for number in (0..KEYS).cycle() {
        if Instant::now() >= until {
            break;
        }
        let key = key(number);
        let ask = |words: &[&str]| pings.beside(wire, words);
        let [set, get] = [&["SET", &key, "value"][..], &["GET", &key]].map(ask);
        has_waited |= set.1 || get.1;
        succeeded[number] = Some(!set.0.starts_with('-') && !get.0.starts_with('-'));
    }
    assert!(has_waited, "an operation waits for a node that may be about to come back");
    succeeded
}

/// Asks for what takes a look at all nodes, until the time is over.
fn look_at_all(wire: &mut Wire, pings: &Pings, until: Instant) {
    let looks = [&["INFO"][..], &["DBSIZE"], &["RANDOMKEY"], &["MEMORY", "USAGE", "key:1"]];
    for words in looks.into_iter().cycle().take_while(|_| Instant::now() < until) {
        pings.beside(wire, words);
    }
}

/// Has clients at a gateway while the node is away. Returns how many of the keys that they have
/// used were served, and how many were not.
fn serve_meanwhile(gateway: &Gateway, away: Duration) -> [usize; 2] {
    let (until, pings) = (Instant::now() + away, &Pings::default());
    let [ping_wires, use_wires, look_wires] = [(); 3].map(|()| [(); 2].map(|()| connect(gateway)));
    let served = thread::scope(|scope| {
        for (mut wire, answered) in ping_wires.into_iter().zip(&pings.answered) {
            scope.spawn(move || pings.send(&mut wire, answered));
        }
        let lookers =
            look_wires.map(|mut wire| scope.spawn(move || look_at_all(&mut wire, pings, until)));
        let users = use_wires.map(|mut wire| scope.spawn(move || use_all(&mut wire, pings, until)));
        let (served, looked) = (users.map(|user| user.join()), lookers.map(|one| one.join()));
        // PINGs go on until the last of the others has its answer.
        pings.are_over.store(true, Ordering::Release);
        looked.into_iter().for_each(|looked| looked.expect("a client has failed"));
        served
    });
    let longest = Duration::from_micros(pings.longest_us.load(Ordering::Relaxed));
    println!("{:?} PINGs, the longest took {longest:?}", pings.answered());
    assert!(!is_long() || longest < PING_MAX, "a PING took {longest:?}");
    let [served, _] = served.map(|served| served.expect("a client has failed"));
    [true, false].map(|how| served.iter().filter(|one| **one == Some(how)).count())
}

fn others_are_served(engine: &str, how: Loss, hosts: Option<Hosts>) {
    let mut cluster = Cluster::start(engine, hosts);
    let set_all = |gateway: &Gateway| -> io::Result<()> {
        let mut wire = Wire::try_to(&gateway.resp)?;
        let is_set = |number| ask(&mut wire, &["SET", &key(number), "value"]) == "+OK";
        (0..KEYS).all(is_set).then_some(()).ok_or(io::ErrorKind::Other.into())
    };
    cluster.gateways.iter().for_each(|gateway| set_all(gateway).expect("all nodes are there"));

    cluster.lose(how);
    let away = if is_long() { AWAY_LONG } else { AWAY };
    let served: Vec<_> = thread::scope(|scope| {
        let gateways = cluster.gateways.iter();
        let gateways = gateways.map(|gateway| scope.spawn(move || serve_meanwhile(gateway, away)));
        let gateways: Vec<_> = gateways.collect();
        gateways.into_iter().map(|it| it.join().expect("a gateway has failed")).collect()
    });
    for [served, lost] in served {
        println!("{how:?}, {engine}: {served} keys were served, and {lost} were not");
        assert!(served > 0 && lost > 0, "each node has some of the keys");
    }

    cluster.bring_back(engine, how);
    let began = Instant::now();
    for gateway in &cluster.gateways {
        wait_for("all keys to be served again", || set_all(gateway).ok());
    }
    println!("{how:?}, {engine}: all keys were served again after {:?}", began.elapsed());
}

#[test]
fn others_are_served_while_a_node_is_killed() {
    others_are_served("nessie", Loss::Killed, None);
}

#[test]
fn others_are_served_while_a_node_is_stopped() {
    others_are_served("nessie", Loss::Stopped, None);
}

/// Its clients wait for workers, and not for memory.
#[test]
fn others_are_served_while_a_node_with_workers_is_stopped() {
    others_are_served("nessie-server", Loss::Stopped, None);
}

#[test]
fn others_are_served_while_a_node_is_cut_off() {
    match Hosts::make(&format!("loch-lost-{}", std::process::id()), Weather::FAIR) {
        Ok(hosts) => others_are_served("nessie", Loss::CutOff, Some(hosts)),
        Err(why) => println!("skipped: there are no network namespaces: {why}"),
    }
}
