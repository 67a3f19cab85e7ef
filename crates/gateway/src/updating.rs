//! The updates of a thread that are under way, so that those of one key do not disturb each other.
//!
//! An update reads an item and puts it if nobody has changed it meanwhile. The turns of a thread
//! run side by side: with a counter that all clients increment, each of them would make all others
//! begin again. So an update waits for a moment if the thread has one of the same key under way.
//! This is a courtesy: nothing depends on it, and if the other one takes long, as it does when a
//! node does not answer, both go on.

use std::cell::RefCell;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::task::Poll;
use std::time::Duration;

use quanta::Instant;

/// How long an update waits for others.
const PATIENCE: Duration = Duration::from_millis(20);

/// The keys of the updates that are under way, by their hashes.
#[derive(Debug, Default)]
pub(crate) struct Updating(RefCell<Vec<u64>>);

/// An update of a key is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    keys: &'a Updating,
    key: u64,
}

/// By which a thread knows a key for a while.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl Updating {
    /// Begins an update, after those of the key that the thread has begun before.
    pub async fn begin(&self, key: &[u8]) -> UnderWay<'_> {
        let key = hash_of(key);
        if self.0.borrow().contains(&key) {
            let began = Instant::now();
            poll_fn(|lanes| {
                if !self.0.borrow().contains(&key) || began.elapsed() > PATIENCE {
                    return Poll::Ready(());
                }
                lanes.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        self.0.borrow_mut().push(key);
        UnderWay { keys: self, key }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut keys = self.keys.0.borrow_mut();
        let at = keys.iter().position(|key| *key == self.key).expect("it was put there");
        keys.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn an_update_waits_for_one_of_the_same_key_but_not_for_long() {
        let updating = Updating::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut is_ready = |key: &[u8]| pin!(updating.begin(key)).as_mut().poll(&mut cx).is_ready();
        assert!(is_ready(b"k") && is_ready(b"k"), "the first one has ended");
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(first) = pin!(updating.begin(b"k")).as_mut().poll(&mut cx) else {
            panic!("nobody updates it")
        };
        let mut second = pin!(updating.begin(b"k"));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(pin!(updating.begin(b"other")).as_mut().poll(&mut cx).is_ready());
        std::thread::sleep(2 * PATIENCE);
        let Poll::Ready(second) = second.as_mut().poll(&mut cx) else { panic!("it goes on") };
        let mut third = pin!(updating.begin(b"k"));
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut cx).is_pending(), "the second one is under way");
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_ready());
        assert_eq!(*updating.0.borrow(), [0u64; 0]);
    }
}
