//! The client-driven engine: the client alone does every operation, with one-sided READ, WRITE and
//! CAS (Nessie, §4). No server takes part.
//!
//! # How it works
//! A key hashes to a few candidate **slots** of the index, which is spread over all nodes
//! ([`hash`]). A slot is one word, an index table entry ([`ite`]). It is EMPTY, or it names a data
//! table entry ([`dte`]) by place and generation. Index and data are decoupled: an entry lies on
//! its writer's node, and the index word says where. So a PUT writes its entry into its own node's
//! memory and then publishes it with one CAS; after that an entry is never changed, only replaced.
//!
//! The protocol (`docs/protocol.md`, whose steps the comments cite) is a repaired and model-checked
//! form of the published one, which loses writes and blocks on crashes. It differs as follows.
//! There is no valid bit. An update is a single CAS. An insert is **tentative** (T) until it has
//! made sure that no other insert of the key exists. A move **freezes** (F) its source and
//! **copies** (C) the word, not the data. Every word that a client leaves is unique in its slot.
//! Generations, not clocks, make reuse safe.
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
//! | append | `kv.rs` | as conditional PUT |
//! | PIN | `ops/pin.rs` | found: the last READ of the slot; absent: as GET |
//! | expiry: a GET, or the node's walk | `ops/get.rs`, `check/expire.rs` | as DELETE |
//! | eviction | `memory/evict.rs` | as DELETE |
//!
//! | folder | what is there |
//! | --- | --- |
//! | `layout/` | what words and bytes mean, and where they are |
//! | `client/` | a client, and what it holds between operations |
//! | `memory/` | where entries come from, and where they go |
//! | `ops/` | the operations, one file for each action, and what they share |
//! | `check/` | walks over a whole table: the check, the scrubber, and expiry |
//! | [`published`] | the published protocol, repaired, over the same memory |
//!
//! A folder uses only the folders above it in this table.
//!
//! # Invariants
//! * **I1** At most one visible slot per key, or exactly F(x) and C(x) of the same entry.
//! * **I2** An occupied slot names an entry that has that generation and is not free.
//! * **I3** Rule U: a word value is CASed into a given slot at most once.
//!
//! # Faults
//! A client may stop at any instruction. It may leave a T, which is invisible and which any client
//! may remove; an F and a C, which are readable and which any writer of the key completes; and
//! entries that no word names, which the scrubber (`check/scrub.rs`) frees. Readers never wait for
//! other clients. Writers wait for another client's T at most
//! [`PATIENCE_US`](crate::limits::PATIENCE_US).

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
pub use check::expire::ExpiryWalk;
pub use check::report::{CheckReport, Expired, ForgottenOf, Scrubbed, Usage};
pub use check::scrub::release_dead;
pub(crate) use client::Attempts;
pub use client::{Client, Counts, Leaving};
pub use layout::{dte, geometry, hash, ite, slab};
pub use ops::pin::Pinned;
pub use ops::reserve::Reservation;
pub use table::Nessie;

pub use crate::net::CacheLimits;
pub use crate::operation::{Conditional, Expect, PutOptions};
