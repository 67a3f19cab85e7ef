//! How a thread that finds nothing to do lets time pass before it looks again.
//!
//! The thread spins at first, then yields its core between two looks, and then sleeps at its bell.
//! How soon depends on whether others need the core, which the thread learns from its own yields
//! ([`Demand`]): on a machine with fewer cores than threads, a thread that spins keeps the thread
//! that it waits for off the core.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use crate::limits::{NAP, WAIT_AWAKE, WAIT_SPIN, YIELD_LONG, YIELD_SHORT, YIELD_TRY_AGAIN};

use super::Bell;

/// How long one thread has found nothing to do.
#[derive(Debug, Default)]
pub struct Idle {
    /// Since when there is nothing to do.
    since: Option<Instant>,
    demand: Demand,
}

/// The back-off of one thread.
#[derive(Debug, Default)]
pub struct Backoff {
    idle: Idle,
    is_armed: bool,
    /// Whether the thread has slept since it armed its bell, and nobody rang.
    has_napped: bool,
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

impl Backoff {
    /// Whether other threads need the core, as the last yield has shown.
    pub fn is_core_wanted(&self) -> bool {
        self.idle.demand != Demand::None
    }

    /// There was something to do.
    #[inline]
    pub fn end(&mut self, bell: &Bell) {
        self.idle.end();
        if self.is_armed {
            (self.is_armed, self.has_napped) = (false, false);
            bell.disarm();
        }
    }

    /// There was nothing to do. Sleeps for `at_most` if it comes to that, at first for a short time
    /// only: where the last look before a sleep costs much, it need not find everything. Returns
    /// whether the thread slept and nobody rang.
    pub fn go_on(&mut self, bell: &Bell, at_most: Duration) -> bool {
        if self.is_armed {
            let at_most = if self.has_napped { at_most } else { at_most.min(NAP) };
            // If nobody rang, the bell stays armed.
            self.is_armed = !bell.sleep(at_most);
            self.has_napped = self.is_armed;
            self.idle.end();
            return self.is_armed;
        }
        if self.idle.go_on() {
            // There is one more look before the sleep.
            bell.arm();
            self.is_armed = true;
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shm::Region;
    use crate::{RegionId, RemoteAddr};

    const SHORT: Duration = Duration::from_millis(1);

    fn bell() -> Bell {
        let region = Region::anonymous(1 << 16).expect("there is memory");
        Bell::new(Arc::new(region), RemoteAddr::new(RegionId(0), 0)).expect("it is a word")
    }

    /// A back-off whose thread has found nothing for so long that it sleeps next.
    fn long_idle() -> Backoff {
        let since = Instant::now().checked_sub(WAIT_AWAKE).expect("clocks began before");
        Backoff { idle: Idle { since: Some(since), ..Idle::default() }, ..Backoff::default() }
    }

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
        let wanted = |demand| Backoff { idle: idle(demand), ..Backoff::default() }.is_core_wanted();
        assert!(wanted(Demand::Shared) && wanted(Demand::Taken(now)) && !wanted(Demand::None));
    }

    #[test]
    fn a_thread_whose_core_is_not_given_back_sleeps_and_tries_again_later() {
        let now = Instant::now();
        let taken = demand(YIELD_LONG, now);
        assert_eq!(pause(Duration::ZERO, taken, now), Pause::Sleep);
        assert_eq!(pause(Duration::ZERO, taken, now + YIELD_TRY_AGAIN), Pause::Yield);
    }

    #[test]
    fn a_thread_looks_once_more_between_arming_and_sleeping() {
        let (bell, mut backoff) = (bell(), long_idle());
        assert!(!backoff.go_on(&bell, SHORT));
        assert!(backoff.is_armed, "there is a look after this");
        assert!(backoff.go_on(&bell, SHORT), "nobody has rung");
        assert!(backoff.is_armed, "so nothing was missed, and the thread goes on sleeping");
        bell.ring();
        assert!(!backoff.go_on(&bell, Duration::MAX));
        assert!(!backoff.is_armed);
    }

    #[test]
    fn what_the_last_look_finds_keeps_the_thread_awake() {
        let (bell, mut backoff) = (bell(), long_idle());
        backoff.go_on(&bell, SHORT);
        backoff.end(&bell);
        assert!(!backoff.is_armed);
        bell.arm();
        assert!(!bell.sleep(SHORT), "the bell was disarmed, so this is another sleep");
    }
}
