//! A node's side of a connection without the listening socket, for the fuzz targets.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use loch_fabric::shm::Region;

use super::client_connection::{ClientConnection, NextStep, SessionService};
use super::control_client::Caller;
use super::listener::PeerCredentials;
use super::region::format;
use super::sessions::{SessionEnd, Sessions};
use crate::layout::memory::Member;
use crate::layout::plan;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{Code, Connect, PROTOCOL, Question, Refused, Reply, Welcome};
use crate::{ByteSize, EmbeddedConfig, Error, Result};

/// A node without a socket, to which clients can talk.
pub struct FuzzNode {
    welcome: Welcome,
    node: Member,
    sessions: Sessions,
}

/// After so many turns in which no byte was moved, a connection is taken to stand still.
const IDLE_TURNS_MAX: usize = 4;

impl FuzzNode {
    /// A node with a few session slots.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn new() -> Result<Self> {
        let memory = ByteSize::new(4 << 20);
        let config = EmbeddedConfig { memory, sessions: 3, ..EmbeddedConfig::default() };
        let plan = plan::of_embedded(&config)?.remove(0);
        let path = std::path::Path::new("(fuzzing)");
        let region = Region::anonymous(plan.header.region_bytes)
            .map_err(crate::layout::memory::of_region(path))?;
        format(&region, &plan)?;
        let node = Member::read("node".into(), path.into(), Arc::new(region))
            .map_err(|e| Error::RegionDamaged { path: path.into(), what: e.to_string() })?;
        let welcome = Welcome {
            protocol: PROTOCOL,
            name: node.name.clone(),
            node: 0,
            nodes: 1,
            cluster: vec![node.socket.clone()],
            region_bytes: node.region().len(),
            identity: node.header.identity,
            sessions: node.client_sessions(),
            medium: None,
            reason: String::new(),
        };
        let (sessions, _) = Sessions::restore(&node, false);
        Ok(Self { welcome, node, sessions })
    }

    /// Sends these bytes to the node as a client of this process, a part at a time. Returns the
    /// node's answer, and whether the node closed the connection.
    ///
    /// # Panics
    /// If the answer of the node is not allowed, or never ends.
    pub fn exchange<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
        let (mut client, node) = UnixStream::pair().expect("a pair of sockets can be made");
        for stream in [&client, &node] {
            stream.set_nonblocking(true).expect("a socket can be set not to block");
        }
        let peer = PeerCredentials { pid: std::process::id(), uid: 0 };
        let mut connection = ClientConnection::new(OwnedFd::from(node), peer, 0);
        let mut replies = Vec::new();
        let mut closed = false;
        for mut part in parts {
            let mut idle = 0;
            while idle < IDLE_TURNS_MAX && !closed {
                let sent = if part.is_empty() { 0 } else { client.write(part).unwrap_or(0) };
                part = &part[sent..];
                closed = matches!(connection.advance(self), NextStep::Close | NextStep::Closed);
                let before = replies.len();
                // The read fails once no more bytes are there. Whether the node closed is known
                // already.
                let _ = client.read_to_end(&mut replies);
                let moved = sent > 0 || replies.len() > before;
                idle = if moved { 0 } else { idle + 1 };
            }
        }
        let open = connection.sessions().map_or(0, |(open, _)| open.len());
        assert!(open <= self.welcome.sessions as usize, "{open} sessions are open");
        self.sessions.close_all_of(Process::own());
        (replies, closed)
    }
}

impl SessionService for FuzzNode {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn region(&self, _read_only: bool) -> BorrowedFd<'_> {
        self.node.region().fd()
    }

    fn open_session(
        &mut self,
        process: Process,
        _pidfd: Option<BorrowedFd<'_>>,
    ) -> Option<SessionId> {
        self.sessions.open(process)
    }

    fn close_session(&mut self, session: SessionId, process: Process) -> bool {
        self.sessions.close(session, process, SessionEnd::Left).is_some()
    }

    fn member(&self, _node: u16) -> Reply {
        unconnected()
    }

    fn connect(
        &mut self,
        _token: u64,
        _caller: Caller,
        _process: Option<Process>,
        _ask: Connect,
    ) -> Option<Reply> {
        Some(unconnected())
    }

    fn leave(&mut self, _connection: u64) {}

    fn ask(&mut self, _token: u64, _node: u16, _question: Question) -> Option<Reply> {
        Some(unconnected())
    }
}

fn unconnected() -> Reply {
    Reply::Refused(Refused::new(Code::Other, "this node has no others"))
}
