//! The clients that are connected to a gateway.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is known of a client.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: u64,
    pub address: String,
    pub local: String,
    pub since: Instant,
    /// The time of the last request, in seconds since the client came.
    pub last_s: AtomicU64,
    /// Whether somebody wants it to be gone.
    is_killed: AtomicBool,
    /// The thread that serves it.
    pub thread: usize,
    pub said: Mutex<Said>,
}

/// What a client has said of itself, and its last command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub name: String,
    pub library: String,
    pub library_version: String,
    pub command: &'static str,
    pub resp: u8,
}

impl Client {
    pub fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::Release);
    }

    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }
}

/// All clients, of all threads.
#[derive(Debug)]
pub(crate) struct Clients {
    /// How many there can be.
    pub most: usize,
    last: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
}

impl Clients {
    pub fn new(most: usize) -> Self {
        Self { most, last: AtomicU64::new(0), all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new client, unless there are too many.
    pub fn enter(&self, address: String, local: String, thread: usize) -> Option<Arc<Client>> {
        let mut all = self.all();
        if all.len() >= self.most {
            return None;
        }
        let client = Arc::new(Client {
            id: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            address,
            local,
            since: Instant::now(),
            last_s: AtomicU64::new(0),
            is_killed: AtomicBool::new(false),
            thread,
            said: Mutex::default(),
        });
        all.insert(client.id, Arc::clone(&client));
        Some(client)
    }

    pub fn leave(&self, id: u64) {
        self.all().remove(&id);
    }

    pub fn count(&self) -> usize {
        self.all().len()
    }

    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all().values().cloned().collect()
    }
}
