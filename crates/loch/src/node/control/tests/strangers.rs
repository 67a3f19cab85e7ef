//! Strangers at the control port, which must not disturb nodes.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::rig::{Rig, eventually};
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE};
use crate::node::control_client::Caller;
use crate::session::slot::Process;

/// A stranger that connects from an address of this host, and sends nothing.
fn stranger(from: [u8; 4], to: &str) -> TcpStream {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddr::from((from, 0))).unwrap();
    connect(&stream, &to.parse::<SocketAddr>().unwrap()).unwrap();
    TcpStream::from(stream)
}

/// Returns whether the connection was closed.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(0) => true,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        other => panic!("nothing is said to strangers: {other:?}"),
    }
}

fn open(strangers: &[TcpStream]) -> usize {
    strangers.iter().filter(|stream| !is_closed(stream)).count()
}

/// Node 0 of two starts, and its client is let in at node 1. If that is done before the first
/// stranger's time is over, a place was made for the node and had not become free by itself.
fn a_node_comes_to(rig: &mut Rig, begun: Instant) {
    rig.start(0);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "x");
    let after = begun.elapsed();
    assert!(after < HANDSHAKE_TIMEOUT, "{after:?}: the strangers' places had become free");
}

#[test]
fn silent_connections_from_a_nodes_own_address_do_not_keep_it_out() {
    let mut rig = Rig::down(2);
    rig.start(1);
    let begun = Instant::now();
    let strangers: Vec<_> =
        (0..HANDSHAKES_MAX + 8).map(|_| stranger([127, 0, 0, 1], &rig.addresses[1])).collect();
    eventually("the oldest gave way", || open(&strangers) <= HANDSHAKES_MAX);
    assert!(is_closed(&strangers[0]) && is_closed(&strangers[7]));
    assert!(!is_closed(&strangers[HANDSHAKES_MAX + 7]), "the newest waits");
    a_node_comes_to(&mut rig, begun);
}

#[test]
fn strangers_of_many_addresses_do_not_keep_nodes_out() {
    let mut rig = Rig::down(2);
    rig.start(1);
    let begun = Instant::now();
    let sources = (HANDSHAKES_MAX / HANDSHAKES_PER_SOURCE) as u8;
    let strangers: Vec<_> = (0..HANDSHAKES_MAX)
        .map(|n| stranger([127, 0, 1, 1 + n as u8 % sources], &rig.addresses[1]))
        .collect();
    a_node_comes_to(&mut rig, begun);
    let closed: Vec<usize> = (0..HANDSHAKES_MAX).filter(|n| is_closed(&strangers[*n])).collect();
    assert_eq!(closed, [0], "one gave way, and it was the oldest");
}

#[test]
fn one_strangers_address_has_few_places() {
    let mut rig = Rig::down(2);
    rig.start(1);
    let begun = Instant::now();
    let others: Vec<_> = (0..3).map(|n| stranger([127, 0, 1, 1 + n], &rig.addresses[1])).collect();
    let strangers: Vec<_> =
        (0..HANDSHAKES_MAX).map(|_| stranger([127, 0, 2, 1], &rig.addresses[1])).collect();
    eventually("the oldest gave way", || open(&strangers) == HANDSHAKES_PER_SOURCE);
    assert_eq!(open(&others), others.len(), "nobody else's did");
    assert!(begun.elapsed() < HANDSHAKE_TIMEOUT, "it was not their time that was over");
    let node: IpAddr = [127, 0, 0, 1].into();
    assert!(rig.control(1).plane().handshakes.is_nodes(node));
    a_node_comes_to(&mut rig, begun);
}
