//! Ways for a client and a server to share cores.
//!
//! Over a socket, the cores on which client and server sleep matter more than the store. On the
//! virtual machine where this was written, unpipelined memcached does 18 000 operations a second
//! with client and server on two cores, because waking an idle core takes 25 µs, and 85 000 with
//! both on one core. On other machines it is the other way round. So the bench tries the ways and
//! measures the best one; a comparison should not rest on a bad one.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// A way to share cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tuning {
    /// All processes run where the kernel puts them and sleep while waiting.
    Free,
    /// The same, but clients spin a while before they sleep.
    Spinning,
    /// Clients and server share one core.
    OneCore,
}

impl Tuning {
    /// The ways for a client and a server on a socket.
    pub const OF_SOCKETS: &'static [Tuning] = &[Tuning::Free, Tuning::Spinning, Tuning::OneCore];

    /// The ways for clients and nodes of Loch, which always spin a while before they sleep.
    pub const OF_LOCH: &'static [Tuning] = &[Tuning::Free, Tuning::OneCore];

    /// The way in words, for the notes under the table.
    pub fn in_words(self) -> &'static str {
        match self {
            Tuning::Free => "clients and server placed by the kernel",
            Tuning::Spinning => "clients and server placed by the kernel, clients spinning",
            Tuning::OneCore => "clients and server sharing one core",
        }
    }
}

/// The cores on which this process could run before it placed any thread.
#[derive(Debug, Clone)]
pub struct Cores {
    all: CpuSet,
    one: CpuSet,
}

impl Cores {
    /// The cores of the calling thread.
    pub fn of_this_thread() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        // The last one: the kernel's own work tends to gather on the first.
        if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)) {
            one.set(last);
        }
        Ok(Cores { all, one })
    }

    /// Places the calling thread.
    pub fn place_this_thread(&self, tuning: Tuning) -> io::Result<()> {
        Ok(sched_setaffinity(None, self.of(tuning))?)
    }

    /// Places every thread of another process.
    pub fn place_process(&self, pid: u32, tuning: Tuning) -> io::Result<()> {
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = task?.file_name();
            let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            if let Some(thread) = thread {
                sched_setaffinity(Some(thread), self.of(tuning))?;
            }
        }
        Ok(())
    }

    fn of(&self, tuning: Tuning) -> &CpuSet {
        match tuning {
            Tuning::Free | Tuning::Spinning => &self.all,
            Tuning::OneCore => &self.one,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_to_one_core_and_back() {
        let cores = Cores::of_this_thread().unwrap();
        let before = sched_getaffinity(None).unwrap().count();
        cores.place_this_thread(Tuning::OneCore).unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        cores.place_this_thread(Tuning::Free).unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), before);
    }
}
