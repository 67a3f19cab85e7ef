//! A word that is stored when verbs have settled, although their thread does nothing any more.
//!
//! A thread moves its verbs on while it waits for them. If it drops the future of an operation and
//! then turns to other things, nobody takes the answers. One thread of the process does that for
//! all endpoints that were left so, until their verbs have settled; then it stores the word.
//!
//! # Invariants
//! 1. The word is stored under the lock of its [`Later`], so that it is not stored any more once
//!    the endpoint has taken it back, or is gone.
//! 2. A child that was forked inherits endpoints, but neither the thread nor the words: it leaves
//!    and takes back nothing of its parent's, and waits for no lock that the parent's thread may
//!    have held. For its own endpoints it has a thread of its own.

use std::ptr::null_mut;
// Not loom's: a fork takes part.
use std::sync::atomic::AtomicPtr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::{Away, Carrier};
use crate::shm::{Region, ShmEndpoint};
use crate::sync::Ordering;
use crate::{ForkMark, networks};

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

/// Makes broken connections again, without waiting.
pub(super) type Mend = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    word: Option<Word>,
    is_watched: bool,
    mend: Option<Mend>,
}

/// The word that an endpoint leaves to be stored later, if there is one.
#[derive(Clone)]
pub(super) struct Later {
    state: Arc<Mutex<State>>,
    /// `None`: the process cannot tell its children, so no word is left.
    mark: Option<ForkMark>,
}

impl Later {
    pub fn new() -> Self {
        Self { state: Arc::default(), mark: ForkMark::new().ok() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process may leave words (invariant 2).
    fn is_own(&self) -> bool {
        self.mark.is_some_and(|mark| !mark.is_inherited())
    }

    /// Leaves a word, which is stored when the verbs have settled that the carrier has posted so
    /// far.
    pub fn leave<C: Carrier + 'static>(
        &self,
        carrier: &Arc<Mutex<C>>,
        (region, offset): (Arc<Region>, u64),
        value: u64,
    ) {
        if !self.is_own() {
            return;
        }
        let mark = carrier.lock().unwrap_or_else(PoisonError::into_inner).posted();
        let mut state = self.state();
        state.word = Some(Word { mark, region, offset, value });
        if !state.is_watched {
            let left = Left { carrier: Arc::downgrade(carrier), later: self.clone() };
            // Without the thread, the word is stored when the endpoint is used again.
            state.is_watched = watch(Box::new(move || left.is_over()));
        }
    }

    /// Until the verbs of a word have settled, `mend` is called now and then: verbs of unknown
    /// outcome do not settle before their connection is made again.
    pub fn mend_by(&self, mend: Mend) {
        self.state().mend = Some(mend);
    }

    /// Takes the word back. When this returns, it was stored, or never will be.
    pub fn take_back(&self) {
        if self.is_own() {
            self.state().word = None;
        }
    }

    /// Takes the word back for good: the endpoint is gone.
    pub fn end(&self) {
        if self.is_own() {
            let mut state = self.state();
            (state.word, state.mend) = (None, None);
        }
    }
}

impl<C: Carrier + 'static> Away<C> {
    /// While a word is left to be stored, another thread calls `mend` now and then, with an
    /// endpoint over the same carrier.
    pub fn mend_by(&self, mend: impl Fn(Self) + Send + Sync + 'static) {
        let (home, carrier) = (self.home, Arc::downgrade(&self.carrier));
        let region = self.local.region(home).expect("the home region is mapped").clone();
        self.later.mend_by(Arc::new(move || {
            let Some(carrier) = carrier.upgrade() else { return };
            let mut local = ShmEndpoint::new(home);
            local.attach(home, region.clone());
            mend(Self::new(local, home, carrier));
        }));
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
        let state = self.later.state();
        let mend = state.mend.clone().filter(|_| state.word.is_some());
        // The endpoint's thread does not wait for it.
        drop(state);
        if let Some(mend) = mend {
            mend();
        }
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
            (state.word, state.is_watched) = (None, false);
        }
        is_over
    }
}

type IsOver = Box<dyn FnMut() -> bool + Send>;

/// The thread that looks after endpoints, as the process knows it that has started it.
struct Watcher {
    mark: ForkMark,
    sender: Sender<IsOver>,
}

impl Watcher {
    /// The watcher of this process, which is never dropped. It was inherited, or its thread has
    /// ended, if it is the `useless` one: then another takes its place. `None` if there can be no
    /// thread.
    fn get(useless: Option<&'static Self>) -> Option<&'static Self> {
        static WATCHER: AtomicPtr<Watcher> = AtomicPtr::new(null_mut());
        let current = WATCHER.load(Ordering::Acquire);
        // SAFETY: a watcher is complete before it is in `WATCHER`, and is never freed from then on.
        let known = unsafe { current.as_ref() };
        let is_useless = |it: &Self| useless.is_some_and(|useless| std::ptr::eq(it, useless));
        if let Some(known) = known.filter(|it| !it.mark.is_inherited() && !is_useless(it)) {
            return Some(known);
        }
        let fresh = Box::new(Self::start()?);
        let fresh = Box::into_raw(fresh);
        let set = WATCHER.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: as above for what another thread has set. If that happened, nobody else has been
        // given `fresh`, and its thread ends with its sender.
        unsafe {
            let Err(first) = set else { return fresh.as_ref() };
            drop(Box::from_raw(fresh));
            first.as_ref()
        }
    }

    fn start() -> Option<Self> {
        let (mark, (sender, receiver)) = (ForkMark::new().ok()?, channel());
        let named = std::thread::Builder::new().name("loch-settle".into());
        named.spawn(move || run(&receiver)).ok()?;
        Some(Self { mark, sender })
    }
}

/// Has the thread that looks after endpoints look after one more. Returns whether there is such a
/// thread.
fn watch(is_over: IsOver) -> bool {
    let Some(watcher) = Watcher::get(None) else { return false };
    let Err(refused) = watcher.sender.send(is_over) else { return true };
    let other = Watcher::get(Some(watcher));
    other.is_some_and(|other| other.sender.send(refused.0).is_ok())
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::fork::tests::in_child;

    /// Notes that it was looked at.
    fn seen(has_looked: &Arc<AtomicBool>) -> IsOver {
        let has_looked = has_looked.clone();
        Box::new(move || {
            has_looked.store(true, Ordering::Release);
            true
        })
    }

    fn is_looked_after() -> bool {
        let has_looked = Arc::default();
        assert!(watch(seen(&has_looked)));
        while !has_looked.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        true
    }

    /// The child has the parent's channel, and no thread at its other end.
    #[test]
    fn a_child_has_a_thread_of_its_own() {
        assert!(is_looked_after());
        assert_eq!(in_child(|| is_looked_after().into()), 1);
        assert!(is_looked_after());
    }

    /// The parent's thread holds the lock when the process is forked, and in the child nobody ever
    /// gives it back.
    #[test]
    fn a_child_takes_back_nothing_of_its_parents() {
        let later = Later::new();
        let held = later.state();
        let inherited = later.clone();
        assert_eq!(in_child(|| (inherited.take_back(), 0).1), 0);
        drop(held);
        let region = Arc::new(Region::anonymous(4096).unwrap());
        later.state().word = Some(Word { mark: 0, region, offset: 0, value: 1 });
        assert_eq!(
            in_child(|| (inherited.take_back(), inherited.state().word.is_some().into()).1),
            1
        );
        later.take_back();
        assert!(later.state().word.is_none());
    }
}
