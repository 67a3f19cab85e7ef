//! How a thread of an agent is given work by other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// How a thread is given work.
pub(super) struct Inbox {
    bell: OwnedFd,
    work: Mutex<Work>,
}

#[derive(Default)]
pub(super) struct Work {
    /// Connections that have come.
    pub sockets: Vec<OwnedFd>,
    /// Connections that are to have a turn.
    pub turns: Vec<u64>,
}

/// Gives a connection a turn.
pub(super) struct Waker {
    inbox: Arc<Inbox>,
    id: u64,
}

impl Waker {
    pub fn new(inbox: Arc<Inbox>, id: u64) -> Self {
        Self { inbox, id }
    }

    /// One that wakes nobody.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn of_nobody() -> Self {
        Self::new(Arc::new(Inbox::new().expect("there are descriptors")), 0)
    }

    pub fn wake(&self) {
        lock(&self.inbox.work).turns.push(self.id);
        self.inbox.ring();
    }
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, work: Mutex::default() })
    }

    /// What is readable when there is work.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn ring(&self) {
        // A bell that cannot count higher rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub fn give(&self, socket: OwnedFd) {
        lock(&self.work).sockets.push(socket);
        self.ring();
    }

    pub fn take(&self) -> Work {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.work))
    }
}

/// Locks. A panic leaves no state behind these locks half-changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
