//! A client's connection to its node: frames in, replies out.
//!
//! # Invariants
//! 1. While a reply waits to be sent, or has still to be found, no more bytes are read. The memory
//!    of a connection is therefore bounded by a frame, a read, and the replies to what one read
//!    brought.
//! 2. While the control plane or the workers look for a reply, no other request is answered.
//!    Replies come in the order of the requests.
//! 3. When the *client* closes the connection, its sessions end. When the *node* closes it because
//!    of garbage, the sessions go on, since the client's process may be using them. They end with
//!    the process.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::control_client::Caller;
use super::listener::PeerCredentials;
use crate::limits::READ_BYTES;
use crate::private;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{
    self, Code, Connect, Decoder, Question, Refused, Reply, Request, Welcome,
};

/// The requests that a connection makes of its node.
pub(super) trait SessionService {
    /// The first reply to a client.
    fn welcome(&self) -> &Welcome;
    /// The descriptor of the region that the client is given.
    fn region(&self, read_only: bool) -> BorrowedFd<'_>;
    /// Opens a session for a process, and watches it, by this descriptor if it is not seen.
    fn open_session(
        &mut self,
        process: Process,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Option<SessionId>;
    /// Ends a session that the client has left in order. Returns whether the session was the
    /// client's.
    fn close_session(&mut self, session: SessionId, process: Process) -> bool;
    /// Returns what is known of a node of the cluster.
    fn member(&self, node: u16) -> Reply;
    /// Has a connection let in for `caller`. After `None` the reply comes later, to connection
    /// `token`.
    fn connect(
        &mut self,
        token: u64,
        caller: Caller,
        process: Option<Process>,
        ask: Connect,
    ) -> Option<Reply>;
    /// Ends the connections of the readers that have asked over this connection.
    fn leave(&mut self, connection: u64);
    /// Asks the workers of a table at a node what they have. After `None` the reply comes later, to
    /// connection `token`.
    fn ask(&mut self, token: u64, node: u16, question: Question) -> Option<Reply>;
}

/// A connection and what is known of its client.
pub(super) struct ClientConnection {
    stream: OwnedFd,
    peer: PeerCredentials,
    /// The number of this connection, which no other connection of the node has.
    token: u64,
    /// The client's process, from the first request about sessions on. It is looked up while the
    /// client is there, because its number may later be another process's.
    process: Option<Process>,
    /// The descriptor of that process, if the process has no number here.
    pidfd: Option<OwnedFd>,
    decoder: Decoder,
    /// Set once the client has said hello; true if it wants to read only.
    greeted: Option<bool>,
    /// The sessions that were opened over this connection and have not ended.
    sessions: Vec<SessionId>,
    /// Replies that are not sent yet.
    out: Vec<u8>,
    /// Whether a reply has still to be found: invariant 2.
    waiting: bool,
    /// Whether readers of this connection may be connected somewhere.
    reads: bool,
    /// Whether the region's descriptor goes with the next byte.
    pass_region: bool,
    /// Whether the connection is to be closed after `out` was sent.
    closing: bool,
}

/// The next event or action that the connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Wait until the client sends bytes.
    Receive,
    /// Wait until the client takes bytes.
    Send,
    /// Wait until a reply has come.
    Wait,
    /// The client has closed the connection.
    Closed,
    /// The node has to close the connection.
    Close,
}

impl ClientConnection {
    /// Makes a connection of a client that may attach.
    pub fn new(stream: OwnedFd, peer: PeerCredentials, token: u64) -> Self {
        Self {
            stream,
            peer,
            token,
            process: None,
            pidfd: None,
            decoder: Decoder::default(),
            greeted: None,
            sessions: Vec::new(),
            out: Vec::new(),
            waiting: false,
            reads: false,
            pass_region: false,
            closing: false,
        }
    }

    /// Makes a connection of a client that may not attach. The client gets a refusal and nothing
    /// else.
    pub fn refusal(stream: OwnedFd, peer: PeerCredentials, token: u64) -> Self {
        let mut connection = Self::new(stream, peer, token);
        let mut text = format!("user {} may not attach to this node", peer.uid);
        if private::stands_for_others(peer.uid) {
            text.push_str(
                ": the number stands for all users who have none in the node's user namespace; run \
                 both in one user namespace, and not as this user",
            );
        }
        connection.refuse(Refused::new(Code::ForeignUser, text));
        connection
    }

    /// The socket of the connection.
    pub fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The sessions that were opened over this connection and have not ended, and their process.
    pub fn sessions(&self) -> Option<(&[SessionId], Process)> {
        Some((&self.sessions, self.process?))
    }

    /// The number of this connection, if connections of readers end with it.
    pub fn readers(&self) -> Option<u64> {
        self.reads.then_some(self.token)
    }

    /// Sends the reply that the client waits for.
    pub fn deliver(&mut self, reply: &Reply) {
        self.waiting = false;
        self.say(reply);
    }

    fn process(&mut self) -> Option<Process> {
        if self.process.is_none() && self.peer.pid != 0 {
            self.process = Process::of_pid(self.peer.pid);
        } else if self.process.is_none()
            && let Ok(pidfd) = getsockopt(&self.stream, sockopt::PeerPidfd)
        {
            self.process = Process::of_pidfd(&pidfd);
            self.pidfd = Some(pidfd);
        }
        self.process
    }

    /// Goes on for as long as there is something to do. One call reads only once, so no client
    /// keeps the others waiting.
    pub fn advance(&mut self, service: &mut impl SessionService) -> NextStep {
        if let Some(next) = self.flush(service) {
            return next;
        }
        // Frames may have come while a reply was waited for.
        self.answer_all(service);
        if let Some(next) = self.flush(service) {
            return next;
        }
        let mut bytes = [0; READ_BYTES];
        match rustix::net::recv(&self.stream, &mut bytes, RecvFlags::empty()) {
            Ok((_, 0)) => return NextStep::Closed,
            Ok((_, n)) => self.decoder.push(&bytes[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return NextStep::Receive,
            Err(_) => return NextStep::Closed,
        }
        self.answer_all(service);
        self.flush(service).unwrap_or(NextStep::Receive)
    }

    fn answer_all(&mut self, service: &mut impl SessionService) {
        while !self.closing && !self.waiting {
            match self.decoder.next() {
                Ok(None) => break,
                Ok(Some(frame)) => self.answer(&frame, service),
                Err(error) => self.refuse((&error).into()),
            }
        }
    }

    fn answer(&mut self, frame: &[u8], service: &mut impl SessionService) {
        let request = match wire::decode_request(frame) {
            Ok(request) => request,
            Err(error) => return self.refuse((&error).into()),
        };
        match (request, self.greeted) {
            (Request::Hello { client, read_only, .. }, None) => {
                tracing::debug!(client, read_only, "a client attaches");
                self.greeted = Some(read_only);
                self.pass_region = true;
                self.say(&Reply::Welcome(service.welcome().clone()));
            }
            (Request::Hello { .. }, Some(_)) | (_, None) => {
                self.refuse(Refused::new(Code::Order, "hello comes first, and once"));
            }
            (Request::OpenSession {}, Some(true)) => {
                let text = "a client that attached read-only has no session";
                self.say(&Reply::Refused(Refused::new(Code::ReadOnly, text)));
            }
            (Request::OpenSession {}, Some(false)) => {
                let reply = self.open_session(service);
                self.say(&reply);
            }
            (Request::CloseSession { slot, incarnation }, Some(_)) => {
                let reply = self.close_session(SessionId { slot, incarnation }, service);
                self.say(&reply);
            }
            (Request::Member { node }, Some(_)) => self.say(&service.member(node)),
            (Request::Connect(connect), Some(read_only)) => {
                self.connect(connect, read_only, service)
            }
            (Request::Ask { node, question }, Some(_)) => {
                match service.ask(self.token, node, question) {
                    Some(reply) => self.say(&reply),
                    None => self.waiting = true,
                }
            }
        }
    }

    fn connect(&mut self, connect: Connect, read_only: bool, service: &mut impl SessionService) {
        let caller = match connect.session {
            Some((slot, incarnation)) if !read_only => {
                Caller::Session(SessionId { slot, incarnation })
            }
            Some(_) => {
                let text = "a client that attached read-only has no session";
                return self.say(&Reply::Refused(Refused::new(Code::ReadOnly, text)));
            }
            None => {
                self.reads = true;
                Caller::Reader { connection: self.token, endpoint: connect.endpoint }
            }
        };
        let process = self.process();
        match service.connect(self.token, caller, process, connect) {
            Some(reply) => self.say(&reply),
            None => self.waiting = true,
        }
    }

    fn open_session(&mut self, service: &mut impl SessionService) -> Reply {
        let Some(process) = self.process() else {
            let text = "the client's process cannot be seen here: it is in another PID namespace \
                        (another container), which needs Linux 6.9 or newer; or let both share one \
                        (docs/containers.md)";
            return Reply::Refused(Refused::new(Code::Unseen, text));
        };
        match service.open_session(process, self.pidfd.as_ref().map(AsFd::as_fd)) {
            None => {
                let text = format!("all {} session slots are taken", service.welcome().sessions);
                Reply::Refused(Refused::new(Code::SessionsExhausted, text))
            }
            Some(opened) => {
                self.sessions.push(opened);
                let SessionId { slot, incarnation } = opened;
                Reply::Session { slot, incarnation }
            }
        }
    }

    fn close_session(&mut self, session: SessionId, service: &mut impl SessionService) -> Reply {
        if !self.process().is_some_and(|process| service.close_session(session, process)) {
            let text = format!("this process has no session {session:?}");
            return Reply::Refused(Refused::new(Code::NoSuchSession, text));
        }
        self.sessions.retain(|s| *s != session);
        Reply::Closed {}
    }

    fn say(&mut self, reply: &Reply) {
        self.out.extend(wire::encode(reply));
    }

    /// Sends a refusal, after which the connection is closed.
    fn refuse(&mut self, refused: Refused) {
        tracing::debug!(pid = self.peer.pid, why = refused.text, "a client is refused");
        self.say(&Reply::Refused(refused));
        self.closing = true;
    }

    /// Sends what there is to send. Returns `None` if everything was sent and more may be read.
    fn flush(&mut self, service: &impl SessionService) -> Option<NextStep> {
        while !self.out.is_empty() {
            match self.send(service) {
                Ok(sent) => {
                    self.pass_region = false;
                    self.out.drain(..sent);
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => return Some(NextStep::Send),
                Err(_) => return Some(NextStep::Closed),
            }
        }
        if self.waiting {
            return Some(NextStep::Wait);
        }
        self.closing.then_some(NextStep::Close)
    }

    fn send(&self, service: &impl SessionService) -> Result<usize, Errno> {
        let fds = [service.region(self.greeted == Some(true))];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if self.pass_region {
            let pushed = control.push(SendAncillaryMessage::ScmRights(&fds));
            assert!(pushed, "there is room for one descriptor");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(&self.out)], &mut control, flags)
    }
}
