//! How a thread that drives connections is given some.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use super::connection::Connection;
use super::turns::{Turns, lock};

/// How a thread is given connections, and turns for those that it has.
pub(super) struct Inbox {
    pub turns: Arc<Turns>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    come: Come,
    /// The thread takes nothing any more.
    is_closed: bool,
}

/// The connections that have come for a thread.
#[derive(Default)]
pub(super) struct Come {
    /// Sockets of peers that have not said who they are.
    pub strangers: Vec<(OwnedFd, IpAddr)>,
    /// Connections that another thread has driven.
    pub connections: Vec<Connection>,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        Ok(Self { turns: Arc::new(Turns::new()?), state: Mutex::default() })
    }

    pub fn give_stranger(&self, socket: OwnedFd, from: IpAddr) {
        lock(&self.state).come.strangers.push((socket, from));
        self.turns.ring();
    }

    /// Gives a connection, which comes back if the thread takes none any more.
    pub fn give(&self, connection: Connection) -> Result<(), Connection> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(connection);
        }
        state.come.connections.push(connection);
        drop(state);
        self.turns.ring();
        Ok(())
    }

    /// Takes what has come, after the [turns](Turns::take).
    pub fn take(&self) -> Come {
        std::mem::take(&mut lock(&self.state).come)
    }

    /// Takes what has come, and nothing any more.
    pub fn close(&self) -> Come {
        let mut state = lock(&self.state);
        state.is_closed = true;
        std::mem::take(&mut state.come)
    }
}
