//! Asks a node's workers what they have of a table, or for keys of it.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Weak};

use loch_engines::scan::Step;
use loch_fabric::shm::Bell;

use crate::session::wire::{Inspected, Question, Told};

/// Questions that workers are asked, by the number of the table and whether they verify it.
type LastQuestions = HashMap<(usize, bool), Weak<Mutex<Collect>>>;

/// Asks the workers of a node.
#[derive(Clone, Default)]
pub(crate) struct Inspector {
    to: Vec<Recipient>,
    /// The last question of a kind about a table, for as long as a worker may still answer it.
    last: Arc<Mutex<LastQuestions>>,
}

#[derive(Clone)]
struct Recipient {
    table: usize,
    sender: Sender<Asked>,
    bell: Bell,
}

/// What a worker is asked for.
pub(in crate::node) enum Asked {
    /// To verify what it has, and to report.
    Inspect(Inspect),
    /// To report what it has.
    Count(Inspect),
    /// To list keys, and to call this with the page.
    Scan(Box<Step>, Answer),
}

/// Asks a worker to report what it has.
pub(in crate::node) struct Inspect(Arc<Mutex<Collect>>);

/// Is called with the reports of all workers of a table, or with the page of one.
pub(in crate::node) type Answer = Box<dyn FnOnce(Told) + Send>;

/// Collects the reports of a table's workers, which come one by one.
struct Collect {
    /// The number of workers that have not reported.
    left: usize,
    reported: Inspected,
    answers: Vec<Answer>,
}

impl Inspect {
    /// Reports. The last report calls the answers.
    pub fn report(self, report: Inspected) {
        let mut collect = self.0.lock().expect("nothing panics while it is held");
        collect.reported = std::mem::take(&mut collect.reported).and(report);
        collect.left -= 1;
        if collect.left == 0 {
            for answer in std::mem::take(&mut collect.answers) {
                answer(Told::Inspected(collect.reported.clone()));
            }
        }
    }
}

impl Inspector {
    /// Asks the workers of a table. Returns `false` if the table has no such workers with data of
    /// their own.
    pub fn ask(&self, question: Question, answer: Answer) -> bool {
        let table = question.table as usize;
        let to: Vec<_> = self.to.iter().filter(|it| it.table == table).collect();
        match question.scan {
            None => self.inspect(table, question.check, &to, answer),
            Some(scan) => match to.get(usize::from(scan.worker)) {
                Some(it) => {
                    // As for a report: a worker that has ended drops the question.
                    let _ = it.sender.send(Asked::Scan(Box::new(scan.step), answer));
                    it.bell.ring();
                    true
                }
                None => false,
            },
        }
    }

    /// Asks for the sum of all reports.
    ///
    /// A worker may look at all its entries for a report. Questions that come meanwhile share the
    /// report.
    fn inspect(&self, table: usize, check: bool, to: &[&Recipient], answer: Answer) -> bool {
        if to.is_empty() {
            return false;
        }
        let mut all = self.last.lock().expect("nothing panics while it is held");
        if let Some(last) = all.get(&(table, check)).and_then(Weak::upgrade) {
            let mut last = last.lock().expect("nothing panics while it is held");
            if last.left > 0 {
                last.answers.push(answer);
                return true;
            }
        }
        let reported = Inspected::default();
        let collect = Collect { left: to.len(), reported, answers: vec![answer] };
        let collect = Arc::new(Mutex::new(collect));
        all.insert((table, check), Arc::downgrade(&collect));
        for it in to {
            // A worker that has ended does not report: the answer is dropped with the question.
            let asked = if check { Asked::Inspect } else { Asked::Count };
            let _ = it.sender.send(asked(Inspect(collect.clone())));
            it.bell.ring();
        }
        true
    }

    /// Adds a worker of a table, the next by its number.
    pub(in crate::node) fn add(&mut self, table: usize, sender: Sender<Asked>, bell: Bell) {
        self.to.push(Recipient { table, sender, bell });
    }
}
