//! Faults of this host's wire: vm/README.md, "Faults".

use std::process::Command;

use super::{Guest, NAMESPACE};

/// How the wire is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The port is down: this host is told, and its queue pairs fail at once.
    Loud,
    /// Nothing goes out, and nobody is told. What the other host sends still arrives.
    Silent,
}

impl Cut {
    /// Cuts the wire.
    pub fn begin(self) {
        match self {
            Self::Loud => run("ip link set eth0 down"),
            Self::Silent => run(&silence("add")),
        }
    }

    /// Mends it.
    pub fn end(self) {
        match self {
            Self::Loud => run("ip link set eth0 up"),
            Self::Silent => run(&silence("delete")),
        }
    }
}

/// Adds or deletes what lets nothing out. The kernel of guests has `netem`, that of namespaces may
/// not: TCP sends to the address that the neighbour is said to have, which nobody has.
fn silence(action: &str) -> String {
    if std::env::var_os(NAMESPACE).is_none() {
        let loss = if action == "add" { " netem loss 100%" } else { "" };
        return format!("tc qdisc {action} dev eth0 root{loss}");
    }
    let other = 3 - Guest::this().expect("a host").host;
    match action {
        "add" => format!("ip neigh replace 10.9.0.{other} lladdr {NOBODY} dev eth0 nud permanent"),
        _ => format!("ip neigh delete 10.9.0.{other} dev eth0"),
    }
}

const NOBODY: &str = "02:00:00:00:00:99";

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.expect("a guest has the tool").success(), "{command}");
}
