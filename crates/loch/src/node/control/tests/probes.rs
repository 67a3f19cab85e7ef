//! Probes: what they are told, and that they disturb nobody.

use std::io::Write;
use std::net::TcpListener;

use super::super::credentials::Credentials;
use super::super::probe::{ClusterProbe, NodeFacts, ProbeError};
use super::certificates::{Authority, certificates, two_hosts};
use super::ports::free_address;
use super::rig::{Rig, secret};
use crate::node::control_client::Caller;
use crate::session::slot::Process;

fn probe(
    addresses: &[String],
    credentials: Credentials,
    node: usize,
) -> Result<NodeFacts, ProbeError> {
    ClusterProbe::of(addresses.to_vec(), credentials).probe(node).outcome
}

#[test]
fn a_probe_is_told_who_a_node_is_and_no_connection_ends() {
    let mut rig = Rig::down(2);
    rig.places[1].fabric = "tcp";
    rig.places[0].fabric = "tcp";
    (0..2).for_each(|node| rig.start(node));
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "x");
    for node in [0, 1, 1] {
        let facts = probe(&rig.addresses, secret(1), node).ok().unwrap();
        assert_eq!((facts.node, facts.nodes, &facts.fabric[..]), (node as u16, 2, "tcp"));
        assert_eq!(facts.name, format!("node-{node}"));
    }
    // A link that was taken over would let nothing in any more.
    assert!(rig.connect(0, session, 1, "x").is_ok());
    assert_eq!(rig.admitted(1), ["x"]);
}

#[test]
fn nodes_that_are_not_those_of_the_list_say_which_they_are() {
    let mut rig = Rig::down(2);
    rig.places[0].fabric = "tcp";
    (0..2).for_each(|node| rig.start(node));
    let told = |addresses: &[&String], credentials, node| {
        let addresses: Vec<String> = addresses.iter().map(|it| (*it).clone()).collect();
        probe(&addresses, credentials, node).err().unwrap()
    };
    let [a, b] = [&rig.addresses[0], &rig.addresses[1]];
    for (error, words) in [
        (told(&[b, a], secret(1), 1), "node 0 of 2"),
        (told(&[a, b, b], secret(1), 0), "number 0 of 3"),
        (told(&[a, b], secret(1), 1), "its fabric is \"test\""),
    ] {
        assert!(matches!(&error, ProbeError::Misfit(text) if text.contains(words)), "{error}");
    }
    let error = told(&[a, b], secret(2), 0);
    assert_eq!(error, ProbeError::NotAdmitted("it has another secret".into()));
}

#[test]
fn a_certificate_for_a_host_outside_of_the_list_gets_no_probe() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let rig = two_hosts(&ours);
    let of = |host| certificates(&ours.node(host, &ours));
    let other = probe(&rig.addresses, of("127.0.0.3"), 1).err().unwrap();
    assert!(matches!(&other, ProbeError::NotAdmitted(text) if text.contains("no host")), "{other}");
    // One of a node of the list is told what the node is: nothing that fits.
    for host in ["127.0.0.1", "127.0.0.2"] {
        let told = probe(&rig.addresses, of(host), 1).err().unwrap();
        assert!(matches!(told, ProbeError::Misfit(_)), "{told}");
    }
}

#[test]
fn what_is_no_node_of_this_release_is_named() {
    let says = |bytes: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(bytes).unwrap();
            // Closed with bytes that were not read, the connection would be reset.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let error = probe(&[address], secret(1), 0).err().unwrap();
        other.join().unwrap();
        error
    };
    assert_eq!(says(b"LOCH\xff\xff\x01\0"), ProbeError::Release { theirs: 0xFFFF });
    assert_eq!(says(b"HTTP/1.1 400"), ProbeError::Stranger("\"HTTP/1.1\"".into()));
    assert_eq!(says(b""), ProbeError::Mute);
    let error = probe(&[free_address()], secret(1), 0).err().unwrap();
    assert_eq!(error, ProbeError::Refused);
    for error in [error, ProbeError::Mute, ProbeError::Release { theirs: 9 }] {
        assert!(!error.remedy().is_empty());
    }
}
