//! Gateways with as many clients as they take, with clients that do not read, beside nodes that
//! die, with tables that are full, and at their own end.
//!
//! `LOCH_LONG=1` repeats them.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::gateway::{Gateway, Wire};
use support::{LOCH, Node, is_long, private_dir, wait_for};

const KIB: usize = 1 << 10;

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
