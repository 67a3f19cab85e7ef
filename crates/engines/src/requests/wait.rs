//! Waiting for memory to change.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use loch_fabric::Fabric;

/// How long a thread that has nothing else to do lets pass before it looks again, at most.
const BREATH_US: u64 = 1;

/// Lets the other lanes have a turn. Pending once; a thread without other lanes may be asked again
/// after a microsecond at most.
pub async fn breathe<F: Fabric>(fabric: &F) {
    let mut pause = pin!(fabric.pause(BREATH_US));
    let mut taken = false;
    poll_fn(|cx| {
        // The pause is asked but once, so that whoever sleeps for it is woken; it is not waited
        // for: whatever wakes the thread before is worth a look.
        if std::mem::replace(&mut taken, true) {
            return Poll::Ready(());
        }
        if pause.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

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
