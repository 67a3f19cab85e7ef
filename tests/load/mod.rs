//! A load on a cluster, every answer to which is judged, from processes that may be killed at any
//! moment.
//!
//! The processes are this test's own binary, started again with a task in its environment.

mod ledger;
mod value;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use loch::Cluster;
use serde::{Deserialize, Serialize};

use crate::support::{Process, wait_for};
use ledger::{Ledger, judge};
use value::{name_of, number_of};

/// Clients that write.
pub const WRITERS: usize = 3;
/// Keys of each.
pub const KEYS: usize = 2400;

/// Tells a process that it is a worker, and what to do.
const TASK: &str = "LOCH_TEST_TASK";

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    dir: PathBuf,
    /// Of its home node.
    socket: PathBuf,
    writer: usize,
    seed: u64,
}

/// What a worker has to say at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub ops: u64,
    /// The operation that took longest, and what it was.
    pub longest: Duration,
    pub longest_op: String,
}

/// A worker under way.
pub struct Load {
    process: Process,
    task: Task,
}

/// The body of the test `name`, which is one of its own process: does the task, if there is one.
pub fn work_if_told() {
    if let Some(task) = std::env::var_os(TASK) {
        let task = task.into_string().expect("JSON");
        worker::work(&serde_json::from_str(&task).expect("a task"));
    }
}

impl Load {
    /// Starts the client of `writer` at the node of `socket`. `worker` is the test that calls
    /// [`work_if_told`].
    pub fn start(dir: &Path, socket: &Path, writer: usize, seed: u64, worker: &str) -> Self {
        let task = Task { dir: dir.into(), socket: socket.into(), writer, seed };
        fs::write(task.progress(), 0_u64.to_le_bytes()).expect("a file");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", worker, "--ignored", "--nocapture"])
            .env(TASK, serde_json::to_string(&task).expect("plain data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("this test starts again");
        Self { process: Process::new(child), task }
    }

    /// Operations it has done since it started; it looked at all its keys before.
    pub fn ops(&mut self) -> u64 {
        if let Some(status) = self.process.try_ended() {
            panic!("writer {} ended early: {status}", self.task.writer);
        }
        let ops = fs::read(self.task.progress()).expect("a file");
        u64::from_le_bytes(ops.try_into().expect("a word"))
    }

    /// Waits until it has done `more` operations.
    pub fn wait_for_ops(&mut self, more: u64) {
        let until = self.ops() + more;
        let what = format!("{more} operations of writer {}", self.task.writer);
        wait_for(&what, || (self.ops() >= until).then_some(()));
    }

    /// Kills it in the middle of whatever it does.
    pub fn kill(mut self) {
        assert!(self.process.try_ended().is_none(), "it found something wrong");
        self.process.kill();
    }

    /// Lets it end in order.
    pub fn stop(mut self) -> Report {
        drop(self.process.child.stdin.take());
        let status = self.process.ended();
        assert!(status.success(), "writer {}: {status}", self.task.writer);
        let report = fs::read(self.task.report()).expect("its report");
        serde_json::from_slice(&report).expect("a report")
    }
}

/// Reads every key of every writer, when none of them is at work: what was acknowledged is there,
/// and nothing is there that was not written. How many keys have a value.
pub fn verify_all(dir: &Path, socket: &Path) -> usize {
    let table = Cluster::connect(socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the cluster is up");
    let mut values = 0;
    for writer in 0..WRITERS {
        let ledger = Ledger::open(dir, writer, KEYS);
        for key in 0..KEYS {
            let got = table.get(&name_of(writer, key)).expect("it can be read");
            let found = got.map(|value| number_of(writer, key, &value).expect("it was written"));
            let judged = judge(ledger.acknowledged(key), ledger.meant(key), found);
            judged.unwrap_or_else(|wrong| panic!("key {key} of writer {writer}: {wrong}"));
            values += found.is_some() as usize;
        }
    }
    values
}

impl Task {
    fn progress(&self) -> PathBuf {
        self.dir.join(format!("progress-{}", self.writer))
    }

    fn report(&self) -> PathBuf {
        self.dir.join(format!("report-{}", self.writer))
    }
}
