//! A channel between nodes that share a secret: the Noise protocol, pattern `NNpsk0`.
//!
//! A process that has the secret is a node. Both sides add keys that live for one connection, so a
//! recorded connection cannot be decrypted later, not even with the secret. After the handshake the
//! stream is cut into records: a length (u16, big-endian) and so many bytes, encrypted.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use snow::{HandshakeState, TransportState};

use super::channel::{Channel, LinkError, TimedStream};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes that a record has besides its contents.
const TAG_BYTES: usize = 16;
/// The bytes that a record can carry.
const CONTENTS_MAX: usize = u16::MAX as usize - TAG_BYTES;
/// A message of the handshake is a key and a tag, so a peer has no reason to send a longer message.
const HANDSHAKE_BYTES_MAX: usize = 96;

struct Noise {
    stream: TimedStream,
    state: TransportState,
    /// Decrypted bytes that were not read yet.
    inbox: Vec<u8>,
    read: usize,
}

/// Does the handshake of the dialing side. Both sides must have seen the same `prologue`.
pub(super) fn dial(
    mut stream: TimedStream,
    key: &[u8; 32],
    prologue: &[u8],
) -> Result<Box<dyn Channel>, LinkError> {
    let mut state = handshake(key, prologue, true);
    let mut message = [0; HANDSHAKE_BYTES_MAX];
    let len = state.write_message(&[], &mut message).map_err(garbage)?;
    send(&mut stream, &message[..len])?;
    let answer = receive(&mut stream, HANDSHAKE_BYTES_MAX)?;
    // The acceptor says by an empty record that it has another secret.
    if answer.is_empty() {
        return Err(LinkError::Secret);
    }
    state.read_message(&answer, &mut message).map_err(|_| LinkError::Secret)?;
    established(stream, state)
}

/// Does the handshake of the accepting side.
pub(super) fn accept(
    mut stream: TimedStream,
    key: &[u8; 32],
    prologue: &[u8],
) -> Result<Box<dyn Channel>, LinkError> {
    let mut state = handshake(key, prologue, false);
    let mut message = [0; HANDSHAKE_BYTES_MAX];
    let first = receive(&mut stream, HANDSHAKE_BYTES_MAX)?;
    if state.read_message(&first, &mut message).is_err() {
        // The dialer may have gone already.
        let _ = send(&mut stream, &[]);
        return Err(LinkError::Secret);
    }
    let len = state.write_message(&[], &mut message).map_err(garbage)?;
    send(&mut stream, &message[..len])?;
    established(stream, state)
}

fn handshake(key: &[u8; 32], prologue: &[u8], dials: bool) -> HandshakeState {
    let params = PATTERN.parse().expect("the pattern is one that snow knows");
    let build = || {
        let builder = snow::Builder::new(params).psk(0, key)?.prologue(prologue)?;
        if dials { builder.build_initiator() } else { builder.build_responder() }
    };
    build().expect("this pattern needs a key and a prologue, and has both")
}

fn established(stream: TimedStream, state: HandshakeState) -> Result<Box<dyn Channel>, LinkError> {
    let state = state.into_transport_mode().map_err(garbage)?;
    Ok(Box::new(Noise { stream, state, inbox: Vec::new(), read: 0 }))
}

fn garbage(error: snow::Error) -> LinkError {
    LinkError::Garbage(error.to_string())
}

fn send(stream: &mut TimedStream, bytes: &[u8]) -> io::Result<()> {
    let len = u16::try_from(bytes.len()).expect("a record has at most 65535 bytes");
    stream.write_all(&[&len.to_be_bytes(), bytes].concat())
}

fn receive(stream: &mut TimedStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let len = u16::from_be_bytes(len) as usize;
    if len > bytes_max {
        let text = format!("a record of {len} bytes, {bytes_max} are the most here");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Read for Noise {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.inbox.len() {
            let record = receive(&mut self.stream, u16::MAX as usize)?;
            self.inbox.resize(record.len(), 0);
            let opened = self.state.read_message(&record, &mut self.inbox);
            let len = opened.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            self.inbox.truncate(len);
            self.read = 0;
        }
        let len = into.len().min(self.inbox.len() - self.read);
        into[..len].copy_from_slice(&self.inbox[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

impl Write for Noise {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let contents = &bytes[..bytes.len().min(CONTENTS_MAX)];
        let mut record = vec![0; contents.len() + TAG_BYTES];
        let sealed = self.state.write_message(contents, &mut record);
        let len = sealed.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        send(&mut self.stream, &record[..len])?;
        Ok(contents.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Channel for Noise {
    fn set_deadline(&mut self, deadline: Instant) {
        self.stream.set_deadline(deadline);
    }
}
