//! The idle back-off: how a worker without requests waits.
//!
//! The worker goes on looking for requests. At first it keeps its processor, then it yields the
//! processor between two looks, and then it sleeps at its bell ([`Backoff`]). On one host clients
//! ring there when they have sent something. Clients on other hosts cannot: a worker that may have
//! some sleeps for ever longer times up to a bound, between which it looks. The node rings when it
//! has something to tell. A *dedicated* worker never yields or sleeps.

use std::time::Duration;

use loch_fabric::shm::{Backoff, Bell};

use crate::WorkersConfig;
use crate::limits::{WORKER_REST, WORKER_REST_MAX, WORKER_REST_WITH_LOG, WORKER_SLEEP_MIN_US};

/// How long a worker has been idle, and how it pauses.
pub(super) struct IdleBackoff {
    dedicated: bool,
    bell: Bell,
    backoff: Backoff,
    sleeps: Sleeps,
    /// The next sleep.
    sleep: Duration,
}

/// The first sleep of an idle worker, and the bound to which the sleeps double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleeps {
    first: Duration,
    max: Duration,
}

impl Sleeps {
    /// The sleeps of a worker for which all of its clients ring. A worker with a log has work that
    /// is due at some time.
    pub fn rung(has_log: bool) -> Self {
        match has_log {
            true => Self { first: WORKER_REST_WITH_LOG, max: WORKER_REST_WITH_LOG },
            false => Self { first: WORKER_REST, max: WORKER_REST_MAX },
        }
    }

    /// The sleeps of a worker that may have clients on other hosts.
    pub fn looking(config: &WorkersConfig) -> Self {
        let max = Duration::from_micros(config.sleep_max_us);
        Self { first: Duration::from_micros(WORKER_SLEEP_MIN_US).min(max), max }
    }
}

impl IdleBackoff {
    pub fn new(dedicated: bool, bell: Bell, sleeps: Sleeps) -> Self {
        Self { dedicated, bell, backoff: Backoff::default(), sleeps, sleep: sleeps.first }
    }

    /// There was something to do.
    #[inline]
    pub fn end(&mut self) {
        self.backoff.end(&self.bell);
        self.sleep = self.sleeps.first;
    }

    /// There was nothing to do. Ringing the bell ends the pause early.
    pub fn go_on(&mut self) {
        if self.dedicated {
            return std::hint::spin_loop();
        }
        if self.backoff.go_on(&self.bell, self.sleep) {
            self.sleep = (self.sleep * 2).min(self.sleeps.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_rings_sleeps_grow_to_their_bound_and_start_over_after_work() {
        let config = WorkersConfig { sleep_max_us: 200, ..WorkersConfig::default() };
        let bell = Bell::private().expect("there is memory");
        let mut idle = IdleBackoff::new(false, bell, Sleeps::looking(&config));
        let mut sleeps = vec![idle.sleep.as_micros()];
        while sleeps.len() < 3 {
            idle.go_on();
            let sleep = idle.sleep.as_micros();
            if sleeps.last() != Some(&sleep) {
                sleeps.push(sleep);
            }
        }
        assert_eq!(sleeps, [50, 100, 200]);
        (0..3).for_each(|_| idle.go_on());
        assert_eq!(idle.sleep.as_micros(), 200, "it is the bound");
        idle.end();
        assert_eq!(idle.sleep.as_micros(), 50);
    }

    #[test]
    fn where_everybody_rings_a_sleep_is_long_but_for_what_the_log_has_to_do() {
        let (rung, with_log) = (Sleeps::rung(false), Sleeps::rung(true));
        assert_eq!((rung.first, rung.max), (WORKER_REST, WORKER_REST_MAX));
        assert_eq!((with_log.first, with_log.max), (WORKER_REST_WITH_LOG, WORKER_REST_WITH_LOG));
    }
}
