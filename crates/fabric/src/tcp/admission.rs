//! Admission: a client gets a token and keys, and loses all rights when its gate is shut.
//!
//! A client that its node lets in gets a token, over another way. The token opens one connection,
//! soon. What the connection may do are the keys that were made with the token.
//!
//! # The fence
//! [`Accepted`] is the client's admission. Dropping it shuts the gate: it waits for the turn in
//! which the connection is, and no later turn begins. So afterwards no verb of the client is
//! executed, also none that the node has received already.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rand::Rng;
use rustix::net::Shutdown;

use super::frame::Token;
use super::keys::Keys;
use crate::limits::TCP_TOKEN_LIFE;

/// A client that was let in.
pub(super) struct Admitted {
    keys: Keys,
    gate: Mutex<Gate>,
}

/// The gate of a client.
#[derive(Default)]
struct Gate {
    is_shut: bool,
    /// The client's connection, if it has come.
    socket: Option<Arc<OwnedFd>>,
}

/// The right to execute a client's verbs for one turn.
pub(super) struct Entered<'a>(#[allow(dead_code, reason = "it is held")] MutexGuard<'a, Gate>);

impl Admitted {
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Holds the gate open; `None` if it is shut.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let gate = lock(&self.gate);
        (!gate.is_shut).then_some(Entered(gate))
    }

    /// The client's connection has ended.
    pub fn has_gone(&self) {
        lock(&self.gate).socket = None;
    }

    /// Takes note of the client's connection. Returns whether the gate is open.
    fn has_come(&self, socket: &Arc<OwnedFd>) -> bool {
        let mut gate = lock(&self.gate);
        gate.socket = Some(socket.clone());
        !gate.is_shut
    }
}

/// The clients that were let in and have not connected yet.
#[derive(Default)]
pub(super) struct Tokens {
    waiting: Mutex<HashMap<Token, (Instant, Arc<Admitted>)>>,
}

impl Tokens {
    /// Lets a client in.
    pub fn admit(self: &Arc<Self>, keys: Keys) -> (Accepted, Token) {
        let mut token = Token::default();
        rand::rng().fill_bytes(&mut token);
        let client = Arc::new(Admitted { keys, gate: Mutex::default() });
        lock(&self.waiting).insert(token, (Instant::now(), client.clone()));
        (Accepted { client, token, tokens: self.clone() }, token)
    }

    /// The client whose token this is, if it is still good. It is good for one connection.
    pub fn redeem(&self, token: &Token, socket: &Arc<OwnedFd>) -> Option<Arc<Admitted>> {
        let (since, client) = lock(&self.waiting).remove(token)?;
        (since.elapsed() < TCP_TOKEN_LIFE && client.has_come(socket)).then_some(client)
    }
}

/// The node's side of one client's connection. Dropping it cuts the client off, and is the *fence*:
/// afterwards no verb that the client has posted is executed any more.
#[must_use = "the client is cut off when this is dropped"]
pub struct Accepted {
    client: Arc<Admitted>,
    token: Token,
    tokens: Arc<Tokens>,
}

impl Drop for Accepted {
    fn drop(&mut self) {
        lock(&self.tokens.waiting).remove(&self.token);
        let mut gate = lock(&self.client.gate);
        gate.is_shut = true;
        if let Some(socket) = gate.socket.take() {
            // The agent's thread notices, and closes it. A connection that has ended is no error.
            let _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no state behind these locks half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
