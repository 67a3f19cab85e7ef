//! Lanes: the in-flight operations of one thread, polled round-robin.
//!
//! A fabric future is pending once after posting and ready when it is polled again after its verb
//! completed, so polling the lanes in turn *is* polling the completion queue. There are no wakers
//! and no queues, and no allocation per operation: a lane's next future is written into the place
//! of the future that ended.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Runs one future to its end on this thread, polling it.
///
/// ```
/// assert_eq!(loch_fabric::lanes::block_on(async { 7 }), 7);
/// ```
#[inline]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// Runs the futures that `work` yields, at most `width` at a time, and hands each output to `done`
/// as it ends (not in order).
///
/// ```
/// use loch_fabric::lanes::{block_on, run};
/// let mut sum = 0;
/// block_on(run(4, (0..10).map(|i| async move { i }), |i| sum += i));
/// assert_eq!(sum, 45);
/// ```
///
/// # Panics
/// If `width` is 0.
pub fn run<F, I, D>(width: usize, work: I, done: D) -> Lanes<F, I::IntoIter, D>
where
    F: Future,
    I: IntoIterator<Item = F>,
    D: FnMut(F::Output),
{
    assert!(width > 0, "work needs at least one lane");
    Lanes { lanes: Vec::new(), width, work: work.into_iter(), done, live: 0, exhausted: false }
}

/// The future of [`run`].
pub struct Lanes<F, I, D> {
    lanes: Vec<Pin<Box<Option<F>>>>,
    width: usize,
    work: I,
    done: D,
    live: usize,
    exhausted: bool,
}

impl<F, I, D> Lanes<F, I, D>
where
    F: Future,
    I: Iterator<Item = F>,
    D: FnMut(F::Output),
{
    fn fill(&mut self) {
        while !self.exhausted && self.lanes.len() < self.width {
            match self.work.next() {
                Some(future) => {
                    self.lanes.push(Box::pin(Some(future)));
                    self.live += 1;
                }
                None => self.exhausted = true,
            }
        }
    }

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.fill();
        for lane in &mut self.lanes {
            // A lane that ended starts its next operation in the same turn, so that its first verb
            // is posted before the other lanes' completions are taken.
            while let Some(future) = lane.as_mut().as_pin_mut() {
                let Poll::Ready(output) = future.poll(cx) else {
                    break;
                };
                (self.done)(output);
                let next = self.work.next();
                self.live -= next.is_none() as usize;
                lane.as_mut().set(next);
            }
        }
        if self.live == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

// A `Lanes` never pins what it holds inline: its futures are boxed, the rest is moved freely.
impl<F, I, D> Unpin for Lanes<F, I, D> {}

impl<F, I, D> Future for Lanes<F, I, D>
where
    F: Future,
    I: Iterator<Item = F>,
    D: FnMut(F::Output),
{
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_lanes(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Pending `n` times.
    async fn turns(n: usize) -> usize {
        let mut left = n;
        std::future::poll_fn(move |_| {
            if left == 0 {
                Poll::Ready(())
            } else {
                left -= 1;
                Poll::Pending
            }
        })
        .await;
        n
    }

    #[test]
    fn every_future_ends_and_the_width_is_kept() {
        let (live, most) = (Cell::new(0), Cell::new(0));
        let mut outputs = Vec::new();
        let work = (0..100).map(|i| {
            let (live, most) = (&live, &most);
            async move {
                live.set(live.get() + 1);
                most.set(most.get().max(live.get()));
                let n = turns(i % 7).await;
                live.set(live.get() - 1);
                (i, n)
            }
        });
        block_on(run(5, work, |o| outputs.push(o)));
        outputs.sort_unstable();
        assert_eq!(outputs, (0..100).map(|i| (i, i % 7)).collect::<Vec<_>>());
        assert_eq!(most.get(), 5);
    }

    #[test]
    fn no_work_is_ready_at_once() {
        block_on(run(3, std::iter::empty::<std::future::Ready<()>>(), |()| ()));
    }
}
