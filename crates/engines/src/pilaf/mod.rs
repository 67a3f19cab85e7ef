//! Pilaf: clients read by themselves, and ask the server for everything else (Mitchell et al.,
//! USENIX ATC 2013).
//!
//! # How it works
//! A table is divided among the nodes by the hash of the key. Each node has one [`Worker`], a
//! thread that alone writes the node's part: an index, which is a 3-way cuckoo hash table of
//! 64-byte entries, and **extents**, which hold keys and values ([`layout`]). Both are blocks of
//! one arena in the node's region. For GET and CONTAINS a client READs entries and the extent to
//! which one of them points, without the server's processor ([`Reader`]). PUT, DELETE and similar
//! operations are messages to the server ([`Client`], [`requests`](crate::requests)), which changes
//! memory, and logs its changes on a disk ([`log`](crate::log)).
//!
//! Clients and server use no lock. Everything that clients read is **self-verifying**: an entry has
//! a CRC-64 of itself, and in it a CRC-64 of the key and one of the value to which it points. Bytes
//! that were read while they were written do not verify, and are read again.
//!
//! | operation | file | linearization point |
//! | --- | --- | --- |
//! | GET, CONTAINS, found | `get.rs` | in the READ of the entry |
//! | GET, CONTAINS, absent | `get.rs` | any moment between the two equal looks at all candidates |
//! | PUT, DELETE, put_if, fetch_add | `change.rs` | the store of the entry, in [`Store::commit`] |
//! | those, refused or without effect | `change.rs` | when the server looks at the entry |
//! | moves, a larger index | `index.rs`, `resize.rs` | none: they change nothing that can be seen |
//!
//! # What differs from the paper
//! * **A GET looks twice before it reports a miss.** The published GET can miss a key that is there
//!   all the time, while it is moved; `get.rs` has the counterexample and the repair.
//! * **Entries hold the key's hash and version**, so that other keys' extents are not read, and
//!   moves need no extent.
//! * **The fence of a larger index** is a word that clients read along, not the reset of all
//!   connections (`resize.rs`). Extents grow in the same arena, and need no fence.
//! * **Messages are datagrams**; longer requests go by WRITE into slots (`path.rs`).
//! * **The log** can be synchronous, and is compacted.
//!
//! # Invariants
//! 1. Only the server of a node writes its part; clients need only the right to read it, and to
//!    write their own request slots. So a client can corrupt nothing.
//! 2. A key that has a value is in one of its candidate slots at every moment. While it is moved it
//!    is in two, and both lead to the same extent (`index.rs`).
//! 3. A write gives a slot another stamp, and a replacement gives the index another generation
//!    (`layout.rs`).
//! 4. With `sync` nobody sees a change before it is durable (`worker.rs`).
//!
//! # Faults
//! * **Torn and reordered READs and stores** do not verify.
//! * **A client dies**: no other process waits for it.
//! * **The server dies**: GETs go on, unless it was just writing the slots that they look at;
//!   mutations wait for the next server. The next server empties the table and replays the log, so
//!   the table has all changes that were acknowledged with `sync`, or without `sync` all but a
//!   bounded suffix. **Without a log the node's part of the table is lost.**
//! * **The disk fails**: the server stops.

mod buddy;
mod change;
mod check;
mod client;
mod compaction;
mod execute;
mod free_set;
mod get;
pub mod hash;
mod index;
pub mod layout;
mod path;
mod resize;
mod scan;
mod serve;
mod store;
mod table;
mod versions;
mod worker;

pub use crate::log::Logging;
pub use change::{Prepared, Staged};
pub use check::StoreReport;
pub use client::{Access, Client};
pub use get::{ReadCounts, Reader};
pub use path::SendOrWrite;
pub use store::{Shape, Store, StoreCounts};
pub use table::{Map, Options, Pilaf, SEND_BYTES_MAX};
pub use worker::{NoStorage, Worker, WorkerCounts};
