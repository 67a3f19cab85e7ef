//! Clients that speak TLS.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use loch_gateway::{Address, Gateway, GatewayConfig};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A gateway with a certificate of its own for this host, and how clients connect.
fn gateway() -> (Gateway, impl Fn() -> Client) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("certificate.pem"), dir.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let config = GatewayConfig {
        resp: vec!["127.0.0.1:0".parse().unwrap()],
        tls: Some((certificate, key)),
        ..GatewayConfig::default()
    };
    let cluster = loch::Cluster::embedded(loch::EmbeddedConfig::default()).unwrap();
    let gateway = Gateway::start(cluster, config).unwrap();
    let Address::Tcp(address) = gateway.resp()[0].clone() else { panic!("it is one") };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let connect = move || {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        StreamOwned::new(session, TcpStream::connect(address).unwrap())
    };
    (gateway, connect)
}

fn answered(client: &mut Client, request: &[u8], answer: &[u8]) {
    client.write_all(request).unwrap();
    let mut got = vec![0; answer.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == answer, "{:?}", support::text(&got[..got.len().min(200)]));
}

#[test]
fn short_and_long_values_and_pipelines_come_whole() {
    let (_gateway, connect) = gateway();
    let mut client = connect();
    answered(&mut client, b"SET k v\r\nGET k\r\n", b"+OK\r\n$1\r\nv\r\n");
    let long: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let set = [b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$3000000\r\n", &long[..], b"\r\n"].concat();
    answered(&mut client, &set, b"+OK\r\n");
    let answer = [b"$3000000\r\n", &long[..], b"\r\n"].concat();
    answered(&mut client, &b"GET long\r\n".repeat(10), &answer.repeat(10));
    let sets: String = (0..5000).map(|key| format!("SET k{key} {key}\r\n")).collect();
    answered(&mut client, sets.as_bytes(), &b"+OK\r\n".repeat(5000));
    client.write_all(b"QUIT\r\n").unwrap();
    let mut rest = Vec::new();
    // The end is announced, so it is no error.
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"+OK\r\n");
}

#[test]
fn a_client_that_does_not_speak_tls_is_told_nothing() {
    let (_gateway, connect) = gateway();
    let mut plain = TcpStream::connect(connect().sock.peer_addr().unwrap()).unwrap();
    plain.write_all(b"GET k\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!rest.contains(&b'$'), "{rest:?}");
}
