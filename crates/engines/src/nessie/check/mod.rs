//! Walks over a whole table. The check finds broken invariants; the scrubber frees the memory that
//! dead clients left; and the node removes what has expired. All walk the tables of both protocols,
//! whose rules say what their words mean.
//!
//! | file | what it does |
//! | --- | --- |
//! | `report.rs` | what a walk counts and finds |
//! | `rules.rs` | what a protocol says of its words |
//! | `walk.rs` | the entries in use, and those that no slot shows |
//! | `own_rules.rs` | the rules of Loch's own protocol |
//! | `verify.rs` | the check |
//! | `scrub.rs` | the scrubber |
//! | `expire.rs` | the walk that removes what has expired |

pub(super) mod expire;
mod own_rules;
pub(super) mod report;
pub(super) mod rules;
pub(super) mod scrub;
pub(super) mod verify;
pub(super) mod walk;
