//! Two network namespaces of this machine, joined by a wire, in the place of guests: hosts for TCP.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use loch_wire::{Hosts, Weather};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{HOSTS, NAMESPACE};
use crate::support::Process;

/// Longer than any run that is not stuck, also a long one.
const RUN_MAX: Duration = Duration::from_secs(1200);
const LOOK: Duration = Duration::from_millis(20);
/// A wire that delays what goes over it, and loses some.
pub const FOUL: Weather =
    Weather { delay: Duration::from_micros(100), jitter: Duration::from_micros(200), loss: 0.001 };

/// Two namespaces, which go with this value.
pub struct Namespaces {
    hosts: Hosts,
    shared: TempDir,
}

impl Namespaces {
    /// Makes them, with this weather on the wire.
    ///
    /// # Errors
    /// Why they cannot be made here, in words.
    pub fn make(weather: Weather) -> Result<Self, String> {
        let hosts = Hosts::make(&format!("loch-{}", std::process::id()), weather)?;
        Ok(Self { hosts, shared: tempfile::tempdir().expect("a directory") })
    }

    /// The text that a host has told under this name, after it has ended.
    pub fn told(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.shared.path().join(name)).ok()
    }

    /// A program on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        self.hosts.command(host, program)
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
                .process_group(0)
                .spawn();
            Host(Process::new(child.expect("ip is there")))
        };
        let mut hosts: Vec<Host> = (1..=HOSTS).map(start).collect();
        let begun = Instant::now();
        while !hosts.is_empty() {
            assert!(begun.elapsed() < RUN_MAX, "a host does not end");
            // One that has failed would let the other wait in vain.
            hosts.retain_mut(|host| match host.0.try_ended() {
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

/// A host's process. All that it has started ends with it, also if it could not end that itself.
struct Host(Process);

impl Drop for Host {
    fn drop(&mut self) {
        // There may be nothing left of the group.
        let _ = kill_process_group(Pid::from_child(&self.0.child), Signal::KILL);
    }
}
