//! Admission: a client gets a token and keys, and loses all rights when its gate is shut.
//!
//! A client that its node lets in gets a token, over another way. The token opens one connection,
//! soon. What the connection may do are the keys that were made with the token.
//!
//! # The fence
//! [`Accepted`] is the client's admission. Dropping it shuts the gate: it waits for the turn in
//! which the connection is, and no later turn begins. So afterwards no verb of the client is
//! executed, also none that the node has received already.
//!
//! # What is pushed
//! Workers of the node send to the client unasked ([`Admitted::push`]): replies. These stand behind
//! the gate until the stream is between two answers. A client that does not take them loses those
//! for which there is no room.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use rand::Rng;
use rustix::net::Shutdown;
use zerocopy::IntoBytes;

use super::agent::Waker;
use super::frame::{Token, Told};
use super::keys::Keys;
use super::lent::{Lent, Replies};
use super::socket::{self, Moved};
use crate::limits::{TCP_PUSHED_BYTES_MAX, TCP_TOKEN_LIFE};
use crate::rights::Grant;
use crate::shm::Bell;

/// A client that is to be let in.
pub struct Client<'a> {
    /// Its rights.
    pub grants: &'a [Grant],
    /// Where it takes replies that workers WRITE, if any do.
    pub replies: Option<Replies>,
    /// The bells of the workers that execute what it WRITEs. Those to which it sends messages have
    /// given theirs to their mailboxes.
    pub bells: Vec<Bell>,
}

/// A client that was let in.
pub(super) struct Admitted {
    /// Names it among all clients of the agent.
    pub number: u64,
    keys: Keys,
    replies: Option<Replies>,
    bells: Vec<Bell>,
    gate: Mutex<Gate>,
    /// Whether something was pushed since it was last sent.
    is_dirty: AtomicBool,
}

/// The gate of a client.
#[derive(Default)]
pub(super) struct Gate {
    is_shut: bool,
    /// The client's connection, if it has come.
    connected: Option<Connected>,
    /// Invariant: unless this is empty, no answer is sent in part.
    pushed: Vec<u8>,
    /// The stream is in the middle of an answer.
    is_answering: bool,
}

struct Connected {
    socket: Arc<OwnedFd>,
    waker: Waker,
}

/// The right to execute a client's verbs for one turn.
pub(super) struct Entered<'a>(MutexGuard<'a, Gate>);

impl Entered<'_> {
    /// Says whether the stream is in the middle of an answer after the turn.
    pub fn answers(&mut self, is_answering: bool) {
        self.0.is_answering = is_answering;
    }

    /// Sends what was pushed, if it can be sent now. Returns whether nothing is left.
    pub fn send_pushed(&mut self) -> std::io::Result<bool> {
        self.0.send_pushed()
    }
}

impl Gate {
    fn send_pushed(&mut self) -> std::io::Result<bool> {
        let Some(connected) = self.connected.as_ref().filter(|_| !self.is_answering) else {
            return Ok(self.pushed.is_empty());
        };
        let mut sent = 0;
        while sent < self.pushed.len() {
            match socket::send(connected.socket.as_fd(), &self.pushed[sent..])? {
                Moved::Bytes(bytes) => sent += bytes,
                Moved::Nothing | Moved::End => break,
            }
        }
        self.pushed.drain(..sent);
        if self.pushed.is_empty() && self.pushed.capacity() > TCP_PUSHED_BYTES_MAX {
            // A connection at rest holds little memory.
            self.pushed = Vec::new();
        }
        Ok(self.pushed.is_empty())
    }
}

impl Admitted {
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn replies(&self) -> Option<Replies> {
        self.replies
    }

    /// Wakes the workers for which the client has written something.
    pub fn ring(&self) {
        self.bells.iter().for_each(Bell::ring);
    }

    /// Holds the gate open; `None` if it is shut.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let gate = lock(&self.gate);
        (!gate.is_shut).then_some(Entered(gate))
    }

    /// The client's connection has ended.
    pub fn has_gone(&self) {
        let mut gate = lock(&self.gate);
        (gate.connected, gate.pushed) = (None, Vec::new());
    }

    /// Takes note of the client's connection. Returns whether the gate is open.
    fn has_come(&self, socket: &Arc<OwnedFd>, waker: Waker) -> bool {
        let mut gate = lock(&self.gate);
        gate.connected = Some(Connected { socket: socket.clone(), waker });
        !gate.is_shut
    }

    /// Pushes a frame, which leaves with the next [`Admitted::flush`]. Returns whether that was not
    /// to come already. A frame is lost if the client is gone, or does not take what was pushed
    /// before.
    pub fn push(&self, told: Told, bytes: &[u8]) -> bool {
        let mut gate = lock(&self.gate);
        let room = TCP_PUSHED_BYTES_MAX + self.replies.map_or(0, |it| it.len as usize);
        if gate.is_shut || gate.connected.is_none() || gate.pushed.len() + bytes.len() > room {
            return false;
        }
        gate.pushed.extend_from_slice(told.header().as_bytes());
        gate.pushed.extend_from_slice(bytes);
        !self.is_dirty.swap(true, Ordering::Relaxed)
    }

    /// Sends what was pushed.
    pub fn flush(&self) {
        let mut gate = lock(&self.gate);
        self.is_dirty.store(false, Ordering::Relaxed);
        // The agent's thread sends the rest, and notices a broken connection.
        if !gate.is_shut
            && !matches!(gate.send_pushed(), Ok(true))
            && let Some(connected) = &gate.connected
        {
            connected.waker.wake();
        }
    }
}

/// The clients that were let in and have not connected yet.
#[derive(Default)]
pub(super) struct Tokens {
    waiting: Mutex<HashMap<Token, (Instant, Arc<Admitted>)>>,
}

impl Tokens {
    /// Lets a client in.
    pub fn admit(lent: &Arc<Lent>, keys: Keys, client: Client<'_>) -> (Accepted, Token) {
        let mut token = Token::default();
        rand::rng().fill_bytes(&mut token);
        let Client { replies, bells, .. } = client;
        let admitted = Arc::new(Admitted {
            number: lent.next_number(),
            keys,
            replies,
            bells,
            gate: Mutex::default(),
            is_dirty: AtomicBool::new(false),
        });
        lent.route(&admitted);
        lock(&lent.tokens.waiting).insert(token, (Instant::now(), admitted.clone()));
        (Accepted { client: admitted, token, lent: Arc::downgrade(lent) }, token)
    }

    /// The client whose token this is, if it is still good. It is good for one connection.
    pub fn redeem(
        &self,
        token: &Token,
        socket: &Arc<OwnedFd>,
        waker: Waker,
    ) -> Option<Arc<Admitted>> {
        let (since, client) = lock(&self.waiting).remove(token)?;
        (since.elapsed() < TCP_TOKEN_LIFE && client.has_come(socket, waker)).then_some(client)
    }
}

/// The node's side of one client's connection. Dropping it cuts the client off, and is the *fence*:
/// afterwards no verb that the client has posted is executed any more.
#[must_use = "the client is cut off when this is dropped"]
pub struct Accepted {
    client: Arc<Admitted>,
    token: Token,
    lent: Weak<Lent>,
}

#[cfg(test)]
impl Accepted {
    /// Sends what a node should not send.
    pub(super) fn push_for_test(&self, told: Told, bytes: &[u8]) -> bool {
        let is_pushed = self.client.push(told, bytes);
        self.client.flush();
        is_pushed
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.upgrade() {
            lock(&lent.tokens.waiting).remove(&self.token);
            lent.forget(&self.client);
        }
        let mut gate = lock(&self.client.gate);
        gate.is_shut = true;
        gate.pushed = Vec::new();
        if let Some(connected) = gate.connected.take() {
            // The agent's thread notices, and closes it. A connection that has ended is no error.
            let _ = rustix::net::shutdown(connected.socket.as_fd(), Shutdown::Both);
        }
    }
}

/// Locks. A panic leaves no state behind these locks half-changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
