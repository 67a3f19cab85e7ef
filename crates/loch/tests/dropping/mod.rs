//! Workers that do all operations of a table and drop many of them, in processes of two threads.
//!
//! The processes are this test's own binary, started again with a task in its environment. They are
//! told what to do line by line, and answer each line with one.

pub mod memory;
mod model;
pub mod worker;

use std::io::{BufRead, BufReader, Write, stdin};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use loch::{Cluster, ConnectOptions};
use serde::{Deserialize, Serialize};
use worker::Worker;

/// Lengths of values. The first is that of numbers' neighbours: what an APPEND appends.
pub const SIZES: [usize; 5] = [100, 500, 1800, 6000, 28_000];
/// Threads of a process: workers.
pub const THREADS: u64 = 2;
/// Tells a process that it is one of workers, and what to do.
const TASK: &str = "LOCH_TEST_TASK";
/// How long a worker may take for what it is told.
const ANSWER: Duration = Duration::from_secs(120);

/// The work of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Of its home node.
    pub socket: PathBuf,
    /// The number of its first worker, and of all workers.
    pub first: u64,
    pub workers: u64,
    /// Keys of each worker.
    pub keys: u64,
    /// Whether the table evicts.
    pub evicts: bool,
    pub seconds: u64,
    pub seed: u64,
}

/// An order to all workers of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Put values of this length under all keys.
    Use(usize),
    /// Look at all keys, close the table, and end.
    End,
}

/// The operations of workers since their last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub done: u64,
    pub dropped: u64,
    pub refused: u64,
    /// Keys that have a value, at the end.
    pub values: u64,
}

impl Done {
    pub fn add(&mut self, other: Self) {
        self.done += other.done;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.values += other.values;
    }
}

type Answer = Result<Done, Vec<String>>;

/// The body of a test that is a process of workers: does the task, if there is one.
pub fn work_if_told() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).expect("a task");
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            let (orders, told) = mpsc::channel();
            let (tell, answers) = mpsc::channel();
            let task = task.clone();
            scope.spawn(move || work(task, thread, &told, &tell));
            (orders, answers)
        });
        let threads: Vec<(Sender<Order>, Receiver<Answer>)> = threads.collect();
        let answer = || {
            let mut all: Answer = Ok(Done::default());
            for (_, answers) in &threads {
                let one = answers.recv().unwrap_or_else(|_| Err(vec!["a thread panicked".into()]));
                match (&mut all, one) {
                    (Ok(all), Ok(one)) => all.add(one),
                    (Err(all), Err(one)) => all.extend(one),
                    (all, one) => *all = all.clone().and(one),
                }
            }
            println!("{TASK} {}", serde_json::to_string(&all).expect("plain data"));
        };
        answer();
        for line in stdin().lines().map_while(Result::ok) {
            let order: Order = serde_json::from_str(&line).expect("an order");
            threads.iter().for_each(|(orders, _)| _ = orders.send(order));
            answer();
        }
    });
}

/// A thread: a worker that drops operations until its time is over, is then still, and does what it
/// is told.
fn work(task: Task, thread: u64, orders: &Receiver<Order>, answers: &Sender<Answer>) {
    let options = ConnectOptions {
        connect_timeout: Duration::from_secs(60),
        operation_timeout: Duration::from_millis(300),
        ..ConnectOptions::default()
    };
    let cluster = Cluster::connect_with(&task.socket, options).expect("its node is up");
    let worker = Worker::new(task.clone(), task.first + thread);
    let mut table = Some(worker.work(&cluster));
    let mut values = 0;
    loop {
        let wrong = worker.wrong.take();
        let [done, dropped, refused] =
            [&worker.done, &worker.dropped, &worker.refused].map(|count| count.take());
        let done = Done { done, dropped, refused, values };
        let _ = answers.send(if wrong.is_empty() { Ok(done) } else { Err(wrong) });
        let (Some(open), Ok(order)) = (&table, orders.recv()) else { return };
        match order {
            Order::Use(size) => worker.use_memory(open, size),
            Order::End => {
                values = worker.look_at_all(open);
                table = None;
            }
        }
    }
}

/// A process of workers.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<Answer>,
    seconds: u64,
}

impl Process {
    /// Starts a process. `test` is the test that calls [`work_if_told`].
    pub fn start(test: &str, task: &Task) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(TASK, serde_json::to_string(task).expect("plain data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, said) = (child.stdin.take(), child.stdout.take().unwrap());
        let (tell, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if let Some((_, answer)) = line.split_once(TASK) {
                    let _ = tell.send(serde_json::from_str(answer).expect("an answer"));
                }
            }
        });
        Self { child, orders, answers, seconds: task.seconds }
    }

    /// What its workers have done since the last answer.
    pub fn answer(&self) -> Done {
        let answer = self.answers.recv_timeout(ANSWER + Duration::from_secs(self.seconds));
        let answer = answer.expect("workers answer in time");
        answer.unwrap_or_else(|wrong| panic!("{:#?}", &wrong[..wrong.len().min(10)]))
    }

    pub fn tell(&mut self, order: Order) -> Done {
        let orders = self.orders.as_mut().expect("it has not ended");
        writeln!(orders, "{}", serde_json::to_string(&order).expect("plain data")).unwrap();
        self.answer()
    }

    /// Waits until it has ended.
    pub fn ended(mut self) {
        self.orders = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
