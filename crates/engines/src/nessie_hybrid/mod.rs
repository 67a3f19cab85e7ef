//! The hybrid version of nessie (NessieHY, nessie §5): clients do GETs by themselves, and workers
//! do everything else.
//!
//! Tables and workers are those of [`nessie_server`](crate::nessie_server), partially coupled. A
//! GET is nessie's own, one-sided (`nessie/ops/get.rs`): it READs the key's candidate slots and
//! then the entry. Every change of a value is a request to the owner's workers. So a client never
//! writes the table's memory, with one exception: a GET that meets an expired value removes it, as
//! nessie's GET does, since all clients agree on the removal and not on the clock.
//!
//! The paper's version has neither filter bits nor caches nor multiple READs (nessie §5). They are
//! options of the table. With all of them off the engine is the paper's, which READs each entry to
//! compare keys; the paper expects them to help (nessie §6.2).
//!
//! # Linearizability
//! Workers are nessie clients, so GETs and workers' operations are operations of one nessie table
//! and linearize as such. A mutation takes effect between its request and its reply.
//!
//! # Faults
//! The same as in [`nessie_server`](crate::nessie_server), and GETs go on while a node has no
//! worker. A client that dies leaves at most an epoch, which its node ends for it.

mod client;
mod table;

pub use client::Client;
pub use table::{NessieHybrid, Options};

pub use crate::nessie_server::{Served, Worker};
