//! What a gateway has done: counters, and how long commands took.
//!
//! Each thread has its own figures, which nobody else writes; whoever asks adds them up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;

/// The counters of a thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub connections: AtomicU64,
    pub rejected: AtomicU64,
    pub commands: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub errors: AtomicU64,
    pub sets: AtomicU64,
    pub touches: AtomicU64,
    pub wrong_passwords: AtomicU64,
}

/// Adds to a counter that only this thread writes.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// Calls of a command, and their times.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    pub count: u64,
    pub total_ns: u64,
    pub times_ns: Histogram<u64>,
}

impl Default for Calls {
    fn default() -> Self {
        let times_ns = Histogram::new(2).expect("two digits are allowed");
        Self { count: 0, total_ns: 0, times_ns }
    }
}

/// The figures of a thread.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub counters: Counters,
    /// By the name of the command. The thread that writes it is the only one that holds it for
    /// more than a question.
    calls: Mutex<BTreeMap<&'static str, Calls>>,
}

impl Figures {
    /// Takes note of calls of a command that took so long together.
    pub fn called(&self, command: &'static str, count: u64, took_ns: u64) {
        add(&self.counters.commands, count);
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(command).or_default();
        calls.count += count;
        calls.total_ns += took_ns;
        // What a call of a batch took is what the batch took: so long its client has waited.
        calls.times_ns.record_n(took_ns, count).expect("the histogram grows as it has to");
    }

    /// Adds its calls to others'.
    pub fn add_calls(&self, to: &mut BTreeMap<&'static str, Calls>) {
        for (name, calls) in self.calls.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let to = to.entry(name).or_default();
            to.count += calls.count;
            to.total_ns += calls.total_ns;
            let added = to.times_ns.add(&calls.times_ns);
            added.expect("the histograms grow as they have to");
        }
    }

    /// Forgets everything that is counted from a reset on.
    pub fn reset(&self) {
        let Counters { connections, rejected, commands, hits, misses, .. } = &self.counters;
        let Counters { bytes_in, bytes_out, errors, sets, touches, .. } = &self.counters;
        let Counters { wrong_passwords, .. } = &self.counters;
        for counter in [
            connections,
            rejected,
            commands,
            hits,
            misses,
            bytes_in,
            bytes_out,
            errors,
            sets,
            touches,
            wrong_passwords,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_however_long_they_are_and_those_of_threads_are_added() {
        let (long_ns, threads) = (84_434_000, [Figures::default(), Figures::default()]);
        threads[0].called("slow", 1, long_ns);
        threads[1].called("slow", 98, 700);
        threads[1].called("slow", 1, u64::from(u32::MAX));
        let mut all = BTreeMap::new();
        threads.iter().for_each(|figures| figures.add_calls(&mut all));
        let times = &all["slow"].times_ns;
        let is_about = |part, right: u64| {
            let time = times.value_at_quantile(part);
            time.abs_diff(right) <= right / 100
        };
        assert!(is_about(0.5, 700) && is_about(0.99, long_ns) && is_about(1.0, u32::MAX.into()));
        assert_eq!(all["slow"].count, 100);
    }
}
