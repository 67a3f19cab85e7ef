//! The memory that a gateway gives to its clients, by what it is for. Each account has a bound,
//! and what is on it is given back when its owner is dropped, wherever that happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::limits::{HELD_BYTES_MAX, READ_BYTES, REQUEST_FREE_BYTES, REQUESTS_BYTES_MAX};

/// Bytes of one kind, of all threads.
#[derive(Debug, Default)]
pub(crate) struct Account(AtomicUsize);

impl Account {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes on an account that are one owner's.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    bytes: usize,
}

impl Share {
    pub fn of(account: &Arc<Account>) -> Self {
        Self { account: Arc::clone(account), bytes: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes so many more, if there are `most` on the account at most then.
    #[must_use]
    pub fn grow(&mut self, more: usize, most: usize) -> bool {
        let fits = |now: usize| (now + more <= most).then_some(now + more);
        let order = Ordering::Relaxed;
        let has_room = self.account.0.fetch_update(order, order, fits).is_ok();
        self.bytes += if has_room { more } else { 0 };
        has_room
    }

    /// Has so many from now on, whether or not there is room for them.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.account.0.fetch_add(bytes, Ordering::Relaxed);
            self.account.0.fetch_sub(self.bytes, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Whoever waits says so again within this time.
const WANTED_MS: u64 = 1000;

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

/// The accounts of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// What is kept for slow clients. Without room for it a client would only be slower.
    pub kept: Arc<Account>,
    /// Other answers that clients have not taken, which are nowhere else.
    pub held: Arc<Account>,
    /// Requests of which a part has come, with what is still to come of them.
    pub asked: Arc<Account>,
    /// When somebody found no room on it last, in milliseconds since 1970.
    wanted_ms: AtomicU64,
    /// Commands and watched keys of transactions that are not executed yet.
    pub queued: Arc<Account>,
}

impl Copies {
    /// Bytes that are kept for slow clients now.
    pub fn bytes(&self) -> u64 {
        (self.kept.bytes() + self.held.bytes()) as u64
    }

    /// Takes memory for all of a request that is known, if there is enough or nobody else has any.
    /// Returns whether it did.
    pub fn ask(&self, share: &mut Share, bytes: usize) -> bool {
        let more = bytes.saturating_sub(share.bytes());
        if more == 0 || share.grow(more, REQUESTS_BYTES_MAX) {
            return true;
        }
        let is_alone = self.asked.bytes() == share.bytes();
        match is_alone {
            true => share.set(bytes),
            false => self.wanted_ms.store(now_ms(), Ordering::Relaxed),
        }
        is_alone
    }

    /// How much is read of a connection at a time.
    pub fn read_bytes(&self) -> usize {
        match self.asked.bytes() < REQUESTS_BYTES_MAX {
            true => READ_BYTES,
            false => REQUEST_FREE_BYTES,
        }
    }

    /// Whether somebody waits for memory for a request.
    pub fn is_wanted(&self) -> bool {
        now_ms() < self.wanted_ms.load(Ordering::Relaxed) + WANTED_MS
    }

    /// Whether a command may be executed whose answer may have to be held.
    pub fn may_hold(&self) -> bool {
        self.held.bytes() < HELD_BYTES_MAX
    }
}
