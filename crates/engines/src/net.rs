//! How a client reaches the memory and the workers of its table: what the caller who opens a table
//! brings, and every engine takes.

use loch_fabric::{Fabric, Messages, RemoteAddr, UnreliableWrites};

use crate::epoch::Session;
use crate::requests::Timing;

/// A network: the endpoints of its clients.
pub trait Net: Sized + 'static {
    /// Of a client that works alone.
    type Direct: Fabric;
    /// Of a client that asks workers: it waits for them in a way that suits the network, and can
    /// have messages.
    type Waiting: Fabric + Messages + UnreliableWrites;

    /// The endpoint under one that waits.
    fn direct(waiting: &Self::Waiting) -> &Self::Direct;
}

/// One endpoint, not yet made: an engine says which kind it needs.
pub trait Connect<N: Net> {
    /// Why there is none.
    type Error;

    /// An endpoint for a client that works alone.
    ///
    /// # Errors
    /// The network's.
    fn direct(self) -> Result<N::Direct, Self::Error>;

    /// An endpoint for a client that asks workers. Their replies arrive in the mailbox at
    /// `mailbox`, if they are messages.
    ///
    /// # Errors
    /// The network's.
    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<N::Waiting, Self::Error>;
}

/// As whom, and how, a client has access to a table.
#[derive(Debug)]
pub struct Access {
    /// Its session, perhaps an observer's.
    pub session: Session,
    /// How long it waits.
    pub timing: Timing,
    /// How much it caches, where its engine caches at all.
    pub cache: CacheLimits,
    /// Operations that it packs into one request, at most, where its engine packs them.
    pub batch: usize,
}

/// How much a cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Lines; rounded up to a power of two.
    pub lines: usize,
    /// Entries up to this length are kept whole, of longer ones only where they are.
    pub entry_bytes_max: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { lines: 1 << 14, entry_bytes_max: 1024 }
    }
}
