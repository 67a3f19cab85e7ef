//! KV-Direct: a processor between the network and host memory executes every operation (kv-direct
//! §3).
//!
//! # How it works
//! Keys are divided among *processors* by their hash; a node has one or more ([`key`]). A client
//! packs operations into packets ([`packet`](crate::requests::packet)), and WRITEs each into a
//! request slot of the processor that owns the keys ([`Client`]). The processor unpacks it
//! ([`Worker`]), admits the operations to its *reservation station* ([`station`]), and executes up
//! to 256 of them at a time. An operation
//! that depends on one under way waits in the station. It is executed on the value that the other
//! leaves, without a look at memory ([`processor`]). Results go back in one packet, in the order of
//! the request.
//!
//! Where memory can be loaded as the processor's own, an operation on an inline entry need not be
//! under way: it is executed as it is admitted, and GETs in a row go through stages together.
//!
//! Host memory is an array of 64-byte lines that only the processor reads and writes, through the
//! [memory access engine](memory), which counts every access. A part of it is the *hash index*
//! ([`bucket`]): a bucket is one line. Short keys and values stand in the bucket, others in slabs
//! ([`slab`]). The processor shares the free slabs with a daemon on the host.
//!
//! Values can be vectors of numbers: [updates, reductions and filters](vector) apply functions that
//! are built in, or that users registered.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`key`] | from a key to its processor, bucket, and secondary hash |
//! | [`packet`](crate::requests::packet) | many operations in one message |
//! | [`station`] | which operations are under way, and which wait for them |
//! | [`processor`] | executes operations, those that do not depend on each other at the same time |
//! | `worker.rs`, `answers.rs` | takes packets, sends their results |
//! | `serve.rs`, `free_slabs.rs` | a worker as its node runs it, and what it shares with the table's others |
//! | `client.rs`, `compute.rs` | asks for operations, also for those that compute |
//! | [`lines`](crate::lines) | host memory: lines, DMA, counts |
//! | [`storage`] | looks up, stores and removes entries |
//! | [`bucket`] | a line of the hash index |
//! | [`item`], [`header`] | the bytes of an entry, and of its slab before it |
//! | [`tuning`] | how large the index should be, and which entries inline |
//! | [`slab`] | the slab allocator: free memory, shared with the host's daemon |
//! | [`vector`] | functions on the elements of a value |
//! | [`dispatch`] | the card's memory as a cache of a share of host memory |
//! | [`timed`] | host memory in the time of the paper's card |
//!
//! # Linearization points
//! An operation takes effect when the processor applies it to the key's value ([`processor`],
//! invariant 1), which is between its call and its return. One processor executes all operations on
//! a key, in the order in which it admitted them.
//!
//! # What a client can break
//! Clients read and write no memory but their own request slots. A broken or hostile client can
//! only make requests that it may make anyway.
//!
//! # Faults
//! A processor's values are in its process's memory, and die with it. [`requests`](crate::requests)
//! says what a client sees then.

mod answers;
pub mod bucket;
mod client;
pub mod dispatch;
mod free_slabs;
pub mod header;
pub mod item;
pub mod key;
pub mod processor;
#[cfg(test)]
#[path = "../../tests/reference/mod.rs"]
mod reference;
mod serve;
pub mod slab;
pub mod station;
pub mod storage;
mod table;
pub mod timed;
pub mod tuning;
pub mod vector;
mod worker;

pub use client::{Access, Client, Processors};
pub use free_slabs::FreeSlabs;
pub use processor::{Counts, Settings};
pub use table::{KvDirect, Map, Options, PartitionShape, TunedFor};
pub use worker::Worker;

use crate::error::{EngineError, LayoutError};
use crate::limits::REPLIES_MAX;
use crate::requests::Service;

/// The error of a processor whose memory cannot be what it wrote.
#[cold]
fn damaged() -> EngineError {
    EngineError::Damaged { what: "a processor's memory contradicts itself".into() }
}

/// The service of a table: slots for packets of `packet_bytes`, or for one operation on the longest
/// key and value, if that is longer, and slots of the same length for results.
///
/// # Errors
/// [`LayoutError::Geometry`] if a slot cannot be so long.
pub fn service(
    workers: u16,
    window: u16,
    sessions_per_node: u32,
    packet_bytes: u32,
    key_and_value_bytes_max: u64,
) -> Result<Service, LayoutError> {
    let room = key_and_value_bytes_max.max(u64::from(packet_bytes));
    Ok(Service {
        workers,
        window,
        replies: window.saturating_mul(workers).min(REPLIES_MAX),
        sessions_per_node,
        request_bytes: Service::request_bytes_for(0, room)?,
        reply_bytes: Service::reply_bytes_for(room)?,
        ..Service::default()
    })
}
