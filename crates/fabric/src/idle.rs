//! How a thread that finds nothing to do stays awake for a while.
//!
//! The thread spins at first, then yields its core between two looks, and then has to sleep. How
//! soon depends on whether others need the core, which the thread learns from its own yields
//! ([`Demand`]): on a machine with fewer cores than threads, a thread that spins keeps the thread
//! that it waits for off the core.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use crate::limits::{WAIT_AWAKE, WAIT_SPIN, YIELD_LONG, YIELD_SHORT, YIELD_TRY_AGAIN};

/// How long one thread has found nothing to do.
#[derive(Debug, Default)]
pub struct Idle {
    /// Since when there is nothing to do.
    since: Option<Instant>,
    demand: Demand,
}

/// What the thread's last yield has shown of its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Demand {
    /// No other thread needs the core: the yield returned at once.
    #[default]
    None,
    /// Others need the core and give it back soon, as clients and workers do.
    Shared,
    /// A thread that needs the core kept it for long. The system lets a thread that yields wait
    /// until others have used up their time, but not a thread that slept. Holds until this moment.
    Taken(Instant),
}

/// The pause before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    /// It is time to sleep.
    Sleep,
}

impl Idle {
    /// Whether other threads need the core, as the last yield has shown.
    pub fn is_core_wanted(&self) -> bool {
        self.demand != Demand::None
    }

    /// For so long that it is time to sleep.
    #[cfg(all(test, not(feature = "loom")))]
    pub fn for_long() -> Self {
        let since = Instant::now().checked_sub(WAIT_AWAKE).expect("clocks began before");
        Self { since: Some(since), ..Self::default() }
    }

    /// There was something to do.
    #[inline]
    pub fn end(&mut self) {
        self.since = None;
    }

    /// There was nothing to do. Lets a little time pass, or returns that it is time to sleep.
    pub fn go_on(&mut self) -> bool {
        let now = Instant::now();
        match pause(now - *self.since.get_or_insert(now), self.demand, now) {
            Pause::Spin => spin_loop(),
            Pause::Yield => {
                yield_now();
                let back = Instant::now();
                self.demand = demand(back - now, back);
            }
            Pause::Sleep => return true,
        }
        false
    }
}

fn pause(idle: Duration, demand: Demand, now: Instant) -> Pause {
    match demand {
        Demand::None if idle < WAIT_SPIN => Pause::Spin,
        Demand::Taken(until) if now < until => Pause::Sleep,
        _ if idle < WAIT_AWAKE => Pause::Yield,
        _ => Pause::Sleep,
    }
}

/// The demand for the core after a yield that took this long.
fn demand(yielded: Duration, now: Instant) -> Demand {
    if yielded < YIELD_SHORT {
        Demand::None
    } else if yielded < YIELD_LONG {
        Demand::Shared
    } else {
        Demand::Taken(now + YIELD_TRY_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_then_yields_then_looks_for_the_last_time() {
        let now = Instant::now();
        assert_eq!(pause(Duration::ZERO, Demand::None, now), Pause::Spin);
        assert_eq!(pause(WAIT_SPIN, Demand::None, now), Pause::Yield);
        assert_eq!(pause(WAIT_AWAKE, Demand::None, now), Pause::Sleep);
    }

    #[test]
    fn a_thread_whose_core_others_need_does_not_spin() {
        let now = Instant::now();
        assert_eq!(demand(YIELD_SHORT / 2, now), Demand::None);
        assert_eq!(demand(YIELD_SHORT, now), Demand::Shared);
        assert_eq!(pause(Duration::ZERO, Demand::Shared, now), Pause::Yield);
        assert_eq!(pause(WAIT_AWAKE, Demand::Shared, now), Pause::Sleep);
        let idle = |demand| Idle { demand, ..Idle::default() };
        let wanted = |demand| idle(demand).is_core_wanted();
        assert!(wanted(Demand::Shared) && wanted(Demand::Taken(now)) && !wanted(Demand::None));
    }

    #[test]
    fn a_thread_whose_core_is_not_given_back_sleeps_and_tries_again_later() {
        let now = Instant::now();
        let taken = demand(YIELD_LONG, now);
        assert_eq!(pause(Duration::ZERO, taken, now), Pause::Sleep);
        assert_eq!(pause(Duration::ZERO, taken, now + YIELD_TRY_AGAIN), Pause::Yield);
    }
}
