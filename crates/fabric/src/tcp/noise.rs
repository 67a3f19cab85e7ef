//! The handshake of a connection that is encrypted: the Noise protocol, pattern `NNpsk0`.
//!
//! The client's node has got a key for the client, over another way and beside its token. Only an
//! end with this key can make a message that the other end accepts. Both ends add keys that live
//! for one connection, so a connection that was recorded cannot be decrypted later, not even with
//! the key. The messages travel with [`Hello`](super::frame::Hello) and
//! [`Welcome`](super::frame::Welcome), and cover the former.
//!
//! The records after the handshake are those of Noise as well (`sealed.rs`), which is checked
//! against `snow`'s own.

use std::fmt;

use rand::Rng;
use serde::{Deserialize, Serialize};
use snow::HandshakeState;

use super::sealed::{KEY_BYTES, Opener, Sealer};
use super::stream::Halves;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Bytes of each of the two messages: a key of Curve25519, and a tag.
pub(super) const MESSAGE_BYTES: usize = 48;

/// A message of the handshake.
pub(super) type Message = [u8; MESSAGE_BYTES];

/// The key by which a client and a node recognise each other on a connection that is encrypted. It
/// never travels over that connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionKey([u8; KEY_BYTES]);

impl ConnectionKey {
    /// A key that nobody knows.
    pub(super) fn random() -> Self {
        let mut key = [0; KEY_BYTES];
        rand::rng().fill_bytes(&mut key);
        Self(key)
    }
}

/// Says nothing about the key: logs are no place for it.
impl fmt::Debug for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionKey(..)")
    }
}

/// A handshake that a client has begun.
pub(super) struct Dialing(HandshakeState);

impl Dialing {
    /// Begins a handshake that covers `prologue`. Returns the message for the node.
    pub fn begin(key: &ConnectionKey, prologue: &[u8]) -> (Self, Message) {
        let mut state = handshake(key, prologue, true);
        let message = write(&mut state);
        (Self(state), message)
    }

    /// The ways that the two ends have from now on, if the node's message was made with the key.
    pub fn end(mut self, message: &Message) -> Option<Halves> {
        self.0.read_message(message, &mut []).ok()?;
        let (outward, inward) = self.0.dangerously_get_raw_split();
        Some(Halves::sealed(Opener::new(&inward), Sealer::new(&outward)))
    }
}

/// The same at the node: takes the client's message, and makes the one for it. `None` if the
/// client's was not made with the key.
pub(super) fn accept(
    key: &ConnectionKey,
    prologue: &[u8],
    message: &Message,
) -> Option<(Message, Halves)> {
    let mut state = handshake(key, prologue, false);
    state.read_message(message, &mut []).ok()?;
    let answer = write(&mut state);
    let (inward, outward) = state.dangerously_get_raw_split();
    Some((answer, Halves::sealed(Opener::new(&inward), Sealer::new(&outward))))
}

fn handshake(key: &ConnectionKey, prologue: &[u8], dials: bool) -> HandshakeState {
    let params = PATTERN.parse().expect("the pattern is one that snow knows");
    let build = || {
        let builder = snow::Builder::new(params).psk(0, &key.0)?.prologue(prologue)?;
        if dials { builder.build_initiator() } else { builder.build_responder() }
    };
    build().expect("this pattern needs a key and a prologue, and has both")
}

/// The next message, without contents.
fn write(state: &mut HandshakeState) -> Message {
    let mut message = [0; MESSAGE_BYTES];
    let written = state.write_message(&[], &mut message);
    let written = written.expect("it is this end's turn, and the system gives random bytes");
    assert_eq!(written, MESSAGE_BYTES, "a message is a key and a tag");
    message
}

#[cfg(test)]
mod tests {
    use snow::TransportState;

    use super::*;
    use crate::tcp::sealed::RECORDS_PER_KEY;
    use crate::tcp::stream::Outward;

    #[test]
    fn ends_with_different_keys_or_prologues_do_not_meet() {
        let [key, other] = [ConnectionKey::random(), ConnectionKey::random()];
        let (_, message) = Dialing::begin(&key, b"hello");
        assert!(accept(&key, b"hello", &message).is_some());
        assert!(accept(&other, b"hello", &message).is_none());
        assert!(accept(&key, b"Hello", &message).is_none());
    }

    #[test]
    fn a_client_sees_that_another_has_answered() {
        let key = ConnectionKey::random();
        let (dialing, message) = Dialing::begin(&key, b"hello");
        let (mut answer, _) = accept(&key, b"hello", &message).unwrap();
        answer[40] ^= 1;
        assert!(dialing.end(&answer).is_none(), "it was changed");
        let (dialing, _) = Dialing::begin(&key, b"hello");
        let (_, other) = Dialing::begin(&key, b"hello");
        let (answer, _) = accept(&key, b"hello", &other).unwrap();
        assert!(dialing.end(&answer).is_none(), "it answers another message");
    }

    #[test]
    fn no_log_shows_a_key() {
        assert_eq!(format!("{:?}", ConnectionKey([7; KEY_BYTES])), "ConnectionKey(..)");
    }

    /// What this end seals is what `snow` seals, also after keys were replaced.
    #[test]
    fn records_are_those_of_noise() {
        let key = ConnectionKey::random();
        let (mut client, mut node) = (handshake(&key, b"", true), handshake(&key, b"", false));
        let message = write(&mut client);
        node.read_message(&message, &mut []).unwrap();
        let answer = write(&mut node);
        let Some(Halves { outward: Outward::Sealed(mut sealer), .. }) =
            Dialing(client).end(&answer)
        else {
            panic!("they have met")
        };
        let mut transport = node.into_transport_mode().unwrap();
        let check = |sealer: &mut Sealer, transport: &mut TransportState| {
            let record = sealer.record_for_test(b"contents");
            let mut contents = [0; 64];
            let len = transport.read_message(&record, &mut contents).unwrap();
            assert_eq!(&contents[..len], b"contents");
        };
        check(&mut sealer, &mut transport);
        check(&mut sealer, &mut transport);
        sealer.skip_for_test(RECORDS_PER_KEY - 1);
        transport.set_receiving_nonce(RECORDS_PER_KEY - 1);
        check(&mut sealer, &mut transport);
        transport.rekey_incoming();
        check(&mut sealer, &mut transport);
    }
}
