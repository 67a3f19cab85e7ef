//! Waiting for memory to change.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The output of `future`, if it is ready within this many polls; otherwise the future is dropped.
pub async fn within<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use loch_fabric::lanes::block_on;

    use super::*;

    /// A future is polled once, and then as often as the limit allows.
    #[test]
    fn what_does_not_come_within_so_many_polls_is_dropped() {
        for polls in [0, 1, 5] {
            let polled = Cell::new(0);
            let ready_at = |last: u32| {
                polled.set(0);
                let polled = &polled;
                poll_fn(move |cx| {
                    polled.set(polled.get() + 1);
                    cx.waker().wake_by_ref();
                    if polled.get() == last { Poll::Ready("done") } else { Poll::Pending }
                })
            };
            assert_eq!(block_on(within(polls, ready_at(polls + 1))), Some("done"));
            assert_eq!(block_on(within(polls, ready_at(polls + 2))), None);
            assert_eq!(polled.get(), polls + 1);
        }
    }
}
