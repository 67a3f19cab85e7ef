//! The operations: one file for each action of the protocol, and the code that they share.
//!
//! | file | what it does |
//! | --- | --- |
//! | `read.rs` | looks at a key's slots, and at the entries that they name |
//! | `remembered.rs` | does without, by what the client's cache remembers |
//! | `tentative.rs` | tells what a slot means to an insert, and when a rival was waited for enough |
//! | `migrate.rs` | MOVE: makes room in a key's slots; completes the moves of others |
//! | `get.rs` | GET |
//! | `pin.rs` | PIN: values read in place |
//! | `batch/` | GETs and PUTs of many keys, whose steps overlap |
//! | `draft.rs` | writes an entry that is to be installed |
//! | `insert.rs` | PUT of a key that has no value |
//! | `put.rs` | PUT |
//! | `scan.rs` | SCAN: the keys of the table |
//! | `delete.rs` `conditional.rs` `reserve.rs` | DELETE; PUTs with a condition; values written in place |

pub(super) mod batch;
mod conditional;
mod delete;
pub(super) mod draft;
mod get;
mod insert;
pub(super) mod migrate;
pub(super) mod pin;
mod put;
pub(super) mod read;
mod remembered;
pub(super) mod reserve;
mod scan;
pub(super) mod tentative;
