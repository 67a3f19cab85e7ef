//! A channel of bytes between two nodes: a TCP stream on which every read and write has a deadline,
//! and whose other side has proven what it is, by a shared secret ([`noise`](super::noise)) or by a
//! certificate ([`tls`](super::tls)). [`preface`](super::preface) opens a channel.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The version of the prefaces and of everything after them.
pub(super) const PROTOCOL: u16 = 4;

/// Carries the bytes between two nodes.
pub(super) trait Channel: Read + Write + Send {
    /// Sets the time at which reads and writes fail from now on.
    fn set_deadline(&mut self, deadline: Instant);

    /// Checks that the other side has proven that it is `host`. A shared secret cannot prove that.
    ///
    /// # Errors
    /// The name that it has proven, in words.
    fn vouch_for(&self, _host: &str) -> Result<(), String> {
        Ok(())
    }
}

/// The reason why there is no channel, or why it ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LinkError {
    /// Connections are refused, mostly because the process is down. But a firewall that rejects
    /// them looks the same, so this proves nothing (`fences.rs`, invariant 2).
    #[error("it refuses connections: start it with `loch serve`, unless a firewall rejects them")]
    Down,
    /// No answer came in time.
    #[error("it did not answer in time: is its host up, and the network between?")]
    Silent,
    /// The other side accepted the connection and then closed it.
    #[error("it closed the connection: it may be stopping")]
    Closed,
    /// Another program than a node listens there.
    #[error("that is no Loch control port: it says {0}")]
    Stranger(String),
    /// A node of another release.
    #[error(
        "it speaks version {theirs} of the control protocol, this node {PROTOCOL}: use the same \
         release on all nodes"
    )]
    Protocol { theirs: u16 },
    /// One side has a secret, and the other certificates or nothing.
    #[error("it proves itself by {theirs}, this node by {ours}: configure all nodes alike")]
    Kind { ours: &'static str, theirs: &'static str },
    /// The secrets differ.
    #[error("it has another secret: give all nodes the same `secret` file")]
    Secret,
    /// One of the sides did not accept a certificate.
    #[error("certificates were refused ({0}): all nodes need one `ca`, and names that match")]
    Certificate(String),
    /// The other side has not proven that it is the node that it says it is.
    #[error("{0}")]
    Impostor(String),
    /// The other side is a node that does not fit into this cluster.
    #[error("{0}")]
    Misfit(String),
    /// The bytes that came are not a message.
    #[error("its message cannot be read ({0})")]
    Garbage(String),
    /// Another error of the operating system.
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
    /// Sets a deadline for a stream.
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
        // The kernel counts in microseconds, and zero means no time-out.
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
        // Another thread may hold a clone of the stream, to end it. The call fails if it has ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
