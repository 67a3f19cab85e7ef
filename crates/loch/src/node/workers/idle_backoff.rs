//! The idle back-off: how a worker without requests waits.
//!
//! The worker goes on looking for requests. At first it keeps its processor, then it yields the
//! processor between two looks, and then it sleeps between two looks, ever longer up to a bound.
//! Under load it therefore answers at once; on a machine with too few processors its clients get
//! theirs; and at rest it costs next to nothing. A *dedicated* worker never yields or sleeps.

use std::thread;
use std::time::{Duration, Instant};

use crate::WorkersConfig;
use crate::limits::{WORKER_AWAKE, WORKER_SLEEP_MIN_US, WORKER_SPIN};

/// How long a worker has been idle, and how it pauses.
pub(super) struct IdleBackoff {
    dedicated: bool,
    sleep_max: Duration,
    /// Since when there is nothing to do.
    since: Option<Instant>,
    sleep: Duration,
}

/// The pause before the next look.
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

    /// There was nothing to do. Unparking the thread ends the pause early.
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
