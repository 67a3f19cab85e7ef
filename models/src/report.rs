//! Runs configurations and reports the results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::configurations::{Configuration, Subject};
use crate::explore::{Counterexample, Model, Outcome, Verdict, explore};
use crate::loch::{Loch, Setup};
use crate::published::Published;

/// The most states of one search: the records of all these states take 5 GiB.
const STATES_MAX: u64 = 120_000_000;

/// The result of a configuration.
pub struct Row {
    /// Its name.
    pub name: String,
    /// The result of the search; for a mutant, of the search without the rule.
    pub outcome: Outcome,
    /// For a mutant: the result of the search with the rule.
    pub control: Option<Outcome>,
    /// Whether the result is the required one.
    pub as_expected: bool,
    /// How long it took.
    pub took: Duration,
}

impl Row {
    /// Different states that were visited.
    pub fn states(&self) -> u64 {
        self.outcome.states + self.control.as_ref().map_or(0, |control| control.states)
    }

    /// Steps that were visited.
    pub fn transitions(&self) -> u64 {
        self.outcome.transitions + self.control.as_ref().map_or(0, |control| control.transitions)
    }

    /// The verdict, short.
    pub fn verdict(&self) -> String {
        let verdict = match (&self.outcome.verdict, &self.control) {
            (Verdict::Violated(way), _) => {
                format!("found in {} steps: {}", way.steps.len(), brief(&way.what))
            }
            (Verdict::Truncated, _) => "too many states".to_owned(),
            (Verdict::Holds, _) => "holds".to_owned(),
        };
        if self.as_expected { verdict } else { format!("WRONG: {verdict}") }
    }
}

/// The violation, without the details that are in the trace.
fn brief(what: &str) -> &str {
    what.split([':', ',']).next().unwrap_or(what)
}

/// Searches a configuration.
pub fn run(configuration: &Configuration) -> Row {
    let began = Instant::now();
    let found = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Violated(_));
    let (outcome, control, as_expected) = match &configuration.subject {
        Subject::Protocol(setup) => {
            let outcome = search(&Loch::new(setup.clone()));
            let holds = outcome.verdict == Verdict::Holds;
            (outcome, None, holds)
        }
        Subject::Mutant(setup) => {
            let outcome = search(&Loch::new(setup.clone()));
            let control = search(&Loch::new(Setup { mutation: None, ..setup.clone() }));
            let caught = found(&outcome) && control.verdict == Verdict::Holds;
            (outcome, Some(control), caught)
        }
        Subject::Flaw(setup) => {
            let outcome = search(&Published::new(setup.clone()));
            let found = found(&outcome);
            (outcome, None, found)
        }
    };
    Row { name: configuration.name.clone(), outcome, control, as_expected, took: began.elapsed() }
}

fn search(model: &impl Model) -> Outcome {
    explore(model, STATES_MAX)
}

/// Searches configurations, one in each thread at a time, and reports each when it is done. The
/// rows are in the order of the configurations.
pub fn run_all(
    configurations: &[Configuration],
    threads: usize,
    tell: impl Fn(&Row) + Sync,
) -> Vec<Row> {
    let next = AtomicUsize::new(0);
    let rows: Mutex<Vec<Option<Row>>> = Mutex::new(configurations.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(configuration) = configurations.get(number) else { return };
                    let row = run(configuration);
                    tell(&row);
                    rows.lock().expect("nobody panics with it")[number] = Some(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panicked with it");
    rows.into_iter().map(|row| row.expect("every configuration was searched")).collect()
}

/// A counterexample, a step a line, with the slots where they changed.
pub fn tell(way: &Counterexample) -> String {
    let mut text = format!("{}\n\n      {}\n", way.what, way.start);
    let mut before = &way.start;
    for (number, (step, after)) in way.steps.iter().enumerate() {
        text += &format!("{:4}  {step}\n", number + 1);
        if after != before {
            text += &format!("        => {after}\n");
        }
        before = after;
    }
    text
}
