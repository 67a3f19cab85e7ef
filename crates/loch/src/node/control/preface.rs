//! The preface, by which a channel is opened.
//!
//! ```text
//! dialer     preface             handshake of Noise or TLS      frames
//! acceptor            preface
//! ```
//! A preface is `LOCH`, the version of the protocol (u16, little-endian), the kind of the node's
//! credentials (u8), and a zero. The preface is not encrypted, so two nodes that do not fit can say
//! why. The handshake covers both prefaces, so they cannot be changed on the way.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::channel::{Channel, LinkError, PROTOCOL, TimedStream};
use super::credentials::Credentials;
use super::{noise, tls};

const MAGIC: &[u8; 4] = b"LOCH";
const PREFACE_BYTES: usize = 8;

/// Opens a channel on a stream that this node dialed; `host` is the dialed host.
pub(super) fn dial(
    stream: TcpStream,
    host: &str,
    credentials: &Credentials,
    deadline: Instant,
) -> Result<Box<dyn Channel>, LinkError> {
    let mut stream = TimedStream::new(stream, deadline);
    let ours = preface(credentials);
    stream.write_all(&ours)?;
    let theirs = read_preface(&mut stream)?;
    check(credentials, &theirs)?;
    match credentials {
        Credentials::Secret(key) => noise::dial(stream, key, &[ours, theirs].concat()),
        Credentials::Certificates(certificates) => tls::dial(stream, certificates, host),
    }
}

/// Opens a channel on a stream that was accepted.
pub(super) fn accept(
    stream: TcpStream,
    credentials: &Credentials,
    deadline: Instant,
) -> Result<Box<dyn Channel>, LinkError> {
    let mut stream = TimedStream::new(stream, deadline);
    let theirs = read_preface(&mut stream)?;
    let ours = preface(credentials);
    stream.write_all(&ours)?;
    check(credentials, &theirs)?;
    match credentials {
        Credentials::Secret(key) => noise::accept(stream, key, &[theirs, ours].concat()),
        Credentials::Certificates(certificates) => tls::accept(stream, certificates),
    }
}

/// Asks a node by which kind of credentials it proves itself, and shows none. The node closes the
/// connection.
pub(super) fn look(stream: TcpStream, deadline: Instant) -> Result<&'static str, LinkError> {
    let mut stream = TimedStream::new(stream, deadline);
    stream.write_all(&preface_of(0))?;
    let theirs = read_preface(&mut stream)?;
    Ok(Credentials::name_of_kind(check_version(&theirs)?))
}

fn preface(credentials: &Credentials) -> [u8; PREFACE_BYTES] {
    preface_of(credentials.kind())
}

fn preface_of(kind: u8) -> [u8; PREFACE_BYTES] {
    let [low, high] = PROTOCOL.to_le_bytes();
    let [l, o, c, h] = *MAGIC;
    [l, o, c, h, low, high, kind, 0]
}

fn read_preface(stream: &mut TimedStream) -> Result<[u8; PREFACE_BYTES], LinkError> {
    let mut theirs = [0; PREFACE_BYTES];
    stream.read_exact(&mut theirs)?;
    Ok(theirs)
}

fn check(credentials: &Credentials, theirs: &[u8; PREFACE_BYTES]) -> Result<(), LinkError> {
    let (ours, kind) = (credentials.kind(), check_version(theirs)?);
    if kind != ours {
        let [ours, theirs] = [ours, kind].map(Credentials::name_of_kind);
        return Err(LinkError::Kind { ours, theirs });
    }
    Ok(())
}

/// Returns the kind of the other side's credentials.
fn check_version(theirs: &[u8; PREFACE_BYTES]) -> Result<u8, LinkError> {
    let [l, o, c, h, low, high, kind, _] = *theirs;
    if [l, o, c, h] != *MAGIC {
        return Err(LinkError::Stranger(format!("\"{}\"", theirs.escape_ascii())));
    }
    let version = u16::from_le_bytes([low, high]);
    match version == PROTOCOL {
        true => Ok(kind),
        false => Err(LinkError::Protocol { theirs: version }),
    }
}
