//! How a client reaches the memory and the workers of its table: the part that the caller who opens
//! a table provides to every engine.

use loch_fabric::{Fabric, Messages, RemoteAddr, UnreliableWrites};

use crate::epoch::Session;
use crate::requests::Timing;

/// A network: the types of its clients' endpoints.
pub trait Net: Sized + 'static {
    /// The endpoint of a client that works alone.
    type Direct: Fabric;
    /// The endpoint of a client that asks workers. It waits for replies in a way that suits the
    /// network, and can send and receive messages.
    type Waiting: Fabric + Messages + UnreliableWrites;

    /// The direct endpoint inside a waiting endpoint.
    fn direct(waiting: &Self::Waiting) -> &Self::Direct;
}

/// Makes one endpoint. The engine chooses its kind.
pub trait Connect<N: Net> {
    /// The error if the endpoint cannot be made.
    type Error;

    /// An endpoint for a client that works alone.
    ///
    /// # Errors
    /// The network's errors.
    fn direct(self) -> Result<N::Direct, Self::Error>;

    /// An endpoint for a client that asks workers. If replies are messages, they arrive in the
    /// mailbox at `mailbox`.
    ///
    /// # Errors
    /// The network's errors.
    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<N::Waiting, Self::Error>;
}

/// A client's access to a table: its session and its limits.
#[derive(Debug)]
pub struct Access {
    /// The client's session, perhaps an observer's.
    pub session: Session,
    /// The node that gave the session.
    pub node: u16,
    /// How long the client waits for a reply.
    pub timing: Timing,
    /// How much the client caches, if its engine caches at all.
    pub cache: CacheLimits,
    /// The most operations that the client packs into one request, if its engine packs them.
    pub batch: usize,
}

/// How much a cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// The number of lines, rounded up to a power of two.
    pub lines: usize,
    /// Entries up to this length are cached whole. Of longer entries only the place is cached.
    pub entry_bytes_max: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { lines: 1 << 14, entry_bytes_max: 1024 }
    }
}
