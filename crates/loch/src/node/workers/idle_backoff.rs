//! How a worker without work waits for some.
//!
//! It goes on looking, at first without letting go of its processor, then offering it to others
//! between two looks, and then sleeping between two looks, ever longer up to a bound. So under load
//! it answers at once, on a machine with too few processors its clients get theirs, and at rest it
//! costs next to nothing. A *dedicated* worker only ever looks.

use std::thread;
use std::time::{Duration, Instant};

use crate::WorkersConfig;
use crate::limits::{WORKER_AWAKE, WORKER_SLEEP_MIN_US, WORKER_SPIN};

/// How long a worker has been idle, and how it waits.
pub(super) struct IdleBackoff {
    dedicated: bool,
    sleep_max: Duration,
    /// Since when there is nothing to do.
    since: Option<Instant>,
    sleep: Duration,
}

/// How to wait for the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep,
}

impl IdleBackoff {
    pub fn new(waiting: &WorkersConfig) -> Self {
        let sleep_max = Duration::from_micros(waiting.sleep_max_us);
        let sleep = Duration::from_micros(WORKER_SLEEP_MIN_US).min(sleep_max);
        Self { dedicated: waiting.dedicated, sleep_max, since: None, sleep }
    }

    /// There was something to do.
    #[inline]
    pub fn end(&mut self) {
        self.since = None;
    }

    /// There was nothing to do. May be woken by unparking the thread.
    pub fn go_on(&mut self) {
        let pause = match (self.dedicated, self.since) {
            (true, _) => Pause::Spin,
            (false, None) => {
                self.since = Some(Instant::now());
                self.sleep = Duration::from_micros(WORKER_SLEEP_MIN_US).min(self.sleep_max);
                Pause::Spin
            }
            (false, Some(since)) => pause_after(since.elapsed()),
        };
        match pause {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => thread::yield_now(),
            Pause::Sleep => {
                thread::park_timeout(self.sleep);
                self.sleep = (self.sleep * 2).min(self.sleep_max);
            }
        }
    }
}

fn pause_after(idle: Duration) -> Pause {
    if idle < WORKER_SPIN {
        Pause::Spin
    } else if idle < WORKER_AWAKE {
        Pause::Yield
    } else {
        Pause::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_spins_then_yields_then_sleeps() {
        assert_eq!(pause_after(Duration::ZERO), Pause::Spin);
        assert_eq!(pause_after(WORKER_SPIN), Pause::Yield);
        assert_eq!(pause_after(WORKER_AWAKE), Pause::Sleep);
    }

    #[test]
    fn sleeps_grow_to_their_bound_and_start_over_after_work() {
        let mut idle =
            IdleBackoff::new(&WorkersConfig { sleep_max_us: 200, ..WorkersConfig::default() });
        let long_ago = Instant::now().checked_sub(WORKER_AWAKE).expect("clocks began before");
        let sleeps: Vec<u64> = (0..5)
            .map(|_| {
                idle.since = Some(long_ago);
                let sleep = idle.sleep;
                idle.go_on();
                sleep.as_micros() as u64
            })
            .collect();
        assert_eq!(sleeps, [50, 100, 200, 200, 200]);
        idle.end();
        idle.go_on();
        assert_eq!(idle.sleep.as_micros(), 50);
    }
}
