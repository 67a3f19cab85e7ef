//! A word that is stored when verbs have settled, although their thread does nothing any more.
//!
//! A thread moves its verbs on while it waits for them. If it drops the future of an operation and
//! then turns to other things, nobody takes the answers. One thread of the process does that for
//! all endpoints that were left so, until their verbs have settled; then it stores the word.
//!
//! # Invariants
//! 1. The word is stored under the lock of its [`Later`], so that it is not stored any more once
//!    the endpoint has taken it back, or is gone.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::Carrier;
use crate::networks;
use crate::shm::Region;
use crate::sync::Ordering;

/// The pause between two looks at the endpoints that were left, at first and at most.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A word that is to be stored in a mapped region.
struct Word {
    /// The mark up to which verbs must have settled.
    mark: u64,
    region: Arc<Region>,
    offset: u64,
    value: u64,
}

#[derive(Default)]
struct State {
    word: Option<Word>,
    is_watched: bool,
}

/// The word that an endpoint leaves to be stored later, if there is one.
#[derive(Clone, Default)]
pub(super) struct Later(Arc<Mutex<State>>);

impl Later {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a word, which is stored when the carrier's verbs before `mark` have settled.
    pub fn leave<C: Carrier + 'static>(
        &self,
        carrier: &Arc<Mutex<C>>,
        mark: u64,
        (region, offset): (Arc<Region>, u64),
        value: u64,
    ) {
        let mut state = self.state();
        state.word = Some(Word { mark, region, offset, value });
        if !std::mem::replace(&mut state.is_watched, true) {
            let left = Left { carrier: Arc::downgrade(carrier), later: self.clone() };
            watch(Box::new(move || left.is_over()));
        }
    }

    /// Takes the word back. When this returns, it was stored, or never will be.
    pub fn take_back(&self) {
        self.state().word = None;
    }
}

/// An endpoint that was left.
struct Left<C> {
    carrier: Weak<Mutex<C>>,
    later: Later,
}

impl<C: Carrier> Left<C> {
    /// Moves the endpoint's verbs on. Returns whether there is nothing to wait for any more.
    fn is_over(&self) -> bool {
        let mut state = self.later.state();
        let is_settled = |word: &mut Word| {
            let Some(carrier) = self.carrier.upgrade() else { return true };
            let mut carrier = carrier.lock().unwrap_or_else(PoisonError::into_inner);
            carrier.progress(false);
            if !carrier.is_settled(word.mark) {
                return false;
            }
            // All that the endpoint's thread has stored comes before: it has left the word under
            // the same lock.
            word.region.word(word.offset).store(word.value, Ordering::Release);
            true
        };
        let is_over = state.word.as_mut().is_none_or(is_settled);
        if is_over {
            *state = State::default();
        }
        is_over
    }
}

type IsOver = Box<dyn FnMut() -> bool + Send>;

/// Has the thread that looks after endpoints look after one more.
fn watch(is_over: IsOver) {
    static WATCHER: OnceLock<Sender<IsOver>> = OnceLock::new();
    let watcher = WATCHER.get_or_init(|| {
        let (sender, receiver) = channel();
        let named = std::thread::Builder::new().name("loch-settle".into());
        // Without the thread, a word is stored when its endpoint is used again.
        _ = named.spawn(move || run(&receiver));
        sender
    });
    _ = watcher.send(is_over);
}

fn run(receiver: &Receiver<IsOver>) {
    let (mut watched, mut pause) = (Vec::<IsOver>::new(), PAUSE);
    loop {
        let next = match watched.is_empty() {
            true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receiver.recv_timeout(pause),
        };
        match next {
            Ok(is_over) => {
                watched.push(is_over);
                pause = PAUSE;
            }
            Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(PAUSE_MAX),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        watched.retain_mut(|is_over| !is_over());
        // What this thread has queued leaves now.
        networks::after_lanes();
    }
}
