//! What the connections of a thread use: the table, and what the threads of a gateway share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use loch::{Cluster, RateLimit, ScanCursor, Usage};
use rustix::event::{EventfdFlags, eventfd};

use crate::clients::{Client, Clients};
use crate::copies::Copies;
use crate::cursors::Cursors;
use crate::figures::{Calls, Counters, Figures, add};
use crate::input::Pool;
use crate::limits::LANES;
use crate::load::Work;
use crate::looks::{Looks, Seen, Sight};
use crate::pace::Pace;
use crate::password::Password;
use crate::protocol::Protocol;
use crate::slowlog::Slowlog;
use crate::store::Store;
use crate::stream::{Listener, Stream};
use crate::uses::Uses;

/// What the threads of a gateway share.
pub(crate) struct Shared {
    pub cluster: Cluster,
    pub table: String,
    pub password: Option<Password>,
    pub listeners: Vec<(Listener, Protocol)>,
    /// Lines of the log that strangers cause.
    pub guesses: RateLimit,
    pub http_requests: RateLimit,
    pub clients: Clients,
    pub cursors: Cursors,
    pub threads: Vec<Mailbox>,
    pub started: Instant,
    pub is_stopping: AtomicBool,
    pub copies: Arc<Copies>,
    pub work: Arc<Work>,
    /// Whose turn it is to list many keys.
    pub lists: Arc<Work>,
    pub slowlog: Slowlog,
    pub uses: Uses,
    pub looks: Looks,
    /// Connections so far.
    pub accepted: AtomicUsize,
    /// The longest value of the table, and the bytes of its memory.
    pub value_bytes_max: u64,
    pub table_bytes: u64,
    /// Whether the table evicts.
    pub evicts: bool,
    /// When all keys are to be deleted, if a client has said so. The first thread does it.
    pub flushes: Mutex<Option<Instant>>,
}

impl Shared {
    /// Of a gateway that serves nobody.
    #[cfg(test)]
    pub fn for_test() -> Arc<Self> {
        Arc::new(Self {
            cluster: Cluster::embedded(Default::default()).unwrap(),
            table: "default".to_owned(),
            password: None,
            listeners: Vec::new(),
            clients: Clients::new(1),
            cursors: Default::default(),
            threads: vec![Mailbox::new().unwrap()],
            started: Instant::now(),
            is_stopping: false.into(),
            copies: Arc::default(),
            work: Arc::default(),
            guesses: RateLimit::default(),
            http_requests: RateLimit::default(),
            lists: Arc::default(),
            uses: Uses::default(),
            looks: Default::default(),
            slowlog: Slowlog::new(None),
            accepted: 0.into(),
            flushes: Default::default(),
            value_bytes_max: 1 << 20,
            table_bytes: 1 << 20,
            evicts: false,
        })
    }

    /// When all keys are to be deleted.
    pub fn flush_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes all keys at that moment, and not at the one that was wanted before.
    pub fn flush_later(&self, at: Option<Instant>) {
        *self.flush_at() = at;
        self.threads[0].wake();
    }

    /// A counter of all threads.
    pub fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let threads = self.threads.iter();
        threads.map(|thread| counter(&thread.figures.counters).load(Ordering::Relaxed)).sum()
    }

    /// Calls of all threads, by command.
    pub fn calls(&self) -> BTreeMap<&'static str, Calls> {
        let mut all = BTreeMap::new();
        self.threads.iter().for_each(|thread| thread.figures.add_calls(&mut all));
        all
    }
}

/// A connection, the addresses of its client and of the listener, and what the client speaks.
pub(crate) type New = (Stream, String, String, Protocol);

/// Where a thread gets connections from others, and its figures.
#[derive(Debug)]
pub(crate) struct Mailbox {
    new: Mutex<Vec<New>>,
    wakes: OwnedFd,
    pub figures: Figures,
}

impl Mailbox {
    pub fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { new: Mutex::default(), wakes, figures: Figures::default() })
    }

    fn new_ones(&self) -> MutexGuard<'_, Vec<New>> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the thread a connection.
    pub fn give(&self, new: New) {
        self.new_ones().push(new);
        self.wake();
    }

    /// Takes the connections that were handed over since the last time.
    pub fn take(&self) -> Vec<New> {
        // Nothing to read is no harm.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        std::mem::take(&mut *self.new_ones())
    }

    /// Wakes the thread, so that it looks what there is.
    pub fn wake(&self) {
        // If the counter is full, the thread wakes anyway.
        let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

/// What the connections of a thread use.
pub(crate) struct Context<'t> {
    pub shared: &'t Arc<Shared>,
    pub store: Store<'t>,
    thread: usize,
    pool: Pool,
    outputs: RefCell<Vec<Vec<u8>>>,
    /// Each reservation of the thread has one more.
    pub reservations: Rc<()>,
    /// Where the last random key was found.
    pub random: RefCell<ScanCursor>,
}

impl<'t> Context<'t> {
    pub fn new(shared: &'t Arc<Shared>, store: Store<'t>, thread: usize) -> Self {
        let (pool, outputs) = (Pool::default(), RefCell::default());
        let (reservations, random) = (Rc::default(), RefCell::default());
        Self { shared, store, thread, pool, outputs, reservations, random }
    }

    /// A client has given a wrong password.
    pub fn has_guessed(&self, client: &Client) {
        add(&self.figures().counters.wrong_passwords, 1);
        if let Some(unsaid) = self.shared.guesses.due(Instant::now()) {
            tracing::warn!(client = client.address, unsaid, "a client has given a wrong password");
        }
    }

    /// Whether the gateway stops.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    /// How the thread's turns share its time.
    pub fn pace(&self) -> &'t Pace {
        &self.store.load().pace
    }

    pub fn thread(&self) -> usize {
        self.thread
    }

    pub fn figures(&self) -> &'t Figures {
        &self.shared.threads[self.thread].figures
    }

    /// What a look at the table brings: how its memory is used, or how many keys it has.
    pub async fn look<T: Sight>(&self) -> loch::Result<Seen<T>> {
        self.shared.looks.ask(self.thread, || self.pace().rest()).await
    }

    /// What Redis calls that which the table does when it is full.
    pub fn policy(&self) -> &'static str {
        if self.shared.evicts { "allkeys-lru" } else { "noeviction" }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn take_output(&self) -> Vec<u8> {
        self.outputs.borrow_mut().pop().unwrap_or_default()
    }

    pub fn keep_output(&self, output: Vec<u8>) {
        let mut outputs = self.outputs.borrow_mut();
        if outputs.len() < LANES && output.capacity() <= 4 * crate::limits::BATCH_BYTES {
            outputs.push(output);
        }
    }
}

/// How many values the table has evicted, and how many have expired.
pub(crate) fn forgotten(usage: &[Usage]) -> (u64, u64) {
    let classes = usage.iter().flat_map(|node| node.forgotten.iter().flatten());
    let sum = |(evicted, expired), class: &loch::ForgottenOf| {
        (evicted + class.evicted, expired + class.expired)
    };
    classes.fold((0, 0), sum)
}
