//! Waking those who wait for messages on the same host.
//!
//! A worker sleeps at a word of its line, a client at a word of its session slot
//! ([`RequestMap`]). Both follow the rule of bells ([`loch_fabric::shm::Bell`]): a sender looks at
//! the receiver's bell after it has sent. It does so some time later, for all receivers at once:
//! most of them are awake, and a look costs a fence. A client that also works without its workers,
//! as one of nessie-hybrid does for its GETs, lets them sleep a while longer where cores are short:
//! a worker that wakes for each request takes the core of a client each time. Only processes that
//! map a word can ring there. A receiver whose senders are on other hosts therefore does not sleep
//! without looking now and then.

use std::cell::{Cell, RefCell};

use loch_fabric::{Fabric, RemoteAddr};

/// Receivers that were sent something since their bells were last looked at.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    due: RefCell<Vec<RemoteAddr>>,
    /// Looks in vain for something else to do since there was something.
    in_vain: Cell<u32>,
    /// All looks since the first of these receivers was sent something.
    looks: Cell<u32>,
    /// Whether the sender did something for which it needs no receiver since a lane looked.
    is_busy: Cell<bool>,
    /// The end of the time for which a busy sender leaves these receivers asleep.
    until_us: Cell<Option<u64>>,
}

/// A sender that always has something else to do looks at bells after each of its lanes has looked
/// this often for it.
const LOOKS_BEFORE_RINGING: u32 = 16;

/// Where cores are short, a sender that is busy leaves receivers asleep for this long.
const MORE_WITHIN_US: u64 = 300;

impl Rings {
    /// Takes note of a receiver's bell, after a message was sent to it.
    #[inline]
    pub fn note(&self, bell: RemoteAddr) {
        let mut due = self.due.borrow_mut();
        if due.is_empty() {
            self.looks.set(0);
            self.until_us.set(None);
        }
        if !due.contains(&bell) {
            due.push(bell);
        }
    }

    /// Called after each turn of a worker. An idle turn is the time to wake clients; if there is
    /// none, the clients do not wait for it.
    #[inline]
    pub fn after_turn(&self, fabric: &impl Fabric, was_busy: bool) {
        let looks = self.looks.get().saturating_add(1);
        self.looks.set(looks);
        if !was_busy || looks >= LOOKS_BEFORE_RINGING {
            self.ring(fabric);
        }
    }

    /// Called after a look in vain for something else to do, by each of `lanes` lanes in turn.
    /// Wakes the receivers if all lanes have looked in vain, and otherwise after a while. Returns
    /// whether none is left that may have to be woken.
    #[inline]
    pub fn looked(&self, fabric: &impl Fabric, lanes: u32) -> bool {
        if self.due.borrow().is_empty() {
            return true;
        }
        if self.waits_for_more(fabric) {
            self.in_vain.set(0);
            self.looks.set(0);
            return false;
        }
        let (in_vain, looks) = (self.in_vain.get() + 1, self.looks.get() + 1);
        self.in_vain.set(in_vain);
        self.looks.set(looks);
        let is_time = in_vain >= lanes || looks >= LOOKS_BEFORE_RINGING * lanes;
        if is_time {
            self.ring(fabric);
        }
        is_time
    }

    /// There was something else to do.
    #[inline]
    pub fn found(&self) {
        self.in_vain.set(0);
    }

    /// The sender did something for which it needs no receiver.
    #[inline]
    pub fn was_busy(&self) {
        self.is_busy.set(true);
    }

    /// Whether a sender that has something else to do leaves receivers asleep for now: where cores
    /// are short, one that wakes takes the sender's core for one message.
    fn waits_for_more(&self, fabric: &impl Fabric) -> bool {
        if !self.is_busy.replace(false) || !fabric.is_core_wanted() {
            return false;
        }
        let now = fabric.now_us();
        let until = self.until_us.get().unwrap_or(now + MORE_WITHIN_US);
        self.until_us.set(Some(until));
        now < until
    }

    /// Wakes the receivers now: the sender has nothing else to do.
    #[inline]
    pub fn ring(&self, fabric: &impl Fabric) {
        let mut due = self.due.borrow_mut();
        if !due.is_empty() {
            fabric.ring(&due);
            due.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loch_fabric::RegionId;
    use loch_fabric::shm::{Region, ShmEndpoint};

    use super::*;

    const BELL: RemoteAddr = RemoteAddr::new(RegionId(0), 64);
    const OTHER: RemoteAddr = RemoteAddr::new(RegionId(0), 128);

    fn endpoint() -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::new(RegionId(0));
        endpoint.attach(RegionId(0), Arc::new(Region::anonymous(1 << 16).unwrap()));
        endpoint
    }

    fn arm(endpoint: &ShmEndpoint) {
        for bell in [BELL, OTHER] {
            endpoint.announce(bell, 1).unwrap();
        }
    }

    fn is_rung(endpoint: &ShmEndpoint, bell: RemoteAddr) -> bool {
        endpoint.load(bell).unwrap() == 0
    }

    #[test]
    fn receivers_are_woken_when_all_lanes_have_looked_in_vain() {
        let (endpoint, rings) = (endpoint(), Rings::default());
        arm(&endpoint);
        assert!(rings.looked(&endpoint, 3), "nobody was sent anything");
        rings.note(BELL);
        assert!(!rings.looked(&endpoint, 3));
        rings.found();
        assert!(!rings.looked(&endpoint, 3) && !rings.looked(&endpoint, 3));
        assert!(!is_rung(&endpoint, BELL));
        assert!(rings.looked(&endpoint, 3));
        assert!(is_rung(&endpoint, BELL) && !is_rung(&endpoint, OTHER));
    }

    #[test]
    fn a_client_that_always_has_something_else_to_do_wakes_them_after_a_while() {
        let (endpoint, rings) = (endpoint(), Rings::default());
        arm(&endpoint);
        rings.note(BELL);
        for _ in 1..3 * LOOKS_BEFORE_RINGING {
            assert!(!rings.looked(&endpoint, 3));
            rings.found();
        }
        assert!(rings.looked(&endpoint, 3) && is_rung(&endpoint, BELL));
    }

    /// The endpoint of a thread whose core others need, at a time.
    struct Short {
        endpoint: ShmEndpoint,
        now_us: Cell<u64>,
    }

    impl Fabric for Short {
        loch_fabric::pass_on!(
            caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
            write_unsignaled write is_mapped store store_before store_after announce load reload raw
            posted is_settled wall_ms random ring pause => endpoint
        );

        fn now_us(&self) -> u64 {
            self.now_us.get()
        }

        fn is_core_wanted(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_busy_client_wakes_workers_later_where_cores_are_short() {
        let (short, rings) =
            (Short { endpoint: endpoint(), now_us: Cell::new(0) }, Rings::default());
        for begin in [1_000_000, 2_000_000] {
            arm(&short.endpoint);
            rings.note(BELL);
            for us in [0, MORE_WITHIN_US - 1] {
                short.now_us.set(begin + us);
                rings.was_busy();
                assert!(!rings.looked(&short, 1) && !is_rung(&short.endpoint, BELL));
            }
            short.now_us.set(begin + MORE_WITHIN_US);
            rings.was_busy();
            assert!(rings.looked(&short, 1) && is_rung(&short.endpoint, BELL));
        }
        // A client that does nothing else wakes them at once, and so does a busy one with a core.
        for (is_busy, is_short) in [(false, true), (true, false)] {
            arm(&short.endpoint);
            rings.note(BELL);
            if is_busy {
                rings.was_busy();
            }
            let has_rung = match is_short {
                true => rings.looked(&short, 1),
                false => rings.looked(&short.endpoint, 1),
            };
            assert!(has_rung && is_rung(&short.endpoint, BELL));
        }
    }

    #[test]
    fn a_worker_wakes_clients_after_an_idle_turn_or_many_busy_ones() {
        let (endpoint, rings) = (endpoint(), Rings::default());
        arm(&endpoint);
        rings.note(BELL);
        rings.after_turn(&endpoint, true);
        assert!(!is_rung(&endpoint, BELL));
        rings.after_turn(&endpoint, false);
        assert!(is_rung(&endpoint, BELL));
        rings.note(OTHER);
        for _ in 1..LOOKS_BEFORE_RINGING {
            rings.after_turn(&endpoint, true);
            assert!(!is_rung(&endpoint, OTHER));
        }
        rings.after_turn(&endpoint, true);
        assert!(is_rung(&endpoint, OTHER));
    }
}
