//! The networks by which the nodes of other hosts are reached.

#[cfg(feature = "verbs")]
pub(crate) mod verbs;
#[cfg(not(feature = "verbs"))]
#[path = "no_verbs.rs"]
pub(crate) mod verbs;

pub(crate) use verbs::open_table;
