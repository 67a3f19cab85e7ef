//! Trials of every verb, with latencies.
//!
//! Each verb is tried in a thread of its own, on a connection of its own, for a bounded number of
//! times and a bounded time. So a verb that breaks its connection spoils no other, and a verb that
//! never ends is noticed by the thread that waits for it.

mod shm;
mod verb;
#[cfg(feature = "verbs")]
mod verbs;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use loch_bench::tally::{Latencies, latencies};
use serde::Serialize;

use super::finding::{Finding, Mark, Section};

pub use shm::over_shm;
#[cfg(feature = "verbs")]
pub use verbs::over_verbs;

/// How often a verb is tried at most.
const COUNT_MAX: u64 = 10_000;
/// How long a verb is tried at most.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Errors of a verb after which it is given up.
const ERRORS_MAX: u64 = 3;
/// How long a verb's thread may take with everything: connections, emulated cards.
const WATCHDOG: Duration = Duration::from_secs(15);

/// The result of a verb's trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// `shm` or `verbs`.
    pub fabric: &'static str,
    /// The verb, and how it was posted.
    pub verb: &'static str,
    /// Bytes that it carried each time.
    pub bytes: usize,
    /// How often it succeeded.
    pub count: u64,
    /// How often it failed.
    pub errors: u64,
    /// Half of the trials took no longer than this.
    pub p50_us: Option<f64>,
    /// 99 of a hundred trials took no longer than this.
    pub p99_us: Option<f64>,
    /// The first error.
    pub error: Option<String>,
}

/// A verb under trial: the counts so far.
struct Trying {
    until: Instant,
    latencies: Latencies,
    errors: u64,
    error: Option<String>,
}

impl Trying {
    fn new() -> Self {
        let until = Instant::now() + TIME_MAX;
        Self { until, latencies: latencies(), errors: 0, error: None }
    }

    /// Whether it should be tried once more, and its number.
    fn next(&self) -> Option<u64> {
        let tried = self.latencies.len() + self.errors;
        let goes_on = tried < COUNT_MAX && self.errors < ERRORS_MAX;
        (goes_on && (tried == 0 || Instant::now() < self.until)).then_some(tried)
    }

    fn count(&mut self, took: Duration, result: Result<(), String>) {
        match result {
            Ok(()) => self.latencies.saturating_record(took.as_nanos() as u64),
            Err(error) => {
                self.errors += 1;
                self.error.get_or_insert(error);
            }
        }
    }

    fn ended(self, fabric: &'static str, (verb, bytes): (&'static str, usize)) -> Trial {
        let us = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let us = |quantile| (!self.latencies.is_empty()).then(|| us(quantile));
        Trial {
            fabric,
            verb,
            bytes,
            count: self.latencies.len(),
            errors: self.errors,
            p50_us: us(0.5),
            p99_us: us(0.99),
            error: self.error,
        }
    }
}

impl Trial {
    /// Tries a verb of a fabric out by `work`, in a thread that is given up if it hangs.
    fn of<E: ToString>(
        fabric: &'static str,
        verb: (&'static str, usize),
        work: impl FnOnce() -> Result<Trying, E> + Send + 'static,
    ) -> Self {
        let tried = watched(verb.0, move || work().map_err(|error| error.to_string()));
        let failed = |error| Trying { errors: 1, error: Some(error), ..Trying::new() };
        tried.and_then(|tried| tried).unwrap_or_else(failed).ended(fabric, verb)
    }

    /// The trial as a line of the report. `failing` is the mark of a verb that fails: a problem if
    /// its fabric was requested.
    pub fn finding(&self, section: Section, failing: Mark) -> Finding {
        let name = format!("{} {} B", self.verb, self.bytes);
        let us = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.2}"));
        let (p50, p99) = (us(self.p50_us), us(self.p99_us));
        let (count, errors) = (self.count, self.errors);
        let text = format!("{count:>5} done, {errors} failed, p50 {p50} µs, p99 {p99} µs");
        match &self.error {
            None => Finding::ok(section, &name, text),
            Some(error) => Finding::new(failing, section, &name, format!("{text}: {error}")),
        }
    }
}

/// Does `work` on a thread of its own, and waits for it no longer than the watchdog does. A thread
/// that hangs is left behind: it ends with the process.
///
/// # Errors
/// The message about work that hung, or panicked.
pub fn watched<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    watched_for(WATCHDOG, what, work)
}

fn watched_for<T: Send + 'static>(
    patience: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (done, wait) = mpsc::channel();
    let thread = thread::Builder::new().name("self-test".to_owned());
    let started = thread.spawn(move || {
        // If nothing waits any more, the result is of no use.
        let _ = done.send(work());
    });
    started.map_err(|error| format!("cannot start a thread: {error}"))?;
    let hangs = |_| format!("{what} did not end within {} s", patience.as_secs_f64());
    wait.recv_timeout(patience).map_err(hangs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_works_over_shared_memory() {
        let trials = over_shm();
        assert!(trials.len() >= 7);
        for trial in trials {
            assert!(trial.count > 0 && trial.errors == 0, "{trial:?}");
            assert!(trial.p50_us <= trial.p99_us, "{trial:?}");
            let finding = trial.finding(Section::SelfTestShm, Mark::Problem);
            assert_eq!(finding.mark, Mark::Ok);
        }
    }

    #[test]
    fn what_hangs_is_left_behind() {
        let (hold, held) = mpsc::channel::<()>();
        let patience = Duration::from_millis(20);
        let hung = watched_for(patience, "READ", move || held.recv().is_ok());
        assert_eq!(hung, Err("READ did not end within 0.02 s".to_owned()));
        drop(hold);
        assert_eq!(watched_for(Duration::from_secs(30), "1 + 1", || 2), Ok(2));
    }

    #[test]
    fn a_verb_that_fails_is_given_up_and_says_why() {
        let mut trying = Trying::new();
        trying.count(Duration::from_micros(7), Ok(()));
        while let Some(number) = trying.next() {
            trying.count(Duration::ZERO, Err(format!("number {number}")));
        }
        let trial = trying.ended("verbs", ("READ", 8));
        assert_eq!((trial.count, trial.errors), (1, ERRORS_MAX));
        assert_eq!(trial.error.as_deref(), Some("number 1"));
        let finding = trial.finding(Section::SelfTestVerbs, Mark::Problem);
        assert_eq!(finding.mark, Mark::Problem);
        assert!(finding.text.contains("p50 7.0") && finding.text.ends_with("number 1"));
    }
}
