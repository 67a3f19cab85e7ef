//! The requests that a node's server makes of the node's control plane. There is a control plane
//! where clients reach memory over a network. The server never waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::session::slot::SessionId;
use crate::session::wire::{Connect, Question, Reply};

/// The client of a node for which a connection is to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Caller {
    /// A session of the node; it may write.
    Session(SessionId),
    /// The session of a worker of the node, which replies to other nodes' clients.
    Worker(SessionId),
    /// A client without a session; it only reads.
    Reader {
        /// The connection over which the reader asks.
        #[serde(rename = "visit")]
        connection: u64,
        /// The number of the reader among those of its connection.
        endpoint: u64,
    },
}

/// A node's control plane.
pub(crate) trait ControlClient: Send + Sync {
    /// Returns what is known of a node.
    fn member(&self, node: u16) -> Reply;
    /// Has a connection let in; the reply goes to `replies` under `token`.
    fn connect(&self, caller: Caller, ask: Connect, replies: Arc<ReplyQueue>, token: u64);
    /// Asks the workers of another node; the reply goes to `replies` under `token`.
    fn ask(&self, node: u16, question: Question, replies: Arc<ReplyQueue>, token: u64);
    /// Ends the connections of the readers that have asked over this connection.
    fn leave(&self, connection: u64);
    /// Called when sessions have ended and are among the dying.
    fn sessions_ended(&self);
}

/// Replies on their way to the server. A new reply wakes the server's thread.
pub(crate) struct ReplyQueue {
    replies: Mutex<Vec<(u64, Reply)>>,
    event: OwnedFd,
}

impl ReplyQueue {
    /// Makes an empty queue.
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { replies: Mutex::default(), event })
    }

    /// Sends a reply to a connection.
    pub fn send(&self, token: u64, reply: Reply) {
        self.replies.lock().expect("nothing panics while it is held").push((token, reply));
        // The write fails only if the count is full, and then the server has been woken already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes all replies that came. A reply that comes later wakes the server again.
    pub fn take(&self) -> Vec<(u64, Reply)> {
        let mut count = [0; 8];
        // The read fails only if no reply came since.
        let _ = rustix::io::read(&self.event, &mut count);
        std::mem::take(&mut *self.replies.lock().expect("nothing panics while it is held"))
    }
}

impl AsFd for ReplyQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
