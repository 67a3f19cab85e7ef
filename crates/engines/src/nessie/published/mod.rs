//! The published protocol, repaired. It has the valid bit in the entry, previous versions, forward
//! and reverse pass, and MIGRATE by copy, as in the paper. Its verbs, and the effects of its
//! optimisations, can so be measured beside Loch's own protocol ([`super`]).
//!
//! # What was repaired
//! As published, a PUT that stops between its CAS and its valid bit blocks its key for ever, a PUT
//! that aborts may delete its key, and all EMPTY slots look alike. Here the valid bit is a **status
//! word** in the entry, pending, committed or aborted, that only CAS changes: the owner commits,
//! any client may abort, and one of them wins (`entry.rs`). An old word is never written back: an
//! aborted update stays in its slot, and stands for the previous version that it names. EMPTY words
//! carry tags, and generations take the place of clocks, as in Loch's own protocol, whose memory,
//! allocator, sessions and epochs this one shares.
//!
//! | status | entry of a PUT | copy, at its source | copy, at its destination |
//! | --- | --- | --- | --- |
//! | committed | the value | moved: to be cleared | the value |
//! | pending or aborted, with a previous version | that is the value | that is the value | no value |
//! | pending or aborted, without | no value | | |
//!
//! | operation | file | linearization point |
//! | --- | --- | --- |
//! | GET, found | `get.rs` | the READ of the slot or of the entry, or the commit in between |
//! | GET, absent | `get.rs` | any moment between the two passes |
//! | PUT, update | `put.rs` | the CAS on its status |
//! | PUT, insert | `insert.rs` | the CAS on its status |
//! | DELETE | `delete.rs` | the CAS of the slot to EMPTY |
//! | MIGRATE | `migrate.rs` | none: it changes nothing that can be seen |
//! | conditional PUT, fetch_add | `conditional.rs` | as PUT; a failed test: as GET |
//!
//! # Switches
//! Each optimisation of nessie §4.3.2 and Figure 13 is a switch of the table:
//! [`Options::filter_bits`](super::geometry::Options), `cache`, `multi_read`, and
//! [`Protocol::Published`](super::geometry::Protocol)`::previous_versions`. *Basic* has all of them
//! off. Without previous versions entries still name them, because an abort falls back to the
//! previous version; only a GET that meets a pending PUT then waits for it.
//!
//! # Invariants
//! * **I1** At most one slot of a key shows a value, or two slots that hold the same copy.
//! * **I2** An occupied slot names an entry that has that generation and is not free.
//! * **I3** If a slot holds an entry that is not committed, the entry's previous version has the
//!   generation that the entry names, and is not free.
//! * **I4** An entry is decided before it leaves the slot where it shows a value, or shows none.
//! * **I5** A word value is CASed into a given slot at most once.
//!
//! # Who frees what
//! The client that replaces or clears a word retires the word's entry: an aborted entry at once,
//! and a committed entry after the client's own commit, because until then it is the previous
//! version. A DELETE retires both. A copy is retired when it leaves the slot in which it shows a
//! value; before that, it is cut out of the other slot (`settle.rs`). The scrubber finds the
//! entries that dead clients did not retire (`scrub.rs`).
//!
//! # Faults
//! A client may stop at any instruction. It leaves a pending entry, which any client decides after
//! [`PATIENCE_US`](crate::limits::PATIENCE_US) at the latest. Readers wait for no client, unless
//! the table has previous versions switched off.

mod cache;
mod check;
mod client;
mod conditional;
mod delete;
mod draft;
mod entry;
mod get;
mod insert;
mod migrate;
mod put;
mod read;
mod scrub;
mod settle;

pub use client::Client;
