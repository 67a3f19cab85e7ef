//! The turns of connections that are under way in a thread, side by side.
//!
//! A turn that ends makes room for another one at once, whatever the others wait for: if a node
//! does not answer, those who want nothing of it are served meanwhile. A turn that rests, until
//! another thread wakes this one, takes no room from others, and neither does one that waits for
//! memory, or until long steps of others are done. A turn can be dropped between two
//! polls, as an operation on a table can.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use quanta::Instant;

use crate::limits::{LANES, TURNS_MAX};

/// A turn that takes longer than this waits for somebody, and does not use its lane.
const LONG: Duration = Duration::from_millis(5);

/// The turns, each of which is a future.
pub(crate) struct Turns<F> {
    /// The first `live` of them have a turn.
    lanes: Vec<Lane<F>>,
    live: usize,
}

struct Lane<F> {
    turn: Pin<Box<Option<F>>>,
    /// Whose turn it is.
    number: usize,
    began: Instant,
}

impl<F> Default for Turns<F> {
    fn default() -> Self {
        Self { lanes: Vec::new(), live: 0 }
    }
}

impl<F: Future> Turns<F> {
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether one more turn may begin beside these, of which `waiting` rest or wait in line.
    pub fn has_room(&self, waiting: usize) -> bool {
        let is_short = |lane: &&Lane<F>| lane.began.elapsed() < LONG;
        // Turns that rested may have been dropped since.
        let awake = self.live.saturating_sub(waiting);
        awake < LANES
            || awake < TURNS_MAX && self.lanes[..self.live].iter().filter(is_short).count() < LANES
    }

    pub fn begin(&mut self, number: usize, turn: F) {
        let began = Instant::now();
        match self.lanes.get_mut(self.live) {
            Some(lane) => {
                lane.turn.set(Some(turn));
                (lane.number, lane.began) = (number, began);
            }
            None => self.lanes.push(Lane { turn: Box::pin(Some(turn)), number, began }),
        }
        self.live += 1;
    }

    /// Drops the turns with these numbers, wherever they are.
    pub fn drop_those(&mut self, is_one: impl Fn(usize) -> bool, cx: &mut Context<'_>) {
        let mut at = 0;
        while at < self.live {
            if !is_one(self.lanes[at].number) {
                at += 1;
                continue;
            }
            self.lanes[at].turn.set(None);
            self.live -= 1;
            self.lanes.swap(at, self.live);
            // Other turns may wait for it.
            cx.waker().wake_by_ref();
        }
    }

    /// Polls each turn once. Returns what those have said that have ended.
    pub fn poll(&mut self, cx: &mut Context<'_>, ended: &mut Vec<F::Output>) {
        let before = ended.len();
        let mut at = 0;
        while at < self.live {
            let turn = &mut self.lanes[at].turn;
            let polled = turn.as_mut().as_pin_mut().map(|turn| turn.poll(cx));
            match polled.expect("a live lane has a turn") {
                std::task::Poll::Pending => at += 1,
                std::task::Poll::Ready(output) => {
                    turn.set(None);
                    ended.push(output);
                    self.live -= 1;
                    self.lanes.swap(at, self.live);
                }
            }
        }
        // Other turns may wait for one that has ended.
        if ended.len() > before {
            cx.waker().wake_by_ref();
        }
        // There may have been one for each client.
        self.lanes.truncate(self.live.max(TURNS_MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::{Poll, Waker};

    use super::*;

    /// A turn that ends once it may.
    async fn turn(number: usize, may_end: &Cell<bool>) -> usize {
        poll_fn(|_| if may_end.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        number
    }

    #[test]
    fn turns_that_wait_for_long_leave_room_for_others_but_not_for_any_number() {
        let (never, at_once) = (Cell::new(false), Cell::new(true));
        let mut turns = Turns::default();
        let mut ended = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        let mut began = 0;
        while began < TURNS_MAX {
            while turns.has_room(0) && began < TURNS_MAX {
                turns.begin(began, turn(began, &never));
                began += 1;
            }
            turns.poll(&mut cx, &mut ended);
        }
        std::thread::sleep(2 * LONG);
        assert!(!turns.has_room(0) && ended.is_empty());
        for resting in 1..=TURNS_MAX {
            assert!(turns.has_room(resting), "{resting} of them rest");
        }
        never.set(true);
        turns.poll(&mut cx, &mut ended);
        ended.sort_unstable();
        assert_eq!(ended, (0..TURNS_MAX).collect::<Vec<_>>());
        assert!(turns.is_empty() && turns.has_room(0));
        turns.begin(7, turn(7, &at_once));
        ended.clear();
        turns.poll(&mut cx, &mut ended);
        assert_eq!(ended, [7]);
        never.set(false);
        (0..5).for_each(|number| turns.begin(number, turn(number, &never)));
        turns.drop_those(|number| number % 2 == 0, &mut cx);
        never.set(true);
        ended.clear();
        turns.poll(&mut cx, &mut ended);
        ended.sort_unstable();
        assert_eq!(ended, [1, 3]);
    }
}
