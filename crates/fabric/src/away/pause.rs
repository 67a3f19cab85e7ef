//! Pauses of an endpoint's lanes, during which the other lanes go on.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{Away, Carrier};
use crate::Fabric;
use crate::limits::{LANES_PAUSE_US_MAX, TASK_NAP};
use crate::shm::parking;

impl<C: Carrier> Away<C> {
    /// Called by a future that waits for what comes unasked. `false`: it is not a lane's, and has
    /// to look by itself.
    pub fn waits(&self, cx: &Context<'_>) -> bool {
        let is_lane = parking::is_own(cx);
        if is_lane {
            self.carrier().listen();
        }
        is_lane
    }

    /// As [`Fabric::pause`]. The thread never sleeps for longer than a moment.
    pub(super) async fn pause_for(&self, us: u64) {
        let until = self.local.now_us() + us;
        if us >= LANES_PAUSE_US_MAX {
            return poll_fn(|cx| self.poll_rest(cx, until)).await;
        }
        // Queued verbs move on only if the carrier is called, so the thread does not wait before
        // all are over.
        loop {
            let is_idle = {
                let mut carrier = self.carrier();
                carrier.progress(false);
                carrier.is_idle()
            };
            let now = self.local.now_us();
            if is_idle || now >= until {
                self.local.pause(until.saturating_sub(now)).await;
                return;
            }
            self.local.yield_now().await;
        }
    }

    /// Waits until that time. A thread whose lanes all wait sleeps until something comes, or for a
    /// moment; on another executor it naps, since its other tasks have to go on.
    fn poll_rest(&self, cx: &Context<'_>, until: u64) -> Poll<()> {
        if self.local.now_us() >= until {
            return Poll::Ready(());
        }
        if !self.waits(cx) {
            self.carrier().progress(false);
            std::thread::sleep(TASK_NAP);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
