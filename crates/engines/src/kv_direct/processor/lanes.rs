//! Operations under way: a fixed number of lanes, polled in turn.
//!
//! If lines can be loaded, the straight path executes an operation as it is admitted: the caller
//! has [prefetched](Processor::prefetch) its bucket before. The operation needs no place in the
//! station then, because nothing comes between its beginning and its end. It gets a lane only if
//! the straight path cannot execute it: a lane's state is large, and most operations need none of
//! it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::op_context::OpContext;
use super::straight::Straight;
use super::{Clock, Job, Processor};
use crate::kv_direct::storage::Head;
use crate::kv_direct::vector::UserFunctions;
use crate::lines::HostMemory;

/// Operations under way.
pub trait Pipeline<J> {
    /// Whether one more operation can be admitted.
    fn has_room(&self) -> bool;

    /// Admits an operation. Gives it back if the pipeline has to stall for it: then nothing else
    /// may be admitted before it.
    ///
    /// # Errors
    /// The operation.
    ///
    /// # Panics
    /// If there is no room.
    fn admit(&mut self, job: J) -> Result<(), J>;

    /// Goes on with all operations under way. Returns whether there are any.
    fn turn(&mut self) -> bool;
}

/// The next work of a lane.
pub(super) struct Tray<J> {
    next: Cell<Option<Start<J>>>,
    is_busy: Cell<bool>,
}

/// An operation, its slot, and its head bucket if that is known and the straight path is not
/// possible.
type Start<J> = (usize, J, Option<Head>);

impl<J> Default for Tray<J> {
    fn default() -> Self {
        Self { next: Cell::new(None), is_busy: Cell::new(false) }
    }
}

/// An operation and its slot, with the line of a bucket: its group's head, or one further on in the
/// chain, which is on its way.
struct Posted<J> {
    line: u32,
    slot: u16,
    /// The number of buckets between the head and this one.
    further: u16,
    job: J,
}

/// Buckets after the head that an operation passes without a lane. Longer chains are rare, or
/// damaged: then a lane has to count the buckets.
const FURTHER_MAX: u16 = 64;

/// A fixed number of lanes, each of which executes one operation after another.
struct Lanes<'a, J, H, U, C, L> {
    processor: &'a Processor<J, H, U, C>,
    lanes: Vec<Pin<Box<L>>>,
    idle: Vec<usize>,
    /// The busy lanes, in the order in which they started.
    busy: Vec<usize>,
    /// Operations whose bucket is on its way: there is an idle lane for each of them.
    posted: VecDeque<Posted<J>>,
}

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    /// The lanes in which operations execute, for as long as the processor lives. If they are
    /// dropped, operations under way are given up in the middle.
    pub fn pipeline(&self) -> impl Pipeline<J> + '_ {
        Lanes {
            processor: self,
            lanes: self.trays.iter().map(|tray| Box::pin(self.run(tray))).collect(),
            idle: (0..self.trays.len()).collect(),
            busy: Vec::with_capacity(self.trays.len()),
            posted: VecDeque::with_capacity(self.trays.len()),
        }
    }

    /// One lane: executes the operation in its tray, and then the operations that wait for the same
    /// slot, again and again. The future never ends, so it is never moved: it is large.
    async fn run(&self, tray: &Tray<J>) {
        let mut context = OpContext::default();
        loop {
            let (slot, first, known) = poll_fn(|_| match tray.next.take() {
                Some(next) => Poll::Ready(next),
                None => Poll::Pending,
            })
            .await;
            let mut job = match known {
                Some(head) => {
                    self.execute(slot, first, head, &mut context).await;
                    self.station.borrow_mut().next(slot)
                }
                None => Some(first),
            };
            while let Some(it) = job {
                let mut head = self.storage.head(it.hash()).await;
                let straight = match self.station.borrow().is_awaited(slot) {
                    false => self.execute_straight(head.bucket_mut(), &it),
                    // Other operations on the key should find the value at hand.
                    true => Straight::No,
                };
                match straight {
                    Straight::Done => (),
                    Straight::Changed => self.storage.write_bucket(&head).await,
                    _ => self.execute(slot, it, head, &mut context).await,
                }
                job = self.station.borrow_mut().next(slot);
            }
            tray.is_busy.set(false);
        }
    }
}

impl<J, H, U, C, L> Lanes<'_, J, H, U, C, L>
where
    J: Job,
    H: HostMemory,
    U: UserFunctions,
    C: Clock,
    L: Future<Output = ()>,
{
    /// Makes a lane execute an operation.
    fn start(&mut self, start: Start<J>) {
        let number = self.idle.pop().expect("whoever admits looks for room first");
        let tray = &self.processor.trays[number];
        tray.next.set(Some(start));
        tray.is_busy.set(true);
        // The lane's first access is posted at once, before the accesses of the next operation.
        match go_on(&mut self.lanes[number], tray) {
            true => self.busy.push(number),
            false => self.idle.push(number),
        }
    }

    /// Makes an operation wait for a bucket.
    fn post(&mut self, posted: Posted<J>) {
        self.processor.storage.prefetch(posted.line);
        self.posted.push_back(posted);
    }

    /// Goes on with an operation that the straight path could not execute in the bucket that it has
    /// seen last.
    fn go_on_with(&mut self, straight: Option<Straight>, seen: Posted<J>) {
        let Posted { line, slot, further, job } = seen;
        match straight {
            Some(Straight::Further(line)) if further < FURTHER_MAX => {
                self.post(Posted { line, slot, further: further + 1, job });
            }
            straight => {
                // The bucket that was seen is the head; otherwise the head is read again.
                let storage = &self.processor.storage;
                let is_head = straight.is_some() && line == storage.group(job.hash());
                let head = is_head.then(|| storage.seen(line));
                self.start((usize::from(slot), job, head));
            }
        }
    }

    /// Executes an operation whose bucket has arrived, and the operations that waited for it, as
    /// far as the straight path can.
    fn arrived(&mut self, mut posted: Posted<J>) {
        let processor = self.processor;
        loop {
            match processor.execute_in_place(posted.line, &posted.job) {
                Some(Straight::Done | Straight::Changed) => (),
                straight => return self.go_on_with(straight, posted),
            }
            let next = processor.station.borrow_mut().next(usize::from(posted.slot));
            let Some(job) = next else { return };
            let line = processor.storage.group(job.hash());
            posted = Posted { line, job, further: 0, ..posted };
        }
    }
}

impl<J, H, U, C, L> Pipeline<J> for Lanes<'_, J, H, U, C, L>
where
    J: Job,
    H: HostMemory,
    U: UserFunctions,
    C: Clock,
    L: Future<Output = ()>,
{
    #[inline]
    fn has_room(&self) -> bool {
        let can_wait = || self.processor.station.borrow().has_room();
        self.idle.len() > self.posted.len() && (!self.processor.settings.out_of_order || can_wait())
    }

    #[inline(always)]
    fn admit(&mut self, job: J) -> Result<(), J> {
        let processor = self.processor;
        let group = processor.storage.group(job.hash());
        let slot = processor.slot(group, job.hash());
        // A read that has to wait gets a forwarded value, unless loading its bucket is faster.
        let out_of_order = processor.settings.out_of_order;
        let loads = processor.storage.memory().loads();
        let shares = (loads || !out_of_order) && job.operation().is_read();
        let mut straight = None;
        if loads && processor.station.borrow().is_free(slot, shares) {
            straight = processor.execute_in_place(group, &job);
            if let Some(Straight::Done | Straight::Changed) = straight {
                return Ok(());
            }
        }
        let mut station = processor.station.borrow_mut();
        if !station.admit(slot, shares) {
            if !out_of_order {
                return Err(job);
            }
            station.wait(slot, job);
            return Ok(());
        }
        drop(station);
        self.go_on_with(straight, Posted { line: group, slot: slot as u16, further: 0, job });
        Ok(())
    }

    fn turn(&mut self) -> bool {
        for _ in 0..self.posted.len() {
            let Some(posted) = self.posted.pop_front() else { break };
            self.arrived(posted);
        }
        let Self { processor, lanes, idle, busy, posted } = self;
        busy.retain(|&number| {
            let is_busy = go_on(&mut lanes[number], &processor.trays[number]);
            if !is_busy {
                idle.push(number);
            }
            is_busy
        });
        !busy.is_empty() || !posted.is_empty()
    }
}

/// Polls a lane. Returns whether it still has work.
#[inline(always)]
fn go_on<J, L: Future<Output = ()>>(lane: &mut Pin<Box<L>>, tray: &Tray<J>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let polled = lane.as_mut().poll(&mut cx);
    debug_assert!(polled.is_pending(), "a lane does not end");
    tray.is_busy.get()
}
