//! Asking a node's workers what they have of a table.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use crate::session::wire::Inspected;

/// What can be asked of a node's workers.
#[derive(Clone, Default)]
pub(crate) struct Inspector {
    to: Vec<Recipient>,
    /// The last question about each table.
    last: Arc<Mutex<HashMap<usize, Arc<Mutex<Collect>>>>>,
}

#[derive(Clone)]
struct Recipient {
    table: usize,
    sender: Sender<Inspect>,
    thread: Thread,
}

/// That a worker is to report what it has.
pub(in crate::node) struct Inspect(Arc<Mutex<Collect>>);

/// What is done with the reports of all workers of a table.
type Answer = Box<dyn FnOnce(Inspected) + Send>;

/// The reports of a table's workers, which come one by one.
struct Collect {
    /// Workers that have not reported.
    left: usize,
    reported: Inspected,
    answers: Vec<Answer>,
}

impl Inspect {
    /// Reports. The last worker answers for all.
    pub fn report(self, report: Inspected) {
        let mut collect = self.0.lock().expect("nothing panics while it is held");
        collect.reported = std::mem::take(&mut collect.reported).and(report);
        collect.left -= 1;
        if collect.left == 0 {
            for answer in std::mem::take(&mut collect.answers) {
                answer(collect.reported.clone());
            }
        }
    }
}

impl Inspector {
    /// Has the workers of a table report what they have; `answer` gets it when all did. Whether
    /// there are any that have something of their own.
    ///
    /// Workers walk all their entries for it, so that they do it once for all that ask meanwhile.
    pub fn inspect(&self, table: usize, answer: Answer) -> bool {
        let to: Vec<_> = self.to.iter().filter(|it| it.table == table).collect();
        if to.is_empty() {
            return false;
        }
        let mut all = self.last.lock().expect("nothing panics while it is held");
        if let Some(last) = all.get(&table) {
            let mut last = last.lock().expect("nothing panics while it is held");
            if last.left > 0 {
                last.answers.push(answer);
                return true;
            }
        }
        let reported = Inspected::default();
        let collect = Collect { left: to.len(), reported, answers: vec![answer] };
        let collect = Arc::new(Mutex::new(collect));
        all.insert(table, collect.clone());
        for it in to {
            // One that has ended reports nothing any more, and neither does its node.
            let _ = it.sender.send(Inspect(collect.clone()));
            it.thread.unpark();
        }
        true
    }

    /// Has a worker of a table asked as well.
    pub(in crate::node) fn add(&mut self, table: usize, sender: Sender<Inspect>, thread: Thread) {
        self.to.push(Recipient { table, sender, thread });
    }
}

/// The way of requests to one worker.
pub(in crate::node) fn requests() -> (Sender<Inspect>, Receiver<Inspect>) {
    mpsc::channel()
}
