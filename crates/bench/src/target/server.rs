//! Servers of the socket peers: a private process in a private directory.
//!
//! A server is a program on the `PATH`, or this very binary. It listens on nothing but a unix
//! socket that only this user can reach, or a port of the loopback, dies with the bench, and leaves
//! nothing behind.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::starting::Starting;
use super::{DIR_PREFIX, Endpoint, Result, Service};
use crate::error::TargetError;
use crate::process::{Owned, cpu_seconds, tied_command};
use crate::spec::{PEER_THREADS_MAX, Spec};
use crate::system::PeerTransport;
use crate::tuning::{Cores, Tuning};

/// How long a server may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest path of a unix socket (`sockaddr_un.sun_path` with its final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where a server listens.
pub enum Place {
    /// At a unix socket.
    Unix(PathBuf),
    /// At a port of the loopback.
    Tcp(SocketAddr),
}

impl Place {
    /// A place at which nothing listens, below `dir`. Another process may take the port before its
    /// server does, which then says so.
    fn free(transport: PeerTransport, dir: &Path) -> std::io::Result<Self> {
        Ok(match transport {
            PeerTransport::Unix => Self::Unix(dir.join("socket")),
            PeerTransport::Tcp => Self::Tcp(free_address()?),
        })
    }

    /// The place, as it is passed to clients.
    fn name(&self) -> PathBuf {
        match self {
            Self::Unix(path) => path.clone(),
            Self::Tcp(address) => address.to_string().into(),
        }
    }
}

/// Ports that the system gives to no connection by itself.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// An address of the loopback at which no process listens now, another with each call. If another
/// process takes it before its server does, the server fails with an error that says so.
pub fn free_address() -> std::io::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut tried = Err(std::io::ErrorKind::AddrInUse.into());
    for _ in PORTS {
        // Other processes begin at other ports.
        let next =
            std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (next % PORTS.len() as u32) as u16;
        tried = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|it| it.local_addr());
        if tried.is_ok() {
            break;
        }
    }
    tried
}

/// Connects to a server by the name of its place.
pub fn connect(name: &Path) -> std::io::Result<OwnedFd> {
    if name.is_absolute() {
        return UnixStream::connect(name).map(OwnedFd::from);
    }
    let stream = TcpStream::connect(&*name.to_string_lossy())?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// A running server. Fields are dropped in order: the process before its files.
#[derive(Debug)]
pub struct Server {
    process: Owned,
    place: PathBuf,
    _dir: TempDir,
}

/// The command of a peer's server, whose executable is `program` of a Debian package.
pub fn installed(peer: &'static str, program: &str, package: &'static str) -> Result<Command> {
    let program = find_program(program).ok_or(TargetError::NotInstalled { peer, package })?;
    tied_command(&program).map_err(|error| not_started(peer, &error))
}

impl Server {
    /// Starts the server of a peer by its command, with the arguments that `arguments` makes from
    /// its directory and place, and waits until it answers.
    pub fn start(
        peer: &'static str,
        mut command: Command,
        transport: PeerTransport,
        interrupted: &AtomicBool,
        arguments: impl FnOnce(&Path, &Place) -> Vec<String>,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| not_started(peer, &error);
        let dir = private_dir().map_err(failed)?;
        let at = Place::free(transport, dir.path()).map_err(failed)?;
        let log = dir.path().join("log");
        let output = fs::File::create(&log).map_err(failed)?;
        let process = command
            .args(arguments(dir.path(), &at))
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)?;
        let place = at.name();
        let mut server = Self { process: Owned::new(process), place: place.clone(), _dir: dir };
        let starting = Starting {
            server: peer,
            answers: &|| connect(&place).is_ok(),
            log: &log,
            limit: START_LIMIT,
        };
        starting.wait(&mut server.process, interrupted)?;
        Ok(server)
    }
}

impl Service for Server {
    fn endpoint(&self) -> Endpoint {
        Endpoint::new(vec![self.place.clone()])
    }

    fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(self.process.pid())
    }

    fn tunings(&self) -> &'static [Tuning] {
        Tuning::OF_SOCKETS
    }

    fn place(&self, cores: &Cores, tuning: Tuning) -> std::io::Result<()> {
        cores.place_process(self.process.pid(), tuning)
    }
}

/// Threads of a server that can have several: by default as many as cores.
pub fn threads(spec: &Spec) -> u16 {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    spec.peer_threads.unwrap_or_else(|| cores().min(PEER_THREADS_MAX.into()) as u16)
}

/// The error for a server that could not be started.
pub fn not_started(server: &'static str, error: &std::io::Error) -> TargetError {
    TargetError::NotStarted { server, reason: error.to_string() }
}

/// A directory whose sockets have short enough paths, also under a long `TMPDIR`.
fn private_dir() -> std::io::Result<TempDir> {
    let dir = TempDir::with_prefix(DIR_PREFIX)?;
    if dir.path().join("socket").as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(dir);
    }
    TempDir::with_prefix_in(DIR_PREFIX, "/tmp")
}

/// Also looks in folders for servers, which are not on every `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/bin", "/usr/bin", "/usr/sbin"].map(PathBuf::from))
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-of-loch"), None);
    }

    #[test]
    fn a_missing_peer_names_its_package_and_is_skipped() {
        let error = installed("toy", "no-such-program-of-loch", "toy-server").unwrap_err();
        assert!(error.is_skip());
        assert!(error.to_string().contains("toy-server"), "{error}");
    }
}
