//! The host's side: queues of requests, lines, and answers.
//!
//! Lines are divided among *gatherers* in stripes. Each gatherer belongs to one thread, which alone
//! touches its lines while batches come in. So no two threads meet at a line, and a gatherer's
//! batches are carried out in the order in which they were queued.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use loch_engines::lines::{HALF_BYTES, LINE_BYTES, Line};

/// Consecutive lines that belong to one gatherer.
pub const STRIPE_LINES: u32 = 64;
/// Bytes of a request in its queue besides the bytes that it writes: an address, a length and a
/// kind.
const REQUEST_BYTES: usize = 8;

/// The action on the lines of a gatherer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// Writes the half of the line with this number; its bytes are the first half of the payload.
    WriteHalf(usize),
}

/// An access to consecutive lines of a gatherer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub kind: Kind,
    /// The first line, counted among the gatherer's own lines.
    pub at: u32,
    pub lines: u32,
}

/// Requests that travel together.
#[derive(Debug)]
pub struct Batch {
    pub(super) number: u64,
    pub(super) requests: Vec<Request>,
    /// The lines that writes write, one after the other; later, the lines that reads found.
    pub(super) lines: Vec<Line>,
}

impl Batch {
    pub(super) fn new(number: u64) -> Self {
        Self { number, requests: Vec::new(), lines: Vec::new() }
    }

    /// The number of accesses to random places of memory.
    pub fn accesses(&self) -> usize {
        self.requests.len()
    }

    /// The number of lines that are read or written.
    pub fn lines(&self) -> usize {
        self.requests.iter().map(|request| request.lines as usize).sum()
    }

    /// Bytes that go to the host.
    pub(super) fn request_bytes(&self) -> usize {
        let payload = |request: &Request| match request.kind {
            Kind::Read => 0,
            Kind::Write => request.lines as usize * LINE_BYTES,
            Kind::WriteHalf(_) => HALF_BYTES,
        };
        self.requests.iter().map(|request| REQUEST_BYTES + payload(request)).sum()
    }

    /// Bytes that come back.
    pub(super) fn answer_bytes(&self) -> usize {
        let reads = self.requests.iter().filter(|request| request.kind == Kind::Read);
        reads.map(|request| request.lines as usize * LINE_BYTES).sum()
    }

    /// Carries the requests out, in their order, and leaves the lines that reads found.
    fn perform(&mut self, lines: &mut [Line]) {
        let written = std::mem::take(&mut self.lines);
        let mut written = &written[..];
        for request in &self.requests {
            let (at, len) = (request.at as usize, request.lines as usize);
            match request.kind {
                Kind::Read => self.lines.extend_from_slice(&lines[at..at + len]),
                Kind::Write => {
                    lines[at..at + len].copy_from_slice(&written[..len]);
                    written = &written[len..];
                }
                Kind::WriteHalf(half) => {
                    let place = &mut lines[at].0[half * HALF_BYTES..][..HALF_BYTES];
                    place.copy_from_slice(&written[0].0[..HALF_BYTES]);
                    written = &written[1..];
                }
            }
        }
    }
}

/// Host memory, and the gatherers that access it for the processor.
#[derive(Debug)]
pub struct Gatherers {
    each: Vec<Gatherer>,
    lines: u32,
}

#[derive(Debug)]
struct Gatherer {
    requests: Mutex<VecDeque<Batch>>,
    lines: Mutex<Vec<Line>>,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    batches: Vec<Batch>,
    waiting: Vec<(u64, Waker)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("who holds it does not panic")
}

impl Gatherers {
    /// `lines` lines, all zero, divided among `gatherers` gatherers.
    ///
    /// # Panics
    /// If there is no gatherer.
    pub fn new(lines: u32, gatherers: usize) -> Arc<Self> {
        assert!(gatherers > 0, "memory without gatherers is never accessed");
        let stripes = (lines as usize).div_ceil(STRIPE_LINES as usize).div_ceil(gatherers);
        let own = stripes * STRIPE_LINES as usize;
        let gatherer = || Gatherer {
            requests: Mutex::default(),
            lines: Mutex::new(vec![Line::ZERO; own]),
            answers: Mutex::default(),
        };
        Arc::new(Self { each: (0..gatherers).map(|_| gatherer()).collect(), lines })
    }

    /// The number of lines.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// The number of gatherers.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// The next batch of a gatherer, if there is one, in the order in which batches were queued.
    /// [`Gatherers::perform`] has to give back each batch before the next is taken.
    pub fn take(&self, gatherer: usize) -> Option<Batch> {
        lock(&self.each[gatherer].requests).pop_front()
    }

    /// Carries a gatherer's batch out, and answers it.
    pub fn perform(&self, gatherer: usize, mut batch: Batch) {
        let gatherer = &self.each[gatherer];
        batch.perform(&mut lock(&gatherer.lines));
        let mut answers = lock(&gatherer.answers);
        let waits = answers.waiting.iter().position(|(number, _)| *number == batch.number);
        let waker = waits.map(|at| answers.waiting.swap_remove(at).1);
        answers.batches.push(batch);
        drop(answers);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The gatherer of a line, the line's number among the gatherer's own, and the number of lines
    /// from there to the end of its stripe.
    #[inline]
    pub(super) fn place(&self, at: u32) -> (usize, u32, u32) {
        let (stripe, into) = (at / STRIPE_LINES, at % STRIPE_LINES);
        let gatherers = self.each.len() as u32;
        let own = stripe / gatherers * STRIPE_LINES + into;
        ((stripe % gatherers) as usize, own, STRIPE_LINES - into)
    }

    pub(super) fn queue(&self, gatherer: usize, batch: Batch) {
        lock(&self.each[gatherer].requests).push_back(batch);
    }

    /// The batch with this number, once it is answered.
    pub(super) fn poll_answer(
        &self,
        gatherer: usize,
        number: u64,
        context: &mut Context<'_>,
    ) -> Poll<Batch> {
        let mut answers = lock(&self.each[gatherer].answers);
        if let Some(at) = answers.batches.iter().position(|batch| batch.number == number) {
            return Poll::Ready(answers.batches.swap_remove(at));
        }
        match answers.waiting.iter_mut().find(|(waits, _)| *waits == number) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => answers.waiting.push((number, context.waker().clone())),
        }
        Poll::Pending
    }

    pub(super) fn peek(&self, at: u32) -> Line {
        let (gatherer, own, _) = self.place(at);
        lock(&self.each[gatherer].lines)[own as usize]
    }
}
