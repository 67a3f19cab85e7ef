//! A load on a cluster, every answer to which is judged, from processes that may be killed at any
//! moment.
//!
//! The processes are this test's own binary, started again with a task in its environment.

mod ledger;
mod processor;
mod value;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loch::Cluster;
use serde::{Deserialize, Serialize};

use crate::support::{Process, wait_for};
use ledger::{Ledger, judge};
pub use value::{Lengths, ONE};
use value::{name_of, number_of};

/// How large a load is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Clients that write.
    pub writers: usize,
    /// Keys of each.
    pub keys: usize,
    /// Lanes of each.
    pub lanes: usize,
}

impl Scale {
    /// The usual one.
    pub const USUAL: Self = Self { writers: 3, keys: 2400, lanes: 8 };
}

/// Tells a process that it is a worker, and what to do.
const TASK: &str = "LOCH_TEST_TASK";

/// The work of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Where its files are, and the others'.
    pub dir: PathBuf,
    /// Of its home node.
    pub socket: PathBuf,
    /// Whose keys it writes.
    pub writer: usize,
    pub lengths: Lengths,
    pub scale: Scale,
    pub seed: u64,
}

/// A worker's result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub ops: u64,
    /// PUTs that were refused for want of memory.
    pub refused: u64,
    /// How long the longest operation took.
    pub longest: Duration,
    /// The same without the time in which its thread waited for a processor, which other processes
    /// had; and what that operation was.
    pub longest_own: Duration,
    pub longest_own_op: String,
}

/// A worker under way.
pub struct Load {
    process: Process,
    task: Task,
}

/// The body of a test that is a worker's process: does the task, if there is one.
pub fn work_if_told() {
    if let Some(task) = std::env::var_os(TASK) {
        let task = task.into_string().expect("JSON");
        worker::work(&serde_json::from_str(&task).expect("a task"));
    }
}

impl Load {
    /// Starts a client. `worker` is the test that calls [`work_if_told`].
    pub fn start(task: Task, worker: &str) -> Self {
        fs::write(task.progress(), 0_u64.to_le_bytes()).expect("a file");
        let said = serde_json::to_string(&task).expect("plain data");
        Self { process: Process::of_this_test(worker, TASK, &said), task }
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
pub fn verify_all(dir: &Path, socket: &Path, lengths: Lengths, scale: Scale) -> usize {
    let table = Cluster::connect(socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the cluster is up");
    let mut values = 0;
    for writer in 0..scale.writers {
        let ledger = Ledger::open(dir, writer, scale.keys);
        for key in 0..scale.keys {
            let got = table.get(&name_of(writer, key)).expect("it can be read");
            let found =
                got.map(|value| number_of(lengths, writer, key, &value).expect("it was written"));
            let judged = judge(ledger.acknowledged(key), ledger.meant(key), found);
            judged.unwrap_or_else(|wrong| panic!("key {key} of writer {writer}: {wrong}"));
            values += found.is_some() as usize;
        }
    }
    values
}

/// Deletes everything, and puts values of one length until there is no memory; which part of it
/// they fill.
pub fn refill(socket: &Path, scale: Scale) -> f64 {
    const VALUE: [u8; 8000] = [7; 8000];
    let cluster = Cluster::connect(socket).expect("the cluster is up");
    let table = cluster.table("default").expect("it has a session");
    for writer in 0..scale.writers {
        for key in 0..scale.keys {
            table.delete(&name_of(writer, key)).expect("it can be deleted");
        }
    }
    let mut keys = 0_u32;
    loop {
        match table.put(&keys.to_le_bytes(), &VALUE) {
            Ok(_) => keys += 1,
            Err(loch::Error::Table { source: loch::EngineError::OutOfMemory { .. }, .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    (keys as usize * VALUE.len()) as f64 / cluster.info().tables[0].data_bytes as f64
}

/// Bytes of all data tables of a cluster.
pub fn data_bytes(socket: &Path) -> u64 {
    Cluster::connect(socket).expect("the cluster is up").info().tables[0].data_bytes
}

impl Task {
    fn progress(&self) -> PathBuf {
        self.dir.join(format!("progress-{}", self.writer))
    }

    fn report(&self) -> PathBuf {
        self.dir.join(format!("report-{}", self.writer))
    }
}
