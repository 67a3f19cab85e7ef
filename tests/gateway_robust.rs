//! Gateways with as many clients as they take, with clients that do not read, beside nodes that
//! die, with tables that are full, and at their own end.
//!
//! `LOCH_LONG=1` repeats them.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use loch::Cluster;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use support::gateway::{Gateway, Wire};
use support::{LOCH, Node, is_long, private_dir, wait_for};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Each test loads the machine, and some measure a process: there is one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a client of a gateway speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Resp,
    Memcached,
}

impl Protocol {
    const BOTH: [Self; 2] = [Self::Resp, Self::Memcached];

    fn connect(self, gateway: &Gateway) -> Wire {
        match self {
            Self::Resp => Wire::to(&gateway.resp),
            Self::Memcached => Wire::to(&gateway.memcached),
        }
    }

    /// A request that reads nothing, and the line that answers it.
    fn ping(self) -> (&'static str, &'static str) {
        match self {
            Self::Resp => ("PING\r\n", "+PONG"),
            Self::Memcached => ("mn\r\n", "MN"),
        }
    }

    /// Requests with a value of a KiB, and the answers to them.
    fn some_work(self) -> (Vec<u8>, Vec<u8>) {
        let value = "v".repeat(KIB);
        let (requests, answers) = match self {
            Self::Resp => (
                format!("SET k {value}\r\nGET k\r\nPING\r\n"),
                format!("+OK\r\n${KIB}\r\n{value}\r\n+PONG\r\n"),
            ),
            Self::Memcached => (
                format!("set k 0 0 {KIB}\r\n{value}\r\nget k\r\nmn\r\n"),
                format!("STORED\r\nVALUE k 0 {KIB}\r\n{value}\r\nEND\r\nMN\r\n"),
            ),
        };
        (requests.into_bytes(), answers.into_bytes())
    }

    #[track_caller]
    fn is_served(self, wire: &mut Wire) {
        let (request, answer) = self.ping();
        wire.send(request.as_bytes());
        assert_eq!(wire.line(), answer);
    }
}

/// As of docs/gateway.md.
const CLIENTS_MAX: usize = 10_000;
/// Descriptors of this process, or of a gateway, that are no clients.
const OTHER_DESCRIPTORS: u64 = 300;
/// What a connection without anything to do may cost.
const IDLE_BYTES_MAX: u64 = 16 << 10;
/// What programs usually may have, which is not enough.
const USUAL_DESCRIPTORS: u64 = 1024;

/// Lets this process have as many descriptors as it may. Returns how many clients that is for.
fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("up to the hard limit is allowed");
    let clients = limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_DESCRIPTORS);
    usize::try_from(clients).map_or(CLIENTS_MAX, |clients| clients.min(CLIENTS_MAX))
}

/// A gateway that was started with as few descriptors as is usual raises its limit by itself.
fn gateway_with_usual_limits(dir: &Path, node: &Node) -> Gateway {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -Sn {USUAL_DESCRIPTORS} && exec \"$0\" \"$@\""), LOCH]);
    Gateway::start_by(shell, dir, node, "g")
}

#[test]
fn ten_thousand_clients_are_served_and_one_more_is_told_that_it_is_too_many() {
    let _alone = alone();
    let count = raise_descriptors();
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "32MiB"]);
    let gateway = gateway_with_usual_limits(dir.path(), &node);
    let descriptors = descriptors_without_clients(&gateway);
    let all_have_gone = || {
        for protocol in Protocol::BOTH {
            protocol.is_served(&mut protocol.connect(&gateway));
        }
        let now = || (gateway.descriptors() == descriptors).then_some(());
        wait_for("a gateway with the descriptors that it had at first", now);
    };
    all_have_gone();
    let before = gateway.memory_bytes();
    for _ in 0..if is_long() { 10 } else { 2 } {
        let mut wires: Vec<(Protocol, Wire)> = (0..count)
            .map(|number| Protocol::BOTH[number % 2])
            .map(|protocol| (protocol, protocol.connect(&gateway)))
            .collect();
        for (protocol, wire) in &mut wires {
            wire.send(&protocol.some_work().0);
        }
        for (protocol, wire) in &mut wires {
            let answers = protocol.some_work().1;
            assert_eq!(wire.bytes(answers.len()), answers);
        }
        let each = gateway.memory_bytes().saturating_sub(before) / count as u64;
        assert!(each < IDLE_BYTES_MAX, "{each} bytes for each of {count} connections");
        if count == CLIENTS_MAX {
            one_more_is_too_many(&gateway);
        } else {
            println!("only {count} clients: this process may have no more descriptors");
        }
        wires.iter_mut().step_by(97).for_each(|(protocol, wire)| protocol.is_served(wire));
        drop(wires);
        all_have_gone();
    }
}

/// Too few descriptors for all: those who come too late are told so, at all ports, and the others
/// are served.
#[test]
fn a_gateway_with_few_descriptors_takes_few_clients_and_goes_on() {
    let _alone = alone();
    raise_descriptors();
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "32MiB"]);
    let mut shell = Command::new("sh");
    let limited = "ulimit -n 400 && exec \"$0\" \"$@\" --http 127.0.0.1:0";
    shell.args(["-c", limited, LOCH]);
    let gateway = Gateway::start_by(shell, dir.path(), &node, "g");
    // Nobody has given a password there, and nobody takes the others' descriptors.
    let at = gateway.ready.find("http://").expect("it serves metrics") + "http://".len();
    let http = gateway.ready[at..].split('/').next().expect("an address");
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(http).expect("it listens")).collect();
    let mut wires: Vec<Wire> = (0..400).map(|_| Wire::to(&gateway.resp)).collect();
    let mut served = 0;
    for wire in &mut wires {
        // The connection of a client beyond the bound may have ended before it asks.
        match wire.try_send(b"PING\r\n").and_then(|()| wire.try_line()) {
            Ok(line) if line == "+PONG" => served += 1,
            Ok(line) => assert_eq!(line, "-ERR max number of clients reached"),
            Err(_) => (),
        }
    }
    wires[0].send(b"CONFIG GET maxclients\r\n");
    let lines = [(); 5].map(|()| wires[0].line());
    assert_eq!(lines[4], served.to_string());
    assert!((100..400).contains(&served), "{served}");
    drop((silent, wires));
    wait_for("a client to be served again", || {
        let mut wire = Wire::to(&gateway.resp);
        wire.try_send(b"PING\r\n").and_then(|()| wire.try_line()).ok().filter(|it| it == "+PONG")
    });
}

/// Both threads have begun once they have served clients, which come to the threads in turn.
fn descriptors_without_clients(gateway: &Gateway) -> usize {
    let mut wires = Protocol::BOTH.map(|protocol| (protocol, protocol.connect(gateway)));
    wires.iter_mut().for_each(|(protocol, wire)| protocol.is_served(wire));
    gateway.descriptors() - wires.len()
}

fn one_more_is_too_many(gateway: &Gateway) {
    for (protocol, answer) in [
        (Protocol::Resp, "-ERR max number of clients reached\r\n"),
        (Protocol::Memcached, "ERROR Too many open connections\r\n"),
    ] {
        let (said, ended) = protocol.connect(gateway).rest();
        assert_eq!(String::from_utf8_lossy(&said), answer);
        ended.expect("the connection ends after that");
    }
}

/// A request of RESP with these arguments.
fn resp_request(arguments: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        request += &format!("${}\r\n{argument}\r\n", argument.len());
    }
    request.into_bytes()
}

/// The request that sets a key.
fn resp_set(key: &str, value: &[u8]) -> Vec<u8> {
    resp_request(&["SET", key, std::str::from_utf8(value).expect("letters")])
}

/// Requests of a client that are pipelined when a gateway is told to end.
const PIPELINED: usize = 3000;
/// Longer than a gateway goes on for clients that do not read, which is two seconds.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// A pipeline of `client`, and the answers to it. Key `k` has the value of a KiB.
fn pipeline(protocol: Protocol, client: usize, value: &str) -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut answers) = (String::new(), String::new());
    for number in 0..PIPELINED {
        let text = format!("{client}:{number}");
        let (request, answer) = match (protocol, number % 4) {
            (Protocol::Resp, 0) => (format!("SET s{text} {text}"), "+OK".to_owned()),
            (Protocol::Resp, 1) => ("GET k".to_owned(), format!("${KIB}\r\n{value}")),
            (Protocol::Resp, 2) => (format!("APPEND a{client} ."), format!(":{}", number / 4 + 1)),
            (Protocol::Resp, _) => (format!("ECHO {text}"), format!("${}\r\n{text}", text.len())),
            (Protocol::Memcached, 0) => {
                (format!("set s{text} 0 0 {}\r\n{text}", text.len()), "STORED".to_owned())
            }
            (Protocol::Memcached, 1) => {
                ("get k".to_owned(), format!("VALUE k 0 {KIB}\r\n{value}\r\nEND"))
            }
            (Protocol::Memcached, 2) => (
                format!("ma a{client} N0 J1 v"),
                format!("VA {}\r\n{}", digits(number / 4 + 1), number / 4 + 1),
            ),
            (Protocol::Memcached, _) => (
                format!("mg none O{number} k v\r\nmg k O{number}"),
                format!("EN O{number} knone\r\nHD O{number}"),
            ),
        };
        requests += &(request + "\r\n");
        answers += &(answer + "\r\n");
    }
    (requests.into_bytes(), answers.into_bytes())
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

#[test]
fn a_gateway_that_is_told_to_end_answers_all_that_has_come_and_ends() {
    let _alone = alone();
    for _ in 0..if is_long() { 20 } else { 2 } {
        let dir = private_dir();
        let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
        let mut gateway = Gateway::start(dir.path(), &node, "g");
        let value = "v".repeat(KIB);
        let long = vec![b'l'; MIB];
        let mut client = Wire::to(&gateway.resp);
        client.send(&resp_set("k", value.as_bytes()));
        client.send(&resp_set("long", &long));
        assert_eq!([client.line(), client.line()], ["+OK", "+OK"]);
        // It has sent half a request.
        client.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$3\r\nab");
        // It does not read.
        let mut deaf = Wire::to(&gateway.resp);
        deaf.send("GET long\r\n".repeat(10).as_bytes());
        let mut wires: Vec<(Wire, Vec<u8>)> = (0..8)
            .map(|number| {
                let protocol = Protocol::BOTH[number % 2];
                let (requests, answers) = pipeline(protocol, number, &value);
                let mut wire = match number {
                    0 | 2 => Wire::to_port(gateway.tcp),
                    _ => protocol.connect(&gateway),
                };
                wire.send(&requests);
                (wire, answers)
            })
            .collect();
        for (wire, answers) in &mut wires {
            assert_eq!(wire.bytes(1), answers[..1], "it has begun");
        }
        let began = Instant::now();
        gateway.process.signal(Signal::TERM);
        for (wire, answers) in &mut wires {
            let (said, ended) = wire.rest();
            let same = said.iter().zip(&answers[1..]).take_while(|(a, b)| a == b).count();
            assert!(said == answers[1..], "{same} of {} bytes are right, {ended:?}", answers.len());
            ended.expect("it ends after its answers");
        }
        assert_eq!(client.rest().0, b"");
        // The client that does not read holds it up for a while. Nobody else comes in, and another
        // gateway can take its place.
        for path in [&gateway.resp, &gateway.memcached] {
            assert!(Wire::try_to(path).is_err(), "it still listens");
        }
        assert!(Wire::try_to_port(gateway.tcp).is_err(), "it still listens");
        let next = Gateway::start(dir.path(), &node, "g");
        assert_eq!(gateway.process.ended().code(), Some(0));
        assert!(began.elapsed() < DRAIN_TIME_MAX, "{:?}", began.elapsed());
        for protocol in Protocol::BOTH {
            protocol.is_served(&mut protocol.connect(&next));
        }
        let (said, _) = deaf.rest();
        let answer = [format!("${MIB}\r\n").as_bytes(), &long, b"\r\n"].concat();
        assert!(answer.repeat(10).starts_with(&said));
        let table = Cluster::connect(&node.socket).and_then(|c| c.table("default"));
        let table = table.expect("the node is up");
        for client in 0..8 {
            for number in (0..PIPELINED).step_by(4) {
                let text = format!("{client}:{number}");
                let value = table.get(format!("s{text}").as_bytes()).expect("it reads");
                assert_eq!(value.as_deref(), Some(text.as_bytes()), "s{text}");
            }
        }
        assert!(table.get(b"half").expect("it reads").is_none());
    }
}

/// A client of a table that is full, and what it knows of the table: nobody else writes its keys.
struct Filler {
    protocol: Protocol,
    wire: Wire,
    /// The values that were acknowledged.
    known: BTreeMap<String, Vec<u8>>,
    /// The values of SETs that were refused, which may have been done, of keys without another.
    refused: BTreeMap<String, Vec<u8>>,
}

impl Filler {
    fn new(protocol: Protocol, gateway: &Gateway) -> Self {
        let wire = protocol.connect(gateway);
        Self { protocol, wire, known: BTreeMap::new(), refused: BTreeMap::new() }
    }

    /// The value of a key, of so many bytes.
    fn value(key: &str, len: usize) -> Vec<u8> {
        key.bytes().cycle().take(len).collect()
    }

    fn send_set(&mut self, key: &str, len: usize) {
        let value = Self::value(key, len);
        match self.protocol {
            Protocol::Resp => self.wire.send(&resp_set(key, &value)),
            Protocol::Memcached => {
                let head = format!("set {key} 0 0 {len}\r\n");
                self.wire.send(&[head.as_bytes(), &value, b"\r\n"].concat());
            }
        }
    }

    /// Takes the answer to a SET. Returns whether it was refused, because the table is full.
    fn was_refused(&mut self) -> bool {
        let said = self.wire.line();
        let (done, full) = match self.protocol {
            Protocol::Resp => ("+OK", "-OOM "),
            Protocol::Memcached => ("STORED", "SERVER_ERROR out of memory storing object"),
        };
        assert!(said == done || said.starts_with(full), "{said}");
        said != done
    }

    /// SETs these keys, pipelined, each with so many bytes. Returns how many were refused.
    fn set(&mut self, keys: &[String], len: usize) -> usize {
        keys.iter().for_each(|key| self.send_set(key, len));
        let mut refused = 0;
        for key in keys {
            if self.was_refused() {
                refused += 1;
                // One of a batch may have been done, or not; one for itself was not.
                if keys.len() > 1 {
                    self.refused.insert(key.clone(), Self::value(key, len));
                }
            } else {
                self.refused.remove(key);
                self.known.insert(key.clone(), Self::value(key, len));
            }
        }
        refused
    }

    /// SETs new keys until the table is full.
    fn fill(&mut self, prefix: &str, len: usize) {
        let depth = (4 * MIB / len).min(32);
        for round in 0.. {
            let keys: Vec<String> = (0..depth).map(|at| format!("{prefix}:{round}:{at}")).collect();
            if self.set(&keys, len) > 0 {
                return;
            }
            assert!(round * depth * len < 64 * MIB, "the table is larger than it was made");
        }
    }

    fn send_get(&mut self, key: &str) {
        match self.protocol {
            Protocol::Resp => self.wire.send(format!("GET {key}\r\n").as_bytes()),
            Protocol::Memcached => self.wire.send(format!("get {key}\r\n").as_bytes()),
        }
    }

    /// Takes the answer to a GET.
    fn found(&mut self, key: &str) -> Option<Vec<u8>> {
        let (line, value) = match self.protocol {
            Protocol::Resp => self.wire.resp(),
            Protocol::Memcached => self.wire.memcached(),
        };
        if value.is_none() {
            assert!(line == "$-1" || line == "END", "{key}: {line}");
        } else if self.protocol == Protocol::Memcached {
            assert!(line.starts_with(&format!("VALUE {key} 0 ")), "{key}: {line}");
            assert_eq!(self.wire.line(), "END");
        }
        value
    }

    /// Everything that was acknowledged is there.
    fn check(&mut self) {
        let keys: Vec<String> = self.known.keys().cloned().collect();
        for keys in keys.chunks(32) {
            keys.iter().for_each(|key| self.send_get(key));
            for key in keys {
                let found = self.found(key).unwrap_or_else(|| panic!("{key} is lost"));
                let is_right = self.known[key] == found || self.refused.get(key) == Some(&found);
                assert!(is_right, "{key} has another value");
            }
        }
    }

    /// Deletes keys.
    fn delete(&mut self, keys: &[String]) {
        let (verb, done) = match self.protocol {
            Protocol::Resp => ("DEL", ":1"),
            Protocol::Memcached => ("delete", "DELETED"),
        };
        for keys in keys.chunks(32) {
            let requests: String = keys.iter().map(|key| format!("{verb} {key}\r\n")).collect();
            self.wire.send(requests.as_bytes());
            for key in keys {
                assert_eq!(self.wire.line(), done, "{key}");
                self.known.remove(key);
                self.refused.remove(key);
            }
        }
    }
}

#[test]
fn a_table_that_is_full_says_so_keeps_what_it_has_and_takes_more_after_deletions() {
    let _alone = alone();
    let lens = [500, MIB];
    for (protocol, len) in Protocol::BOTH.into_iter().flat_map(|p| lens.map(|len| (p, len))) {
        let dir = private_dir();
        let node = Node::start(dir.path(), "n", &["--memory", "24MiB"]);
        let gateway = Gateway::start(dir.path(), &node, "g");
        let mut filler = Filler::new(protocol, &gateway);
        filler.fill("a", len);
        let known: Vec<String> = filler.known.keys().cloned().collect();
        for _ in 0..if is_long() { 10 } else { 1 } {
            while_it_is_full(&mut filler, &known, len);
            filler.check();
            // What was removed makes room, and all else is still there.
            let (gone, _) = known.split_at(known.len() / 2);
            filler.delete(gone);
            for keys in gone.chunks(16) {
                assert_eq!(filler.set(keys, len), 0, "{len} bytes of {protocol:?}");
            }
            filler.check();
        }
    }
}

/// GETs and refusals by turns in pipelines, other commands that store, and overwriting.
fn while_it_is_full(filler: &mut Filler, known: &[String], len: usize) {
    // It reads after it has sent everything, so the answers have to fit into the sockets.
    let depth = (64 * KIB / len).clamp(1, 16);
    for round in 0..4 {
        let more: Vec<String> = (0..depth).map(|at| format!("more:{round}:{at}")).collect();
        let pairs: Vec<(&String, &String)> = more.iter().zip(known.iter().cycle()).collect();
        for (new, old) in &pairs {
            filler.send_set(new, len);
            filler.send_get(old);
        }
        for (_, old) in pairs {
            assert!(filler.was_refused(), "the table has not been full");
            let found = filler.found(old);
            assert!(found.as_ref() == Some(&filler.known[old]), "{old}");
        }
    }
    let value = String::from_utf8(Filler::value("x", len)).expect("letters");
    let requests = match filler.protocol {
        Protocol::Resp => ["SETEX new 100", "SETNX new", "APPEND new", "GETSET new"]
            .map(|head| resp_request(&[head.split(' ').collect(), vec![&value[..]]].concat())),
        Protocol::Memcached => ["set new 7 0", "add new 0 100", "set new 0 100", "ms new"]
            .map(|head| format!("{head} {len}\r\n{value}\r\n").into_bytes()),
    };
    for request in requests {
        filler.wire.send(&request);
        assert!(filler.was_refused(), "the table has not been full");
    }
    // A shorter value takes new memory, too, before the old one is free: it is put whole or not.
    for key in known.iter().take(4) {
        filler.set(std::slice::from_ref(key), len / 2);
    }
}

/// Clients that do not read.
const SLOW_CLIENTS: usize = 1000;
/// Values of a MiB that each of them has asked for.
const SLOW_ANSWERS: usize = 2;
/// What a gateway may hold for all of them: half of it are copies of values (docs/gateway.md).
const SLOW_BYTES_MAX: u64 = 64 << 20;

/// The time of the calmest of some rounds of requests.
fn calmest(wire: &mut Wire, request: &[u8], answer: &[u8]) -> Duration {
    let round = |_| {
        let began = Instant::now();
        for _ in 0..50 {
            wire.send(request);
            assert!(wire.bytes(answer.len()) == answer);
        }
        began.elapsed()
    };
    (0..20).map(round).min().expect("some rounds")
}

#[test]
fn a_thousand_clients_that_do_not_read_hold_little_memory_and_up_nobody() {
    let _alone = alone();
    assert!(raise_descriptors() > SLOW_CLIENTS, "a process may have more descriptors");
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let gateway = Gateway::start(dir.path(), &node, "g");
    let long: Vec<u8> = (0..MIB).map(|at| b'a' + (at / 7 % 26) as u8).collect();
    let mut other = Wire::to(&gateway.resp);
    for (key, value) in [("long", &long), ("k", &b"v".repeat(KIB))] {
        other.send(&resp_set(key, value));
        assert_eq!(other.line(), "+OK");
    }
    let answers = [
        [format!("${MIB}\r\n").as_bytes(), &long, b"\r\n"].concat(),
        [format!("VALUE long 0 {MIB}\r\n").as_bytes(), &long, b"\r\nEND\r\n"].concat(),
    ];
    let short = [format!("${KIB}\r\n").as_bytes(), &b"v".repeat(KIB), b"\r\n"].concat();
    let alone = calmest(&mut other, b"GET k\r\n", &short);
    let before = gateway.memory_bytes();
    let mut slow: Vec<(usize, Wire)> = (0..SLOW_CLIENTS)
        .map(|number| {
            let kind = number % 2;
            let mut wire = Protocol::BOTH[kind].connect(&gateway);
            wire.send("get long\r\n".repeat(SLOW_ANSWERS).as_bytes());
            (kind, wire)
        })
        .collect();
    let beside = calmest(&mut other, b"GET k\r\n", &short);
    // Each of them has had its turn.
    for (kind, wire) in &mut slow {
        assert!(wire.bytes(1) == answers[*kind][..1]);
    }
    let held = gateway.memory_bytes().saturating_sub(before);
    assert!(held < SLOW_BYTES_MAX, "{} MiB", held >> 20);
    assert!(beside < 10 * alone, "{beside:?} instead of {alone:?}");
    for (kind, wire) in &mut slow {
        let answer = &answers[*kind];
        for number in 0..SLOW_ANSWERS {
            let begun = usize::from(number == 0);
            assert!(wire.bytes(answer.len() - begun) == answer[begun..], "answer {number}");
        }
    }
    for (kind, wire) in &mut slow {
        Protocol::BOTH[*kind].is_served(wire);
    }
}

/// Requests that a client sends before it reads the answers.
const DEPTH: usize = 32;
/// Keys of a client, which nobody else writes.
const KEYS: usize = 5;
/// Pipelines that each client does in each state of the node.
const PIPELINES: usize = 50;

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Set(u64),
    Get,
    Delete,
    /// Something that no table is needed for.
    Echo(u64),
}

/// The values that a key may have, as far as its only writer knows.
#[derive(Clone, Debug, Default)]
struct Possible {
    /// What the last change that was answered has left, or a GET has found.
    now: Option<u64>,
    /// What changes may leave of which it is unknown whether they have been done: they may still be
    /// under way.
    unknown: BTreeSet<Option<u64>>,
    /// Whether the value may be lost at any moment.
    is_lost: bool,
}

impl Possible {
    fn found(&mut self, value: Option<u64>) {
        let may_be =
            self.now == value || self.unknown.contains(&value) || self.is_lost && value.is_none();
        assert!(may_be, "{value:?} was found, of {self:?}");
        self.now = value;
    }
}

/// A client of a node that dies.
struct Piper {
    protocol: Protocol,
    wire: Wire,
    keys: Vec<Possible>,
    prefix: String,
    tags: u64,
    random: ChaCha8Rng,
}

impl Piper {
    fn new(protocol: Protocol, gateway: &Gateway, number: u64, is_lost: bool) -> Self {
        let wire = protocol.connect(gateway);
        let keys = vec![Possible { is_lost, ..Possible::default() }; KEYS];
        let random = ChaCha8Rng::seed_from_u64(number);
        let prefix = format!("{number}");
        Self { protocol, wire, keys, prefix, tags: number << 32, random }
    }

    fn draw(&mut self) -> (usize, Ask) {
        self.tags += 1;
        let ask = match self.random.random_range(0..10) {
            0..4 => Ask::Get,
            4..8 => Ask::Set(self.tags),
            8 => Ask::Delete,
            _ => Ask::Echo(self.tags),
        };
        (self.random.random_range(0..KEYS), ask)
    }

    fn request(&self, key: usize, ask: Ask) -> String {
        let key = format!("{}:{key}", self.prefix);
        match (self.protocol, ask) {
            (Protocol::Resp, Ask::Set(tag)) => format!("SET {key} {tag:020}\r\n"),
            (Protocol::Resp, Ask::Get) => format!("GET {key}\r\n"),
            (Protocol::Resp, Ask::Delete) => format!("DEL {key}\r\n"),
            (Protocol::Resp, Ask::Echo(tag)) => format!("ECHO {tag:020}\r\n"),
            (Protocol::Memcached, Ask::Set(tag)) => format!("set {key} 0 0 20\r\n{tag:020}\r\n"),
            (Protocol::Memcached, Ask::Get) => format!("mg {key} v k\r\n"),
            (Protocol::Memcached, Ask::Delete) => format!("delete {key}\r\n"),
            // An unknown word is answered, too.
            (Protocol::Memcached, Ask::Echo(_)) => "verbosity 1\r\n".to_owned(),
        }
    }

    /// Takes an answer. Returns whether it was an error.
    fn answer(&mut self, key: usize, ask: Ask) -> bool {
        let (line, value) = match self.protocol {
            Protocol::Resp => self.wire.resp(),
            Protocol::Memcached => self.wire.memcached(),
        };
        let is_error = line.starts_with("-") && line != "-1" || line.starts_with("SERVER_ERROR ");
        let name = format!("{}:{key}", self.prefix);
        let known = &mut self.keys[key];
        let tag = |value: Option<Vec<u8>>| {
            value.map(|value| {
                assert_eq!(value.len(), 20, "{line}");
                String::from_utf8_lossy(&value).parse::<u64>().expect("a tag")
            })
        };
        match ask {
            Ask::Echo(wanted) => match self.protocol {
                Protocol::Resp => assert_eq!(tag(value), Some(wanted), "{line}"),
                Protocol::Memcached => assert_eq!(line, "OK"),
            },
            Ask::Get if is_error => (),
            Ask::Get => {
                let is_right = match (self.protocol, value.is_some()) {
                    (Protocol::Resp, has_value) => has_value || line == "$-1",
                    (Protocol::Memcached, true) => line == format!("VA 20 k{name}"),
                    (Protocol::Memcached, false) => line == format!("EN k{name}"),
                };
                assert!(is_right, "{name}: {line}");
                known.found(tag(value));
            }
            Ask::Set(wanted) if is_error => _ = known.unknown.insert(Some(wanted)),
            Ask::Set(wanted) => {
                assert!(line == "+OK" || line == "STORED", "{line}");
                known.now = Some(wanted);
            }
            Ask::Delete if is_error => _ = known.unknown.insert(None),
            Ask::Delete => {
                let was_there = match &line[..] {
                    ":1" | "DELETED" => true,
                    ":0" | "NOT_FOUND" => false,
                    other => panic!("{other:?} is no answer to a DELETE"),
                };
                let may_be = known.unknown.iter().any(|value| value.is_some() == was_there)
                    || known.now.is_some() == was_there
                    || known.is_lost && !was_there;
                assert!(may_be, "{name}: {line}, {known:?}");
                known.now = None;
            }
        }
        is_error
    }

    /// Sends a pipeline of any requests and takes its answers. Returns how many were errors.
    fn pipeline(&mut self) -> usize {
        let asks: Vec<_> = (0..DEPTH).map(|_| self.draw()).collect();
        self.send(&asks);
        self.take(asks)
    }

    /// Sends a pipeline of which only the first request needs the table.
    fn send_one(&mut self) -> Vec<(usize, Ask)> {
        let (first, rest) = (Ask::Set(self.tags + 1), 2..=DEPTH as u64);
        let mut asks = vec![(0, first)];
        asks.extend(rest.map(|number| (0, Ask::Echo(self.tags + number))));
        self.tags += DEPTH as u64;
        self.send(&asks);
        asks
    }

    fn send(&mut self, asks: &[(usize, Ask)]) {
        let requests: String = asks.iter().map(|(key, ask)| self.request(*key, *ask)).collect();
        self.wire.send(requests.as_bytes());
    }

    /// Takes the answers to a pipeline. Returns how many were errors.
    fn take(&mut self, asks: Vec<(usize, Ask)>) -> usize {
        asks.into_iter().filter(|(key, ask)| self.answer(*key, *ask)).count()
    }

    /// From now on other keys, of which everything is known.
    fn forget(&mut self) {
        self.prefix += "+";
        self.keys = vec![Possible::default(); KEYS];
    }
}

/// What an engine keeps when its node is killed and started again. The region's file stays, also
/// that of an ephemeral node, which removes it only when it is stopped in order.
struct Engine {
    name: &'static str,
    is_ephemeral: bool,
    /// Whether its tables can be used while the node is down.
    needs_node: bool,
    /// Whether its values are gone then.
    loses: bool,
}

const ENGINES: [Engine; 5] = [
    Engine { name: "nessie", is_ephemeral: false, needs_node: false, loses: false },
    Engine { name: "nessie", is_ephemeral: true, needs_node: false, loses: false },
    Engine { name: "nessie-server", is_ephemeral: false, needs_node: true, loses: false },
    Engine { name: "herd", is_ephemeral: false, needs_node: true, loses: true },
    Engine { name: "kv-direct", is_ephemeral: false, needs_node: true, loses: true },
];

/// Tells clients to end, also when a test has failed.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn answers_are_right_or_errors_while_a_node_is_killed_and_connections_outlive_it() {
    let _alone = alone();
    for engine in ENGINES {
        let dir = private_dir();
        let config = dir.path().join("n.toml");
        let text = format!(
            "memory = \"32MiB\"\n[[table]]\nname = \"default\"\nengine = \"{}\"\n",
            engine.name
        );
        std::fs::write(&config, text).expect("a file");
        let mut flags = vec!["--config", config.to_str().expect("text")];
        flags.extend(engine.is_ephemeral.then_some("--ephemeral"));
        let mut node = Node::start(dir.path(), "n", &flags);
        let gateway = Gateway::start(dir.path(), &node, "g");
        let mut pipers: Vec<Piper> = (0..4)
            .map(|number| {
                Piper::new(Protocol::BOTH[number % 2], &gateway, number as u64, engine.loses)
            })
            .collect();
        let (ends, clean) = (AtomicBool::new(false), [(); 4].map(|()| AtomicUsize::new(0)));
        thread::scope(|scope| {
            for (piper, clean) in pipers.iter_mut().zip(&clean) {
                let ends = &ends;
                scope.spawn(move || {
                    while !ends.load(Ordering::Acquire) {
                        let is_clean = piper.pipeline() == 0;
                        clean.fetch_add(is_clean.into(), Ordering::AcqRel);
                    }
                });
            }
            let wait_for_all = || {
                let now = || clean.each_ref().map(|clean| clean.load(Ordering::Acquire));
                let before = now();
                let has = |(now, before): (usize, usize)| now >= before + PIPELINES;
                let have = || now().into_iter().zip(before).all(has).then_some(());
                wait_for("answers without errors", have);
            };
            let _ends = AtEnd(&ends);
            wait_for_all();
            node.process.kill();
            if !engine.needs_node {
                wait_for_all();
            }
            node = Node::start(dir.path(), "n", &flags);
            assert!(node.ready.contains("taken over from"), "{}", node.ready);
            wait_for_all();
        });
        if engine.needs_node && (!engine.loses || is_long()) {
            node.process.kill();
            let asked: Vec<_> = pipers.iter_mut().map(Piper::send_one).collect();
            // Clients that want nothing of the node do not wait for it.
            for protocol in Protocol::BOTH {
                protocol.is_served(&mut protocol.connect(&gateway));
            }
            let is_early = |piper: &Piper| piper.wire.has_something();
            assert!(!pipers.iter().any(is_early), "an answer of a node that is dead");
            for (piper, asked) in pipers.iter_mut().zip(asked) {
                assert_eq!(piper.take(asked), 1, "no error");
            }
            node = Node::start(dir.path(), "n", &flags);
        }
        // The same connections, and nothing is lost any more.
        for piper in &mut pipers {
            piper.forget();
            for _ in 0..PIPELINES {
                assert_eq!(piper.pipeline(), 0, "errors while the node is up");
            }
        }
        assert!(node.is_clean(), "the table is damaged");
    }
}

/// Two times: the gateway looks at the memory that it has then.
#[test]
fn a_gateway_serves_the_memory_of_a_node_that_has_lost_its_own() {
    let _alone = alone();
    let dir = private_dir();
    let start = || Node::start(dir.path(), "n", &["--memory", "32MiB", "--ephemeral"]);
    let mut node = start();
    let gateway = Gateway::start(dir.path(), &node, "g");
    for round in 0..2 {
        let (key, value) = (format!("key{round}"), format!("value{round}"));
        let mut old = Wire::to_port(gateway.tcp);
        old.send(&resp_set(&key, value.as_bytes()));
        assert_eq!(old.line(), "+OK");
        assert_eq!(node.loch(&["get", &key]).text(), value);
        node.stop(Signal::TERM);
        node = start();
        // Its memory has nothing of that, and the gateway says so soon, at the same addresses.
        let get = resp_request(&["GET", &key]);
        wait_for("the gateway to see the new memory", || {
            let wires = [Wire::try_to_port(gateway.tcp), Wire::try_to(&gateway.resp)];
            let finds_nothing = |wire: std::io::Result<Wire>| {
                let mut wire = wire?;
                wire.try_send(&get)?;
                wire.try_line().map(|line| line == "$-1")
            };
            let mut answers = wires.into_iter().map(finds_nothing);
            answers.all(|nothing| nothing.unwrap_or(false)).then_some(())
        });
        let mut new = Wire::to(&gateway.memcached);
        new.send(b"set new 0 0 1\r\nx\r\n");
        assert_eq!(new.line(), "STORED");
        assert_eq!(node.loch(&["get", "new"]).text(), "x");
        // The connection from before has ended.
        assert!(old.try_send(&get).and_then(|()| old.try_line()).is_err());
    }
}
