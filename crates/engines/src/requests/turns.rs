//! The lanes of a worker: requests under way, polled in turn, for as long as the worker lives.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use loch_fabric::{Buf, FabricError};

/// The interface by which a worker's owner drives it: turn after turn. The owner spins, yields or
/// sleeps in between as it sees fit.
pub trait Turns {
    /// Takes requests as far as lanes are free, and goes on with all requests that are under way.
    /// Waits for nothing. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The fabric's error if the worker's own memory cannot be reached: the worker is then of no
    /// use any more.
    fn turn(&mut self) -> Result<bool, FabricError>;
}

/// Lanes that are filled by `take` and run the future that `start` makes. Each lane gives its
/// buffer back.
pub(crate) struct Lanes<T, S, L> {
    take: T,
    start: S,
    /// A lane never moves once it is made, and serves one request after another: nothing is
    /// allocated.
    lanes: Vec<Pin<Box<Option<L>>>>,
    idle: Vec<usize>,
    buffers: Vec<Buf>,
}

impl<T, S, L> Lanes<T, S, L> {
    pub fn new(width: usize, take: T, start: S) -> Self {
        assert!(width > 0, "work needs at least one lane");
        Self {
            take,
            start,
            lanes: (0..width).map(|_| Box::pin(None)).collect(),
            idle: (0..width).collect(),
            buffers: Vec::new(),
        }
    }
}

impl<T, S, L, W> Turns for Lanes<T, S, L>
where
    T: FnMut(&mut Buf) -> Result<Option<W>, FabricError>,
    S: FnMut(W, Buf) -> L,
    L: Future<Output = Buf>,
{
    fn turn(&mut self) -> Result<bool, FabricError> {
        while let Some(lane) = self.idle.last().copied() {
            let mut message = self.buffers.pop().unwrap_or_default();
            let taken = (self.take)(&mut message);
            let Some(work) = taken? else {
                self.buffers.push(message);
                break;
            };
            self.idle.pop();
            self.lanes[lane].set(Some((self.start)(work, message)));
        }
        if self.idle.len() == self.lanes.len() {
            return Ok(false);
        }
        let mut cx = Context::from_waker(Waker::noop());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let Some(future) = lane.as_mut().as_pin_mut() else { continue };
            if let Poll::Ready(message) = future.poll(&mut cx) {
                lane.set(None);
                self.idle.push(number);
                self.buffers.push(message);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_lane_that_waits_holds_up_no_other() {
        let (mut left, stuck, done) = (10, Cell::new(true), Cell::new(0));
        let take = |_: &mut Buf| {
            left = u32::saturating_sub(left, 1);
            Ok((left > 0).then_some(left))
        };
        let (stuck, done) = (&stuck, &done);
        let start = |work, message| async move {
            std::future::poll_fn(|_| match work == 9 && stuck.get() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            })
            .await;
            done.set(done.get() + 1);
            message
        };
        let mut lanes = Lanes::new(2, take, start);
        for _ in 0..20 {
            assert_eq!(lanes.turn(), Ok(true));
        }
        assert_eq!(done.get(), 8);
        stuck.set(false);
        assert_eq!((lanes.turn(), lanes.turn()), (Ok(true), Ok(false)));
        assert_eq!(done.get(), 9);
    }
}
