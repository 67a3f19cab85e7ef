//! How the turns of a thread share its time.
//!
//! A thread polls all turns that are under way in rounds, and looks at its sockets between them. So
//! nobody waits longer than a round takes, if two rules hold: work that goes on without an end in
//! sight stops for the round after a moment ([`Pace::breathe`]), and a round has few steps that
//! take long by themselves, as copying a long value does ([`Pace::step`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use quanta::Instant;

use crate::limits::{SHORT_STEP_BYTES, SLICE, STEP_BYTES};

/// The rounds of a thread.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Cell<Instant>,
    /// Turns of this round that wait for another thread to wake this one.
    resting: Cell<usize>,
    /// Turns that wait for memory.
    parked: Cell<usize>,
    /// For steps that take hardly longer than a short command: they wait for each other alone.
    short: Line,
    long: Line,
}

/// Steps of one kind.
#[derive(Debug, Default)]
struct Line {
    /// Bytes of those of this round.
    stepped: Cell<usize>,
    /// Whether one of them was asked for before.
    has_step: Cell<bool>,
    waiting: Queue,
}

/// A turn that waits for memory, until this is dropped.
pub(crate) struct Parked<'a>(&'a Cell<usize>);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Numbers of those who wait, first come first served.
#[derive(Debug, Default)]
struct Queue {
    last: Cell<u64>,
    numbers: RefCell<VecDeque<u64>>,
}

/// A place in the queue, until this is dropped.
struct Place<'a> {
    queue: &'a Queue,
    number: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.numbers.borrow().len()
    }

    fn enter(&self) -> Place<'_> {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.numbers.borrow_mut().push_back(number);
        Place { queue: self, number }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.numbers.borrow_mut().retain(|number| *number != self.number);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            began: Cell::new(Instant::now()),
            resting: Cell::default(),
            parked: Cell::default(),
            short: Line::default(),
            long: Line::default(),
        }
    }
}

impl Pace {
    /// All turns are polled again from here on.
    pub fn begin_round(&self) {
        self.began.set(Instant::now());
        for line in [&self.short, &self.long] {
            line.stepped.set(0);
            line.has_step.set(false);
        }
        self.resting.set(0);
    }

    /// A turn has nothing to do until another thread wakes this one. It says so once in a round.
    pub fn rest(&self) {
        self.resting.set(self.resting.get() + 1);
    }

    /// How many turns have said so in this round.
    pub fn resting(&self) -> usize {
        self.resting.get()
    }

    /// A turn waits for memory that others have.
    pub fn park(&self) -> Parked<'_> {
        self.parked.set(self.parked.get() + 1);
        Parked(&self.parked)
    }

    /// How many turns have said that they rest in this round, or wait for memory, or until long
    /// steps of others are done.
    pub fn waiting(&self) -> usize {
        self.resting() + self.parked.get() + self.short.waiting.len() + self.long.waiting.len()
    }

    /// Goes on in the next round, if this one has taken a moment already.
    #[inline]
    pub async fn breathe(&self) {
        if self.began.get().elapsed() >= SLICE {
            self.next_round().await;
        }
    }

    /// Goes on in the next round.
    pub async fn next_round(&self) {
        let mut has_waited = false;
        poll_fn(|lanes| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            lanes.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Waits for a round that has room for a step over so many bytes, which the caller makes then.
    pub async fn step(&self, bytes: usize) {
        self.line(bytes).step(bytes).await;
    }

    /// A step was made that nobody knew to be one.
    pub fn stepped(&self, bytes: usize) {
        let stepped = &self.line(bytes).stepped;
        stepped.set(stepped.get() + bytes);
    }

    fn line(&self, bytes: usize) -> &Line {
        if bytes <= SHORT_STEP_BYTES { &self.short } else { &self.long }
    }
}

impl Line {
    async fn step(&self, bytes: usize) {
        if self.waiting.len() == 0 && self.has_room(bytes) {
            return;
        }
        let place = self.waiting.enter();
        poll_fn(|lanes| {
            let is_first = self.waiting.numbers.borrow().front() == Some(&place.number);
            if is_first && self.has_room(bytes) {
                return Poll::Ready(());
            }
            lanes.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Whether a step fits into this round, which has it then. The first one that is asked for does
    /// in any case: steps that nobody knew of may come in each round.
    fn has_room(&self, bytes: usize) -> bool {
        let stepped = self.stepped.get() + bytes;
        let has_room = !self.has_step.get() || stepped <= STEP_BYTES;
        if has_room {
            self.stepped.set(stepped);
            self.has_step.set(true);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_round_has_one_long_step_and_those_who_wait_for_it_come_one_after_the_other() {
        let (pace, done) = (Pace::default(), RefCell::new(Vec::new()));
        let steps = |number: usize| {
            let (pace, done) = (&pace, &done);
            Box::pin(async move {
                for _ in 0..3 {
                    pace.step(STEP_BYTES).await;
                    done.borrow_mut().push(number);
                }
            }) as Pin<Box<dyn Future<Output = ()> + '_>>
        };
        let mut turns: Vec<_> = (0..4).map(steps).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let mut round = |turns: &mut Vec<Pin<Box<dyn Future<Output = ()> + '_>>>| {
            pace.begin_round();
            let before = done.borrow().len();
            turns.retain_mut(|turn| turn.as_mut().poll(&mut cx).is_pending());
            assert!(done.borrow().len() <= before + 1);
        };
        (0..3).for_each(|_| round(&mut turns));
        assert_eq!(*done.borrow(), [0, 0, 1]);
        pace.rest();
        assert_eq!(pace.waiting(), 4 + 1);
        // One that is given up makes room for the next.
        drop(turns.remove(3));
        while !turns.is_empty() {
            round(&mut turns);
        }
        assert_eq!(*done.borrow(), [0, 0, 1, 2, 0, 1, 2, 1, 2]);
        assert_eq!(pace.waiting(), 0);
    }

    /// A client of longer ones waited for all that stream very long ones.
    #[test]
    fn short_steps_do_not_wait_for_long_ones() {
        let pace = Pace::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut is_made = |bytes: usize| pin!(pace.step(bytes)).poll(&mut cx).is_ready();
        assert!(is_made(STEP_BYTES) && !is_made(SHORT_STEP_BYTES + 1));
        let short = STEP_BYTES / SHORT_STEP_BYTES;
        assert!((0..short).all(|_| is_made(SHORT_STEP_BYTES)));
        assert!(!is_made(1), "they wait for each other");
    }

    /// A thread that sees more long values than it remembers makes such steps in each round.
    #[test]
    fn steps_that_nobody_knew_of_do_not_hold_up_those_who_wait_for_one() {
        let (pace, done) = (Pace::default(), Cell::new(0));
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiting = Box::pin(async {
            loop {
                pace.step(STEP_BYTES).await;
                done.set(done.get() + 1);
            }
        });
        for round in 1..10 {
            pace.begin_round();
            pace.stepped(2 * STEP_BYTES);
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert_eq!(done.get(), round);
        }
    }

    #[test]
    fn work_goes_on_within_its_round_until_that_has_taken_a_moment() {
        let pace = Pace::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut work = Box::pin(async {
            loop {
                pace.breathe().await;
            }
        });
        for _ in 0..3 {
            let began = Instant::now();
            pace.begin_round();
            assert!(work.as_mut().poll(&mut cx).is_pending());
            assert!(began.elapsed() >= SLICE);
        }
    }
}
