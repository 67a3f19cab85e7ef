//! The clients that are connected to a gateway.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::STRANGERS_PART;

/// What is known of a client.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: u64,
    pub address: String,
    pub local: String,
    pub since: Instant,
    /// The time of the last request, in seconds since the client came.
    pub last_s: AtomicU64,
    /// The time at which it took answers last, in milliseconds since it came.
    took_ms: AtomicU64,
    /// Whether it has to give the password first.
    is_stranger: AtomicBool,
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

    /// It has taken answers.
    pub fn took(&self) {
        self.took_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// When it took answers last, if it ever did.
    pub fn took_at(&self) -> Instant {
        self.since + Duration::from_millis(self.took_ms.load(Ordering::Relaxed))
    }

    pub fn is_stranger(&self) -> bool {
        self.is_stranger.load(Ordering::Relaxed)
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
    /// How many of them have to give the password first.
    strangers: AtomicUsize,
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
}

impl Clients {
    pub fn new(most: usize) -> Self {
        let (last, strangers) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self { most, last, strangers, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new client, unless there are too many, or it is a stranger and there are too many of them.
    pub fn enter(
        &self,
        address: String,
        local: String,
        thread: usize,
        is_stranger: bool,
    ) -> Option<Arc<Client>> {
        let mut all = self.all();
        let strangers = self.strangers.load(Ordering::Relaxed);
        let strangers_most = self.most.div_ceil(STRANGERS_PART);
        if all.len() >= self.most || is_stranger && strangers >= strangers_most {
            return None;
        }
        self.strangers.fetch_add(is_stranger.into(), Ordering::Relaxed);
        let client = Arc::new(Client {
            id: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            address,
            local,
            since: Instant::now(),
            last_s: AtomicU64::new(0),
            took_ms: AtomicU64::new(0),
            is_stranger: AtomicBool::new(is_stranger),
            is_killed: AtomicBool::new(false),
            thread,
            said: Mutex::default(),
        });
        all.insert(client.id, Arc::clone(&client));
        Some(client)
    }

    /// A client has given the password.
    pub fn knows(&self, client: &Client) {
        if client.is_stranger.swap(false, Ordering::Relaxed) {
            self.strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn leave(&self, client: &Client) {
        self.knows(client);
        self.all().remove(&client.id);
    }

    pub fn count(&self) -> usize {
        self.all().len()
    }

    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_a_part_of_the_places_and_leave_the_others_to_those_who_are_known() {
        let clients = Clients::new(8);
        let enter = |is_stranger| clients.enter(String::new(), String::new(), 0, is_stranger);
        let first = enter(true).unwrap();
        let second = enter(true).unwrap();
        assert!(enter(true).is_none());
        clients.knows(&first);
        clients.knows(&first);
        let third = enter(true).unwrap();
        assert!(enter(true).is_none());
        let known: Vec<_> = (0..5).map(|_| enter(false).unwrap()).collect();
        assert!(enter(false).is_none());
        [second, third, first].iter().for_each(|client| clients.leave(client));
        assert!(enter(true).is_some() && enter(true).is_some() && enter(true).is_none());
        assert_eq!(clients.count(), known.len() + 2);
    }
}
