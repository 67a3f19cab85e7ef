//! The configuration of a guest's node in `two_hosts.rs`. `plans.rs`, in the repository's `tests`,
//! plans it on every machine, since guests run a while after a change that does not fit.

use std::path::{Path, PathBuf};

use loch::{ByteSize, FabricKind, NodeConfig, TableConfig};

/// Where the node of host `host` listens for clients.
pub fn socket(host: usize) -> PathBuf {
    format!("/tmp/loch-{host}.sock").into()
}

/// The configuration of host `host`'s node, with a secret in this file.
pub fn config(host: usize, secret: &Path) -> NodeConfig {
    NodeConfig {
        name: format!("host{host}"),
        socket: socket(host),
        memory: ByteSize::new(32 << 20),
        fabric: FabricKind::Verbs,
        listen: Some(format!("10.9.0.{host}:7400")),
        cluster: (1..=2).map(|host| format!("10.9.0.{host}:7400").into()).collect(),
        secret: Some(secret.into()),
        sessions: 8,
        region: Some("/dev/shm/loch-test.region".into()),
        tables: vec![
            TableConfig { memory: Some(ByteSize::new(24 << 20)), ..TableConfig::default() },
            TableConfig {
                name: "hybrid".into(),
                engine: "nessie-hybrid".parse().unwrap(),
                sessions: Some(4),
                ..TableConfig::default()
            },
        ],
        ..NodeConfig::default()
    }
}
