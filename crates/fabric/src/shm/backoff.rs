//! How a thread that finds nothing to do lets time pass before it looks again: it stays awake for a
//! while ([`Idle`]), and then sleeps at its bell.

use std::time::Duration;

use crate::idle::Idle;
use crate::limits::NAP;

use super::Bell;

/// The back-off of one thread.
#[derive(Debug, Default)]
pub struct Backoff {
    idle: Idle,
    is_armed: bool,
    /// Whether the thread has slept since it armed its bell, and nobody rang.
    has_napped: bool,
}

impl Backoff {
    /// Whether other threads need the core, as the last yield has shown.
    pub fn is_core_wanted(&self) -> bool {
        self.idle.is_core_wanted()
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
        Backoff { idle: Idle::for_long(), ..Backoff::default() }
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
