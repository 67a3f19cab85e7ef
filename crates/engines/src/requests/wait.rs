//! Waiting for memory to change.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What `future` comes to, if it does within so many polls; else it is dropped.
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
