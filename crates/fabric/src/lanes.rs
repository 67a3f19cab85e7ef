//! Lanes: the in-flight operations of one thread, polled round-robin.
//!
//! A fabric future is pending once after posting and ready when it is polled again after its verb
//! completed, so polling the lanes in turn *is* polling the completion queue. There are no queues
//! and no allocation per operation: a lane's next future is written into the place of the future
//! that ended. A waker tells a thread only that a lane has work, so that it must not sleep.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::shm::parking;

/// Runs one future to its end on this thread, polling it. While all of its lanes wait for other
/// threads ([`Fabric::poll_wait`](crate::Fabric::poll_wait)), this thread yields its core, and then
/// sleeps.
///
/// ```
/// assert_eq!(loch_fabric::lanes::block_on(async { 7 }), 7);
/// ```
#[inline]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(parking::waker());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            parking::after_lanes();
            return output;
        }
        parking::after_round();
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
        let mut has_ended = false;
        for lane in &mut self.lanes {
            // A lane that ended starts its next operation in the same turn, so that its first verb
            // is posted before the other lanes' completions are taken.
            while let Some(future) = lane.as_mut().as_pin_mut() {
                let Poll::Ready(output) = future.poll(cx) else {
                    break;
                };
                (self.done)(output);
                has_ended = true;
                let next = self.work.next();
                self.live -= next.is_none() as usize;
                lane.as_mut().set(next);
            }
        }
        if self.live == 0 {
            return Poll::Ready(());
        }
        // Other lanes may wait for a lane that has ended.
        if has_ended {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

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

    /// Counts how often it was called.
    #[derive(Default)]
    struct Calls(AtomicU32);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Another lane may wait for a lane that has ended, without calling its own waker.
    #[test]
    fn a_lane_that_ends_keeps_its_thread_awake() {
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(calls.clone());
        let mut lanes = run(2, [1, 3].map(turns), |_| ());
        let called = [0, 1, 1, 1].map(|calls_so_far| {
            let polled = Pin::new(&mut lanes).poll(&mut Context::from_waker(&waker));
            (polled.is_ready(), calls.0.load(Ordering::Relaxed) == calls_so_far)
        });
        assert_eq!(called, [(false, true), (false, true), (false, true), (true, true)]);
    }

    #[test]
    fn no_work_is_ready_at_once() {
        block_on(run(3, std::iter::empty::<std::future::Ready<()>>(), |()| ()));
    }
}
