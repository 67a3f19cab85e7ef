//! A client's side of a node's socket: connecting, the handshake, and requests.
//!
//! # Invariants
//! 1. A connection that carries sessions stays open until the last of them has ended, even if the
//!    connection has failed, because closing it tells the node that the sessions are over (see
//!    [`wire`]). A session therefore holds its connection, and a connection that has failed is
//!    marked and not dropped.
//! 2. Every wait is bounded.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loch_fabric::ForkMark;
use loch_fabric::shm::Region;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::layout::memory::{Member, of_region};
use crate::limits::{READ_BYTES, RETRY_PAUSE, RETRY_PAUSE_MAX};
use crate::private;
use crate::session::slot::SessionId;
use crate::session::wire::{
    self, Code, Decoder, PROTOCOL, Question, Refused, Reply, Request, Told, Welcome,
};
use crate::{Error, Result};

/// A connection to a node that has sent its welcome.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    socket: PathBuf,
    /// Held for a request and its reply, so that threads do not mix up replies.
    decoder: Mutex<Decoder>,
    /// Set when a reply is missing: the next reply could be that of another request.
    broken: AtomicBool,
    /// A child process has the same stream, and would take its parent's replies.
    mark: ForkMark,
}

/// The connection of an accepted client, with the welcome and the region's descriptor.
pub(crate) struct Admitted {
    pub connection: Connection,
    pub welcome: Welcome,
    /// The region's descriptor.
    pub region: OwnedFd,
}

impl Admitted {
    /// Maps the region.
    ///
    /// # Errors
    /// [`Error::RegionDamaged`] if the region is not what the node said, [`Error::Os`].
    pub fn map(self, read_only: bool) -> Result<(Connection, Welcome, Member)> {
        let socket = self.connection.socket.clone();
        let region = Region::from_fd(self.region, self.welcome.region_bytes, !read_only)
            .map_err(of_region(&socket))?;
        let name = self.welcome.name.clone();
        let mapped = Member::read(name, socket.clone(), Arc::new(region))
            .map_err(|error| Error::RegionDamaged { path: socket, what: error.to_string() })?;
        Ok((self.connection, self.welcome, mapped))
    }
}

/// The error of a failed try to connect.
enum TryError {
    /// The node is not up, or is about to stop; another try may succeed.
    NotNow(Error),
    /// Another try would fail too.
    Final(Error),
}

impl Connection {
    /// Connects to the node at `socket`. If no node answers there are further tries until
    /// `deadline`. After the deadline there is one try, of at most `patience`.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::ForeignUser`], [`Error::ProtocolVersion`],
    /// [`Error::Refused`].
    pub fn open(
        socket: &Path,
        read_only: bool,
        deadline: Instant,
        patience: Duration,
    ) -> Result<Admitted> {
        let mut pause = RETRY_PAUSE;
        loop {
            let until = deadline.max(Instant::now() + patience);
            match Self::try_open(socket, read_only, until) {
                Ok(admitted) => return Ok(admitted),
                Err(TryError::Final(error)) => return Err(error),
                Err(TryError::NotNow(error)) if Instant::now() + pause > deadline => {
                    return Err(error);
                }
                Err(TryError::NotNow(_)) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    fn try_open(socket: &Path, read_only: bool, until: Instant) -> Result<Admitted, TryError> {
        let stream = connect(socket, until)?;
        let server = check_user(&stream, socket).map_err(TryError::Final)?;
        let connection = Self {
            stream,
            socket: socket.into(),
            decoder: Mutex::default(),
            broken: AtomicBool::new(false),
            mark: mark().map_err(TryError::Final)?,
        };
        let hello = Request::Hello { protocol: PROTOCOL, client: whoami(), read_only };
        let (reply, region) = connection.exchange(&hello, until).map_err(TryError::NotNow)?;
        let welcome = match reply {
            Reply::Welcome(welcome) => welcome,
            Reply::Refused(refused) if refused.code == Code::Preparing => {
                return Err(TryError::NotNow(connection.refused(refused, 0)));
            }
            Reply::Refused(refused) => return Err(TryError::Final(connection.refused(refused, 0))),
            other => return Err(TryError::Final(connection.unexpected(&other))),
        };
        let Some(region) = region else {
            let problem = Refused::new(Code::Other, "it sent no region descriptor");
            return Err(TryError::Final(connection.refused(problem, 0)));
        };
        private::check_passed(&region, server, socket).map_err(TryError::Final)?;
        Ok(Admitted { connection, welcome, region })
    }

    /// Returns whether the node's process is up, as far as this connection shows.
    pub fn is_open(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // The node sends nothing outside a request, so an open connection has nothing to read.
        !self.broken.load(Ordering::Acquire)
            && rustix::net::recv(&self.stream, &mut byte, flags).map(|(_, n)| n)
                == Err(Errno::AGAIN)
    }

    /// Asks whether the node's process is up.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`].
    pub fn is_still_there(&self) -> Result<()> {
        match self.is_open() {
            true => Ok(()),
            false => Err(self.unreachable("it has ended just now: try again")),
        }
    }

    /// The mark of the process that has connected.
    pub fn mark(&self) -> ForkMark {
        self.mark
    }

    /// The socket. It becomes readable when the node's process goes away, since the node sends
    /// nothing outside a request.
    pub fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Opens a session, whose slot the client has to lock. `sessions` is the number of slots that
    /// the node has for clients.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`], [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn open_session(&self, sessions: u32, wait: Duration) -> Result<SessionId> {
        match self.exchange(&Request::OpenSession {}, Instant::now() + wait)?.0 {
            // Other memory lies outside the slots, and no session has incarnation 0.
            Reply::Session { slot, incarnation }
                if (1..=sessions).contains(&slot) && incarnation != 0 =>
            {
                Ok(SessionId { slot, incarnation })
            }
            Reply::Refused(refused) => Err(self.refused(refused, sessions)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends a session.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn close_session(&self, slot: u32, incarnation: u64, wait: Duration) -> Result<()> {
        match self.request(&Request::CloseSession { slot, incarnation }, wait)? {
            Reply::Closed {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks what the node knows of a node of its cluster.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::ClusterMismatch`], [`Error::Untrusted`].
    pub fn member(&self, node: u16, wait: Duration) -> Result<wire::MemberFacts> {
        match self.request(&Request::Member { node }, wait)? {
            Reply::Member(facts) => Ok(facts),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks a node's workers.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn ask(&self, node: usize, question: Question, wait: Duration) -> Result<Told> {
        match self.request(&Request::Ask { node: node as u16, question }, wait)? {
            Reply::Told(told) => Ok(told),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The reply to a request that is not refused.
    pub(super) fn request(&self, request: &Request, wait: Duration) -> Result<Reply> {
        match self.exchange(request, Instant::now() + wait)?.0 {
            Reply::Refused(refused) => Err(self.refused(refused, 0)),
            reply => Ok(reply),
        }
    }

    fn exchange(&self, request: &Request, until: Instant) -> Result<(Reply, Option<OwnedFd>)> {
        // This check comes first: a thread of the parent may have held the lock during the fork.
        if self.mark.is_inherited() {
            return Err(Error::Forked);
        }
        let mut decoder = self.decoder.lock().expect("nothing panics while it is held");
        if self.broken.load(Ordering::Acquire) {
            return Err(self.unreachable("an earlier reply is missing: attach again"));
        }
        let exchanged = self
            .send(&wire::encode(request), until)
            .and_then(|()| self.receive(&mut decoder, until));
        if exchanged.is_err() {
            self.broken.store(true, Ordering::Release);
        }
        exchanged
    }

    fn send(&self, mut frame: &[u8], until: Instant) -> Result<()> {
        while !frame.is_empty() {
            self.wait_at_most(sockopt::Timeout::Send, until)?;
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.stream, &[IoSlice::new(frame)], &mut control, flags) {
                Ok(sent) => frame = &frame[sent..],
                Err(Errno::INTR) => (),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn receive(&self, decoder: &mut Decoder, until: Instant) -> Result<(Reply, Option<OwnedFd>)> {
        let mut passed = None;
        loop {
            let malformed = |error: wire::WireError| {
                let text = format!("the answer is no message of a node ({error})");
                self.unreachable(&text)
            };
            if let Some(frame) = decoder.next().map_err(malformed)? {
                return Ok((wire::decode_reply(&frame).map_err(malformed)?, passed));
            }
            self.wait_at_most(sockopt::Timeout::Recv, until)?;
            let mut bytes = [0; READ_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.stream, &mut into, &mut control, flags) {
                Ok(message) if message.bytes == 0 => {
                    return Err(self.unreachable("it closed the connection: it may be stopping"));
                }
                Ok(message) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                            passed = passed.or(fds.next());
                        }
                    }
                    decoder.push(&bytes[..message.bytes]);
                }
                Err(Errno::INTR) => (),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Bounds the next system call of a kind.
    fn wait_at_most(&self, kind: sockopt::Timeout, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.failed(Errno::AGAIN));
        }
        // The kernel counts in microseconds, and zero means no time-out.
        let left = left.max(Duration::from_millis(1));
        sockopt::set_socket_timeout(&self.stream, kind, Some(left)).map_err(|e| self.failed(e))
    }

    fn failed(&self, error: Errno) -> Error {
        match error {
            Errno::AGAIN | Errno::TIMEDOUT => self.unreachable(
                "it took the connection but did not answer in time: wait longer (`--wait`, \
                 connect_timeout), or see whether it is stopped",
            ),
            Errno::PIPE | Errno::CONNRESET => {
                self.unreachable("it closed the connection: it may be stopping")
            }
            error => self.unreachable(&error.to_string()),
        }
    }

    fn unreachable(&self, remedy: &str) -> Error {
        unreachable_at(&self.socket, remedy)
    }

    pub(super) fn refused(&self, refused: Refused, sessions: u32) -> Error {
        let socket = self.socket.clone();
        match refused.code {
            Code::Protocol => {
                Error::ProtocolVersion { socket, ours: PROTOCOL, theirs: refused.protocol }
            }
            Code::SessionsExhausted => Error::SessionsExhausted { socket, sessions },
            Code::Away | Code::Preparing | Code::Busy => {
                let socket = refused.at.map_or(socket, PathBuf::from);
                Error::NodeUnreachable { socket, remedy: refused.text }
            }
            Code::Misfit | Code::Release | Code::OtherMemory => {
                Error::ClusterMismatch { problem: refused.text }
            }
            Code::Untrusted => Error::Untrusted { problem: refused.text },
            _ => Error::Refused { socket, reason: refused.text },
        }
    }

    pub(super) fn unexpected(&self, reply: &Reply) -> Error {
        Error::Refused {
            socket: self.socket.clone(),
            reason: format!("it answered out of turn ({reply:?})"),
        }
    }
}

#[cfg(feature = "fuzzing")]
impl Connection {
    /// A connection whose other end is a fuzz target.
    pub fn over(stream: UnixStream) -> Self {
        let (decoder, broken) = (Mutex::default(), AtomicBool::new(false));
        let mark = mark().expect("there is a page for a word");
        Self { stream, socket: "fuzzed".into(), decoder, broken, mark }
    }

    /// Says hello, and returns the node's welcome.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn greet(&self, wait: Duration) -> Result<Welcome> {
        let hello = Request::Hello { protocol: PROTOCOL, client: whoami(), read_only: false };
        match self.request(&hello, wait)? {
            Reply::Welcome(welcome) => Ok(welcome),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// Makes a mark of this process.
///
/// # Errors
/// [`Error::Os`] if there is no memory for the mark.
pub(crate) fn mark() -> Result<ForkMark> {
    ForkMark::new().map_err(Error::os("mark", Path::new("this process")))
}

fn unreachable_at(socket: &Path, remedy: &str) -> Error {
    Error::NodeUnreachable { socket: socket.into(), remedy: remedy.into() }
}

/// Connects within a bound. A node whose queue of new connections is full makes a client wait.
fn connect(socket: &Path, until: Instant) -> Result<UnixStream, TryError> {
    let last = |error: Errno| TryError::Final(unreachable_at(socket, &error.to_string()));
    let address = SocketAddrUnix::new(socket).map_err(last)?;
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let fd = rustix::net::socket_with(kind.0, kind.1, kind.2, None).map_err(last)?;
    let left = until.saturating_duration_since(Instant::now());
    let left = Some(left.max(Duration::from_millis(1)));
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, left).map_err(last)?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) => Ok(fd.into()),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Err(TryError::NotNow(unreachable_at(
            socket,
            "start it with `loch serve`, or name another socket",
        ))),
        Err(Errno::AGAIN | Errno::INTR) => Err(TryError::NotNow(unreachable_at(
            socket,
            "it does not take new connections; is it stopped?",
        ))),
        Err(Errno::ACCESS) => Err(TryError::Final(unreachable_at(
            socket,
            "permission denied: it belongs to another user",
        ))),
        Err(error) => Err(last(error)),
    }
}

/// The user that serves a socket. It has to be this process's user, or root: a node of another user
/// could hand out memory that it changes at will. Root may attach to the node of any user, but only
/// if no other user can have put the socket there.
fn check_user(stream: &UnixStream, socket: &Path) -> Result<u32> {
    let theirs = getsockopt(stream, PeerCredentials).map_err(Error::os("identify", socket))?;
    let (ours, theirs) = (private::user(), theirs.uid());
    let may_serve = theirs == ours || theirs == 0;
    let is_one = !private::stands_for_others(theirs);
    let may_attach = may_attach(ours, theirs);
    if is_one && (may_serve || (may_attach && private::only_they_made(socket, theirs))) {
        return Ok(theirs);
    }
    let remedy = private::unnumbered(theirs).unwrap_or_else(|| {
        format!(
            "run it as user {theirs}, or choose another socket; root attaches to another user's \
             node only where nobody but them can make files, in all folders of the path"
        )
    });
    Err(Error::ForeignUser { socket: socket.into(), ours, theirs, remedy })
}

/// Returns whether a client of user `client` may attach to a node of user `node`.
pub(crate) fn may_attach(client: u32, node: u32) -> bool {
    client == node || client == 0
}

/// The name of this process in the node's log.
fn whoami() -> String {
    let exe = std::env::current_exe().ok();
    let name = exe.as_deref().and_then(Path::file_name);
    let name = name.map_or("?".into(), |n| n.to_string_lossy());
    let name: String = name.chars().take(64).collect();
    format!("{name} ({})", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Node, NodeConfig};

    /// A child would take its parent's replies, and wait for a lock that a thread of its parent
    /// holds.
    #[test]
    fn a_child_asks_nothing_over_its_parents_connection() {
        let dir = tempfile::tempdir().unwrap();
        let config = NodeConfig {
            socket: dir.path().join("s"),
            region: Some(dir.path().join("r")),
            memory: ByteSize::new(4 << 20),
            ..NodeConfig::default()
        };
        let node = Node::start(config).unwrap();
        let wait = Duration::from_secs(5);
        let admitted = Connection::open(node.socket(), false, Instant::now(), wait).unwrap();
        let (mut connection, ..) = admitted.map(false).unwrap();
        connection.open_session(4, wait).unwrap();
        connection.mark = ForkMark::of_a_parent().unwrap();
        let refused = connection.open_session(4, wait).unwrap_err();
        assert!(matches!(refused, Error::Forked), "{refused}");
    }
}
