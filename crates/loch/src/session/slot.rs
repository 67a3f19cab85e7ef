//! A session's slot in its node's memory, as its client and its node see it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use loch_engines::region::{SESSION_BYTES, SESSIONS_OFFSET};
use loch_fabric::shm::Region;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::layout::memory::Member;

/// A process, which differs from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// The process's number, or [`UNSEEN`].
    pub pid: u32,
    /// When it started, in the kernel's ticks since it booted. Of a process that is not seen, a
    /// number that the kernel gives no other process until it boots again.
    pub started: u64,
}

/// In the place of a process's number: the process is in a PID namespace of which this one sees
/// nothing. No process has this number.
const UNSEEN: u32 = u32::MAX;
/// The file system of descriptors of processes, since Linux 6.9. A file there has another number
/// than that of any other process.
const PIDFS_MAGIC: i64 = 0x5049_4446;

/// The slot and incarnation of an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SessionId {
    /// The session's slot.
    pub slot: u32,
    /// Names the session among all sessions that ever had the slot.
    pub incarnation: u64,
}

impl Process {
    /// Returns the process of that number, if it can be seen.
    pub fn of_pid(pid: u32) -> Option<Self> {
        Some(Self { pid, started: start_time(&stat_of(pid).ok()?)? })
    }

    /// Returns the process of a descriptor, whose number cannot be seen here.
    pub fn of_pidfd(pidfd: impl AsFd) -> Option<Self> {
        let system = rustix::fs::fstatfs(&pidfd).ok()?;
        let facts = rustix::fs::fstat(pidfd).ok()?;
        (system.f_type as i64 == PIDFS_MAGIC).then_some(Self { pid: UNSEEN, started: facts.st_ino })
    }

    /// The process that holds a slot, if it is in another PID namespace than this one's: itself, or
    /// one that is like no other if it had a number in the namespace of the node before.
    pub fn unseen_in(self, slot: u32) -> Self {
        if self.is_unseen() {
            self
        } else {
            Self { pid: UNSEEN, started: u64::MAX - u64::from(slot) }
        }
    }

    /// Returns whether the process has no number here.
    pub fn is_unseen(self) -> bool {
        self.pid == UNSEEN
    }

    /// Returns whether the process is gone. It is gone only if the kernel says so; an error while
    /// asking does not count.
    pub fn is_gone(self) -> bool {
        self.is_gone_by(stat_of(self.pid))
    }

    fn is_gone_by(self, stat: io::Result<String>) -> bool {
        match stat {
            Ok(stat) => start_time(&stat).is_some_and(|started| started != self.started),
            // ESRCH means that the process ended between two system calls.
            Err(error) => {
                error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
            }
        }
    }

    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        // Without /proc a process cannot be told from a later one, so no session outlives its node.
        Self::of_pid(pid).unwrap_or(Self { pid, started: 0 })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            UNSEEN => f.write_str("process of another PID namespace"),
            pid => write!(f, "process {pid}"),
        }
    }
}

fn stat_of(pid: u32) -> io::Result<String> {
    std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))
}

/// Field 22 of `/proc/<pid>/stat`. Field 2, the name, is in parentheses and may hold any
/// characters. The state is not read, since threads may live on in a process whose first thread is
/// a zombie.
fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The incarnation in a slot of a node, if there is one and the node's region is mapped.
pub(crate) fn incarnation_in(node: &Member, slot: u32) -> Option<u64> {
    let region = node.mapped().filter(|_| slot < node.header.sessions)?;
    let incarnation = slot_word(region, slot, INCARNATION).load(Ordering::SeqCst);
    (incarnation != 0).then_some(incarnation)
}

/// Frees the slot of a session from the client's side, for a client whose node's process is down.
pub(crate) fn free_own_slot(region: &Region, session: SessionId) {
    let word = slot_word(region, session.slot, INCARNATION);
    let _ = word.compare_exchange(session.incarnation, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Gives up the slot of a session from the client's side, where sessions are fenced. The next node
/// takes its process for dead.
pub(crate) fn abandon_own_slot(region: &Region, session: SessionId) {
    let word = |field| slot_word(region, session.slot, field);
    if word(INCARNATION).load(Ordering::Acquire) == session.incarnation {
        word(PID).store(0, Ordering::Release);
    }
}

/// The offsets of a slot's fields.
pub(crate) const INCARNATION: u64 = 0;
pub(crate) const ANNOUNCED: u64 = 8;
pub(crate) const PID: u64 = 16;
pub(crate) const STARTED: u64 = 24;
pub(crate) const LEFT: u64 = 40;

/// A field of a slot.
pub(crate) fn slot_word(region: &Region, slot: u32, field: u64) -> &AtomicU64 {
    region.word(SESSIONS_OFFSET + slot as u64 * SESSION_BYTES + field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Process = Process { pid: u32::MAX >> 2, started: 1 };

    #[test]
    fn a_start_time_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        for name in ["sh", "a) b (c", ") S 1 2", ""] {
            let stat = format!("77 ({name}) {}", fields.join(" "));
            assert_eq!(start_time(&stat), Some(22), "{name}");
        }
        assert_eq!(start_time("77 (sh) S 1"), None);
        assert!(Process::own().started > 0);
    }

    #[test]
    fn a_process_is_gone_if_the_kernel_says_so_and_not_if_it_cannot_be_asked() {
        let own = Process::own();
        assert!(!own.is_gone() && GONE.is_gone());
        assert!(
            Process { started: own.started + 1, ..own }.is_gone(),
            "a later one has its number"
        );
        for (errno, gone) in [
            (Errno::NOENT, true),
            (Errno::SRCH, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(own.is_gone_by(Err(errno.into())), gone, "{errno}");
        }
        assert!(!own.is_gone_by(Ok("no line of that kind".into())));
    }
}
