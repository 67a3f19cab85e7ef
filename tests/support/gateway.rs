//! A gateway in a process of its own, and connections to it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Node, PATIENCE, Process, loch};

/// A gateway in a process of its own, to the table `default` of a node.
pub struct Gateway {
    pub process: Process,
    /// Where clients of Redis connect.
    pub resp: PathBuf,
    /// Where clients of memcached connect.
    pub memcached: PathBuf,
    /// Where clients of Redis connect over TCP.
    pub tcp: SocketAddr,
    /// The line that it says when it is ready.
    pub ready: String,
}

impl Gateway {
    /// Starts gateway `name` of `dir` with two threads, and waits until it is ready.
    pub fn start(dir: &Path, node: &Node, name: &str) -> Self {
        Self::start_by(loch(), dir, node, name)
    }

    /// Starts it by a command to which the arguments of `loch` are added.
    pub fn start_by(mut command: Command, dir: &Path, node: &Node, name: &str) -> Self {
        let (resp, memcached) = (dir.join(format!("{name}.resp")), dir.join(format!("{name}.mc")));
        command.arg("gateway").arg("--socket").arg(&node.socket).args(["--threads", "2"]);
        // Between machines, nodes may not have met yet.
        command.args(["--wait", "1m"]);
        command.arg("--resp").arg(format!("unix:{}", resp.display()));
        command.args(["--resp", "127.0.0.1:0"]);
        command.arg("--memcached").arg(format!("unix:{}", memcached.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::new(command.spawn().expect("a gateway starts"));
        let mut line = String::new();
        let stdout = process.child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("it says that it is ready");
        assert!(line.contains("is ready"), "{line:?}");
        let tcp = line.split_whitespace().find_map(|word| word.trim_end_matches(',').parse().ok());
        let tcp = tcp.expect("it says which port it has");
        Self { process, resp, memcached, tcp, ready: line }
    }

    /// The descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).expect("it runs").count()
    }

    /// Its memory in bytes that is no file's: what it shares with its node does not count.
    pub fn memory_bytes(&self) -> u64 {
        let rollup = fs::read_to_string(self.proc("smaps_rollup")).expect("it runs");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") << 10
    }

    fn proc(&self, file: impl AsRef<OsStr>) -> PathBuf {
        Path::new("/proc").join(self.process.pid().to_string()).join(file.as_ref())
    }
}

/// A client's connection.
pub struct Wire {
    stream: Box<dyn Socket>,
    /// What came and was not asked for yet; no memory if there is nothing.
    came: Vec<u8>,
}

trait Socket: Read + Write + AsFd + Send {}

impl<S: Read + Write + AsFd + Send> Socket for S {}

impl Wire {
    /// Connects to a unix socket.
    pub fn to(path: &Path) -> Self {
        Self::try_to(path).expect("it listens")
    }

    /// Connects to a unix socket, if somebody listens.
    pub fn try_to(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: Box::new(stream), came: Vec::new() })
    }

    /// Connects over TCP.
    pub fn to_port(address: SocketAddr) -> Self {
        Self::try_to_port(address).expect("it listens")
    }

    /// Connects over TCP, if somebody listens.
    pub fn try_to_port(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: Box::new(stream), came: Vec::new() })
    }

    /// Sends bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// As [`Wire::try_send`], to a side that reads.
    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the other side reads");
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.came.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    }

    /// Whether something has come.
    pub fn has_something(&self) -> bool {
        let mut sockets = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.came.is_empty() || poll(&mut sockets, Some(&now)).expect("a socket") > 0
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = if count < self.came.len() { self.came.split_off(count) } else { Vec::new() };
        std::mem::replace(&mut self.came, rest)
    }

    /// The next line, without its end.
    pub fn try_line(&mut self) -> io::Result<String> {
        let mut looked = 0;
        loop {
            let end = self.came[looked..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = self.take(looked + end + 1);
                let line = line.strip_suffix(b"\r\n").expect("a line ends with CR and LF");
                return Ok(String::from_utf8_lossy(line).into_owned());
            }
            looked = self.came.len();
            self.read_more()?;
        }
    }

    /// As [`Wire::try_line`], of a connection that goes on.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.try_line().expect("the connection goes on")
    }

    /// The next bytes.
    pub fn try_bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        if self.came.len() < count {
            let here = self.came.len();
            self.came.resize(count, 0);
            if let Err(error) = self.stream.read_exact(&mut self.came[here..]) {
                self.came.truncate(here);
                return Err(error);
            }
        }
        Ok(self.take(count))
    }

    /// As [`Wire::try_bytes`], of a connection that goes on.
    #[track_caller]
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.try_bytes(count).expect("the connection goes on")
    }

    /// Everything until the other side ends the connection, and the error with which it did.
    pub fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let mut rest = std::mem::take(&mut self.came);
        let ended = self.stream.read_to_end(&mut rest);
        (rest, ended.map(|_| ()))
    }

    /// An answer of RESP that is a line, or a string of bytes, whose bytes follow the line.
    #[track_caller]
    pub fn resp(&mut self) -> (String, Option<Vec<u8>>) {
        let line = self.line();
        let count = line.strip_prefix('$').and_then(|count| count.parse::<usize>().ok());
        let value = count.map(|count| {
            let mut value = self.bytes(count + 2);
            assert!(value.ends_with(b"\r\n"), "a string ends as it says");
            value.truncate(count);
            value
        });
        (line, value)
    }

    /// An answer of memcached that is a line, or an item of `get` or `mg`, whose bytes follow the
    /// line.
    #[track_caller]
    pub fn memcached(&mut self) -> (String, Option<Vec<u8>>) {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        let count = match words[..] {
            ["VALUE", _, _, count, ..] | ["VA", count, ..] => count.parse::<usize>().ok(),
            _ => None,
        };
        let value = count.map(|count| {
            let mut value = self.bytes(count + 2);
            assert!(value.ends_with(b"\r\n"), "an item ends as it says");
            value.truncate(count);
            value
        });
        (line, value)
    }
}
