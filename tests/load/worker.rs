//! The process of one client: half of its operations change its own keys, the others read
//! anybody's, in several lanes, until its standard input ends. Every answer is judged by the
//! ledgers.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loch::lanes::{block_on, run};
use loch::{AsyncTable, Cluster, EngineError, Error};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::ledger::{Ledger, Op, judge};
use super::processor::Queue;
use super::value::{Lengths, name_of, number_of, value_of};
use super::{Report, Task};

/// Operations after which a lane says how far its process is.
const PROGRESS_OPS: u64 = 16;

struct Worker<'a> {
    task: &'a Task,
    table: AsyncTable<'a>,
    ledgers: Vec<Ledger>,
    /// The newest operation that this process has seen the effect of, for every key of everybody.
    seen: Vec<Cell<Op>>,
    progress: std::fs::File,
    queue: Queue,
    stop: Arc<AtomicBool>,
    report: RefCell<Report>,
}

/// Does the task; panics, which the parent sees, at the first answer that must not be.
pub fn work(task: &Task) {
    let stop = stop_at_end_of_input();
    let cluster = Cluster::connect(&task.socket).expect("its node is up");
    let table = cluster.table("default").expect("it has a session");
    let worker = Worker {
        task,
        table: table.asynch(),
        ledgers: (0..task.scale.writers)
            .map(|w| Ledger::open(&task.dir, w, task.scale.keys))
            .collect(),
        seen: vec![Cell::default(); task.scale.writers * task.scale.keys],
        progress: std::fs::File::options()
            .write(true)
            .open(task.progress())
            .expect("the parent made it"),
        queue: Queue::of_this_thread(),
        stop,
        report: RefCell::default(),
    };
    block_on(worker.look_at_own_keys());
    let lanes = task.scale.lanes;
    block_on(run(lanes, (0..lanes).map(|lane| worker.lane(lane)), |()| ()));
    let report = serde_json::to_vec(&*worker.report.borrow()).expect("plain data");
    std::fs::write(task.report(), report).expect("a file");
}

fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    std::thread::spawn(move || {
        // Ends too when the parent does, however it does.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::Relaxed);
    });
    stop
}

impl Worker<'_> {
    /// Checks what this writer's last process left, which may have been killed: all that was
    /// acknowledged to it is there.
    async fn look_at_own_keys(&self) {
        for key in 0..self.task.scale.keys {
            self.get(self.task.writer, key).await;
        }
    }

    async fn lane(&self, lane: usize) {
        let mut random = ChaCha8Rng::seed_from_u64(self.task.seed << 8 | lane as u64);
        let (mut ops, scale) = (0, self.task.scale);
        while !self.stop.load(Ordering::Relaxed) {
            // Nobody but this lane writes these keys.
            let own = random.random_range(0..scale.keys / scale.lanes) * scale.lanes + lane;
            let any = (random.random_range(0..scale.writers), random.random_range(0..scale.keys));
            let (begun, queued) = (Instant::now(), self.queue.lately());
            let kind = match random.random_range(0..100) {
                0..45 => self.put(own).await,
                45..50 => self.delete(own).await,
                _ => self.get(any.0, any.1).await,
            };
            let took = begun.elapsed();
            let waited = self.queue.waited_in(took, queued);
            self.report.borrow_mut().count(kind, took, took.saturating_sub(waited));
            ops += 1;
            if ops % PROGRESS_OPS == 0 {
                self.tell_progress();
            }
        }
    }

    async fn put(&self, key: usize) -> &'static str {
        let ledger = &self.ledgers[self.task.writer];
        let number = ledger.meant(key).number() + 1;
        let value = value_of(self.task.lengths, self.task.writer, key, number);
        ledger.note_meant(key, Op::put(number));
        let name = name_of(self.task.writer, key);
        match self.table.put(&name, &value).await {
            Ok(_) => (),
            // The key has the value it had.
            Err(Error::Table { source: EngineError::OutOfMemory { .. }, .. })
                if self.task.lengths != Lengths::Few =>
            {
                self.report.borrow_mut().refused += 1;
                return "put";
            }
            Err(error) => panic!("PUT of {}: {error}", self.shown(self.task.writer, key)),
        }
        ledger.note_acknowledged(key, Op::put(number));
        "put"
    }

    async fn delete(&self, key: usize) -> &'static str {
        let ledger = &self.ledgers[self.task.writer];
        // Before the first operation of this process the last one's may have been done or not.
        let had_value = match (ledger.acknowledged(key), ledger.meant(key)) {
            (done, meant) if done == meant => Some(done.leaves_value()),
            _ => None,
        };
        let number = ledger.meant(key).number() + 1;
        ledger.note_meant(key, Op::delete(number));
        let deleted = self.table.delete(&name_of(self.task.writer, key)).await;
        let shown = || self.shown(self.task.writer, key);
        let deleted = deleted.unwrap_or_else(|error| panic!("DELETE of {}: {error}", shown()));
        assert!(had_value.is_none_or(|had| had == deleted), "DELETE of {}: {deleted}", shown());
        ledger.note_acknowledged(key, Op::delete(number));
        "delete"
    }

    async fn get(&self, writer: usize, key: usize) -> &'static str {
        let (ledger, seen) =
            (&self.ledgers[writer], &self.seen[writer * self.task.scale.keys + key]);
        let oldest = ledger.acknowledged(key).max(seen.get());
        let got = self.table.get(&name_of(writer, key)).await;
        let newest = ledger.meant(key);
        let shown = || self.shown(writer, key);
        let got = got.unwrap_or_else(|error| panic!("GET of {}: {error}", shown()));
        let found = got.map(|value| {
            let number = number_of(self.task.lengths, writer, key, &value);
            number.unwrap_or_else(|| panic!("GET of {}: nobody wrote {:?}", shown(), &value[..]))
        });
        if let Err(wrong) = judge(oldest, newest, found) {
            panic!("GET of {}: {wrong}", shown());
        }
        if let Some(number) = found {
            seen.set(seen.get().max(Op::put(number)));
        }
        "get"
    }

    fn shown(&self, writer: usize, key: usize) -> String {
        format!("key {key} of writer {writer} by {} (seed {})", self.task.writer, self.task.seed)
    }

    fn tell_progress(&self) {
        let ops = self.report.borrow().ops.to_le_bytes();
        self.progress.write_all_at(&ops, 0).expect("the file stays open");
    }
}

impl Report {
    fn count(&mut self, kind: &str, took: Duration, own: Duration) {
        self.ops += 1;
        self.longest = self.longest.max(took);
        if own > self.longest_own {
            self.longest_own = own;
            self.longest_own_op = kind.into();
        }
    }
}
