//! Nodes with certificates: the proof that a node is one, and which one.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;

use super::super::channel::LinkError;
use super::super::credentials::Credentials;
use super::super::link::Link;
use super::super::messages::{ControlReply, ControlRequest};
use super::links::{dial, link, ping, soon};
use super::rig::{Rig, eventually};
use crate::layout::config::TlsConfig;
use crate::node::control_client::{Caller, ControlClient};
use crate::session::slot::Process;
use crate::session::wire::Code;

/// An authority, and certificates of it for names.
pub struct Authority<'a> {
    dir: &'a Path,
    name: &'a str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    pub fn new(dir: &'a Path, name: &'a str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { dir, name, issuer };
        authority.write("ca", &authority.issuer.pem());
        authority
    }

    fn write(&self, what: &str, text: &str) -> PathBuf {
        let path = self.dir.join(format!("{}.{what}.pem", self.name));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    /// A node's certificate for a host; `ca` is the authority that the node trusts.
    pub fn node(&self, host: &str, ca: &Authority<'_>) -> TlsConfig {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TlsConfig {
            certificate: self.write(&format!("{host}.certificate"), &certificate.pem()),
            key: self.write(&format!("{host}.key"), &key.serialize_pem()),
            ca: ca.dir.join(format!("{}.ca.pem", ca.name)),
        }
    }
}

pub fn certificates(config: &TlsConfig) -> Credentials {
    Credentials::load(None, Some(config), 2).unwrap()
}

#[test]
fn with_certificates_of_one_authority_messages_pass() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let node = certificates(&ours.node("127.0.0.1", &ours));
    let (dialed, accepted) = link(&node, &node);
    let (mut dialed, mut accepted) = (dialed.ok().unwrap(), accepted.ok().unwrap());
    for n in 0..20 {
        dialed.send(&ping(n), soon()).unwrap();
        assert_eq!(accepted.receive::<ControlRequest>(soon()), Ok(ping(n)));
        accepted.send(&ping(n), soon()).unwrap();
        assert_eq!(dialed.receive::<ControlRequest>(soon()), Ok(ping(n)));
    }
}

#[test]
fn certificates_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, others) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "others"));
    let node = certificates(&ours.node("127.0.0.1", &ours));
    let stranger = certificates(&others.node("127.0.0.1", &ours));
    // A dialer that the acceptor does not trust learns it with the first answer.
    let (dialed, accepted) = link(&stranger, &node);
    assert!(matches!(accepted.err(), Some(LinkError::Certificate(_))));
    let told = dialed.and_then(|mut link| link.receive::<ControlRequest>(soon()));
    assert!(matches!(told, Err(LinkError::Certificate(_))), "{told:?}");
    let (dialed, accepted) = link(&node, &stranger);
    assert!(matches!(dialed.err(), Some(LinkError::Certificate(_))));
    assert!(accepted.is_err());
    // A node of the cluster, but another one than was dialed.
    let elsewhere = certificates(&ours.node("10.9.9.9", &ours));
    let (dialed, _) = link(&node, &elsewhere);
    let error = dialed.err().unwrap().to_string();
    assert!(error.contains("certificates were refused"), "{error}");
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let good = ours.node("127.0.0.1", &ours);
    let other = ours.node("127.0.0.2", &ours);
    let refusal = |config: &TlsConfig| {
        Credentials::load(None, Some(config), 2).expect_err("it is refused").to_string()
    };
    let missing = TlsConfig { certificate: dir.path().join("none"), ..good.clone() };
    assert!(refusal(&missing).contains("tls.certificate"), "{}", refusal(&missing));
    let swapped = TlsConfig { key: other.key.clone(), ..good.clone() };
    assert!(refusal(&swapped).contains("tls.certificate"), "{}", refusal(&swapped));
    let no_ca = TlsConfig { ca: good.key.clone(), ..good.clone() };
    assert!(refusal(&no_ca).contains("tls.ca"), "{}", refusal(&no_ca));
    std::fs::set_permissions(&good.key, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(refusal(&good).contains("chmod 600"), "{}", refusal(&good));
    let secret = Credentials::load(Some(Path::new("/secret")), Some(&other), 2).err().unwrap();
    assert!(secret.to_string().contains("one of the two"), "{secret}");
}

/// Two nodes of different hosts, of which each has a certificate for its own.
pub fn two_hosts(ours: &Authority<'_>) -> Rig {
    let mut rig = Rig::down(2);
    // All addresses of 127.0.0.0/8 are this host's.
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    rig.addresses[1] = other.local_addr().unwrap().to_string();
    rig.places[1].listen = rig.addresses[1].clone();
    drop(other);
    for (node, host) in ["127.0.0.1", "127.0.0.2"].into_iter().enumerate() {
        rig.start_with(node, certificates(&ours.node(host, ours)));
    }
    rig
}

/// The answer of node 1 to a dialer that has these credentials and says that it is node 0.
fn pretend(rig: &Rig, credentials: &Credentials) -> (Link, Result<ControlReply, LinkError>) {
    let mut link = dial(&rig.addresses[1], credentials).unwrap();
    let hello = rig.control(0).plane().members.hello();
    link.send(&ControlRequest::Hello(hello), soon()).unwrap();
    let told = link.receive(soon());
    (link, told)
}

#[test]
fn a_certificate_of_the_authority_makes_nobody_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let rig = two_hosts(&ours);
    let opened = rig.open(0, Process::own());
    rig.connect_soon(0, Caller::Session(opened), 1, "a client");
    // The first certificate is of the same authority, which may be a company's, but for a service.
    // The second is the other node's own, whose host may have been broken into.
    for host in ["shop.example", "127.0.0.2"] {
        let (_link, told) = pretend(&rig, &certificates(&ours.node(host, &ours)));
        let Ok(ControlReply::Refused(refused)) = told else { panic!("{host}: {told:?}") };
        assert_eq!(refused.code, Code::Untrusted);
        for word in ["node 0", &rig.addresses[0], "not for 127.0.0.1", host] {
            assert!(refused.text.contains(word), "{word}: {}", refused.text);
        }
    }
    // The real node 0 still has its link, over which its client is fenced when the client ends.
    assert_eq!(rig.admitted(1), [json!("a client")]);
    rig.places[0].sessions.close_all_of(Process::own());
    rig.control(0).plane().sessions_ended();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.admitted(1), [json!(null); 0]);
}

#[test]
fn a_node_whose_certificate_is_for_another_host_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let mut rig = two_hosts(&ours);
    rig.stop(0);
    rig.start_with(0, certificates(&ours.node("10.9.9.9", &ours)));
    let session = Caller::Session(rig.open(0, Process::own()));
    let refused = rig.connect(0, session, 1, "x").unwrap_err();
    assert_eq!(refused.code, Code::Untrusted);
    assert!(refused.text.contains("10.9.9.9"), "{}", refused.text);
}
