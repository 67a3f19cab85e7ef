//! The session of a table, and how it ends.
//!
//! # Faults
//! When a table is dropped the node's process may be down, or may have restarted. Then the session
//! is ended over a new connection. If no node answers, the client frees the slot in the node's
//! memory itself.

use std::sync::Arc;
use std::time::Instant;

use loch_engines::epoch::Session;
use loch_engines::requests::Secret;
use loch_fabric::{ForkMark, RegionId};

use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::CLOSE_TIMEOUT;
use crate::session::connection::Connection;
use crate::session::local::LocalNodes;
use crate::session::slot::{Process, SessionId, abandon_own_slot, free_own_slot};
use crate::session::slot_lock::SlotLock;
use crate::{Error, Result};

/// The session of a table at its home node.
pub(crate) struct TableSession {
    home: usize,
    memory: Arc<ClusterMemory>,
    pub(super) at: At,
    /// A child process inherits the table but not the session: it must neither use nor end it.
    mark: ForkMark,
    /// Shows the next process of the node that the client lives, if that cannot see it.
    lock: Option<SlotLock>,
}

/// The way in which the session was opened.
pub(crate) enum At {
    /// There is no session: the client only reads. The mark is that of the process that attached.
    Observer(ForkMark),
    /// At a node, over this connection, which stays open for as long as the session lives.
    Node(Arc<Connection>, SessionId),
    /// At a node that has to fence the session before its slot is free. The secret is for the nodes
    /// that let the client in.
    Fenced(Arc<Connection>, SessionId, Option<Secret>),
    /// No session, but the number of an endpoint that only reads over a network. Its connections
    /// end with the ones to the home node over which they were asked for.
    Reader(ForkMark, u64),
    /// At a node inside this process.
    Embedded(Arc<dyn LocalNodes>, SessionId),
}

impl TableSession {
    /// The session that was opened in the way `at`, or what a client has in its place.
    pub fn new(home: usize, memory: Arc<ClusterMemory>, at: At) -> Self {
        let mark = match &at {
            At::Observer(mark) | At::Reader(mark, _) => *mark,
            At::Node(it, _) | At::Fenced(it, ..) => it.mark(),
            At::Embedded(embedded, _) => embedded.mark(),
        };
        Self { home, memory, at, mark, lock: None }
    }

    /// Gives a session that is fenced a secret.
    ///
    /// # Errors
    /// [`Error::Os`] if the system has no random bytes.
    pub fn with_secret(mut self) -> Result<Self> {
        let At::Fenced(_, _, secret) = &mut self.at else { return Ok(self) };
        let mut words = [[0; 8]; 2];
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(words.as_flattened_mut(), flags)
            .map_err(Error::os("draw a secret for", "a client".as_ref()))?;
        *secret = Some(Secret::new(words.map(u64::from_ne_bytes)));
        Ok(self)
    }

    /// Locks the session's slot. The node's process that has opened the session is still there
    /// afterwards, so the next one sees the lock.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`] if the node has gone meanwhile, [`Error::Os`].
    pub fn with_lock(mut self, slot: u32) -> Result<Self> {
        let home = self.home();
        self.lock = Some(SlotLock::take(home.region(), slot, &home.socket)?);
        match &self.at {
            At::Node(it, _) | At::Fenced(it, ..) => it.is_still_there()?,
            _ => (),
        }
        Ok(self)
    }

    /// The session, as the engine uses it.
    pub fn session(&self) -> Session {
        let home = RegionId(self.home as u8);
        match &self.at {
            At::Observer(_) | At::Reader(..) => Session::observer(home),
            At::Node(_, opened) | At::Embedded(_, opened) => {
                Session::new(home, opened.slot, opened.incarnation)
            }
            At::Fenced(_, opened, secret) => {
                Session::new(home, opened.slot, opened.incarnation).with_secret(*secret)
            }
        }
    }

    /// Returns whether the client can only read.
    pub fn is_read_only(&self) -> bool {
        self.session().is_observer()
    }

    /// Returns whether this process was forked from the one that has the session.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.mark.is_inherited()
    }

    /// Makes the session look as if a child had inherited it.
    #[cfg(test)]
    pub fn inherit(&mut self) {
        self.mark = ForkMark::of_a_parent().unwrap();
    }

    fn home(&self) -> &Member {
        self.memory.nodes[self.home].as_ref().expect("the home node is mapped")
    }

    /// Ends the session at its node. Returns whether the node has answered.
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
        // The slot may have another session as soon as the node knows.
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        match &self.at {
            At::Observer(_) | At::Reader(..) => (),
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
            At::Embedded(embedded, opened) => {
                embedded.end_session(self.home, *opened, Process::own());
            }
        }
    }
}
