//! One client's measured phase: hands out operations, counts their outcomes, and times a sample.
//!
//! All lanes of a client's thread share a [`Run`], so everything in it is a cell. Invariants:
//! 1. No operation is handed out after the deadline or beyond the budget.
//! 2. Every operation handed out is finished once; only finished operations are counted.
//! 3. In a closed loop an operation is timed from the moment it was handed out,
//!    key and value making included, to the moment its result was there.
//! 4. In an open loop every operation is timed, and from the moment at which it should have begun:
//!    an operation that waits because others take long counts as late by this wait too.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use quanta::Clock;

use crate::rate::Arrivals;
use crate::spec::{Spec, Stop};
use crate::tally::{Latencies, Tally, latencies};
use crate::trace::Trace;
use crate::workload::{Workload, part};

/// Runs of at most this many operations time every one of them.
const OPS_ALL_TIMED_MAX: u64 = 1 << 17;
/// Bounds between which the deadline check adapts, in operations.
const CHECK_EVERY_OPS_MAX: u32 = 256;
/// Length of the unmeasured run before the measured phase, as a share of it: page tables, buffers
/// and branch predictors are then in their final state.
const WARM_UP_SHARE: f64 = 0.1;
/// Bounds of the warm-up.
const WARM_UP_NS_MAX: f64 = 0.5e9;
const WARM_UP_OPS_MAX: u64 = 100_000;

/// A client without operations under way sleeps until its next operation is due, if that is later
/// than this. Going to sleep takes about as long.
const SLEEP_NS_MIN: u64 = 5_000;

/// The clock of a run.
pub trait Ticks {
    /// The intended interval between two checks of the deadline; 0: a check before every operation.
    const CHECK_EVERY_NS: u64;
    /// Now, in units of this clock; never 0.
    fn raw(&self) -> u64;
    /// Nanoseconds between two moments.
    fn delta_as_nanos(&self, from: u64, to: u64) -> u64;
}

impl Ticks for Clock {
    const CHECK_EVERY_NS: u64 = 50_000;

    #[inline]
    fn raw(&self) -> u64 {
        Clock::raw(self)
    }

    #[inline]
    fn delta_as_nanos(&self, from: u64, to: u64) -> u64 {
        Clock::delta_as_nanos(self, from, to)
    }
}

/// The bounds of a run; the first one that is reached ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Operations.
    pub ops: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Budget {
    /// One client's part of the measured phase.
    pub fn of(spec: &Spec, client: u32) -> Self {
        match spec.stop {
            Stop::Seconds(seconds) => Budget { ops: u64::MAX, ns: (seconds * 1e9) as u64 },
            Stop::Ops(ops) => {
                let clients = u64::from(spec.clients);
                let ops = ops / clients + u64::from(u64::from(client) < ops % clients);
                Budget { ops, ns: u64::MAX }
            }
        }
    }

    /// The bounds of one of `turns` equal parts.
    pub fn turn(self, turn: u32, turns: u32) -> Self {
        match self {
            Budget { ops: u64::MAX, ns } => Budget { ops: u64::MAX, ns: ns / u64::from(turns) },
            Budget { ops, ns } => {
                let begin = |turn| part(ops, turn, turns);
                Budget { ops: begin(turn + 1) - begin(turn), ns }
            }
        }
    }

    /// The bounds of the unmeasured run before it.
    pub fn warm_up(self) -> Self {
        match self {
            Budget { ops: u64::MAX, ns } => {
                Budget { ops: u64::MAX, ns: (ns as f64 * WARM_UP_SHARE).min(WARM_UP_NS_MAX) as u64 }
            }
            Budget { ops, ns } => Budget { ops: (ops / 10).min(WARM_UP_OPS_MAX), ns },
        }
    }
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read the record's value.
    Get,
    /// Replace the record's value.
    Put,
}

/// One operation, from [`Run::next`] to [`Run::finish`].
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// The record it is about.
    pub record: u64,
    /// Its kind.
    pub kind: Kind,
    /// The version of the value that a PUT writes.
    pub version: u32,
    /// Bytes of its value. A value that is found may have been put with another size.
    pub size: u32,
    /// When it began, in raw clock units; in an open loop, when it should have begun, in
    /// nanoseconds of the run; 0 if it is not in the sample.
    started: u64,
}

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A GET found this value.
    Found(&'a [u8]),
    /// A GET found nothing.
    Missing,
    /// A PUT was acknowledged.
    Stored,
    /// The store refused it, and continues to work.
    Failed,
}

/// A client's measured phase.
pub struct Run<'a, C = Clock> {
    workload: &'a Workload,
    trace: &'a Trace,
    clock: &'a C,
    budget: Budget,
    /// When it began, in raw clock units.
    began: u64,
    /// Next position in the trace.
    position: Cell<usize>,
    /// Operations that may be handed out before the next check.
    fuse: Cell<u32>,
    check_every_ops: Cell<u32>,
    checked_ns: Cell<u64>,
    ops_left: Cell<u64>,
    /// When operations are due, in an open loop.
    arrivals: Option<Arrivals>,
    version: Cell<u32>,
    /// One operation in this many is timed.
    time_every: u32,
    until_timed: Cell<u32>,
    sums: Sums,
    gets: RefCell<Latencies>,
    puts: RefCell<Latencies>,
}

/// A tally that is being made.
#[derive(Default)]
struct Sums {
    gets: Cell<u64>,
    get_hits: Cell<u64>,
    puts: Cell<u64>,
    hit_bytes: Cell<u64>,
    miss_bytes: Cell<u64>,
    put_bytes: Cell<u64>,
    retries: Cell<u64>,
    errors: Cell<u64>,
    wrong_values: Cell<u64>,
}

impl Sums {
    fn tally(&self) -> Tally {
        Tally {
            gets: self.gets.get(),
            get_hits: self.get_hits.get(),
            puts: self.puts.get(),
            hit_bytes: self.hit_bytes.get(),
            miss_bytes: self.miss_bytes.get(),
            put_bytes: self.put_bytes.get(),
            retries: self.retries.get(),
            errors: self.errors.get(),
            wrong_values: self.wrong_values.get(),
        }
    }
}

impl Op {
    /// A PUT of the value that records are loaded with.
    pub fn load(record: u64, value_size: usize) -> Self {
        Op { record, kind: Kind::Put, version: 0, size: value_size as u32, started: 0 }
    }
}

impl<'a, C: Ticks> Run<'a, C> {
    /// Begins now. The target chooses `time_every`: 1 if an operation costs microseconds, more if
    /// timing would be a visible part of it.
    pub fn begin(
        workload: &'a Workload,
        trace: &'a Trace,
        clock: &'a C,
        client: u32,
        budget: Budget,
        time_every: u32,
    ) -> Self {
        let (gets, puts) = (RefCell::new(latencies()), RefCell::new(latencies()));
        Run {
            workload,
            trace,
            clock,
            budget,
            position: Cell::new(0),
            fuse: Cell::new(0),
            check_every_ops: Cell::new(1),
            checked_ns: Cell::new(0),
            ops_left: Cell::new(budget.ops),
            arrivals: None,
            // Clients write different values, as different writers do.
            version: Cell::new(client << 24 | 1),
            time_every: if budget.ops <= OPS_ALL_TIMED_MAX { 1 } else { time_every },
            until_timed: Cell::new(1),
            sums: Sums::default(),
            gets,
            puts,
            began: clock.raw(),
        }
    }

    /// The same in an open loop, if there are arrivals.
    pub fn arriving(self, arrivals: Option<Arrivals>) -> Self {
        Run { arrivals, ..self }
    }

    /// The same from this position of the trace on.
    pub fn beginning_at(self, position: usize) -> Self {
        Run { position: Cell::new(position), ..self }
    }

    /// The position in the trace of the next operation.
    pub fn position(&self) -> usize {
        self.position.get()
    }

    /// Makes keys and values for the operations.
    pub fn workload(&self) -> &'a Workload {
        self.workload
    }

    /// The clock, for targets that finish many operations at one moment.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.raw()
    }

    /// The next operation; `None` once the run is over.
    #[inline]
    pub fn next(&self) -> Option<Op> {
        if self.fuse.get() == 0 && !self.refuel(self.clock.raw()) {
            return None;
        }
        let timed = self.is_timed();
        Some(self.take(if timed { self.clock.raw() } else { 0 }))
    }

    /// The same for a caller that has just read the clock.
    #[inline]
    pub fn next_at(&self, now: u64) -> Option<Op> {
        if self.fuse.get() == 0 && !self.refuel(now) {
            return None;
        }
        let timed = self.is_timed();
        Some(self.take(if timed { now } else { 0 }))
    }

    /// Counts an operation that is done.
    #[inline]
    pub fn finish(&self, op: &Op, outcome: Outcome<'_>) {
        let now = if op.started == 0 { 0 } else { self.clock.raw() };
        self.finish_at(op, outcome, now);
    }

    /// The same for a caller that has just read the clock.
    #[inline]
    pub fn finish_at(&self, op: &Op, outcome: Outcome<'_>, now: u64) {
        // Counted one by one: a copy of the whole tally would have to be put together from parts
        // that were stored just before.
        let sum = |count: &Cell<u64>, more: u64| count.set(count.get() + more);
        let add = |count, more: bool| sum(count, u64::from(more));
        let Sums { gets, get_hits, puts, errors, wrong_values, .. } = &self.sums;
        let bytes = u64::from(op.size);
        match outcome {
            Outcome::Found(value) => {
                add(gets, true);
                add(get_hits, true);
                sum(&self.sums.hit_bytes, bytes);
                add(wrong_values, !self.workload.check_value(op.record, value));
            }
            Outcome::Missing => {
                add(gets, true);
                sum(&self.sums.miss_bytes, bytes);
            }
            Outcome::Stored => {
                add(puts, true);
                sum(&self.sums.put_bytes, bytes);
            }
            Outcome::Failed => add(errors, true),
        }
        if op.started != 0 && outcome != Outcome::Failed {
            self.time(op, now);
        }
    }

    /// The PUT that follows a GET which found nothing, if that is what the workload does. It is in
    /// addition to the operations of the run's budget.
    #[inline]
    pub fn fill(&self, get: &Op, outcome: Outcome<'_>) -> Option<Op> {
        if outcome != Outcome::Missing || !self.workload.fills() {
            return None;
        }
        self.version.set(self.version.get().wrapping_add(1));
        let started = if get.started == 0 { 0 } else { self.clock.raw() };
        Some(Op { kind: Kind::Put, version: self.version.get(), started, ..*get })
    }

    /// Counts attempts that were repeated inside an operation.
    pub fn retried(&self, attempts: u64) {
        self.sums.retries.set(self.sums.retries.get() + attempts);
    }

    /// Ends the run: its length in seconds, the counts, the latencies of GETs and PUTs.
    pub fn end(self) -> (f64, Tally, Latencies, Latencies) {
        let ns = self.clock.delta_as_nanos(self.began, self.clock.raw());
        (ns as f64 / 1e9, self.sums.tally(), self.gets.into_inner(), self.puts.into_inner())
    }

    #[inline]
    fn is_timed(&self) -> bool {
        let left = self.until_timed.get() - 1;
        self.until_timed.set(if left == 0 { self.time_every } else { left });
        left == 0
    }

    #[inline]
    fn take(&self, started: u64) -> Op {
        self.fuse.set(self.fuse.get() - 1);
        self.draw(started)
    }

    /// The next operation of the trace.
    #[inline]
    fn draw(&self, started: u64) -> Op {
        let position = self.position.get();
        let entry = self.trace.at(position);
        self.position.set(if position + 1 == self.trace.len() { 0 } else { position + 1 });
        let kind = if entry.is_put {
            self.version.set(self.version.get().wrapping_add(1));
            Kind::Put
        } else {
            Kind::Get
        };
        let size = entry.size.unwrap_or(self.workload.value_size() as u32);
        Op { record: entry.record, kind, version: self.version.get(), size, started }
    }

    /// Checks deadline and budget; allows as many operations as should pass
    /// before the next check.
    #[cold]
    fn refuel(&self, now: u64) -> bool {
        let ns = self.clock.delta_as_nanos(self.began, now);
        let left = self.ops_left.get();
        if ns >= self.budget.ns || left == 0 {
            return false;
        }
        let since = ns.saturating_sub(self.checked_ns.replace(ns));
        let every = self.check_every_ops.get();
        let every = if since >= C::CHECK_EVERY_NS {
            (every / 2).max(1)
        } else {
            (every * 2).min(CHECK_EVERY_OPS_MAX)
        };
        self.check_every_ops.set(every);
        let fuse = u64::from(every).min(left);
        self.ops_left.set(left - fuse);
        self.fuse.set(fuse as u32);
        true
    }

    fn time(&self, op: &Op, now: u64) {
        let ns = match self.arrivals {
            None => self.clock.delta_as_nanos(op.started, now),
            Some(_) => self.clock.delta_as_nanos(self.began, now).saturating_sub(op.started),
        };
        let ns = ns.max(1);
        let histogram = match op.kind {
            Kind::Get => &self.gets,
            Kind::Put => &self.puts,
        };
        histogram.borrow_mut().saturating_record(ns);
    }
}

impl<C: Ticks> Run<'_, C> {
    /// The next operation, when it is due: in a closed loop at once. `None` once the run is over.
    #[inline]
    pub fn next_due(&self) -> NextDue<'_, C> {
        NextDue(self)
    }

    /// The next due operation of an open loop. The thread sleeps here while it has no other work.
    #[cold]
    fn poll_due(&self, arrivals: &Arrivals) -> Poll<Option<Op>> {
        loop {
            let ns = self.clock.delta_as_nanos(self.began, self.clock.raw());
            if ns >= self.budget.ns || arrivals.passed() == self.budget.ops {
                return Poll::Ready(None);
            }
            let due_ns = arrivals.next_ns();
            if due_ns <= ns {
                arrivals.pass();
                return Poll::Ready(Some(self.draw(due_ns)));
            }
            let Tally { gets, puts, errors, .. } = self.sums.tally();
            if arrivals.passed() > gets + puts + errors {
                return Poll::Pending;
            }
            let rest_ns = due_ns.min(self.budget.ns) - ns;
            if rest_ns >= SLEEP_NS_MIN {
                thread::sleep(Duration::from_nanos(rest_ns));
            }
        }
    }
}

/// The future of [`Run::next_due`].
pub struct NextDue<'a, C>(&'a Run<'a, C>);

impl<C: Ticks> Future for NextDue<'_, C> {
    type Output = Option<Op>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Op>> {
        match &self.0.arrivals {
            None => Poll::Ready(self.0.next()),
            Some(arrivals) => self.0.poll_due(arrivals),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::task::Waker;

    use super::*;
    use crate::args::tests::spec;

    const ENDLESS: Budget = Budget { ops: u64::MAX, ns: u64::MAX };

    /// The counts of a run over the trace of a command line, also for the tests of targets.
    pub fn with_run(
        line: &str,
        budget: Budget,
        time_every: u32,
        test: impl FnOnce(&Run),
    ) -> (Tally, Latencies) {
        let spec = spec(line).unwrap();
        let workload = Workload::new(&spec);
        let trace = Trace::generate(&spec, 0);
        let clock = Clock::new();
        let run = Run::begin(&workload, &trace, &clock, 0, budget, time_every);
        test(&run);
        let (_, tally, gets, _) = run.end();
        (tally, gets)
    }

    #[test]
    fn hands_out_exactly_the_operations_asked_for_however_checked() {
        for ops in [1, 2, 255, 256, 1000, 10_001] {
            let (tally, _) = with_run("--ops 300", Budget { ops, ..ENDLESS }, 1, |run| {
                while let Some(op) = run.next() {
                    run.finish(
                        &op,
                        if op.kind == Kind::Get { Outcome::Missing } else { Outcome::Stored },
                    );
                }
            });
            assert_eq!((tally.gets + tally.puts, tally.get_hits), (ops, 0));
        }
    }

    #[test]
    fn ends_at_the_deadline() {
        let budget = Budget { ns: 2_000_000, ..ENDLESS };
        with_run("--ops 300", budget, 1, |run| {
            while run.next().is_some() {}
            let ns = run.clock.delta_as_nanos(run.began, run.now());
            assert!(ns >= budget.ns, "{ns}");
        });
    }

    #[test]
    fn times_a_sample_of_long_runs_and_all_of_short_ones() {
        let all_gets = |budget| {
            with_run("--ops 300 --reads 1", budget, 10, |run| {
                for _ in 0..1000 {
                    let op = run.next().unwrap();
                    run.finish(&op, Outcome::Missing);
                }
            })
        };
        assert_eq!(all_gets(ENDLESS).1.len(), 100);
        assert_eq!(all_gets(Budget { ops: 1000, ..ENDLESS }).1.len(), 1000);
    }

    #[test]
    fn an_open_loop_times_from_the_moment_an_operation_is_due() {
        let spec = spec("--ops 300 --reads 1").unwrap();
        let (workload, trace) = (Workload::new(&spec), Trace::generate(&spec, 0));
        let clock = Clock::new();
        let budget = Budget { ops: 200, ..ENDLESS };
        let run = Run::begin(&workload, &trace, &clock, 0, budget, 1000);
        let run = run.arriving(Some(Arrivals::new(1, 0, 10_000.0)));
        // A store takes long for the first operation, so the later ones are late.
        let mut done = 0;
        let poll = || std::pin::pin!(run.next_due()).poll(&mut Context::from_waker(Waker::noop()));
        while let Poll::Ready(Some(op)) = poll() {
            if done == 0 {
                thread::sleep(Duration::from_millis(10));
            }
            run.finish(&op, Outcome::Missing);
            done += 1;
        }
        let (_, tally, gets, _) = run.end();
        assert_eq!((tally.gets, gets.len(), done), (200, 200, 200), "all are timed");
        assert!(gets.max() >= 10_000_000, "{}", gets.max());
        // A tenth of a millisecond apart, the first hundred wait for 5 ms in their mean.
        assert!(gets.mean() > 1_500_000.0, "{}", gets.mean());
    }

    #[test]
    fn an_open_loop_hands_out_no_more_while_nothing_is_due() {
        let spec = spec("--ops 300").unwrap();
        let (workload, trace) = (Workload::new(&spec), Trace::generate(&spec, 0));
        let clock = Clock::new();
        let run = Run::begin(&workload, &trace, &clock, 0, Budget { ops: 2, ..ENDLESS }, 1);
        let run = run.arriving(Some(Arrivals::new(1, 0, 1.0)));
        let poll = || std::pin::pin!(run.next_due()).poll(&mut Context::from_waker(Waker::noop()));
        run.arrivals.as_ref().unwrap().pass();
        assert!(poll().is_pending(), "one is under way, and the next is due in a second");
        let at_rest = Budget { ns: 1_000_000, ..ENDLESS };
        let run = Run::begin(&workload, &trace, &clock, 0, at_rest, 1);
        let run = run.arriving(Some(Arrivals::new(1, 0, 0.0)));
        let ended = std::pin::pin!(run.next_due()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ended, Poll::Ready(None)) && run.end().0 >= 0.001);
    }

    #[test]
    fn wrong_values_and_refusals_are_counted_apart() {
        let (tally, gets) =
            with_run("--ops 3 --reads 1 --value-size 64 --verify", ENDLESS, 1, |run| {
                let mut value = [0; 64];
                let op = run.next().unwrap();
                run.workload().write_value(op.record, 7, &mut value);
                run.finish(&op, Outcome::Found(&value));
                run.finish(&run.next().unwrap(), Outcome::Found(&value[1..]));
                run.finish(&run.next().unwrap(), Outcome::Failed);
                run.retried(2);
            });
        let expected = Tally {
            gets: 2,
            get_hits: 2,
            hit_bytes: 128,
            retries: 2,
            errors: 1,
            wrong_values: 1,
            ..Tally::default()
        };
        assert_eq!((tally, gets.len()), (expected, 2));
    }
}
