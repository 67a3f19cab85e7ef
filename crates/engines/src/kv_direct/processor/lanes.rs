//! Operations under way: a fixed number of lanes, polled in turn.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::desk::Desk;
use super::straight::Straight;
use super::{Clock, Job, Processor};
use crate::kv_direct::memory::HostMemory;
use crate::kv_direct::vector::UserFunctions;

/// Operations under way.
pub trait Pipeline<J> {
    /// Whether one more operation can be admitted.
    fn has_room(&self) -> bool;

    /// Admits an operation. Gives it back if the pipeline has to stall for it: then nothing else may
    /// be admitted before it.
    ///
    /// # Errors
    /// The operation.
    ///
    /// # Panics
    /// If there is no room.
    fn admit(&mut self, job: J) -> Result<(), J>;

    /// Goes on with all that are under way; whether there are any.
    fn turn(&mut self) -> bool;
}

/// What a lane is to execute, and its slot.
pub(super) struct Tray<J> {
    pub(super) next: Cell<Option<(usize, J)>>,
    pub(super) is_busy: Cell<bool>,
}

impl<J> Default for Tray<J> {
    fn default() -> Self {
        Self { next: Cell::new(None), is_busy: Cell::new(false) }
    }
}

/// A fixed number of lanes, each of which executes one operation after another.
struct Lanes<'a, J, H, U, C, L> {
    processor: &'a Processor<J, H, U, C>,
    lanes: Vec<Pin<Box<L>>>,
    idle: Vec<usize>,
    /// In the order in which they started.
    busy: Vec<usize>,
}

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    /// The lanes in which operations execute, for as long as the processor lives: what is under way
    /// when they are dropped is given up in the middle.
    pub fn pipeline(&self) -> impl Pipeline<J> + '_ {
        Lanes {
            processor: self,
            lanes: self.trays.iter().map(|tray| Box::pin(self.run(tray))).collect(),
            idle: (0..self.trays.len()).collect(),
            busy: Vec::with_capacity(self.trays.len()),
        }
    }

    /// One lane: executes what is in its tray, and then what waits for the same slot, again and again.
    /// It never ends, so that it is never moved: it is large.
    async fn run(&self, tray: &Tray<J>) {
        let mut desk = Desk::default();
        loop {
            let (slot, first) = poll_fn(|_| match tray.next.take() {
                Some(next) => Poll::Ready(next),
                None => Poll::Pending,
            })
            .await;
            let mut job = Some(first);
            while let Some(it) = job {
                let mut head = self.storage.head(it.hash()).await;
                match self.execute_straight(slot, &mut head, &it) {
                    Straight::Done => (),
                    Straight::Changed => self.storage.write_head(&head).await,
                    Straight::No => self.execute(slot, it, head, &mut desk).await,
                }
                job = self.station.borrow_mut().next(slot);
            }
            tray.is_busy.set(false);
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
        !self.idle.is_empty() && (!self.processor.settings.out_of_order || can_wait())
    }

    #[inline]
    fn admit(&mut self, job: J) -> Result<(), J> {
        let slot = self.processor.slot(&job);
        let mut station = self.processor.station.borrow_mut();
        let starts = if self.processor.settings.out_of_order {
            station.admit(slot, job)
        } else if station.admit_or_stall(slot, !job.action().is_read()) {
            Some(job)
        } else {
            return Err(job);
        };
        drop(station);
        let Some(job) = starts else { return Ok(()) };
        let number = self.idle.pop().expect("whoever admits looks for room first");
        let tray = &self.processor.trays[number];
        tray.next.set(Some((slot, job)));
        tray.is_busy.set(true);
        // Its first access is posted at once, before those of the next operation.
        match go_on(&mut self.lanes[number], tray) {
            true => self.busy.push(number),
            false => self.idle.push(number),
        }
        Ok(())
    }

    fn turn(&mut self) -> bool {
        let Self { processor, lanes, idle, busy } = self;
        busy.retain(|&number| {
            let is_busy = go_on(&mut lanes[number], &processor.trays[number]);
            if !is_busy {
                idle.push(number);
            }
            is_busy
        });
        !busy.is_empty()
    }
}

/// Polls a lane; whether it still has something to do.
#[inline(always)]
fn go_on<J, L: Future<Output = ()>>(lane: &mut Pin<Box<L>>, tray: &Tray<J>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let polled = lane.as_mut().poll(&mut cx);
    debug_assert!(polled.is_pending(), "a lane does not end");
    tray.is_busy.get()
}
