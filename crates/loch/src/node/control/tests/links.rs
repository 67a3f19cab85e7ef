//! Links: which connections become links, and how others end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::super::channel::LinkError;
use super::super::credentials::{Credentials, derive};
use super::super::link::{self, Link};
use super::super::messages::{ControlRequest, NodeState};
use super::certificates::{Authority, certificates};
use super::rig::secret;

const LONG: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + LONG
}

/// Dials an address.
pub fn dial(address: &str, credentials: &Credentials) -> Result<Link, LinkError> {
    Link::dial(link::host_of(address), &link::resolve(address)?, credentials, soon())
}

/// The outcomes of a link at both ends: the dialer's, then the acceptor's.
pub fn link(
    dialer: &Credentials,
    acceptor: &Credentials,
) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| Link::accept(listener.accept().unwrap().0, acceptor, soon()));
        let dialed = dial(&address, dialer);
        (dialed, accepted.join().unwrap())
    })
}

pub fn ping(sessions_taken: u32) -> ControlRequest {
    ControlRequest::Ping(NodeState { sessions_taken, region_deleted: false })
}

/// The dialer runs `says`; the result is the acceptor's.
fn accept_from(
    credentials: &Credentials,
    within: Duration,
    dialer: impl FnOnce(&mut TcpStream) + Send,
) -> Result<ControlRequest, LinkError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            dialer(&mut stream);
            // If bytes were unread, a plain close would make the kernel drop the bytes that were
            // sent.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let deadline = Instant::now() + within;
        let mut link = Link::accept(listener.accept().unwrap().0, credentials, deadline)?;
        link.receive(deadline)
    })
}

#[test]
fn with_one_secret_messages_pass_both_ways_whatever_their_length() {
    let (dialed, accepted) = link(&secret(1), &secret(1));
    let (mut dialed, mut accepted) = (dialed.ok().unwrap(), accepted.ok().unwrap());
    for n in 0..50 {
        dialed.send(&ping(n), soon()).unwrap();
        assert_eq!(accepted.receive::<ControlRequest>(soon()), Ok(ping(n)));
        accepted.send(&ping(n), soon()).unwrap();
        assert_eq!(dialed.receive::<ControlRequest>(soon()), Ok(ping(n)));
    }
    // The message is longer than a record.
    let long = "x".repeat(65_530);
    dialed.send(&long, soon()).unwrap();
    assert_eq!(accepted.receive::<String>(soon()), Ok(long));
    drop(dialed);
    assert_eq!(accepted.receive::<ControlRequest>(soon()), Err(LinkError::Closed));
}

#[test]
fn another_secret_is_told_as_such_to_both() {
    let (dialed, accepted) = link(&secret(1), &secret(2));
    assert_eq!(dialed.err(), Some(LinkError::Secret));
    assert_eq!(accepted.err(), Some(LinkError::Secret));
    assert_ne!(derive(b"sixteen bytes or more"), derive(b"sixteen bytes or morf"));
}

#[test]
fn nodes_that_prove_themselves_differently_say_how() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let node = certificates(&ours.node("127.0.0.1", &ours));
    let (dialed, accepted) = link(&node, &secret(2));
    let (dialed, accepted) = (dialed.err().unwrap(), accepted.err().unwrap());
    let kind = LinkError::Kind { ours: "certificates", theirs: "a secret" };
    assert_eq!(dialed, kind);
    assert!(accepted.to_string().contains("proves itself by certificates"), "{accepted}");
}

#[test]
fn another_release_is_told_apart_from_strangers() {
    let newer = accept_from(&secret(1), LONG, |stream| {
        stream.write_all(b"LOCH\x09\x00\x01\x00").unwrap();
        // The acceptor still tells the version of its side.
        let mut preface = [0; 8];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(&preface, b"LOCH\x04\x00\x01\x00");
    });
    assert_eq!(newer, Err(LinkError::Protocol { theirs: 9 }));
    let stranger = accept_from(&secret(1), LONG, |stream| {
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    });
    assert!(matches!(stranger, Err(LinkError::Stranger(_))), "{stranger:?}");
}

#[test]
fn a_preface_that_was_changed_on_the_way_ends_the_handshake() {
    // Something in between changes the last byte.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let (to, at) = (listener.local_addr().unwrap(), between.local_addr().unwrap().to_string());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut near, mut far) =
                (between.accept().unwrap().0, TcpStream::connect(to).unwrap());
            let mut preface = [0; 8];
            near.read_exact(&mut preface).unwrap();
            preface[7] ^= 1;
            far.write_all(&preface).unwrap();
            let (mut near2, mut far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut far2, &mut near2));
            let _ = std::io::copy(&mut near, &mut far);
        });
        let accepted =
            scope.spawn(|| Link::accept(listener.accept().unwrap().0, &secret(1), soon()));
        assert_eq!(dial(&at, &secret(1)).err(), Some(LinkError::Secret));
        assert_eq!(accepted.join().unwrap().err(), Some(LinkError::Secret));
    });
}

#[test]
fn half_a_handshake_and_bytes_at_random_end_it() {
    let half = accept_from(&secret(1), LONG, |stream| stream.write_all(b"LOC").unwrap());
    assert_eq!(half, Err(LinkError::Closed));
    let preface = b"LOCH\x04\x00\x01\x00";
    for (rest, outcome) in [
        (&[0u8, 48][..], LinkError::Closed),
        (&[0, 0], LinkError::Secret),
        (&[0, 3, 1, 2, 3], LinkError::Secret),
    ] {
        let ended = accept_from(&secret(1), LONG, |stream| {
            stream.write_all(&[&preface[..], rest].concat()).unwrap();
        });
        assert_eq!(ended, Err(outcome), "{rest:?}");
    }
    let oversized = accept_from(&secret(1), LONG, |stream| {
        stream.write_all(&[&preface[..], &[0xff, 0xff]].concat()).unwrap();
    });
    assert!(matches!(oversized, Err(LinkError::Io(_))), "{oversized:?}");
}

#[test]
fn frames_that_are_none_end_the_link() {
    let garbage = |frame: &'static [u8]| {
        let (dialed, accepted) = link(&secret(1), &secret(1));
        let (mut dialed, mut accepted) = (dialed.ok().unwrap(), accepted.ok().unwrap());
        dialed.send_raw(frame);
        drop(dialed);
        accepted.receive::<ControlRequest>(soon())
    };
    for frame in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\0", b"\x02\0\0\0{}", b"\x01\0\0\0\xff"] {
        let ended = garbage(frame);
        assert!(matches!(ended, Err(LinkError::Garbage(_))), "{frame:?}: {ended:?}");
    }
    assert_eq!(garbage(b"\x09\0\0\0half"), Err(LinkError::Closed));
}

#[test]
fn a_dialer_that_trickles_bytes_has_no_more_time_than_others() {
    let begun = Instant::now();
    let ended = accept_from(&secret(1), Duration::from_millis(200), |stream| {
        // The bytes, one every 20 ms, would take more than a second.
        for byte in b"LOCH\x04\x00\x01\x00\x00\x30".iter().chain(&[0; 60]) {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(matches!(ended, Err(LinkError::Silent)), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}
