//! Loch's protocol as a small state machine, and the program that visits all its states.
//!
//! A **model** ([`explore::Model`]) is a few clients, each with a script of operations, over a
//! table of two to four slots. A step is one verb: the READ of a word, one CAS.
//! [`explore::explore`] visits every interleaving of the steps, breadth first, and checks each
//! state it has not seen:
//!
//! * the history so far is linearizable ([`monitor`]), operations of crashed clients included;
//! * the invariants of the protocol hold (I1 to I3 of `crates/engines/src/nessie/mod.rs`);
//! * where a configuration asks for it, every client that is alive finishes when it runs alone.
//!
//! A counterexample is a shortest trace, which reads as a story.
//!
//! [`loch`] is the protocol that production runs, and its **mutations**: the protocol with
//! one rule left out, which the checker must detect. [`published`] is the protocol of the paper,
//! whose flaws must be found. [`configurations`] lists the configurations and their reasons.
//! `docs/model.md` has the results, and their limits.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod configurations;
pub mod explore;
pub mod fingerprint;
pub mod loch;
pub mod monitor;
pub mod published;
pub mod report;
pub mod script;
pub mod story;
