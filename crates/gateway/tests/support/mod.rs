//! A gateway and a real server, and clients that send bytes and read answers.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loch::{ByteSize, Cluster, EmbeddedConfig, TableConfig};
use loch_gateway::{Address, Gateway, GatewayConfig};
use tempfile::TempDir;

/// A client that has waited so long waits in vain.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway to nodes of this process, at unix sockets.
pub struct Ours {
    pub gateway: Option<Gateway>,
    pub cluster: Cluster,
    folder: TempDir,
}

pub fn gateway() -> Ours {
    gateway_with(GatewayConfig { threads: 2, ..GatewayConfig::default() })
}

pub fn gateway_with(config: GatewayConfig) -> Ours {
    gateway_to("nessie", config)
}

/// A gateway to a table of an engine.
pub fn gateway_to(engine: &str, config: GatewayConfig) -> Ours {
    let table = TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() };
    gateway_of(EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() }, config)
}

/// A gateway to a table that is small, so that it takes no time to look at all of it.
pub fn small_gateway() -> Ours {
    let nodes = EmbeddedConfig { memory: ByteSize::new(8 << 20), ..EmbeddedConfig::default() };
    let slower_than = None;
    gateway_of(nodes, GatewayConfig { threads: 2, slower_than, ..GatewayConfig::default() })
}

/// A gateway to these nodes.
pub fn gateway_of(nodes: EmbeddedConfig, config: GatewayConfig) -> Ours {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::embedded(nodes).unwrap();
    let at = |name: &str| vec![Address::Unix(folder.path().join(name))];
    let config = GatewayConfig { resp: at("resp"), memcached: at("memcached"), ..config };
    let gateway = Some(Gateway::start(cluster.with_home(0).unwrap(), config).unwrap());
    Ours { gateway, cluster, folder }
}

impl Ours {
    pub fn resp(&self) -> Client {
        Client::to(self.folder.path().join("resp"))
    }

    pub fn memcached(&self) -> Client {
        Client::to(self.folder.path().join("memcached"))
    }
}

/// A real server, which ends with this.
pub struct Reference {
    process: Child,
    folder: TempDir,
}

/// The versions whose answers the gateway gives.
const VERSIONS: [(&str, &str); 2] = [("redis-server", "7.0."), ("memcached", "1.6.18")];

impl Reference {
    /// A Redis, if there is one. In CI there has to be one.
    pub fn redis() -> Option<Self> {
        let arguments = ["--port", "0", "--save", "", "--unixsocket"];
        Self::start("redis-server", &arguments)
    }

    pub fn memcached() -> Option<Self> {
        // memcached does not run as root unless it is told to.
        Self::start("memcached", &["-u", "root", "-m", "64", "-s"])
    }

    fn start(program: &str, arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut command = Command::new(program);
        command.args(arguments).arg(&socket).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("not compared with {program}, which is not installed: {error}");
                None
            }
            process => {
                let process = process.unwrap_or_else(|error| panic!("{program}: {error}"));
                note_version(program);
                let server = Self { process, folder };
                let until = Instant::now() + PATIENCE;
                while UnixStream::connect(&socket).is_err() {
                    assert!(Instant::now() < until, "{program} does not listen");
                    std::thread::yield_now();
                }
                Some(server)
            }
        }
    }

    pub fn connect(&self) -> Client {
        Client::to(self.folder.path().join("socket"))
    }
}

/// Says so if a program is not of the version with which the gateway is compared: a test that fails
/// shows it.
fn note_version(program: &str) {
    let said = Command::new(program).arg("--version").output().unwrap();
    let said = text(&said.stdout).trim().to_owned();
    let wanted = VERSIONS.into_iter().find(|(name, _)| *name == program).map(|(_, wanted)| wanted);
    let wanted = wanted.expect("it is one of them");
    if !said.split([' ', '=']).any(|word| word.starts_with(wanted)) {
        eprintln!(
            "NOTE: the gateway answers as {program} {wanted} does, and the one that is installed is \
             another version ({said}): a difference may be one between these versions"
        );
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.process.kill().expect("it is this process' child");
        self.process.wait().expect("it was ended");
    }
}

pub struct Client {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Client {
    fn to(path: PathBuf) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, bytes: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn read_more(&mut self) {
        let mut buffer = vec![0; 64 << 10];
        let count = self.stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the connection has ended after {:?}", text(&self.bytes));
        self.bytes.extend_from_slice(&buffer[..count]);
    }

    /// Sends bytes, if the other side has not ended the connection.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends bytes as long as the other side takes some.
    pub fn send_some(&mut self, bytes: &[u8]) {
        self.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        _ = self.stream.write_all(bytes);
        self.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }

    /// All bytes until the other side ends the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.bytes);
        match self.stream.read_to_end(&mut rest) {
            // It has ended although this side has sent more.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => (),
            done => _ = done.unwrap(),
        }
        rest
    }

    /// How many bytes come until the other side ends the connection.
    pub fn count_rest(&mut self) -> u64 {
        let (mut count, mut buffer) = (self.bytes.len() as u64, vec![0; 1 << 20]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return count,
                Ok(more) => count += more as u64,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return count,
                Err(error) => panic!("after {count} bytes: {error}"),
            }
        }
    }

    /// The next line, with its end.
    pub fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                return self.bytes.drain(..=end).collect();
            }
            self.read_more();
        }
    }

    /// Takes this number of bytes, whatever they are.
    pub fn skip(&mut self, mut count: usize) {
        while count > 0 {
            if self.bytes.is_empty() {
                self.read_more();
            }
            let taken = count.min(self.bytes.len());
            self.bytes.drain(..taken);
            count -= taken;
        }
    }

    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.bytes.len() < count {
            self.read_more();
        }
        self.bytes.drain(..count).collect()
    }

    /// The next answer of RESP, whole.
    pub fn resp_answer(&mut self) -> Vec<u8> {
        let mut answer = self.line();
        let count: i64 = text(&answer[1..]).trim().parse().unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(0);
        match answer[0] {
            b'$' | b'=' if !answer.starts_with(b"$-") => answer.extend(self.exactly(count + 2)),
            b'*' | b'~' => (0..count).for_each(|_| answer.extend(self.resp_answer())),
            b'%' => (0..2 * count).for_each(|_| answer.extend(self.resp_answer())),
            _ => (),
        }
        answer
    }

    /// The answer of memcached to a request that this client sends before one more, whose answer
    /// is known.
    pub fn memcached_answer(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request);
        self.send(b"mn\r\n");
        let mut answer = Vec::new();
        loop {
            let line = self.line();
            if line == b"MN\r\n" {
                return answer;
            }
            answer.extend(line);
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Says how two answers to a request differ.
pub fn differ(request: &str, ours: &[u8], theirs: &[u8]) -> Option<String> {
    let is_same = ours == theirs;
    (!is_same).then(|| format!("{request}\n  ours   {:?}\n  theirs {:?}", text(ours), text(theirs)))
}
