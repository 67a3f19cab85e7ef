//! Two network namespaces of this machine, joined by a wire, in the place of guests: hosts for TCP.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{HOSTS, NAMESPACE};
use crate::support::Process;

/// Longer than any run that is not stuck, also a long one.
const RUN_MAX: Duration = Duration::from_secs(1200);
const LOOK: Duration = Duration::from_millis(20);

/// Two namespaces, which go with this value.
pub struct Namespaces {
    names: [String; HOSTS],
    shared: TempDir,
}

impl Namespaces {
    /// Makes them.
    ///
    /// # Errors
    /// Why they cannot be made here, in words.
    pub fn make() -> Result<Self, String> {
        let names = [1, 2].map(|host| format!("loch-{}-{host}", std::process::id()));
        let made = Self { names, shared: tempfile::tempdir().expect("a directory") };
        let [first, second] = &made.names;
        for name in &made.names {
            ip(&format!("netns add {name}"))?;
        }
        ip(&format!("link add eth0 netns {first} type veth peer name eth0 netns {second}"))?;
        for (name, host) in made.names.iter().zip(1..) {
            ip(&format!("-n {name} address add 10.9.0.{host}/24 dev eth0"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(made)
    }

    /// Lets the wire delay what goes over it, and lose some.
    ///
    /// # Errors
    /// Why it does not, in words: not every kernel can.
    pub fn disturb(&self) -> Result<(), String> {
        for name in &self.names {
            let netem = "tc qdisc add dev eth0 root netem delay 200us 100us loss 0.1%";
            ip(&format!("netns exec {name} {netem}"))?;
        }
        Ok(())
    }

    /// The text that a host has told under this name, after it has ended.
    pub fn told(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.shared.path().join(name)).ok()
    }

    /// A program on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host - 1]]).arg(program);
        command
    }

    /// Runs a test of this program in each, as one of the hosts.
    ///
    /// # Panics
    /// If it fails in one of them.
    pub fn run(&self, test: &str) {
        let start = |host: usize| {
            let child = self
                .command(host, &std::env::current_exe().expect("this test"))
                .args(["--exact", test, "--nocapture", "--test-threads", "1"])
                .env(NAMESPACE, self.shared.path())
                .env("HOST", host.to_string())
                .env("HOSTS", HOSTS.to_string())
                .stdin(Stdio::null())
                .spawn();
            Process::new(child.expect("ip is there"))
        };
        let mut hosts: Vec<Process> = (1..=HOSTS).map(start).collect();
        let begun = Instant::now();
        while !hosts.is_empty() {
            assert!(begun.elapsed() < RUN_MAX, "a host does not end");
            // One that has failed would let the other wait in vain.
            hosts.retain_mut(|host| match host.try_ended() {
                None => true,
                Some(status) => {
                    assert!(status.success(), "a host has failed: {status}");
                    false
                }
            });
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made is no reason to stop.
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let ended = Command::new("ip").args(arguments.split(' ')).output();
    let ended = ended.map_err(|error| format!("there is no ip: {error}"))?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&ended.stderr).trim())),
    }
}
