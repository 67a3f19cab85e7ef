//! The published protocol, repaired: valid bit in the entry, previous versions, forward and reverse
//! pass, and MIGRATE by copy, as the paper has them, so that what it counts and what its
//! optimisations bring can be measured beside Loch's own protocol ([`super`]).
//!
//! # What was repaired
//! As published, a PUT that stops between its CAS and its valid bit blocks its key for ever, one
//! that aborts may delete it, and EMPTY slots look alike. Here the valid bit is a **status word**
//! in the entry, pending, committed or aborted, that only CAS changes: the owner commits, anybody
//! may abort, and one of them wins (`entry.rs`). An old word is never written back: an aborted
//! update stays where it is, and stands for the previous version that it names. EMPTY words carry
//! tags, and generations take the place of clocks, as in Loch's own protocol, whose memory,
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
//! The optimisations of nessie §4.3.2 and Figure 13, each a switch of the table:
//! [`Options::filter_bits`](super::geometry::Options), `cache`, `multi_read`, and
//! [`Protocol::Published`](super::geometry::Protocol)`::previous_versions`. *Basic* is all of them
//! off. Without previous versions entries name them all the same, for they are what an abort falls
//! back to; only a GET that meets a pending PUT waits for it.
//!
//! # Invariants
//! * **I1** At most one slot of a key shows a value, or two slots that hold the same copy.
//! * **I2** An occupied slot names an entry that has that generation and is not free.
//! * **I3** So does an entry that is not committed, if a slot holds it, of its previous version.
//! * **I4** An entry leaves the slot where it shows a value, or none, only after it was decided.
//! * **I5** A word value is CASed into a given slot at most once.
//!
//! # Who frees what
//! Whoever replaces or clears a word retires its entry: an aborted one at once, a committed one
//! after its own commit, for until then it is the previous version. A DELETE retires both. A copy
//! is retired when it leaves the slot in which it shows a value; before, it is cut out of the other
//! one (`settle.rs`). The scrubber finds what dead clients did not retire (`scrub.rs`).
//!
//! # Faults
//! A client may stop at any instruction. What it leaves is pending, and anybody decides it, after
//! [`PATIENCE_US`](crate::limits::PATIENCE_US) at the latest. Readers wait for nobody, unless the
//! table goes without previous versions.

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
