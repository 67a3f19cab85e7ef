//! Checks whether the answers that clients of a key-value store got are linearizable: whether each
//! operation can be thought to have happened at one moment between its call and its return.
//!
//! The search is Wing and Gong's ("Testing and verifying concurrent objects", 1993) with Lowe's
//! memory of configurations ("Testing for linearizability", 2017), key by key, since
//! linearizability is local. `search.rs` has the search, `model.rs` the model of one key, and
//! `prepare.rs` the facts that are known before the search begins.
//!
//! # What a key is
//! A key has nothing, or a value and its **version**. Values are tags that the test chose; the
//! version is the store's. Every value that was ever written has a version of its own, so an
//! operation that sees a version again sees the same value. Not every version is known: neither an
//! update nor an operation of unknown outcome reports the version that it made, and some stores
//! report no versions. Such a value may have any version that was not reported before, and keeps
//! the first version that is reported for it.
//!
//! # Operations of unknown outcome
//! They may happen at any moment after their call, or never ([`Outcome::Unknown`]); or at a moment
//! up to a given one, or never ([`Outcome::UnknownUntil`]).
//!
//! ```
//! use loch_history::{Answer, Ask, History, Operation, Outcome, check};
//!
//! let operation = |client, ask, called, returned, answer| {
//!     Operation { client, key: 7, ask, called, returned, outcome: Outcome::Known(answer) }
//! };
//! let mut history = History::new();
//! history.push(operation(1, Ask::Put(5), 0, 10, Answer::Stored(100)));
//! history.push(operation(2, Ask::Get, 2, 4, Answer::Found(Some((5, 100)))));
//! assert!(check(&history, 1000).is_linearizable());
//!
//! // It was seen, and then it was not.
//! history.push(operation(2, Ask::Get, 6, 8, Answer::Found(None)));
//! let verdict = check(&history, 1000);
//! assert!(!verdict.is_linearizable());
//! assert!(verdict.to_string().contains("cannot be placed"));
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod history;
mod live;
mod model;
mod prepare;
mod search;
mod shrink;
mod timeline;
mod verdict;

pub use history::{Answer, Ask, History, Operation, Outcome, Update, appended};
pub use shrink::shrink;
pub use timeline::timeline;
pub use verdict::{Verdict, Violation, check};
