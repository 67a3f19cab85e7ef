//! Faults of this guest's wire: vm/README.md, "Faults".

use std::process::Command;

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
            Self::Silent => run("tc qdisc add dev eth0 root netem loss 100%"),
        }
    }

    /// Mends it.
    pub fn end(self) {
        match self {
            Self::Loud => run("ip link set eth0 up"),
            Self::Silent => run("tc qdisc delete dev eth0 root"),
        }
    }
}

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.expect("a guest has the tool").success(), "{command}");
}
