//! The fabric on InfiniBand and RoCE: rdma-core's verbs.
//!
//! A process opens a [`Device`]. A node lends its region by way of a [`Host`]; a client's thread
//! has a [`VerbsEndpoint`], whose connections are made in three steps over whatever channel the two
//! have: [`VerbsEndpoint::offer`], [`Host::accept`] (which gives the rights),
//! [`VerbsEndpoint::connect`]. Verbs are RC's; [`UnreliableWrites`](crate::UnreliableWrites) are
//! UC's, made in the same steps; [`Datagrams`] are UD's.
//!
//! The home region is mapped: the processor READs and writes it. Its atomics go through the card
//! like all others, because a card's atomics are atomic only with each other.
//!
//! # From a verb to its result
//! A verb is checked against the rights in the answer, so that a mistake is an error and not a
//! broken connection (`posting.rs`, `away/keys.rs`); becomes an operation that holds its buffer
//! (`away/ops.rs`); is cut into work requests, each with a slot of registered memory (`link.rs`,
//! `pool.rs`); is posted, several with one doorbell (`engine.rs`); and ends with a completion
//! (`completion.rs`, `flights.rs`). Polling a future polls the completion queue of the thread. This
//! path registers no memory, and allocates only if the buffer of a READ is too small.
//!
//! # Invariants
//! 1. A slot belongs to one work request until its completion, or the completion of a later request
//!    on the same queue pair, was polled. A broken connection is drained before its slots are used
//!    again: stopping or destroying a queue pair is not a fence for what the card still writes.
//! 2. A verb is either known to have been executed, or known not to have been executed (then its
//!    error does not say "unknown"), or it counts as under way in
//!    [`Fabric::is_settled`](crate::Fabric) until its connection was made again.
//! 3. A peer has the rights of its grants to a region, whatever it posts, and no rights after its
//!    [`Accepted`] was dropped.
//!
//! # Faults survived
//! Peers that die, hang, lie in offers and answers, post forbidden verbs, or are cut off at any
//! moment; lost packets, as far as the cards survive them. If a card itself is lost, all verbs end
//! as unknown.
//!
//! # Assumed
//! That the peer's processor sees a WRITE or atomic whose completion was polled when it learns of
//! it; cards acknowledge before the bytes are in memory, but the bus keeps the order. That a card's
//! reads and writes of aligned words are whole. That a child of this process leaves RDMA alone:
//! since Linux 5.12 it gets copies of pages that a card uses.

mod address;
mod completion;
mod datagrams;
mod device;
mod endpoint;
mod engine;
mod error;
mod flights;
mod host;
mod link;
mod one_sided;
mod pool;
mod posting;
mod routing_header;
mod setup;
mod sys;

pub use crate::rights::{Access, Grant, Granted};
pub use address::Address;
pub use datagrams::{Datagrams, Peer};
pub use device::{Device, DeviceInfo, GidKind, Selection, Surveyed, survey};
pub use endpoint::VerbsEndpoint;
pub use error::{DeviceError, VerbsError};
pub use host::{Accepted, Host};
pub use setup::{Answer, Offer, QueueAddress, Transport};
