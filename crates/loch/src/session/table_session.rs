//! A table's session, and how it ends.
//!
//! # Faults
//! The node's process may be away when a table is dropped, or have been away and come back: then
//! the session is ended over a new connection, or, if nobody answers, by the client's own hand in
//! the node's memory.

use std::sync::Arc;
use std::time::Instant;

use loch_engines::epoch::Session;
use loch_engines::requests::Secret;
use loch_fabric::{ForkMark, RegionId};

use crate::Error;
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::CLOSE_TIMEOUT;
use crate::session::connection::Connection;
use crate::session::local::LocalNodes;
use crate::session::slot::{Process, SessionId, abandon_own_slot, free_own_slot};

/// A session at the home node of a table.
pub(crate) struct TableSession {
    home: usize,
    memory: Arc<ClusterMemory>,
    pub(super) at: At,
    /// A child process inherits the table but not the session: it must neither use nor end it.
    mark: ForkMark,
}

/// With whom the session was opened.
pub(super) enum At {
    /// With nobody: it reads only.
    Observer,
    /// With a node, over this connection, which stays open for as long as the session lives.
    Node(Arc<Connection>, SessionId),
    /// With a node that has to fence the session before its slot is free. The secret is for the
    /// nodes that let it in.
    Fenced(Arc<Connection>, SessionId, Option<Secret>),
    /// With a node that connects an endpoint which only reads.
    Reader(Arc<Connection>, u64),
    /// With a node inside this process.
    Embedded(Arc<dyn LocalNodes>, SessionId),
}

impl TableSession {
    /// Reads only: no session is needed.
    pub fn observer(home: usize, memory: Arc<ClusterMemory>, mark: ForkMark) -> Self {
        Self::new(home, memory, At::Observer, mark)
    }

    /// A session that was opened over a connection.
    pub fn of_node(
        home: usize,
        memory: Arc<ClusterMemory>,
        connection: Arc<Connection>,
        opened: SessionId,
    ) -> Self {
        let mark = connection.mark();
        Self::new(home, memory, At::Node(connection, opened), mark)
    }

    /// A session that was opened over a connection, at a node that fences it. It gets a secret.
    ///
    /// # Errors
    /// [`Error::Os`] if there is nothing random.
    pub fn fenced(
        home: usize,
        memory: Arc<ClusterMemory>,
        connection: Arc<Connection>,
        opened: SessionId,
    ) -> Result<Self, Error> {
        let mark = connection.mark();
        let mut session = Self::new(home, memory, At::Fenced(connection, opened, None), mark);
        let mut words = [[0; 8]; 2];
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(words.as_flattened_mut(), flags)
            .map_err(Error::os("draw a secret for a client of", &session.home().socket))?;
        if let At::Fenced(_, _, secret) = &mut session.at {
            *secret = Some(Secret::new(words.map(u64::from_ne_bytes)));
        }
        Ok(session)
    }

    /// Reads only, but has connections of its own.
    pub fn reader(
        home: usize,
        memory: Arc<ClusterMemory>,
        connection: Arc<Connection>,
        endpoint: u64,
    ) -> Self {
        let mark = connection.mark();
        Self::new(home, memory, At::Reader(connection, endpoint), mark)
    }

    /// A session at a node inside this process.
    pub fn of_embedded(home: usize, embedded: Arc<dyn LocalNodes>, opened: SessionId) -> Self {
        let (memory, mark) = (embedded.memory().clone(), embedded.mark());
        Self::new(home, memory, At::Embedded(embedded, opened), mark)
    }

    fn new(home: usize, memory: Arc<ClusterMemory>, at: At, mark: ForkMark) -> Self {
        Self { home, memory, at, mark }
    }

    /// The session as the engine needs it.
    pub fn session(&self) -> Session {
        let home = RegionId(self.home as u8);
        match &self.at {
            At::Observer => Session::observer(home),
            At::Node(_, opened) | At::Embedded(_, opened) => {
                Session::new(home, opened.slot, opened.incarnation)
            }
            At::Fenced(_, opened, secret) => {
                Session::new(home, opened.slot, opened.incarnation).with_secret(*secret)
            }
            At::Reader(..) => Session::observer(home),
        }
    }

    /// Whether nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.session().is_observer()
    }

    /// Whether the session is another process's: this one was forked from it.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.mark.is_inherited()
    }

    /// Makes it one that a child has inherited.
    #[cfg(test)]
    pub fn inherit(&mut self) {
        self.mark = ForkMark::of_a_parent().unwrap();
    }

    fn home(&self) -> &Member {
        self.memory.nodes[self.home].as_ref().expect("the home node is mapped")
    }

    /// Ends the session at its node; whether the node could be told.
    fn ends_at_node(&self, connection: &Connection, opened: SessionId) -> bool {
        let SessionId { slot, incarnation } = opened;
        if connection.close_session(slot, incarnation, CLOSE_TIMEOUT).is_ok() {
            return true;
        }
        let home = self.home();
        let again = Connection::open(&home.socket, false, Instant::now(), CLOSE_TIMEOUT)
            .ok()
            .filter(|admitted| admitted.welcome.identity == home.header.identity)
            .map(|admitted| admitted.connection.close_session(slot, incarnation, CLOSE_TIMEOUT));
        if !matches!(again, Some(Ok(()))) {
            tracing::debug!(slot, "the home node is away: giving up the session's slot without it");
        }
        matches!(again, Some(Ok(())))
    }
}

impl Drop for TableSession {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        match &self.at {
            At::Observer => (),
            At::Node(connection, opened) => {
                if !self.ends_at_node(connection, *opened) {
                    free_own_slot(self.home().region(), *opened);
                }
            }
            At::Fenced(connection, opened, _) => {
                if !self.ends_at_node(connection, *opened) {
                    abandon_own_slot(self.home().region(), *opened);
                }
            }
            At::Reader(connection, endpoint) => {
                // A node that is away has forgotten its readers.
                let _ = connection.leave(*endpoint, CLOSE_TIMEOUT);
            }
            At::Embedded(embedded, opened) => {
                embedded.end_session(self.home, *opened, Process::own());
            }
        }
    }
}
