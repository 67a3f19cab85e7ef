//! HERD: the server executes every operation, and a client's request costs the network one WRITE
//! and one SEND (herd §3, §4).
//!
//! # How it works
//! A table is divided among the workers of all nodes by the hash of the key ([`key`]). Each worker
//! owns one partition, in its process's own memory, and no other thread touches it ([`storage`]). A
//! client WRITEs its request into its slot at the worker that owns the key, over an unreliable
//! connection. The worker polls the slots, takes the requests through a pipeline that hides the two
//! memory accesses of each request behind the work for others ([`Pipeline`]), and SENDs the replies
//! ([`Worker`]). If there are so many clients that their connections do not fit the card, requests
//! are SENT as well (herd §5.5).
//!
//! The partition is a **cache**, which lets the oldest entries go, or a **store**, which refuses
//! new ones when it is full.
//!
//! # What differs from the paper
//! * In the paper a key is its 16-byte hash. Here the hash says where to look, and the key is kept
//!   and compared: Loch never returns the value of another key.
//! * In the paper the server zeroes a slot when it has replied, so that it can tell a new request
//!   from an old one. Here requests are numbered and checksummed ([`requests`](crate::requests)),
//!   slots are not zeroed, and a request that is sent again is executed once.
//! * In the paper each stage of the pipeline holds one request. Here it holds as many as memory
//!   needs to answer.
//!
//! # Linearization points
//! Every operation takes effect when its worker executes it, between its call and its return. In a
//! cache a value can also disappear at any moment: a hit is never wrong, and a miss is allowed.
//!
//! # What a client can break
//! Clients read and write no memory but their own request slots. A broken or hostile client can
//! only make requests that it may make anyway: it cannot damage a value of the table.

mod client;
pub mod key;
mod pipeline;
mod serve;
pub mod storage;
mod table;
mod worker;

pub use client::{Client, Way};
pub use pipeline::Pipeline;
pub use storage::Mode;
pub use table::{Herd, Map, Options, PartitionShape, RequestWay};
pub use worker::{DEPTH_MAX, Settings, Worker};

use crate::limits::{HERD_ITEM_BYTES_MAX, HERD_SLOT_BYTES};
use crate::requests::message::REQUEST_OVERHEAD_BYTES;

const _: () = assert!(HERD_ITEM_BYTES_MAX + REQUEST_OVERHEAD_BYTES <= HERD_SLOT_BYTES as usize);
