//! The configuration of a guest's node. A test of its own plans it on every machine (`plans.rs`),
//! since guests run a while after a change that does not fit.

use std::path::Path;

/// How many guests there are.
pub const HOSTS: usize = 2;

/// The TCP port of the nodes.
pub const CONTROL_PORT: u16 = 7400;

/// The configuration of host `host`'s node on a fabric, with a secret in this file, and logs in
/// this folder.
pub fn configuration(host: usize, fabric: &str, secret: &Path, log: &Path) -> String {
    let addresses: Vec<String> = (1..=HOSTS).map(|host| address(host, CONTROL_PORT)).collect();
    let listen = &addresses[host - 1];
    let own = format!(
        "fabric = {fabric:?}\nlisten = {listen:?}\ncluster = {addresses:?}\nsecret = {secret:?}\n"
    );
    [&own, include_str!("node.toml")].concat().replace("LOG", log.to_str().expect("text"))
}

/// Where a port of a guest is on the wire.
pub fn address(host: usize, port: u16) -> String {
    format!("10.9.0.{host}:{port}")
}
