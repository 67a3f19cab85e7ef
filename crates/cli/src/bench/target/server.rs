//! Servers of the socket peers: a private process in a private directory.
//!
//! A server is found on the `PATH`, listens on nothing but a unix socket that
//! only this user can reach, dies with the bench, and leaves nothing behind.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Endpoint, Service, TargetError};
use crate::bench::process::{Owned, cpu_seconds, tied_command};
use crate::bench::tuning::{Cores, Tuning};

/// How long a server may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Between two tries to connect.
const START_POLL: Duration = Duration::from_millis(5);
/// How much of a server's last words an error repeats.
const LAST_WORDS_CHARS: usize = 400;
/// Longest path of a unix socket (`sockaddr_un.sun_path` with its final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Which server, and where it comes from.
pub struct ServerSetup {
    /// The peer's name in results.
    pub name: &'static str,
    /// Its executable.
    pub program: &'static str,
    /// The Debian package that brings it.
    pub package: &'static str,
}

/// A running server. Fields are dropped in order: the process before its files.
#[derive(Debug)]
pub struct Server {
    process: Owned,
    socket: PathBuf,
    _dir: TempDir,
}

impl ServerSetup {
    /// Starts the server with the arguments that `arguments` makes from its
    /// directory and socket, and waits until it answers.
    pub fn start(
        &self,
        interrupted: &AtomicBool,
        arguments: impl FnOnce(&Path, &Path) -> Vec<String>,
    ) -> Result<Server, TargetError> {
        let program = find_program(self.program)
            .ok_or(TargetError::NotInstalled { peer: self.name, package: self.package })?;
        let failed = |error: std::io::Error| self.not_started(error.to_string());
        let dir = private_dir().map_err(failed)?;
        let socket = dir.path().join("socket");
        let log = dir.path().join("log");
        let output = fs::File::create(&log).map_err(failed)?;
        let process = tied_command(&program)
            .and_then(|mut command| {
                command
                    .args(arguments(dir.path(), &socket))
                    .current_dir(dir.path())
                    .stdin(Stdio::null())
                    .stdout(output.try_clone()?)
                    .stderr(output)
                    .spawn()
            })
            .map_err(failed)?;
        let mut server = Server { process: Owned::new(process), socket: socket.clone(), _dir: dir };
        let starting = Starting {
            server: self.name,
            answers: &|| UnixStream::connect(&socket).is_ok(),
            log: &log,
            limit: START_LIMIT,
        };
        starting.wait(&mut server.process, interrupted)?;
        Ok(server)
    }

    fn not_started(&self, reason: impl Into<String>) -> TargetError {
        not_started(self.name, reason)
    }
}

/// A server that was started and does not answer yet.
pub struct Starting<'a> {
    /// Its name in errors.
    pub server: &'static str,
    /// Whether it answers by now.
    pub answers: &'a dyn Fn() -> bool,
    /// What it says meanwhile.
    pub log: &'a Path,
    /// How long it may take.
    pub limit: Duration,
}

impl Starting<'_> {
    /// Waits until it answers.
    pub fn wait(&self, process: &mut Owned, interrupted: &AtomicBool) -> Result<(), TargetError> {
        let failed = |reason: String| {
            Err(not_started(self.server, format!("{reason}; it said: {}", last_words(self.log))))
        };
        let deadline = Instant::now() + self.limit;
        while Instant::now() < deadline {
            if (self.answers)() {
                return Ok(());
            }
            if let Some(status) = process.ended() {
                return failed(status);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(not_started(self.server, "interrupted"));
            }
            thread::sleep(START_POLL);
        }
        failed(format!("its socket did not answer within {} s", self.limit.as_secs()))
    }
}

fn not_started(server: &'static str, reason: impl Into<String>) -> TargetError {
    TargetError::NotStarted { server, reason: reason.into() }
}

impl Service for Server {
    fn endpoint(&self) -> Endpoint {
        Endpoint { paths: vec![self.socket.clone()] }
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

/// Cores of this host that the bench may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A directory whose sockets have short enough paths, also under a long `TMPDIR`.
fn private_dir() -> std::io::Result<TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("loch-bench-");
        builder
    };
    let dir = builder().tempdir()?;
    if dir.path().join("socket").as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(dir);
    }
    builder().tempdir_in("/tmp")
}

/// Also looks where servers live that are not on everybody's `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/bin", "/usr/bin", "/usr/sbin"].map(PathBuf::from))
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    if text.is_empty() {
        return "nothing".into();
    }
    let skipped = text.chars().count().saturating_sub(LAST_WORDS_CHARS);
    text.chars().skip(skipped).collect()
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
        let setup =
            ServerSetup { name: "toy", program: "no-such-program-of-loch", package: "toy-server" };
        let error = setup.start(&AtomicBool::new(false), |_, _| Vec::new()).unwrap_err();
        assert!(error.is_skip());
        assert!(error.to_string().contains("toy-server"), "{error}");
    }
}
