//! Listeners and connections of both kinds.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustls::{ServerConnection, StreamOwned};

use crate::address::Address;
use crate::error::Error;
use crate::limits::OUTPUT_BYTES;
use crate::tls::Certificate;

/// A client that says nothing for so long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Clients that wait to be accepted, of which the standard library lets 128 wait over TCP: while
/// others connect and leave, the queue is full and a new client tries again after a second.
const BACKLOG: i32 = 4096;

/// A socket that clients connect to.
#[derive(Debug)]
pub(crate) enum Listener {
    /// Clients see the certificate, if there is one.
    Tcp(TcpListener, Option<Certificate>),
    /// The file is removed when the listener closes.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    pub fn at(address: &Address, certificate: Option<&Certificate>) -> Result<Self, Error> {
        let listen = |cause| Error::Listen { address: address.clone(), cause };
        let listener = match address {
            Address::Tcp(address) => TcpListener::bind(address).and_then(|made| {
                net::listen(&made, BACKLOG)?;
                Ok(Self::Tcp(made, certificate.cloned()))
            }),
            Address::Unix(path) => listen_at(path).map(|(made, file)| Self::Unix(made, file)),
        };
        let listener = listener.map_err(listen)?;
        match &listener {
            Self::Tcp(tcp, _) => tcp.set_nonblocking(true),
            Self::Unix(unix, _) => unix.set_nonblocking(true),
        }
        .map_err(listen)?;
        Ok(listener)
    }

    /// The address, with the port that the system has chosen for port 0.
    pub fn address(&self) -> Address {
        match self {
            Self::Tcp(tcp, _) => {
                Address::Tcp(tcp.local_addr().expect("a listener is bound to an address"))
            }
            Self::Unix(_, file) => Address::Unix(file.path.clone()),
        }
    }

    /// Refuses clients from now on. Another gateway can listen at the address at once.
    pub fn close(&self) {
        if let Self::Unix(_, file) = self {
            file.remove();
        }
        if let Err(error) = rustix::net::shutdown(self, rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "a listener stays until its gateway has ended");
        }
    }

    /// The next connection, and the address of its client. An error of that connection alone is
    /// [`io::ErrorKind::ConnectionAborted`].
    pub fn accept(&self) -> io::Result<(Stream, String)> {
        let of_one = |error| io::Error::new(io::ErrorKind::ConnectionAborted, error);
        match self {
            Self::Tcp(tcp, certificate) => {
                let (stream, address) = tcp.accept()?;
                let stream = Stream::over_tcp(stream, certificate.as_ref()).map_err(of_one)?;
                Ok((stream, address.to_string()))
            }
            Self::Unix(unix, file) => {
                let (stream, _) = unix.accept()?;
                stream.set_nonblocking(true).map_err(of_one)?;
                Ok((Stream::Unix(stream), format!("{}:0", file.path.display())))
            }
        }
    }
}

/// Makes a socket for this user alone. A file that a gateway has left behind gives way, and
/// nothing else does.
fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let found = path.symlink_metadata().ok();
    let is_socket = found.as_ref().is_some_and(|data| data.file_type().is_socket());
    if found.is_some() && !is_socket {
        let problem = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    let name = SocketAddrUnix::new(path)?;
    let socket = |flags| {
        net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | flags,
            None,
        )
    };
    // It does not wait for a place in the queue of somebody who accepts nobody.
    let refused = net::connect(&socket(SocketFlags::NONBLOCK)?, &name);
    if is_socket && refused == Err(rustix::io::Errno::CONNREFUSED) {
        std::fs::remove_file(path)?;
    }
    let made = socket(SocketFlags::empty())?;
    // Before it has a name: the file gets this mode, so nobody else can connect at any moment.
    rustix::fs::fchmod(&made, Mode::RWXU)?;
    net::bind(&made, &name)?;
    let made_file = path.symlink_metadata()?;
    let file = SocketFile { path: path.to_owned(), number: (made_file.dev(), made_file.ino()) };
    net::listen(&made, BACKLOG)?;
    Ok((made.into(), file))
}

/// The file of a unix socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The file system, and the file's number in it.
    number: (u64, u64),
}

impl SocketFile {
    /// Removes the file, unless another one has its name by now.
    fn remove(&self) {
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.number) {
            // If it cannot be removed, the next gateway does it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp, _) => tcp.as_fd(),
            Self::Unix(unix, _) => unix.as_fd(),
        }
    }
}

/// A connection; it never waits.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    fn over_tcp(stream: TcpStream, certificate: Option<&Certificate>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        let Some(certificate) = certificate else { return Ok(Self::Tcp(stream)) };
        let mut session = certificate.accept().map_err(io::Error::other)?;
        session.set_buffer_limit(Some(OUTPUT_BYTES));
        Ok(Self::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    /// Whether there may be input that the system does not know of.
    pub fn keeps_input(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Says that nothing follows, as far as the system takes it.
    pub fn end(&mut self) {
        if let Self::Tls(tls) = self {
            tls.conn.send_close_notify();
            // The connection ends in any case.
            let _ = self.flush();
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Tls(tls) => tls.sock.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
            Self::Unix(unix) => unix.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            // Beyond its buffer it takes nothing, and says so.
            Self::Tls(tls) => match tls.write(bytes)? {
                0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            },
            Self::Unix(unix) => unix.write(bytes),
        }
    }

    /// Hands everything to the system that was written.
    fn flush(&mut self) -> io::Result<()> {
        let Self::Tls(tls) = self else { return Ok(()) };
        let tls = &mut **tls;
        while tls.conn.wants_write() {
            tls.conn.write_tls(&mut tls.sock)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_unix_socket_is_for_its_user_alone_and_takes_the_place_of_an_abandoned_one_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let (made, made_file) = listen_at(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let _client = UnixStream::connect(&path).unwrap();
        made.accept().unwrap();
        assert_eq!(listen_at(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A queue that is full says as well that somebody listens.
        let full = folder.path().join("full");
        let (full_queue, _full_file) = listen_at(&full).unwrap();
        net::listen(&full_queue, 0).unwrap();
        let _waiting = UnixStream::connect(&full).unwrap();
        assert_eq!(listen_at(&full).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let file = folder.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        assert_eq!(listen_at(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        std::fs::rename(&file, &path).unwrap();
        made_file.remove();
        assert_eq!(std::fs::read(&path).unwrap(), b"kept", "it is another one's by now");
    }

    /// Over TCP, 128 clients could wait: others' connections that came and went kept a new client
    /// out for seconds.
    #[test]
    fn many_clients_wait_while_nobody_is_accepted() {
        let at = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::at(&at, None).unwrap();
        let Address::Tcp(address) = listener.address() else { panic!("it is one of TCP") };
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        let waiting: Vec<TcpStream> = (0..300).map(connect).collect();
        for _ in waiting {
            listener.accept().unwrap();
        }
    }
}
