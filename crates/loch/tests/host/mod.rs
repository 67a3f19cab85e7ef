//! Nodes in a temporary folder, as threads of the test.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use loch::{ByteSize, Cluster, ConnectOptions, Node, NodeConfig};

/// A folder for the sockets and regions of a cluster.
pub struct Host {
    pub dir: tempfile::TempDir,
    names: Vec<&'static str>,
}

impl Host {
    /// A cluster of one node.
    pub fn new() -> Self {
        Self::of(&["a"])
    }

    /// A cluster of nodes with these names.
    pub fn of(names: &[&'static str]) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), names: names.to_vec() }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    pub fn region(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.region"))
    }

    pub fn config(&self, name: &str) -> NodeConfig {
        NodeConfig {
            name: name.into(),
            socket: self.socket(name),
            memory: ByteSize::new(16 << 20),
            cluster: self.names.iter().map(|n| self.socket(n)).collect(),
            sessions: 16,
            region: Some(self.region(name)),
            ..NodeConfig::default()
        }
    }

    pub fn start(&self, name: &str) -> Node {
        Node::start(self.config(name)).unwrap()
    }

    pub fn start_all(&self) -> Vec<Node> {
        self.names.iter().map(|name| self.start(name)).collect()
    }

    pub fn connect(&self, name: &str) -> Cluster {
        Cluster::connect(self.socket(name)).unwrap()
    }

    /// Checks that the node serves: a client attaches, writes and reads.
    pub fn assert_serves(&self, name: &str) {
        let table = self.connect(name).table("default").unwrap();
        table.put(b"still", b"serving").unwrap();
        assert_eq!(&table.get(b"still").unwrap().unwrap()[..], b"serving");
    }
}

/// Options that do not wait long for a node that is down.
pub fn impatient() -> ConnectOptions {
    ConnectOptions { connect_timeout: Duration::from_millis(50), ..ConnectOptions::default() }
}

/// Waits, for a bounded time, until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it never came about: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
