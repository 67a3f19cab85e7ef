//! The fabric carries Loch's operations to memory: one-sided verbs, and the lanes that overlap
//! them.
//!
//! [`Fabric`] is one thread's way to the regions of a cluster. It promises what RDMA promises and
//! no more (see the trait); [`shm`] is the backend for processes of one host, [`sim`] a whole
//! cluster in virtual time, [`tcp`] for hosts without RDMA, `verbs` (with the feature of that name)
//! InfiniBand and RoCE. [`lanes`]
//! runs many operations of one thread at once, so that the waiting of one is the work of another.
//! [`Messages`] are datagrams between threads, for engines whose server takes part.
//!
//! This is the only crate of the workspace with `unsafe` code. The rule that keeps it sound: bytes
//! that another process may be writing are reached only as atomics or by the copy engine of
//! [`shm`], and no reference to them is ever formed.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod accepting;
mod addr;
mod away;
mod bounds;
mod buf;
mod counters;
mod error;
mod fabric;
mod fork;
mod idle;
pub mod lanes;
pub mod limits;
mod messages;
mod networks;
mod pass_on;
mod prefetch;
mod rate_limit;
mod rights;
pub mod shm;
pub mod sim;
mod sync;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;
mod zeroed;

pub use accepting::{is_of_one_connection, lengthen_queue};
pub use addr::{RegionId, RemoteAddr};
pub use buf::Buf;
pub use counters::{Counters, Verb, VerbCount};
pub use error::{FabricError, Result};
pub use fabric::{Atomics, Caps, Chase, Fabric, RoundTrip, Step, Swap, Validation};
pub use fork::ForkMark;
pub use idle::Idle;
pub use messages::{MessageAddress, Messages, UnreliableWrites};
pub use prefetch::{prefetch_index, prefetch_read};
pub use rate_limit::RateLimit;
pub use rights::{Access, Grant, Granted};
pub use shm::MailboxShape;
pub use zeroed::Zeroed;
