//! Clients that record what they ask and what they are answered, in processes that may be killed or
//! stopped at any moment.
//!
//! The processes are this test's own binary, started again with a task in its environment.

#![allow(dead_code, reason = "each test uses some of it")]

mod client;
pub mod record;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use loch_history::{Answer, Operation, Outcome};
use serde::{Deserialize, Serialize};

use crate::support::{Process, wait_for};
pub use record::now;
pub use value::name_of;

/// Keys that all clients want.
pub const HOT_KEYS: usize = 6;
/// So many of them, the first, hold numbers, to which is added.
pub const COUNTERS: usize = 2;

/// How long an operation of a client goes on when it has to start over.
pub const OPERATION_TIMEOUT: Duration = Duration::from_millis(300);
/// The same where nodes are on other machines: in that time a connection is made again.
const OPERATION_TIMEOUT_OF_NETWORK: Duration = Duration::from_millis(1500);
/// How long a client waits for a node that is down.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(10);

/// Tells a process that it is a client, and what to do.
const TASK: &str = "LOCH_TEST_TASK";

/// The work of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Where its record is.
    pub dir: PathBuf,
    /// Of its home node.
    pub socket: PathBuf,
    /// No other client of the run has this number.
    pub client: u32,
    pub table: String,
    /// Other keys, which fill the index, so that entries have to move.
    pub crowd: usize,
    /// Bytes of the longest value that the table takes.
    pub value_max: usize,
    /// Each round has keys of its own.
    pub round: u64,
    /// Operations under way at a time.
    pub lanes: usize,
    /// Some nodes are on other machines, and may be out of reach for a while.
    pub over_network: bool,
    pub seed: u64,
}

/// A client under way.
pub struct Recorded {
    pub process: Process,
    pub task: Task,
}

/// The operations of a client, and how it ended.
pub struct Done {
    pub operations: Vec<Operation>,
    /// Operations that were under way when it was killed.
    pub cut_off: usize,
}

/// The body of a test that is a client's process: does the task, if there is one.
pub fn work_if_told() {
    if let Some(task) = std::env::var_os(TASK) {
        let task = task.into_string().expect("JSON");
        client::work(&serde_json::from_str(&task).expect("a task"));
    }
}

impl Recorded {
    /// Starts a client. `test` is the test that calls [`work_if_told`].
    pub fn start(task: Task, test: &str) -> Self {
        let said = serde_json::to_string(&task).expect("plain data");
        Self { process: Process::of_this_test(test, TASK, &said), task }
    }

    /// Waits until it has done so many operations.
    pub fn wait_for_operations(&mut self, count: u64) {
        let what = format!("{count} operations of client {}", self.task.client);
        wait_for(&what, || {
            self.assert_alive();
            (record::returns(&self.task.record()) >= count).then_some(())
        });
    }

    pub fn assert_alive(&mut self) {
        if let Some(status) = self.process.try_ended() {
            panic!("client {} ended early: {status}", self.task.client);
        }
    }

    /// Operations that were called since a moment, and answered: done, or refused by a condition.
    pub fn answered_since(&self, moment: u64) -> usize {
        let path = self.task.record();
        if !path.exists() {
            return 0;
        }
        let operations = record::read(&path, self.task.client, u64::MAX);
        let is_answered = |o: &&Operation| match o.outcome {
            Outcome::Known(answer) => o.called >= moment && answer != Answer::NoEffect,
            Outcome::Unknown | Outcome::UnknownUntil(_) => false,
        };
        operations.iter().filter(is_answered).count()
    }

    /// Kills it in the middle of whatever it does.
    pub fn kill(mut self) -> Done {
        self.assert_alive();
        self.process.kill();
        self.done()
    }

    /// Lets it end in order.
    pub fn stop(mut self) -> Done {
        self.end();
        self.done()
    }

    /// As [`Recorded::stop`], and its record stays.
    pub fn end(&mut self) {
        drop(self.process.child.stdin.take());
        let status = self.process.ended();
        assert!(status.success(), "client {}: {status}", self.task.client);
    }

    /// Reads the record of a client that has ended.
    fn done(&self) -> Done {
        let path = self.task.record();
        // Killed before it had begun.
        let operations = match path.exists() {
            true => record::read(&path, self.task.client, now()),
            false => Vec::new(),
        };
        let is_open = |o: &&Operation| matches!(o.outcome, Outcome::UnknownUntil(_));
        let cut_off = operations.iter().filter(is_open).count();
        if path.exists() {
            std::fs::remove_file(path).expect("it was read");
        }
        Done { operations, cut_off }
    }
}

impl Task {
    /// The file of its record.
    pub fn record(&self) -> PathBuf {
        self.dir.join(format!("record-{}", self.client))
    }

    fn operation_timeout(&self) -> Duration {
        match self.over_network {
            true => OPERATION_TIMEOUT_OF_NETWORK,
            false => OPERATION_TIMEOUT,
        }
    }
}
