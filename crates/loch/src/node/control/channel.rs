//! Bytes between two nodes: a TCP stream on which everything has a deadline, and who is at its
//! other end: proven by a shared secret ([`noise`](super::noise)) or by certificates
//! ([`tls`](super::tls)). [`preface`](super::preface) makes one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Version of the prefaces and of everything after them.
pub(super) const PROTOCOL: u16 = 2;

/// What two nodes say to each other goes through one of these.
pub(super) trait Channel: Read + Write + Send {
    /// Until when reads and writes may last from now on.
    fn set_deadline(&mut self, deadline: Instant);

    /// Whether the other side has proven that it is `host`. By a shared secret nobody can.
    ///
    /// # Errors
    /// What it has proven, for people.
    fn vouch_for(&self, _host: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Why there is no channel, or why it ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LinkError {
    /// Connections are refused. Mostly because the process is down; but a firewall that rejects
    /// them looks the same, so it proves nothing (`fences.rs`, invariant 2).
    #[error("it refuses connections: start it with `loch serve`, unless a firewall rejects them")]
    Down,
    /// Nothing came back in time.
    #[error("it did not answer in time: is its host up, and the network between?")]
    Silent,
    /// It is there, and then it is not.
    #[error("it closed the connection: it may be stopping")]
    Closed,
    /// Whatever it is, it is not a node's control port.
    #[error("that is no Loch control port: it says {0}")]
    Stranger(String),
    /// A node of another release.
    #[error(
        "it speaks version {theirs} of the control protocol, this node {PROTOCOL}: use the same \
         release on all nodes"
    )]
    Protocol { theirs: u16 },
    /// One has a secret and the other certificates, or nothing.
    #[error("it proves itself by {theirs}, this node by {ours}: configure all nodes alike")]
    Kind { ours: &'static str, theirs: &'static str },
    /// The secrets differ.
    #[error("it has another secret: give all nodes the same `secret` file")]
    Secret,
    /// A certificate was not accepted, by either side.
    #[error("certificates were refused ({0}): all nodes need one `ca`, and names that match")]
    Certificate(String),
    /// It has not proven that it is the node that it says it is.
    #[error("{0}")]
    Impostor(String),
    /// A node that does not fit into this cluster.
    #[error("{0}")]
    Misfit(String),
    /// What came is no message.
    #[error("what it says is no message ({0})")]
    Garbage(String),
    /// The operating system's words.
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Silent,
            ErrorKind::ConnectionRefused => Self::Down,
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error.to_string()),
        }
    }
}

/// A TCP stream whose reads and writes end at a deadline, however slowly bytes trickle.
pub(super) struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl TimedStream {
    /// Bounds what is done on a stream.
    pub fn new(stream: TcpStream, deadline: Instant) -> Self {
        Self { stream, deadline }
    }

    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // The kernel counts in microseconds, and zero means for ever.
        Ok(Some(left.max(Duration::from_millis(1))))
    }
}

impl Read for TimedStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TimedStream {
    fn drop(&mut self) {
        // A clone of it is held by whoever may have to end it; it fails if it has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
