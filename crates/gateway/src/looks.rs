//! Looks at all of the table: how its memory is used, for `INFO` and `stats`, and how many keys it
//! has, for `DBSIZE`.
//!
//! A look takes longer with more entries, and the threads that serve clients make none. A thread of
//! its own looks, at one thing at a time and only if it is asked to. A turn that has asked rests
//! until a look ends that began after its request, and all turns that rest for a look share its
//! outcome.
//!
//! # How old a figure is
//! A request is answered by a look of its own as long as looks take no more than [`SHORT`] of a
//! processor, or have taken less than [`BUDGET`] lately. Beyond that, looks at one thing take a
//! [`PART`]th of a processor: meanwhile requests get the last figure at once, which is about
//! [`PART`] times as old as a look takes. They get it, too, in place of a look that is likely to
//! take longer than [`WAIT_MAX`], unless it is older than that.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use loch::lanes::block_on;
use loch::{ScanCursor, Table, Usage};
use rustix::time::{ClockId, clock_gettime};

/// The processor time of a look that is made for every request.
const SHORT: Duration = Duration::from_millis(10);
/// The processor time of longer looks that are made in a row.
const BUDGET: Duration = Duration::from_secs(1);
/// Beyond the budget, longer looks at one thing take one of these parts of a processor.
const PART: u32 = 50;
/// For a look that takes longer than this nobody waits who can have a figure.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The outcome of a look at the table.
#[derive(Debug)]
pub(crate) struct Seen<T> {
    pub what: Arc<T>,
    /// When the look began.
    pub at: Instant,
    took: Duration,
}

impl<T> Seen<T> {
    /// Whether it is no older than figures get while clients ask all the time.
    fn is_of_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) <= PART * self.took
    }
}

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Self {
        Self { what: Arc::clone(&self.what), ..*self }
    }
}

/// The looks of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    state: Mutex<State>,
    is_asked: Condvar,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The looks that are asked for, in order.
    queue: VecDeque<Thing>,
    usage: Figure<Vec<Usage>>,
    keys: Figure<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Usage,
    Keys,
}

/// A kind of outcome.
pub(crate) trait Sight: Sized {
    const THING: Thing;
    fn of(state: &mut State) -> &mut Figure<Self>;
}

impl Sight for Vec<Usage> {
    const THING: Thing = Thing::Usage;

    fn of(state: &mut State) -> &mut Figure<Self> {
        &mut state.usage
    }
}

impl Sight for u64 {
    const THING: Thing = Thing::Keys;

    fn of(state: &mut State) -> &mut Figure<Self> {
        &mut state.keys
    }
}

/// The looks at one thing. They are numbered.
#[derive(Debug)]
pub(crate) struct Figure<T> {
    /// The look that has begun last.
    begun: u64,
    ended: u64,
    /// The last one that did not fail.
    brought: u64,
    /// What it has brought.
    seen: Option<Seen<T>>,
    /// Why the last one that failed did.
    failure: Option<loch::Error>,
    /// The processor time of the last one.
    cost: Duration,
    debt: Debt,
    /// Threads that serve clients of whom some rest, and the look for which they do.
    resting: Vec<(u64, usize)>,
}

impl<T> Default for Figure<T> {
    fn default() -> Self {
        Self {
            begun: 0,
            ended: 0,
            brought: 0,
            seen: None,
            failure: None,
            cost: Duration::ZERO,
            debt: Debt::default(),
            resting: Vec::new(),
        }
    }
}

/// The processor time that looks have taken, less what they might have taken since.
#[derive(Debug, Default)]
struct Debt {
    left: Duration,
    at: Option<Instant>,
}

impl Debt {
    fn at(&self, now: Instant) -> Duration {
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.left.saturating_sub(since / PART)
    }

    fn add(&mut self, took: Duration, now: Instant) {
        (self.left, self.at) = (self.at(now) + took, Some(now));
    }
}

/// An answer at once, or the number of the look that brings it, and whether that has to begin.
enum Answer<T> {
    Now(Seen<T>, Next),
    Later(u64),
}

/// Whether there has to be another look.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Look,
    None,
}

impl<T> Figure<T> {
    /// What a request is answered, and whether another look has to begin.
    fn answer(&self, now: Instant) -> Answer<T> {
        let may_look = self.cost <= SHORT || self.debt.at(now) < BUDGET;
        match &self.seen {
            Some(seen) if !may_look => Answer::Now(seen.clone(), Next::None),
            Some(seen) if seen.took > WAIT_MAX && seen.is_of_late(now) => {
                Answer::Now(seen.clone(), Next::Look)
            }
            _ => Answer::Later(self.begun + 1),
        }
    }

    /// What a look has brought, or one after it, if it is over.
    fn outcome(&self, number: u64) -> Option<loch::Result<Seen<T>>> {
        if self.brought >= number {
            return Some(Ok(self.seen.clone().expect("a look has brought it")));
        }
        let failure = || self.failure.clone().expect("the last look has failed");
        (self.ended >= number).then(|| Err(failure()))
    }

    /// The look that has begun last is over. Returns the threads whose turns have rested for it.
    fn end(&mut self, look: Ended<T>, now: Instant) -> Vec<usize> {
        self.ended = self.begun;
        self.cost = look.cost;
        self.debt.add(look.cost, now);
        match look.outcome {
            Ok(what) => {
                let (at, what) = (look.began, Arc::new(what));
                self.seen = Some(Seen { what, at, took: now.saturating_duration_since(at) });
                self.brought = self.ended;
            }
            Err(error) => self.failure = Some(error),
        }
        let rested = self.resting.extract_if(.., |(number, _)| *number <= self.ended);
        rested.map(|(_, thread)| thread).collect()
    }
}

/// A look that is over.
struct Ended<T> {
    began: Instant,
    /// Its processor time.
    cost: Duration,
    outcome: loch::Result<T>,
}

impl Looks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request of a thread is answered. If it has to wait for a look, `rest` is called each
    /// time that there is nothing to do, and the thread is woken when the look is over.
    pub async fn ask<T: Sight>(&self, thread: usize, rest: impl Fn()) -> loch::Result<Seen<T>> {
        let number = match self.begin::<T>(thread) {
            Answer::Now(seen, _) => return Ok(seen),
            Answer::Later(number) => number,
        };
        poll_fn(|_| match T::of(&mut self.state()).outcome(number) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                rest();
                Poll::Pending
            }
        })
        .await
    }

    /// Asks for a look, if the answer to a request needs one.
    fn begin<T: Sight>(&self, thread: usize) -> Answer<T> {
        let mut state = self.state();
        let figure = T::of(&mut state);
        let answer = figure.answer(Instant::now());
        let has_to_look = match &answer {
            Answer::Now(_, next) => *next == Next::Look,
            Answer::Later(number) => {
                if !figure.resting.contains(&(*number, thread)) {
                    figure.resting.push((*number, thread));
                }
                true
            }
        };
        if has_to_look && !state.queue.contains(&T::THING) {
            state.queue.push_back(T::THING);
            self.is_asked.notify_one();
        }
        answer
    }

    /// Looks at the table whenever that is asked for, until [`Looks::stop`]. `wake` is called with
    /// each thread whose turns rest for a look that is over.
    pub fn run(&self, table: &Table, wake: impl Fn(usize)) {
        while let Some(thing) = self.next() {
            match thing {
                Thing::Usage => self.look(table.asynch().usage(), &wake),
                Thing::Keys => self.look(count_keys(table), &wake),
            }
        }
    }

    /// Ends the thread that looks, in the middle of a look as well.
    pub fn stop(&self) {
        let _state = self.state();
        self.is_over.store(true, Ordering::Release);
        self.is_asked.notify_one();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits until something is asked for.
    fn next(&self) -> Option<Thing> {
        let mut state = self.state();
        while !self.is_over() {
            if let Some(thing) = state.queue.pop_front() {
                // A request that comes from now on needs another look.
                match thing {
                    Thing::Usage => state.usage.begun += 1,
                    Thing::Keys => state.keys.begun += 1,
                }
                return Some(thing);
            }
            state = self.is_asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn look<T: Sight>(&self, walk: impl Future<Output = loch::Result<T>>, wake: &impl Fn(usize)) {
        let (began, cost) = (Instant::now(), processor_time());
        let mut walk = pin!(walk);
        let outcome = block_on(poll_fn(|lanes| match self.is_over() {
            true => Poll::Ready(None),
            false => walk.as_mut().poll(lanes).map(Some),
        }));
        let Some(outcome) = outcome else { return };
        let look = Ended { began, cost: processor_time().saturating_sub(cost), outcome };
        let rested = T::of(&mut self.state()).end(look, Instant::now());
        rested.into_iter().for_each(wake);
    }
}

/// The processor time of this thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

async fn count_keys(table: &Table) -> loch::Result<u64> {
    let (mut keys, mut cursor) = (0, Some(ScanCursor::default()));
    while let Some(from) = cursor {
        let page = table.asynch().scan_page(&from, b"").await?;
        keys += page.keys.len() as u64;
        cursor = page.next;
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::{pending, ready};

    use loch::{Cluster, EmbeddedConfig};

    use super::*;

    /// What a request is answered: the figure, or the number of the look for which it waits.
    fn answer(looks: &Looks, thread: usize) -> Result<u64, u64> {
        match looks.begin::<u64>(thread) {
            Answer::Now(seen, _) => Ok(*seen.what),
            Answer::Later(number) => Err(number),
        }
    }

    fn outcome(looks: &Looks, number: u64) -> Option<u64> {
        let outcome = u64::of(&mut looks.state()).outcome(number)?;
        Some(*outcome.expect("it has not failed").what)
    }

    #[test]
    fn requests_that_come_before_a_look_begins_share_it_and_later_ones_share_the_next() {
        let (looks, woken) = (Looks::default(), RefCell::new(Vec::new()));
        let wake = |thread| woken.borrow_mut().push(thread);
        assert_eq!([0, 0, 1].map(|thread| answer(&looks, thread)), [Err(1); 3]);
        assert_eq!(looks.next(), Some(Thing::Keys));
        // The look may have passed the key that such a client has put.
        assert_eq!([2, 1].map(|thread| answer(&looks, thread)), [Err(2); 2]);
        looks.look(ready(Ok(7)), &wake);
        assert_eq!(
            ([1, 2].map(|look| outcome(&looks, look)), woken.take()),
            ([Some(7), None], vec![0, 1])
        );
        assert_eq!(looks.next(), Some(Thing::Keys));
        looks.look(ready(Ok(8)), &wake);
        assert_eq!(
            ([1, 2].map(|look| outcome(&looks, look)), woken.take()),
            ([Some(8); 2], vec![2, 1])
        );
        assert!(looks.state().queue.is_empty(), "nobody waits for another one");
    }

    #[test]
    fn a_look_that_fails_is_an_error_of_those_who_wait_for_it_and_of_nobody_else() {
        let looks = Looks::default();
        let look = |outcome| {
            let number = answer(&looks, 0).expect_err("it takes no time");
            looks.next();
            looks.look(ready(outcome), &|_| ());
            u64::of(&mut looks.state()).outcome(number).expect("it is over").map(|seen| *seen.what)
        };
        assert!(matches!(look(Err(loch::Error::Forked)), Err(loch::Error::Forked)));
        assert!(matches!(look(Ok(5)), Ok(5)));
        // One that waited for the second look may ask for its outcome only now.
        assert!(matches!(look(Err(loch::Error::Forked)), Err(loch::Error::Forked)));
        assert_eq!(outcome(&looks, 2), Some(5));
    }

    /// A figure after a look of that processor time, and how old it may get: the time after which
    /// a request is answered by a look of its own.
    fn age_after(figure: &mut Figure<u64>, cost: Duration, now: Instant) -> Duration {
        age_after_outcome(figure, Ok(1), cost, now)
    }

    fn age_after_outcome(
        figure: &mut Figure<u64>,
        outcome: loch::Result<u64>,
        cost: Duration,
        now: Instant,
    ) -> Duration {
        figure.begun += 1;
        figure.end(Ended { began: now, cost, outcome }, now);
        let is_exact = |after: &Duration| {
            matches!(figure.answer(now + *after), Answer::Later(_) | Answer::Now(_, Next::Look))
        };
        let ages = (0..).map(|seconds| Duration::from_millis(100) * seconds);
        ages.into_iter().find(is_exact).expect("there will be one")
    }

    #[test]
    fn short_looks_are_made_for_all_requests_and_longer_ones_take_a_part_of_a_processor() {
        let (mut figure, now) = (Figure::default(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(age_after(&mut figure, SHORT, now), Duration::ZERO);
        }
        let (mut figure, long) = (Figure::default(), Duration::from_millis(100));
        for _ in 0..9 {
            assert_eq!(age_after(&mut figure, long, now), Duration::ZERO, "seldom: at once");
        }
        let aged = PART * long;
        assert_eq!(age_after(&mut figure, long, now), Duration::from_millis(100));
        assert_eq!(age_after(&mut figure, long, now), aged + Duration::from_millis(100));
        let failed = age_after_outcome(&mut figure, Err(loch::Error::Forked), long, now);
        assert_eq!(failed, 2 * aged + Duration::from_millis(100), "it has taken as long");
    }

    #[test]
    fn nobody_who_can_have_a_figure_waits_for_a_look_that_takes_long() {
        let (mut figure, began) = (Figure::default(), Instant::now());
        assert!(matches!(figure.answer(began), Answer::Later(1)), "there is none");
        figure.begun += 1;
        let ended = began + 2 * WAIT_MAX;
        figure.end(Ended { began, cost: SHORT, outcome: Ok(1) }, ended);
        assert!(matches!(figure.answer(ended), Answer::Now(_, Next::Look)));
        let late = ended + PART * 2 * WAIT_MAX;
        assert!(matches!(figure.answer(late), Answer::Later(2)), "nobody has asked for long");
    }

    #[test]
    fn a_look_ends_with_its_gateway_in_its_middle() {
        let looks = Looks::default();
        assert_eq!((answer(&looks, 0), looks.next()), (Err(1), Some(Thing::Keys)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                looks.look(pending::<loch::Result<u64>>(), &|_| ());
                assert_eq!(looks.next(), None);
            });
            looks.stop();
        });
        assert_eq!(outcome(&looks, 1), None);
    }

    /// So it can end at each of them.
    #[test]
    fn a_look_at_a_table_stops_at_each_entry() {
        let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        let table = cluster.table("default").unwrap();
        const KEYS: u32 = 1000;
        for key in 0..KEYS {
            table.put(&key.to_le_bytes(), b"value").unwrap();
        }
        let stops = |walk: &mut dyn FnMut(&mut std::task::Context<'_>) -> bool| {
            let mut stops = 0;
            block_on(poll_fn(|lanes| {
                if walk(lanes) {
                    return Poll::Ready(());
                }
                stops += 1;
                Poll::Pending
            }));
            stops
        };
        let (mut usage, mut keys) = (pin!(table.asynch().usage()), pin!(count_keys(&table)));
        assert!(stops(&mut |lanes| usage.as_mut().poll(lanes).is_ready()) >= KEYS);
        // Some keys are read side by side.
        assert!(stops(&mut |lanes| keys.as_mut().poll(lanes).is_ready()) >= KEYS / 16);
    }
}
