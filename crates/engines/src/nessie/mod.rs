//! The client-driven engine: every operation is done by the client alone, with one-sided READ,
//! WRITE and CAS (Nessie, §4). No server takes part.
//!
//! # How it works
//! A key hashes to a few candidate **slots** of the index, spread over all nodes ([`hash`]). A slot
//! is one word, an index table entry ([`ite`]), that is EMPTY or names a data table entry
//! ([`dte`]) by place and generation. Index and data are decoupled: an entry lies where its writer
//! is, and the index word says where. So a PUT writes its entry into its own node's memory and then
//! publishes it with one CAS; an entry is never changed after that, only replaced.
//!
//! The protocol (`docs/protocol.md`, whose steps the comments cite) is not the published one, which
//! loses writes and blocks on crashes, but a repaired and model-checked one. What differs: there is
//! no valid bit; an update is a single CAS; an insert is **tentative** (T) until it has made sure
//! that it is the only one; a move **freezes** (F) its source and **copies** (C) the word, not the
//! data; every word a client leaves is unique in its slot; and reuse is made safe by generations,
//! not by clocks.
//!
//! | operation | file | linearization point |
//! | --- | --- | --- |
//! | GET, found | `get.rs` | the READ of the slot that shows the value |
//! | GET, absent | `get.rs` | any moment between the two equal looks at all candidates |
//! | PUT, update | `put.rs` | the CAS `V(x) -> V(d)` |
//! | PUT, lost to a PUT | `put.rs` | just before the CAS it lost to |
//! | PUT, insert | `insert.rs` | the CAS `EMPTY -> V(d)` at home, or `T(d) -> V(d)` |
//! | DELETE | `delete.rs` | the CAS `V(x) -> EMPTY` |
//! | MOVE | `migrate.rs` | none: it changes nothing that can be seen |
//! | conditional PUT, fetch_add | `conditional.rs` | as PUT; a failed test: the READ of the slot |
//!
//! # Invariants
//! * **I1** At most one visible slot per key, or exactly F(x) and C(x) of the same entry.
//! * **I2** An occupied slot names an entry that has that generation and is not free.
//! * **I3** Rule U: a word value is CASed into a given slot at most once.
//!
//! # Faults
//! A client may stop at any instruction. What it leaves: a T, invisible, which anybody may remove;
//! F and C, readable, which any writer of the key completes; entries that nobody names, which the
//! scrubber (`scrub.rs`) frees. Readers never wait for anybody; writers wait for another
//! client's T at most [`PATIENCE_US`](crate::limits::PATIENCE_US).

mod alloc;
mod any;
mod cache;
mod check;
mod client;
mod conditional;
mod delete;
pub mod dte;
pub mod geometry;
mod get;
pub mod hash;
mod insert;
pub mod ite;
mod kv;
mod lease;
mod migrate;
pub mod options;
pub mod published;
mod put;
mod read;
mod reclaim;
mod reserve;
mod rules;
mod scrub;
pub mod slab;
pub(crate) mod table;

pub use any::AnyClient;
pub use check::{CheckReport, Usage};
pub(crate) use client::Attempts;
pub use client::{Client, Counts};
pub use reserve::Reservation;
pub use scrub::{Scrubbed, release_dead};
pub use table::Nessie;

pub use crate::net::CacheLimits;
pub use crate::operation::{Conditional, Expect, PutOptions};
