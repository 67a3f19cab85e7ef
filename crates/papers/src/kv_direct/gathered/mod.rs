//! CPU-assisted scatter-gather: the host's threads access its memory for the processor (kv-direct
//! §6.1).
//!
//! PCIe carries 64-byte payloads in TLPs of 90 bytes, and tags run out before its bandwidth does.
//! So here up to 256 accesses of the processor are collected, and their addresses go to a *request
//! queue* in host memory in one DMA. A thread of the host, the *gatherer*, makes the accesses, puts
//! the lines that it read into a *response queue*, and rings the card's doorbell. The processor
//! then fetches all of them in one DMA, in TLPs of 256 bytes. That gives up to 1.8 × the
//! throughput, for 20 times the latency and some of the host's cores.
//!
//! [`Gathered`] is a [`HostMemory`] like any other, so the processor runs on it unchanged; but it
//! needs thousands of accesses under way to be as fast as possible. It shares [`Gatherers`] with
//! the host's threads, each of which takes the batches of its own gatherer and performs them. A
//! [`Courier`] gives the costs of the transport.
//!
//! # Which access carries a batch
//! There is no thread on the card's side: the access that fills a batch carries it, or else the
//! access that opened it, once it has lingered for long enough. The other accesses wait until the
//! batch is back. So an access has to be polled until it is over: if it were dropped, the accesses
//! that it carries would wait for ever.
//!
//! # Invariants
//! 1. The batches of one gatherer are queued in the order in which they were opened, even if a
//!    later one travels faster. A gatherer carries them out in that order, and the accesses of a
//!    batch in their order.
//! 2. A write is over when its batch is queued, a read when its batch is back. With 1, a read that
//!    was posted later comes after the write (invariant 1 of [`lines`](loch_engines::lines)).

mod gatherers;
#[cfg(test)]
#[path = "../../../../engines/tests/reference/mod.rs"]
mod reference;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loch_engines::lines::{Counts, HALF_BYTES, HostMemory, LINE_BYTES, Line, Purpose};
use loch_fabric::lanes;

pub use self::gatherers::{Batch, Gatherers};
use self::gatherers::{Kind, Request};

/// Accesses of a full batch (kv-direct §6.1).
pub const BATCH_ACCESSES: usize = 256;
/// Parts of one access that are under way at a time.
const PARTS_MAX: usize = 16;

/// The transport of batches to the host and back.
pub trait Courier {
    /// Sends this many bytes to a request queue.
    async fn send(&self, bytes: usize);

    /// Waits for a doorbell, and fetches this many bytes from a response queue.
    async fn fetch(&self, bytes: usize);

    /// Waits for a batch to be filled: it is ready when a batch should go as it is.
    async fn linger(&self);
}

/// The stage of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Open,
    Closed,
    Queued,
    Back,
}

/// The state of a batch for which its accesses wait.
#[derive(Debug)]
struct Journey {
    stage: Cell<Stage>,
    /// The lines that reads found, once the batch is back.
    lines: RefCell<Vec<Line>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Journey {
    fn poll(&self, stage: Stage, context: &mut Context<'_>) -> Poll<()> {
        if self.stage.get() >= stage {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn reach(&self, stage: Stage) {
        self.stage.set(stage);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A batch that still takes requests.
#[derive(Debug)]
struct Open {
    batch: Batch,
    journey: Rc<Journey>,
    /// Lines of the answer that are already assigned.
    answer_lines: usize,
}

/// The card's side of a gatherer.
#[derive(Debug, Default)]
struct Side {
    open: RefCell<Option<Open>>,
    /// The number of batches that were opened, and the number of them that were queued.
    opened: Cell<u64>,
    queued: Cell<u64>,
    /// Carriers that wait for their turn to queue their batch.
    waiting: RefCell<Vec<Waker>>,
}

/// The transport so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Batches.
    pub batches: u64,
    /// Accesses in the batches.
    pub accesses: u64,
    /// Bytes that went to the host.
    pub sent_bytes: u64,
    /// Bytes that came back.
    pub fetched_bytes: u64,
}

/// Host memory that gatherers access.
#[derive(Debug)]
pub struct Gathered<C> {
    gatherers: Arc<Gatherers>,
    courier: C,
    sides: Vec<Side>,
    accesses_max: usize,
    counts: Cell<Counts>,
    carried: Cell<Carried>,
}

impl<C: Courier> Gathered<C> {
    /// The lines of these gatherers, whose threads take turns.
    pub fn new(gatherers: Arc<Gatherers>, courier: C) -> Self {
        let sides = (0..gatherers.len()).map(|_| Side::default()).collect();
        let (counts, carried) = (Cell::default(), Cell::default());
        Self { gatherers, courier, sides, accesses_max: BATCH_ACCESSES, counts, carried }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }

    /// Adds a request to the open batch of a gatherer. Returns its journey, its place in the
    /// answer, and whether it opened the batch.
    fn add(
        &self,
        gatherer: usize,
        request: Request,
        written: &[Line],
    ) -> (Rc<Journey>, usize, bool) {
        let side = &self.sides[gatherer];
        let mut open = side.open.borrow_mut();
        let is_first = open.is_none();
        let open = open.get_or_insert_with(|| {
            let number = side.opened.get();
            side.opened.set(number + 1);
            let journey = Journey {
                stage: Cell::new(Stage::Open),
                lines: RefCell::default(),
                waiting: RefCell::default(),
            };
            Open { batch: Batch::new(number), journey: Rc::new(journey), answer_lines: 0 }
        });
        let place = open.answer_lines;
        if request.kind == Kind::Read {
            open.answer_lines += request.lines as usize;
        }
        open.batch.requests.push(request);
        open.batch.lines.extend_from_slice(written);
        (open.journey.clone(), place, is_first)
    }

    fn is_full(&self, gatherer: usize) -> bool {
        let open = self.sides[gatherer].open.borrow();
        open.as_ref().is_some_and(|open| open.batch.requests.len() >= self.accesses_max)
    }

    /// Makes an access to lines of one gatherer. Returns its journey, and its place in the answer.
    async fn access(
        &self,
        gatherer: usize,
        request: Request,
        written: &[Line],
    ) -> (Rc<Journey>, usize) {
        let (journey, place, is_first) = self.add(gatherer, request, written);
        if self.is_full(gatherer) {
            self.carry(gatherer).await;
        } else if is_first {
            let mut linger = pin!(self.courier.linger());
            let wait = |context: &mut Context<'_>| match journey.poll(Stage::Closed, context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => linger.as_mut().poll(context),
            };
            poll_fn(wait).await;
            if journey.stage.get() == Stage::Open {
                self.carry(gatherer).await;
            }
        }
        let over = if request.kind == Kind::Read { Stage::Back } else { Stage::Queued };
        poll_fn(|context| journey.poll(over, context)).await;
        (journey, place)
    }

    /// Takes the open batch of a gatherer to the host and back.
    async fn carry(&self, gatherer: usize) {
        let side = &self.sides[gatherer];
        let Some(Open { batch, journey, .. }) = side.open.take() else { return };
        let (number, answer_bytes) = (batch.number, batch.answer_bytes());
        let mut carried = self.carried.get();
        carried.batches += 1;
        carried.accesses += batch.accesses() as u64;
        carried.sent_bytes += batch.request_bytes() as u64;
        carried.fetched_bytes += answer_bytes as u64;
        self.carried.set(carried);
        journey.reach(Stage::Closed);
        self.courier.send(batch.request_bytes()).await;
        poll_fn(|context| self.poll_turn(side, number, context)).await;
        self.gatherers.queue(gatherer, batch);
        side.queued.set(number + 1);
        std::mem::take(&mut *side.waiting.borrow_mut()).into_iter().for_each(Waker::wake);
        journey.reach(Stage::Queued);
        let answer =
            |context: &mut Context<'_>| self.gatherers.poll_answer(gatherer, number, context);
        let batch = poll_fn(answer).await;
        self.courier.fetch(answer_bytes).await;
        *journey.lines.borrow_mut() = batch.lines;
        journey.reach(Stage::Back);
    }

    /// Whether it is a batch's turn to be queued (invariant 1).
    fn poll_turn(&self, side: &Side, number: u64, context: &mut Context<'_>) -> Poll<()> {
        if side.queued.get() == number {
            return Poll::Ready(());
        }
        let mut waiting = side.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    async fn read_part(&self, at: u32, into: &mut [Line]) {
        let (gatherer, own, _) = self.gatherers.place(at);
        let request = Request { kind: Kind::Read, at: own, lines: into.len() as u32 };
        let (journey, place) = self.access(gatherer, request, &[]).await;
        into.copy_from_slice(&journey.lines.borrow()[place..place + into.len()]);
    }

    async fn write_part(&self, at: u32, from: &[Line]) {
        let (gatherer, own, _) = self.gatherers.place(at);
        let request = Request { kind: Kind::Write, at: own, lines: from.len() as u32 };
        self.access(gatherer, request, from).await;
    }

    fn check(&self, at: u32, lines: usize) {
        let end = at as usize + lines;
        assert!(end <= self.gatherers.lines() as usize, "there is no line {end}");
    }

    /// The number of lines, of `lines` lines from `at` on, that are in one stripe.
    fn part(&self, at: u32, lines: usize) -> usize {
        lines.min(self.gatherers.place(at).2 as usize)
    }
}

impl<C: Courier> HostMemory for Gathered<C> {
    fn lines(&self) -> u32 {
        self.gatherers.lines()
    }

    async fn read_line(&self, purpose: Purpose, at: u32) -> Line {
        self.check(at, 1);
        self.count(|counts| counts.read(purpose, 1));
        let mut line = [Line::ZERO];
        self.read_part(at, &mut line).await;
        line[0]
    }

    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        self.check(at, 1);
        self.count(|counts| counts.wrote(purpose, 1));
        self.write_part(at, std::slice::from_ref(line)).await;
    }

    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        self.check(half / 2, 1);
        self.count(|counts| counts.wrote(purpose, 1));
        let (gatherer, own, _) = self.gatherers.place(half / 2);
        let request = Request { kind: Kind::WriteHalf(half as usize % 2), at: own, lines: 1 };
        let mut line = Line::ZERO;
        line.0[..HALF_BYTES].copy_from_slice(bytes);
        self.access(gatherer, request, &[line]).await;
    }

    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        self.check(at, into.len());
        self.count(|counts| counts.read(purpose, into.len()));
        let (mut at, mut rest) = (at, into);
        let parts = std::iter::from_fn(|| {
            let (from, len) = (at, self.part(at, rest.len()));
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            (at, rest) = (at + len as u32, after);
            (len > 0).then(|| self.read_part(from, part))
        });
        lanes::run(PARTS_MAX, parts, |()| ()).await;
    }

    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]) {
        self.check(at, from.len());
        self.count(|counts| counts.wrote(purpose, from.len()));
        let (mut at, mut rest) = (at, from);
        let parts = std::iter::from_fn(|| {
            let (to, len) = (at, self.part(at, rest.len()));
            let (part, after) = rest.split_at(len);
            (at, rest) = (at + len as u32, after);
            (len > 0).then(|| self.write_part(to, part))
        });
        lanes::run(PARTS_MAX, parts, |()| ()).await;
    }

    /// The accesses as they were asked for, each counted by itself.
    fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn peek(&self, at: u32) -> Line {
        self.check(at, 1);
        self.gatherers.peek(at)
    }

    /// Free slabs travel alone, as they do without gatherers.
    async fn exchange(&self, is_write: bool, lines: usize) {
        let purpose = Purpose::Slabs;
        self.count(|counts| match is_write {
            true => counts.wrote(purpose, lines),
            false => counts.read(purpose, lines),
        });
        match is_write {
            true => self.courier.send(lines * LINE_BYTES).await,
            false => self.courier.fetch(lines * LINE_BYTES).await,
        }
    }
}
