//! The server-driven version of nessie (NessieSD, nessie §5): clients ask, workers execute.
//!
//! Every node owns the keys that hash to it. Index and entries form a nessie table that is
//! *partially coupled*: all candidate slots of a key, and its entry, are in the memory of the key's
//! owner. A client WRITEs its request into a slot in the owner's memory. A worker of the owner
//! finds it, executes it by the client-driven protocol, which touches only memory of its own node,
//! and WRITEs the reply into the client's node. Every operation costs one round trip and two
//! WRITEs, or no network access at all for a key of the client's own node.
//!
//! A worker is a nessie client of its node that never needs another node's memory. So several
//! workers serve one node's keys without a lock. A key is not bound to a worker; its hash chooses
//! one only so that hot keys do not make workers race. A dead worker leaves the same things as a
//! dead client.
//!
//! # Memory
//! On each node a table consists of its nessie table and, right behind it, the
//! [`requests`](crate::requests): see [`Served`].
//!
//! # Linearizability
//! An operation takes effect when the worker's operation does (the table in
//! [`nessie`](crate::nessie)), which is between its request and its reply. It takes effect once: a
//! mutation is executed at most once, and is ambiguous if nobody knows whether it was. A GET that
//! was sent again is executed again: it returns the result of the last execution before the reply.
//!
//! # Faults
//! * **A worker dies**, at any instruction. Its node notices, frees its session, and gives back its
//!   slabs, and the scrubber frees the rest, exactly as after a client
//!   ([`nessie::release_dead`](crate::nessie::release_dead)). A worker that starts on the same
//!   memory finds everything that was stored, and gets a new incarnation:
//!   [`requests`](crate::requests) says what its clients see. Nothing is rebuilt.
//! * **A client dies.** It holds only its slots: there is nothing to scrub.

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
