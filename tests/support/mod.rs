//! Helpers for whole-system tests: a directory of their own, and real processes of the built
//! binary that end with the test.
//!
//! # Invariants
//! 1. Every process is ended by its pid when its guard is dropped, and every file is in the test's
//!    own directory, which goes last.
//! 2. Every wait has a bound.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod gateway;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The binary under test.
pub const LOCH: &str = env!("CARGO_BIN_EXE_loch");

/// Longer than anything takes that is not stuck, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks at something that is awaited.
const POLL: Duration = Duration::from_millis(5);

/// A directory in shared memory, for regions and sockets.
pub fn private_dir() -> TempDir {
    let mut prefix = tempfile::Builder::new();
    let prefix = prefix.prefix("loch-test-");
    let dir = prefix.tempdir_in("/dev/shm").or_else(|_| prefix.tempdir());
    dir.expect("a temporary directory")
}

/// Whether the long forms of the tests were asked for.
pub fn is_long() -> bool {
    std::env::var_os("LOCH_LONG").is_some_and(|value| value == "1")
}

/// Waits until `look` finds something.
///
/// # Panics
/// If it does not in time.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(POLL);
    }
}

/// The binary with nothing of this process's environment that concerns it.
pub fn loch() -> Command {
    let mut command = Command::new(LOCH);
    for name in ["LOCH_SOCKET", "LOCH_PASSWORD", "RUST_LOG", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command
}

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; none after a signal.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    /// Standard output as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    /// Standard output as one JSON value.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// It ended with `code`; if that is not 0, its standard error is one line that holds each of
    /// `words`, and its standard output is empty.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) -> &Self {
        let shown = || format!("{:?} {}", self.code, self.stderr);
        assert_eq!(self.code, Some(code), "{}", shown());
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", shown());
        }
        if code != 0 {
            assert!(self.stdout.is_empty(), "{}", shown());
            assert!(self.stderr.ends_with('\n'), "{}", shown());
        }
        self
    }
}

/// Runs a command to its end, with `input` on its standard input.
pub fn run(command: &mut Command, input: &[u8]) -> Ended {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::new(piped.spawn().expect("it starts"));
    let mut stdin = process.child.stdin.take().expect("piped");
    let stdout = process.child.stdout.take().expect("piped");
    let stderr = process.child.stderr.take().expect("piped");
    thread::scope(|scope| {
        scope.spawn(move || {
            // It may end without reading all, which is its right.
            let _ = stdin.write_all(input);
        });
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let status = process.ended();
        Ended {
            code: status.code(),
            stdout: stdout.join().expect("read"),
            stderr: String::from_utf8_lossy(&stderr.join().expect("read")).into_owned(),
        }
    })
}

fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).expect("a pipe can be read");
    all
}

/// A process that ends with this guard.
pub struct Process {
    pub child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    pub fn new(child: Child) -> Self {
        Self { child, status: None }
    }

    /// Starts this test's own binary again, to be the process that `test` is: an ignored test that
    /// finds its task in the variable. Its standard input is piped.
    pub fn of_this_test(test: &str, variable: &str, task: &str) -> Self {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("this test starts again");
        Self::new(child)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_ended().is_none() {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, signal).expect("a child that was not waited for");
        }
    }

    /// How it ended, if it has.
    pub fn try_ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("a child");
        }
        self.status
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let what = format!("the end of process {}", self.pid());
        wait_for(&what, || self.try_ended())
    }

    /// Kills it, in the middle of whatever it does, and waits until it is no more.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only for one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node: a process of `loch serve` with its socket, region and log in a directory.
pub struct Node {
    pub process: Process,
    pub socket: PathBuf,
    pub region: PathBuf,
    /// The line that it printed when it was ready.
    pub ready: String,
    log: PathBuf,
    /// Kept open, so that the node can write.
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    /// Starts node `name` of `dir`, and waits until it is ready.
    pub fn start(dir: &Path, name: &str, flags: &[&str]) -> Self {
        Self::start_by(loch(), dir, name, flags)
    }

    /// Starts it by a command to which the arguments of `loch` are added.
    pub fn start_by(command: Command, dir: &Path, name: &str, flags: &[&str]) -> Self {
        let log = dir.join(format!("{name}.log"));
        let to = fs::File::options().create(true).append(true).open(&log);
        let child = Self::serving(command, dir, name, flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(to.expect("a log file"))
            .spawn()
            .expect("a node starts");
        let mut process = Process::new(child);
        let stdout = process.child.stdout.take().expect("piped");
        let (ready, stdout) = first_line(stdout);
        let ready = ready.unwrap_or_else(|| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            panic!("node {name} ended before it was ready:\n{said}")
        });
        Self {
            process,
            socket: socket_of(dir, name),
            region: region_of(dir, name),
            ready,
            log,
            _stdout: stdout,
        }
    }

    /// `loch serve` for node `name` of `dir`.
    pub fn command(dir: &Path, name: &str, flags: &[&str]) -> Command {
        Self::serving(loch(), dir, name, flags)
    }

    fn serving(mut command: Command, dir: &Path, name: &str, flags: &[&str]) -> Command {
        command.arg("serve").args(["--name", name]);
        command.arg("--socket").arg(socket_of(dir, name));
        command.arg("--region").arg(region_of(dir, name));
        command.args(flags);
        command
    }

    /// Runs `loch` with these arguments against this node.
    pub fn loch<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        self.loch_with(arguments, b"")
    }

    /// As [`Node::loch`], with standard input.
    pub fn loch_with<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> Ended {
        let mut command = loch();
        run(command.env("LOCH_SOCKET", &self.socket).args(arguments), input)
    }

    /// What `loch check` says of the tables, in which nothing is broken.
    pub fn checked_tables(&self) -> serde_json::Value {
        let check = self.loch(&["check", "--json"]);
        assert_eq!(check.code, Some(0), "{}\n{}", check.text(), check.stderr);
        check.json()["tables"].clone()
    }

    /// Whether nothing is left of any client that died.
    pub fn is_clean(&self) -> bool {
        let is_clean = |table: &serde_json::Value| {
            ["unshown", "tentative", "moving"].iter().all(|field| table[field] == 0)
        };
        self.checked_tables().as_array().expect("a list").iter().all(is_clean)
    }

    /// No node of its cluster has a session.
    pub fn assert_no_sessions(&self) {
        let stats = self.loch(&["stats", "--json"]).expect(0, &[]).json();
        for node in stats["nodes"].as_array().expect("a list") {
            assert_eq!(node["sessions_taken"], 0, "{stats}");
        }
    }

    /// Stops it in order, as an operator does; how it ended.
    pub fn stop(mut self, signal: Signal) -> ExitStatus {
        self.process.signal(signal);
        self.process.ended()
    }

    /// Where it logs.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }
}

/// Where node `name` of `dir` listens.
pub fn socket_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}

/// Where node `name` of `dir` has its memory.
pub fn region_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.region"))
}

/// The first line that a process prints; none if it ends before.
fn first_line(stdout: ChildStdout) -> (Option<String>, BufReader<ChildStdout>) {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let read = stdout.read_line(&mut line);
        // A test that has given up does not listen any more.
        let _ = send.send((read.is_ok_and(|bytes| bytes > 0).then_some(line), stdout));
    });
    receive.recv_timeout(PATIENCE).expect("a node is ready or ends in time")
}
