//! HERD: the server executes every operation, and a client's request costs the network one WRITE
//! and one SEND (herd §3, §4).
//!
//! # How it works
//! A table is divided among the workers of all nodes by the hash of the key ([`key`]). Each worker
//! owns one partition, in its process's own memory, and nobody else touches it ([`storage`]). A
//! client WRITEs its request into its slot at the worker that owns the key, over an unreliable
//! connection; the worker polls the slots, takes the requests through a pipeline that hides the two
//! memory accesses of each behind the work for others ([`Pipeline`]), and SENDs the replies
//! ([`Worker`]). With so many clients that their connections do not fit the card, requests are SENT
//! as well (herd §5.5).
//!
//! The partition is a **cache**, which lets the oldest entries go, or a **store**, which refuses
//! new ones when it is full.
//!
//! # What differs from the paper
//! * There a key is its 16-byte hash. Here the hash says where to look, and the key is kept and
//!   compared: Loch never returns the value of another key.
//! * There the server zeroes a slot when it has replied, so that it can tell a new request from an
//!   old one. Here requests are numbered and checksummed ([`requests`](crate::requests)), nothing
//!   is zeroed, and a request that is sent again is executed once.
//! * There each stage of the pipeline holds one request. Here it holds as many as are under way
//!   while memory answers; one is an option.
//!
//! # Linearization points
//! Every operation takes effect when its worker executes it, between its call and its return. In a
//! cache a value can besides disappear at any moment: a hit is never wrong, a miss is allowed.
//!
//! # What a client can break
//! Clients read and write no memory but their own request slots. A broken or hostile one can ask
//! for what it may ask for anyway, and nothing else: no value of the table can be damaged by it.

mod client;
pub mod key;
mod pipeline;
mod serve;
pub mod storage;
mod table;
mod worker;

pub use client::Client;
pub use pipeline::Pipeline;
pub use table::{Herd, Map, Options, PartitionShape, RequestWay, TableMode};
pub use worker::{DEPTH_DEFAULT, DEPTH_MAX, Settings, Worker};

use crate::limits::{HERD_ITEM_BYTES_MAX, HERD_SLOT_BYTES, REPLIES_MAX};
use crate::requests::Service;
use crate::requests::message::REQUEST_OVERHEAD_BYTES;

const _: () = assert!(HERD_ITEM_BYTES_MAX + REQUEST_OVERHEAD_BYTES <= HERD_SLOT_BYTES as usize);

/// How the requests of a herd table are served: 1 KiB slots for requests, or none if they are SENT,
/// and replies by SEND.
pub fn service(
    workers: u16,
    window: u16,
    sessions_per_node: u32,
    requests_by_send: bool,
) -> Service {
    Service {
        workers,
        window,
        // As many as can be under way at any one worker, and some for others at the same time.
        replies: window.saturating_mul(workers).min(REPLIES_MAX),
        sessions_per_node,
        request_bytes: if requests_by_send { 0 } else { HERD_SLOT_BYTES as u32 },
        ..Service::default()
    }
}
