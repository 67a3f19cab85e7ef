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
//! | GET, found | `ops/get.rs` | the READ of the slot that shows the value |
//! | GET, absent | `ops/get.rs` | any moment between the two equal looks at all candidates |
//! | PUT, update | `ops/put.rs` | the CAS `V(x) -> V(d)` |
//! | PUT, lost to a PUT | `ops/put.rs` | just before the CAS it lost to |
//! | PUT, insert | `ops/insert.rs` | the CAS `EMPTY -> V(d)` at home, or `T(d) -> V(d)` |
//! | DELETE | `ops/delete.rs` | the CAS `V(x) -> EMPTY` |
//! | MOVE | `ops/migrate.rs` | none: it changes nothing that can be seen |
//! | conditional PUT, fetch_add | `ops/conditional.rs` | as PUT; a failed test: the READ of the slot |
//!
//! | folder | what is there |
//! | --- | --- |
//! | `layout/` | what words and bytes mean, and where they are |
//! | `client/` | a client, and what it holds between operations |
//! | `memory/` | where entries come from, and where they go |
//! | `ops/` | the operations, one file for each action, and what they share |
//! | `check/` | walks over a whole table: the check and the scrubber |
//! | [`published`] | the published protocol, repaired, over the same memory |
//!
//! A folder uses those above it in this table, and none below.
//!
//! # Invariants
//! * **I1** At most one visible slot per key, or exactly F(x) and C(x) of the same entry.
//! * **I2** An occupied slot names an entry that has that generation and is not free.
//! * **I3** Rule U: a word value is CASed into a given slot at most once.
//!
//! # Faults
//! A client may stop at any instruction. What it leaves: a T, invisible, which anybody may remove;
//! F and C, readable, which any writer of the key completes; entries that nobody names, which the
//! scrubber (`check/scrub.rs`) frees. Readers never wait for anybody; writers wait for another
//! client's T at most [`PATIENCE_US`](crate::limits::PATIENCE_US).

mod any;
mod check;
mod client;
mod kv;
mod layout;
mod memory;
mod ops;
pub mod options;
pub mod published;
pub(crate) mod table;

pub use any::AnyClient;
pub use check::report::{CheckReport, Scrubbed, Usage};
pub use check::scrub::release_dead;
pub(crate) use client::Attempts;
pub use client::{Client, Counts};
pub use layout::{dte, geometry, hash, ite, slab};
pub use ops::reserve::Reservation;
pub use table::Nessie;

pub use crate::net::CacheLimits;
pub use crate::operation::{Conditional, Expect, PutOptions};
