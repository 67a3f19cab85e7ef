//! The memory and the time that the commands of a gateway take from each other.
//!
//! A command that works on a long value needs memory for copies of it. It gets that before it makes
//! the first one, when those who came before have theirs. A command that needs more than there is
//! for all gets it when nobody else has any, so each one goes on some time.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::copies::Copies;
use crate::limits::{LONG_BYTES, LONGS_MAX, WORK_BYTES_MAX};
use crate::pace::Pace;
use crate::updating::{Updating, hash_of};

/// The load of a thread.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub updating: Updating,
    pub pace: Pace,
    pub longs: Longs,
    pub work: Arc<Work>,
    pub copies: Arc<Copies>,
}

impl Load {
    pub fn new(work: &Arc<Work>, copies: &Arc<Copies>) -> Self {
        let (work, copies) = (Arc::clone(work), Arc::clone(copies));
        Self { work, copies, ..Self::default() }
    }

    /// Waits for memory, as [`Work::take`] does. The turn takes no room from others meanwhile.
    pub async fn take(&self, bytes: usize) -> Grant {
        let _parked = self.pace.park();
        self.work.take(bytes).await
    }
}

/// Keys whose values are long, as a thread has seen them, by their hashes: so it knows before it
/// reads a value that this takes long. A value that it does not know costs it one long step.
#[derive(Debug, Default)]
pub(crate) struct Longs {
    known: RefCell<HashMap<u64, usize>>,
}

impl Longs {
    /// The length of a key's value, if it is long.
    pub fn len(&self, key: &[u8]) -> Option<usize> {
        let known = self.known.borrow();
        // Most threads see short values only.
        (!known.is_empty()).then(|| known.get(&hash_of(key)).copied()).flatten()
    }

    /// A key's value has this length now.
    pub fn note(&self, key: &[u8], len: usize) {
        let mut known = self.known.borrow_mut();
        if len < LONG_BYTES {
            if !known.is_empty() {
                known.remove(&hash_of(key));
            }
            return;
        }
        if known.len() == LONGS_MAX {
            known.clear();
        }
        known.insert(hash_of(key), len);
    }
}

/// Memory for values that commands work on, of all threads.
#[derive(Debug, Default)]
pub(crate) struct Work(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    granted: usize,
    last: u64,
    waiting: VecDeque<u64>,
}

/// Bytes that are a command's until this is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    work: Arc<Work>,
    bytes: usize,
}

/// A command that waits.
struct Place<'a> {
    work: &'a Work,
    number: Option<u64>,
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that commands have now.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.state().granted
    }

    /// Has memory for what is there already, also if there is not so much: those who come later
    /// wait for it.
    pub fn have(self: &Arc<Self>, bytes: usize) -> Grant {
        self.state().granted += bytes;
        Grant { work: Arc::clone(self), bytes }
    }

    /// Waits for memory. A command that waits has none: otherwise all could wait for each other.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Grant {
        let mut place = Place { work: self, number: None };
        poll_fn(|lanes| {
            let state = &mut *self.state();
            let is_first = match place.number {
                None => state.waiting.is_empty(),
                number => state.waiting.front().copied() == number,
            };
            if is_first && (state.granted == 0 || state.granted + bytes <= WORK_BYTES_MAX) {
                if place.number.take().is_some() {
                    state.waiting.pop_front();
                }
                state.granted += bytes;
                return Poll::Ready(());
            }
            if place.number.is_none() {
                state.last += 1;
                place.number = Some(state.last);
                state.waiting.push_back(state.last);
            }
            lanes.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        Grant { work: Arc::clone(self), bytes }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.work.state().waiting.retain(|waiting| *waiting != number);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.work.state().granted -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn memory_is_granted_in_order_within_its_bound_and_one_alone_gets_any() {
        let work = Arc::new(Work::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut asked = [WORK_BYTES_MAX * 2, WORK_BYTES_MAX / 2, 1, WORK_BYTES_MAX, 7]
            .map(|bytes| Some(Box::pin(work.take(bytes))));
        let mut granted = Vec::new();
        let mut poll = |number: usize| {
            let future = asked[number].as_mut().unwrap();
            let Poll::Ready(grant) = future.as_mut().poll(&mut cx) else { return None };
            asked[number] = None;
            Some(grant)
        };
        let alone = poll(0).expect("nobody has any");
        assert!((1..5).all(|number| poll(number).is_none()));
        drop(alone);
        assert!(poll(2).is_none(), "it is not its turn");
        granted.extend([poll(1), poll(2)].into_iter().map(Option::unwrap));
        assert!(poll(3).is_none(), "there is too little");
        assert!(poll(4).is_none(), "it would overtake");
        // One that is given up holds up nobody.
        asked[3] = None;
        let mut last = asked[4].take().unwrap();
        assert!(last.as_mut().poll(&mut cx).is_ready());
        granted.clear();
        assert_eq!(work.bytes(), 0);
    }

    #[test]
    fn a_turn_that_waits_for_memory_takes_no_room_from_others() {
        let load = Load::default();
        let mut cx = Context::from_waker(Waker::noop());
        let all = load.work.have(WORK_BYTES_MAX);
        let mut waiting = [1, 2].map(|bytes| Some(Box::pin(load.take(bytes))));
        assert_eq!(load.pace.waiting(), 0);
        for waiting in waiting.iter_mut().flatten() {
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(load.pace.waiting(), 2);
        // One is given up.
        waiting[0] = None;
        assert_eq!(load.pace.waiting(), 1);
        drop(all);
        let granted = waiting[1].as_mut().unwrap().as_mut().poll(&mut cx);
        assert!(granted.is_ready() && load.pace.waiting() == 0);
    }
}
