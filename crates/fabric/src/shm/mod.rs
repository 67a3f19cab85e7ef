//! The fabric of one host: regions are files in shared memory, a READ is a copy, an atomic is a CPU
//! atomic. No process serves verbs. Messages go through mailboxes in regions (`messages.rs`).
//!
//! **Posting prefetches, completing copies.** A posted READ prefetches its cache lines and is
//! pending once; the copy happens when the lane is polled next, after the other lanes had their
//! turn. So the misses of many lanes overlap, as round trips overlap on a network.
//!
//! # Invariants
//! 1. Shared bytes are reached only through `words.rs` (atomics) and `copy.rs` (the copy engine);
//!    no code forms a reference to them. The exception is `still.rs`, for bytes that a promise of
//!    the protocol keeps as they are.
//! 2. A mapping is as long as its file was when it was mapped, and the file's blocks were reserved
//!    when it was created, so no access inside the mapping faults. (A peer that truncates the file
//!    breaks this. Regions are open to their owner's user only; a region that is handed to other
//!    users must be sealed.)
//! 3. Every access is bounds-checked against the mapping before it is posted.

mod backoff;
mod bell;
mod chase;
mod copy;
mod endpoint;
mod limit;
mod mailbox;
mod messages;
mod now;
mod pages;
pub(crate) mod parking;
mod region;
mod ring;
mod still;
mod thread;
mod words;

pub use backoff::Backoff;
pub use bell::Bell;
pub(crate) use copy::prefetch;
pub use endpoint::ShmEndpoint;
pub use limit::{Area, BareGets, Names};
pub use mailbox::MailboxShape;
pub use messages::{Peer, ShmMessages};
pub use pages::{OnProgress, Pages};
pub use region::{Region, RegionError, TMPFS_MAGIC};
pub use still::Still;
pub use thread::ShmThread;
