//! Requests that are queued leave with others: each call of the system, at both ends, costs more
//! than a request.

use std::time::Instant;

use crate::limits::TCP_COMPANY_WAIT;

/// The company of one connection.
#[derive(Default)]
pub(super) struct Company {
    /// Frames that are queued.
    queued: u32,
    /// Frames that were sent and that a frame of the node will follow, as far as can be told:
    /// WRITEs may be requests to workers, or not.
    under_way: u32,
    /// Since when frames wait for others.
    since: Option<Instant>,
}

impl Company {
    /// Whether to wait, but not for long: for lanes that are busy and may queue more, or for
    /// frames that are under way, if these are more than those that are queued: what they bring
    /// lets others be queued.
    pub fn is_awaited(&mut self, is_busy: bool) -> bool {
        if !is_busy && self.queued >= self.under_way {
            return false;
        }
        let now = Instant::now();
        let wait = now - *self.since.get_or_insert(now);
        if !is_busy && wait >= TCP_COMPANY_WAIT {
            // Perhaps nothing is under way.
            self.under_way /= 2;
        }
        wait < TCP_COMPANY_WAIT
    }

    /// A frame was queued.
    pub fn is_joined(&mut self) {
        self.queued += 1;
    }

    /// Whether frames wait for others.
    pub fn waits(&self) -> bool {
        self.since.is_some()
    }

    /// Whether a frame of the node may come.
    pub fn expects_some(&self) -> bool {
        self.under_way > 0
    }

    /// A frame has come, or will not come any more.
    pub fn has_come(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// The frames that were queued have left.
    pub fn have_left(&mut self) {
        self.under_way = self.under_way.saturating_add(std::mem::take(&mut self.queued));
        self.since = None;
    }
}
