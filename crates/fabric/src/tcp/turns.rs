//! How a thread that drives connections is told to give one a turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// The connections of one thread that are to have a turn, and what wakes the thread.
pub(super) struct Turns {
    bell: OwnedFd,
    places: Mutex<Vec<usize>>,
}

/// Gives a connection a turn.
pub(super) struct Waker {
    turns: Arc<Turns>,
    place: usize,
}

impl Waker {
    pub fn new(turns: Arc<Turns>, place: usize) -> Self {
        Self { turns, place }
    }

    pub fn wake(&self) {
        lock(&self.turns.places).push(self.place);
        self.turns.ring();
    }
}

impl Turns {
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, places: Mutex::default() })
    }

    /// The descriptor that is readable when there is work.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn ring(&self) {
        // A bell that cannot count higher rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes the connections, before the thread looks for other work.
    pub fn take(&self) -> Vec<usize> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.places))
    }
}

/// Locks. A panic leaves no state behind these locks half-changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
