//! Waiting for other threads in lanes.
//!
//! A thread that runs lanes ([`lanes::block_on`](crate::lanes::block_on)) may let time pass only if
//! all of its lanes wait for others. A lane that wants to be polled again calls its waker, as
//! futures do; a lane that waits for other threads says so by [`wait`] instead. After a round in
//! which all lanes waited at one bell and none called its waker, the thread [backs off](Backoff).
//! On any other executor a waiting lane calls its waker, too, and is polled again and again.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use crate::limits::LANES_SLEEP_MAX;
use crate::networks::{self, Network};
use crate::{RegionId, RemoteAddr};

use super::{Backoff, Bell, Region};

/// A lane wants to be polled again at once.
const AGAIN: u8 = 1;
/// A lane waits at the thread's bell.
const WAITS: u8 = 2;
/// All lanes waited in the round before.
const IDLE: u8 = 4;
/// A lane has posted over a network, or waits for one.
const NETWORK: u8 = 8;

thread_local! {
    /// What the lanes of this thread said in this round.
    static SAID: Cell<u8> = const { Cell::new(0) };
    /// The bell at which they wait.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// A bell at which the lanes of a thread wait. It does not keep its region mapped: the thread may
/// never wait again.
struct Place {
    region: Weak<Region>,
    offset: u64,
    backoff: Backoff,
}

impl Place {
    fn is_at(&self, region: &Arc<Region>, offset: u64) -> bool {
        self.region.as_ptr() == Arc::as_ptr(region) && self.offset == offset
    }

    /// The bell, if it is still mapped.
    fn bell(&self) -> Option<Bell> {
        bell_in(self.region.upgrade()?, self.offset)
    }
}

fn bell_in(region: Arc<Region>, offset: u64) -> Option<Bell> {
    Bell::new(region, RemoteAddr::new(RegionId(0), offset)).ok()
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |_| RawWaker::new(std::ptr::null(), &VTABLE),
    |_| say_again(),
    |_| say_again(),
    |_| (),
);

// SAFETY: the functions use no data, and each may be called by any thread at any time. A waker that
// is called by another thread wakes nobody: the lane is polled again when the sleep's time is up.
static WAKER: Waker = unsafe { Waker::new(std::ptr::null(), &VTABLE) };

#[inline]
fn say_again() {
    SAID.set(SAID.get() | AGAIN);
}

/// The waker of the lanes of a thread that backs off.
pub(crate) fn waker() -> &'static Waker {
    &WAKER
}

/// Called by a lane that waits at a bell. Returns whether its thread backs off there if all lanes
/// wait. Otherwise the lane has to call its waker.
pub(super) fn wait(cx: &Context<'_>, region: &Arc<Region>, offset: u64) -> bool {
    if !cx.waker().will_wake(&WAKER) {
        return false;
    }
    // A thread that ends has no place any more.
    let waits = PLACE.try_with(|place| {
        let mut place = place.borrow_mut();
        if place.as_ref().is_some_and(|place| place.is_at(region, offset)) {
            return true;
        }
        // A thread does not sleep at two bells.
        if SAID.get() & WAITS != 0 || bell_in(region.clone(), offset).is_none() {
            return false;
        }
        let backoff = place.take().and_then(|before| {
            let bell = before.bell()?;
            let mut backoff = before.backoff;
            backoff.end(&bell);
            Some(backoff)
        });
        let backoff = backoff.unwrap_or_default();
        *place = Some(Place { region: Arc::downgrade(region), offset, backoff });
        true
    });
    if waits != Ok(true) {
        return false;
    }
    SAID.set(SAID.get() | WAITS);
    true
}

/// Whether other threads need the core of this one, as far as its lanes have seen.
pub(super) fn is_core_wanted() -> bool {
    let is_wanted = |place: &Place| place.backoff.is_core_wanted();
    PLACE.try_with(|place| place.borrow().as_ref().is_some_and(is_wanted)).unwrap_or(false)
}

/// Called after a round in which the lanes were polled and are pending.
#[inline(always)]
pub(crate) fn after_round() {
    let said = SAID.replace(0);
    if said & (WAITS | IDLE | NETWORK) != 0 {
        after_waits(said);
    }
}

#[inline(never)]
fn after_waits(said: u8) {
    let mut holds_back = false;
    if said & NETWORK != 0 {
        holds_back = networks::after_round(said & (WAITS | AGAIN) == 0);
    }
    if said & (WAITS | IDLE) != 0 {
        // A thread that waits for a network as well does not sleep at a bell.
        back_off(said & (WAITS | AGAIN | NETWORK) == WAITS);
    }
    if holds_back {
        // The network has a part in the next round as well, and in the end of the lanes.
        SAID.set(SAID.get() | NETWORK);
    }
}

/// Called by a lane that has posted over a network, or waits for one. `listens`: for what comes
/// unasked.
pub(crate) fn network(network: Weak<Mutex<dyn Network>>, listens: bool) {
    SAID.set(SAID.get() | NETWORK);
    networks::waits(network, listens);
}

/// Whether a lane that does this is polled again at once.
#[cfg(test)]
pub(crate) fn is_polled_again_after(does: impl FnOnce()) -> bool {
    SAID.set(SAID.get() & !AGAIN);
    does();
    SAID.get() & AGAIN != 0
}

/// Whether a future is polled by lanes of this thread.
pub(crate) fn is_own(cx: &Context<'_>) -> bool {
    cx.waker().will_wake(&WAKER)
}

/// Called when the lanes have ended. They may have been run by a lane of the same thread, among
/// lanes that have said something before; the thread must not sleep after this round. And the
/// session whose bell it is may end next, and another have the bell: so it is not left armed.
#[inline(always)]
pub(crate) fn after_lanes() {
    if SAID.get() & NETWORK != 0 {
        networks::after_lanes();
        SAID.set(SAID.get() & !NETWORK);
    }
    if SAID.get() & IDLE != 0 {
        back_off(false);
        SAID.set(SAID.get() & !IDLE);
    }
    say_again();
}

#[inline(never)]
fn back_off(is_idle: bool) {
    let _ = PLACE.try_with(|place| {
        if let Some(place) = &mut *place.borrow_mut()
            && let Some(bell) = place.bell()
        {
            if is_idle {
                place.backoff.go_on(&bell, LANES_SLEEP_MAX);
                SAID.set(IDLE);
            } else {
                place.backoff.end(&bell);
            }
        }
    });
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::lanes::block_on;

    fn region() -> Arc<Region> {
        Arc::new(Region::anonymous(1 << 16).expect("there is memory"))
    }

    /// Whether the thread has armed one of these bells within so many rounds of lanes that wait at
    /// all of them.
    fn arms(region: &Arc<Region>, bells: &[u64], wakes_itself: bool, rounds: u32) -> bool {
        let mut left = rounds;
        block_on(poll_fn(|cx| {
            let is_armed = bells
                .iter()
                .any(|at| region.word(*at).load(std::sync::atomic::Ordering::Relaxed) != 0);
            left -= 1;
            if is_armed || left == 0 {
                return Poll::Ready(is_armed);
            }
            for at in bells {
                if !wait(cx, region, *at) {
                    cx.waker().wake_by_ref();
                }
            }
            if wakes_itself {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }))
    }

    #[test]
    fn lanes_that_all_wait_at_one_bell_let_their_thread_sleep() {
        assert!(arms(&region(), &[64, 64], false, u32::MAX));
    }

    #[test]
    fn a_lane_that_has_work_or_another_bell_keeps_its_thread_awake() {
        let region = region();
        assert!(!arms(&region, &[64], true, 1 << 16));
        assert!(!arms(&region, &[64, 128], false, 1 << 16));
    }

    #[test]
    fn a_lane_that_runs_lanes_does_not_let_others_be_forgotten() {
        let region = region();
        let mut left = 1 << 16;
        block_on(poll_fn(|cx| {
            left -= 1;
            // One lane has work, one runs lanes, and one waits.
            cx.waker().wake_by_ref();
            let mut is_ready = false;
            block_on(poll_fn(|cx| match std::mem::replace(&mut is_ready, true) {
                true => Poll::Ready(()),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }));
            assert!(wait(cx, &region, 64));
            assert_eq!(region.word(64).load(std::sync::atomic::Ordering::Relaxed), 0);
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// The thread wakes when another one rings, and its lanes find what that one stored.
    #[test]
    fn a_thread_whose_lanes_wait_is_woken() {
        let region = region();
        let (bell, message) = (Bell::new(region.clone(), RemoteAddr::new(RegionId(0), 64)), 128);
        let bell = bell.expect("it is a word");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut polls = 0u64;
                block_on(poll_fn(|cx| {
                    polls += 1;
                    if region.word(message).load(std::sync::atomic::Ordering::Acquire) != 0 {
                        return Poll::Ready(polls);
                    }
                    if !wait(cx, &region, 64) {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }))
            });
            while region.word(64).load(std::sync::atomic::Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            region.word(message).store(1, std::sync::atomic::Ordering::Release);
            bell.ring();
            assert!(waiting.join().expect("it does not panic") > 1);
        });
    }

    /// Waits at a bell until it is armed.
    fn wait_until_armed(region: &Arc<Region>, offset: u64) -> bool {
        arms(region, &[offset], false, u32::MAX)
    }

    /// Another thread may have the bell next.
    #[test]
    fn lanes_that_have_ended_leave_no_bell_armed() {
        let region = region();
        assert!(wait_until_armed(&region, 64));
        assert_eq!(region.word(64).load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thread_that_has_waited_keeps_no_region_mapped() {
        let region = region();
        assert!(wait_until_armed(&region, 64));
        let left = Arc::downgrade(&region);
        drop(region);
        assert!(left.upgrade().is_none());
        assert!(wait_until_armed(&self::region(), 64), "it can wait elsewhere");
    }

    #[test]
    fn another_executor_is_told_to_poll_the_lane_again() {
        let cx = Context::from_waker(Waker::noop());
        assert!(!wait(&cx, &region(), 64));
    }
}
