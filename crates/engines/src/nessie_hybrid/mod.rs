//! The hybrid version of nessie (NessieHY, nessie §5): clients GET by themselves, workers do the
//! rest.
//!
//! The table is that of [`nessie_server`](crate::nessie_server), partially coupled, and so are its
//! workers. A GET is nessie's own, one-sided (`nessie/ops/get.rs`): it READs the key's candidate
//! slots and then the entry. Everything that changes a value is asked of the owner's workers. So a
//! client never writes the table's memory, but for one thing: a GET that meets an expired value
//! removes it, as nessie's does, since the removal and not the clock is what all clients agree on.
//!
//! The paper's version has neither filter bits nor caches nor multiple READs (nessie §5). They are
//! options of the table: all off is the paper's, which READs each entry to compare keys; on is what
//! the paper expects to help (nessie §6.2).
//!
//! # Linearizability
//! Workers are nessie clients, so GETs and workers' operations are operations of one nessie table
//! and linearize as those do. A mutation takes effect between its request and its reply.
//!
//! # Faults
//! As [`nessie_server`](crate::nessie_server); and GETs go on while a node has no worker. A client
//! that dies leaves at most an epoch that its node ends for it.

mod client;
mod table;

pub use client::Client;
pub use table::{NessieHybrid, Options};

pub use crate::nessie_server::{Served, Worker};
