//! The fabric on InfiniBand and RoCE: rdma-core's verbs.
//!
//! A process opens a [`Device`]. A node lends its region by way of a [`Host`]; a client's thread
//! has a [`VerbsEndpoint`], whose connections are made in three steps over whatever channel the two
//! have: [`VerbsEndpoint::offer`], [`Host::accept`] (which gives the rights),
//! [`VerbsEndpoint::connect`]. Verbs are RC's; [`UnreliableWrites`](crate::UnreliableWrites) are
//! UC's, made in the same steps; [`Datagrams`] are UD's.
//!
//! The region at home is mapped: it is READ and written by the processor. Its atomics go through
//! the card like everybody's, because cards' atomics are atomic among themselves only.
//!
//! # From a verb to its result
//! A verb is checked against the rights in the answer, so that a
//! mistake is an error and not a broken connection (`posting.rs`, `keys.rs`); becomes an operation
//! that holds its buffer (`ops.rs`); is cut into work requests, each with a slot of registered
//! memory (`link.rs`, `pool.rs`); is posted, several with one doorbell (`engine.rs`); and ends with
//! a completion (`completion.rs`, `flights.rs`). Whoever polls a future polls the completion queue
//! of the thread. Nothing is registered on that way, and nothing allocated but the buffer of a READ
//! that is too small.
//!
//! # Invariants
//! 1. A slot belongs to one work request until that one's completion was polled, or that of a later
//!    one on the same queue pair. A broken connection is drained before its slots are used again:
//!    stopping or destroying a queue pair is not a fence for what the card still writes.
//! 2. A verb either is known to have been executed, or known not to have been (then its error is
//!    none that says "unknown"), or counts as under way in [`Fabric::is_settled`](crate::Fabric)
//!    until its connection was made again.
//! 3. A peer can do with a region what its grants say, whatever it posts, and nothing after its
//!    [`Accepted`] was dropped.
//!
//! # Faults survived
//! Peers that die, hang, lie in offers and answers, post what they may not, or are cut off at any
//! moment; lost packets, as the cards do. A card that is lost itself ends all verbs as unknown.
//!
//! # Assumed
//! That a WRITE or atomic whose completion was polled is seen by the processor of the
//! peer when that learns of it; cards acknowledge before memory has it, but the bus keeps the
//! order. That a card's reads and writes of aligned words are whole. That a child of this process
//! leaves RDMA alone: since Linux 5.12 it gets copies of pages that a card uses.

mod address;
mod completion;
mod datagrams;
mod device;
mod endpoint;
mod engine;
mod error;
mod flights;
mod host;
mod keys;
mod link;
mod one_sided;
mod ops;
mod pool;
mod posting;
mod routing_header;
mod setup;
mod sys;

pub use address::Address;
pub use datagrams::{Datagrams, Peer};
pub use device::{Device, DeviceInfo, GidKind, Selection, Surveyed, survey};
pub use endpoint::VerbsEndpoint;
pub use error::{DeviceError, VerbsError};
pub use host::{Accepted, Host};
pub use setup::{Access, Answer, Grant, Granted, Offer, QueueAddress, Transport};
