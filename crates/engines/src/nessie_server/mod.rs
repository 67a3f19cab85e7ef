//! The server-driven version of nessie (NessieSD, nessie §5): clients ask, workers do.
//!
//! Every node owns the keys that hash to it. Its index and its entries are a nessie table,
//! *partially coupled*: all candidate slots of a key, and its entry, are in the memory of the key's
//! owner. A client WRITEs its request into a slot in the owner's memory; a worker of the owner
//! finds it, executes it by the client-driven protocol on memory that is all its own node's, and
//! WRITEs the reply into the client's node. One round trip, two WRITEs, whatever the operation;
//! none at all for a key of the client's own node.
//!
//! A worker is a nessie client of its node that never needs another node's memory. So several
//! workers serve one node's keys without a lock, a key is not bound to a worker (its hash chooses
//! one so that hot keys do not make workers race), and what a dead worker leaves is what a dead
//! client leaves.
//!
//! # Memory
//! A table on one node is its nessie table and, right behind it, the [`requests`](crate::requests):
//! see [`Served`].
//!
//! # Linearizability
//! An operation takes effect where the worker's does (the table in [`nessie`](crate::nessie)),
//! which is between its request and its reply; and it takes effect once, as a mutation is executed
//! at most once and is ambiguous if nobody knows. A GET that was sent again is executed again: it
//! is what the last execution before the reply says.
//!
//! # Faults
//! * **A worker dies**, at any instruction. Its node notices, frees its session, and gives back its
//!   slabs, and the scrubber frees what is left, exactly as after a client
//!   ([`nessie::release_dead`](crate::nessie::release_dead)). A worker that starts on the same
//!   memory finds everything that was stored, and a new incarnation: see
//!   [`requests`](crate::requests) for what its clients see. Nothing is rebuilt.
//! * **A client dies.** It holds nothing but its slots: nothing is to be scrubbed.

pub(crate) mod ask;
mod client;
pub(crate) mod serve;
mod served;
pub(crate) mod table;
mod worker;

pub use client::Client;
pub use served::Served;
pub use table::{NessieServer, Options};
pub use worker::Worker;
