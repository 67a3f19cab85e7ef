//! Networks whose verbs a thread waits for in its lanes.
//!
//! A lane that posts a verb, or waits for one, says so ([`waits`]). After each round of lanes the
//! thread sends what all of them have queued, in one call of the system for each connection, and
//! takes what has arrived ([`after_round`]). If no lane had anything else to do and nothing came,
//! the thread spins for a moment, then yields, and then sleeps until a socket is ready.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::{PollFd, Timespec};

use crate::idle::Idle;
use crate::limits::LANES_SLEEP_MAX;

/// A network, as the thread that waits for it sees it.
pub(crate) trait Network: Send {
    /// Takes what has arrived. Returns whether there was anything. `listens`: a lane waits for what
    /// comes unasked.
    fn receive(&mut self, listens: bool) -> bool;

    /// Sends what is queued, or will do so soon. `is_busy`: lanes have something to do, and may
    /// queue more next.
    fn send(&mut self, is_busy: bool);

    /// Both, for a thread without lanes.
    fn progress(&mut self, listens: bool) -> bool {
        let has_come = self.receive(listens);
        self.send(false);
        has_come
    }

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;

    /// Whether something is queued that will be sent soon: the thread must not rest.
    fn holds_back(&self) -> bool;

    /// Sends all that is queued, as far as that is possible now.
    fn send_all(&mut self);

    /// Adds each socket on which something will arrive, or that is to take something.
    fn sockets<'a>(&'a self, watched: &mut Vec<PollFd<'a>>);
}

/// A network that has a part in the rounds of this thread.
struct Known {
    network: Weak<Mutex<dyn Network>>,
    /// Whether a lane waits for what comes unasked.
    listens: bool,
}

thread_local! {
    static NETWORKS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
    static IDLE: RefCell<Idle> = RefCell::default();
}

/// Called when a verb was queued: the network has a part in the next rounds, until it is idle. One
/// that `listens` has a part in the next round, even if it is idle.
pub(crate) fn waits(network: Weak<Mutex<dyn Network>>, listens: bool) {
    // A thread that ends has no rounds any more.
    let _ = NETWORKS.try_with(|networks| {
        let mut networks = networks.borrow_mut();
        match networks.iter_mut().find(|known| known.network.ptr_eq(&network)) {
            Some(known) => known.listens |= listens,
            None => networks.push(Known { network, listens }),
        }
    });
}

/// Called after a round in which lanes have posted, or waited. `is_idle`: none had anything else to
/// do. Returns whether something is queued that has not been sent.
pub(crate) fn after_round(is_idle: bool) -> bool {
    let held = NETWORKS.try_with(|networks| {
        let (mut has_come, mut holds_back) = (false, false);
        let mut live: Vec<Arc<Mutex<dyn Network>>> = Vec::new();
        networks.borrow_mut().retain_mut(|known| {
            let Some(network) = known.network.upgrade() else { return false };
            let listens = std::mem::take(&mut known.listens);
            let is_over = {
                let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
                has_come |= network.receive(listens);
                network.send(!is_idle);
                holds_back |= network.holds_back();
                network.is_idle() && !listens
            };
            if !is_over {
                live.push(network);
            }
            !is_over
        });
        let waits = !has_come && !holds_back && is_idle && !live.is_empty();
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if !waits {
                idle.end();
            } else if idle.go_on() {
                sleep(&live);
                idle.end();
            }
        });
        holds_back
    });
    held.unwrap_or(false)
}

/// Called when the lanes have ended: what nobody waits for leaves now.
pub(crate) fn after_lanes() {
    let _ = NETWORKS.try_with(|networks| {
        networks.borrow_mut().retain(|known| {
            let Some(network) = known.network.upgrade() else { return false };
            let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
            network.send_all();
            !network.is_idle()
        });
    });
}

/// Sleeps until a socket is ready, but not for long: lanes do some things by themselves.
fn sleep(networks: &[Arc<Mutex<dyn Network>>]) {
    let held: Vec<_> =
        networks.iter().map(|it| it.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    let mut watched = Vec::new();
    held.iter().for_each(|network| network.sockets(&mut watched));
    let time = Timespec { tv_sec: 0, tv_nsec: LANES_SLEEP_MAX.subsec_nanos().into() };
    // Its errors say that it is time to look.
    let _ = rustix::event::poll(&mut watched, Some(&time));
}
