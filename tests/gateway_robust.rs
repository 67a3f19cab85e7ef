//! Gateways with as many clients as they take, with clients that do not read, beside nodes that
//! die, with tables that are full, and at their own end.
//!
//! `LOCH_LONG=1` repeats them.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loch::Cluster;
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

/// The request that sets a key.
fn resp_set(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
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
