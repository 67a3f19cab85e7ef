//! Requests and replies: the one mechanism of all engines whose workers take part in an operation.
//!
//! A **client** is a session slot of a node, and a node has one or more **workers** for each table.
//! A client sends a request to a worker and waits for the reply; it may have *window* requests
//! under way at one worker. Requests are WRITEs into slots that the worker polls (herd §4.2), or
//! SENDs; replies are WRITEs into slots that the client polls (nessie §5), or SENDs (herd §4.3).
//!
//! | file | what it does |
//! | --- | --- |
//! | [`layout`] | where the slots are |
//! | [`message`] | the bytes of a request and of a reply |
//! | [`packet`] | many operations, or their outcomes, in one message |
//! | [`seal`] | what shows that a message is whole, and whose it is |
//! | `sessions.rs` | what a worker's node knows of its clients |
//! | `client.rs`, `asked.rs` | sends, waits, sends again |
//! | `window.rs` | numbers, and which of them are under way |
//! | `worker.rs`, `memory.rs` | finds requests; executes each once |
//! | `asker.rs`, `packing.rs`, `batch.rs` | fill packets: for lanes, and for batches |
//! | `kv.rs` | the client of a table in which a worker owns each key |
//! | `results.rs` | the outcomes of a packet, in its order |
//! | `turns.rs` | the lanes of a worker |
//! | `server.rs`, `peers.rs` | takes requests and sends replies, where those are SENT; where to |
//! | [`path`] | WRITEs and SENDs, both ways |
//!
//! # How an engine uses it
//! A request carries a [packet](packet) of one or more operations, a reply the packet of their
//! outcomes. A client makes a [`Requester`] with the two paths of the engine, and an [`Asker`] that
//! fills packets. If a worker owns each key and executes all operations on it, [`Client`] is the
//! engine's whole client: the engine only says who the [owners](Owners) are.
//!
//! A worker opens an [`Inbox`] and takes messages with [`Inbox::poll`] (slots) or [`Inbox::accept`]
//! (datagrams). It may take as many ahead as the engine likes, each with a buffer of its own. It
//! executes the operations of [`Ticket::packet`] and calls [`Inbox::complete`], in any order; that
//! remembers the outcomes and makes the reply. It sends the reply with [`send_reply`] (WRITE) or
//! `Messages::send_all`. An [`Incoming::Answer`] is answered with [`Inbox::repeat`] and not
//! executed. After an [`Incoming::Hello`] the worker sends everything for the ticket's client to
//! the place where this datagram came from.
//!
//! ```
//! use std::sync::Arc;
//! use loch_engines::epoch::Session;
//! use loch_engines::operation::{Operation, Outcome, Version};
//! use loch_engines::requests::*;
//! # use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr, lanes::block_on, shm::*};
//! # let dir = tempfile::tempdir()?;
//! # let region = Arc::new(Region::create(&dir.path().join("region"), 1 << 20)?);
//! # let endpoint = || {
//! #     let mut e = ShmEndpoint::new(RegionId(0));
//! #     e.attach(RegionId(0), region.clone());
//! #     e
//! # };
//! let service = Service {
//!     workers: 1, window: 4, replies: 8, sessions_per_node: 2,
//!     request_bytes: Service::request_bytes_for(16, 100)?,
//!     reply_bytes: Service::reply_bytes_for(100)?,
//!     ..Service::default()
//! };
//! let area = Area::new(service, 1)?;
//! let map = Arc::new(RequestMap::new(area, vec![RemoteAddr::new(RegionId(0), 1 << 16)]));
//! let (to, home) = (WorkerId { node: 0, worker: 0 }, RegionId(0));
//!
//! let server = endpoint();
//! // Its node knows which session holds the slot.
//! let sessions = |node, slot| Some(Holder::new(77, None)).filter(|_| (node, slot) == (0, 1));
//! let mut inbox = Inbox::open(&server, &map, to, Box::new(sessions))?;
//! let client = endpoint();
//! let replies = WrittenReplies::of(&map, map.area().client(0, 1));
//! let session = Session::new(home, 1, 77);
//! let requester =
//!     Requester::new(map.clone(), &session, 0, ByWrite { home }, replies, Timing::default());
//!
//! let version = Version::from_u64(5);
//! let asks = requester.call(&client, to, b"key", Operation::Get, Buf::new());
//! let serves = async {
//!     let mut message = Buf::new();
//!     loop {
//!         if let Some(Incoming::Execute(ticket)) = inbox.poll(&server, &mut message)? {
//!             assert_eq!(ticket.request(&message).expect("it is whole").key, b"key");
//!             let found = Outcome::Found { version, expires_at_ms: None, value: b"value" };
//!             let (reply, _) = inbox.complete(&ticket, packet::OutcomeWriter::one(&Ok(found)));
//!             return send_reply(&server, &map, home, &ticket, reply).await.1;
//!         }
//!         server.yield_now().await;
//!     }
//! };
//! # let (mut asks, mut serves) = (std::pin::pin!(asks), std::pin::pin!(serves));
//! # let mut served = false;
//! # let reply = block_on(std::future::poll_fn(|cx| {
//! #     use std::future::Future;
//! #     if !served && serves.as_mut().poll(cx).is_ready() { served = true; }
//! #     asks.as_mut().poll(cx)
//! # }))?;
//! let value = reply.into_done()?.into_found()?.expect("it is there");
//! assert_eq!((&value[..], value.version()), (&b"value"[..], version));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! 1. Request `r` of a client at a worker lies in slot `r mod window`. The client sends it only
//!    when the previous request of that slot was answered, or when it does not wait for that one
//!    any more. Slots are never zeroed.
//! 2. A message counts only with the expected number and the right seal.
//! 3. A worker executes a packet of one session that changes something at most once ([`Inbox`]); it
//!    may execute a packet of reads again.
//! 4. A worker executes only requests that were meant for its own incarnation. At any time there is
//!    one worker of a number: a node starts a worker after it has stopped the one before.
//!
//! # Faults
//! * **A message is lost, comes twice, or late.** The client sends a request again until it is
//!   answered or its time is up. The worker answers a repeated request from memory. A message that
//!   comes after its slot was used anew is dropped, or it overwrites the newer message, which is
//!   then sent again.
//! * **A client dies.** Nobody waits for its replies. The requests that it had sent may still be
//!   executed, until the worker hears of the next session of the slot and forgets the dead one.
//! * **A worker dies.** Its clients wait until the node has another worker, which tells them that
//!   they believe in the wrong incarnation. Reads are sent again. A mutation is ambiguous if the
//!   dead worker may have got it, that is, unless the first attempt met the new worker. A worker
//!   makes known, beside its incarnation, where it receives messages ([`make_known`]); a client
//!   without an answer looks there again.
//! * **A worker stands still.** Its clients wait until their time is up.
//! * **Hostile bytes** in slots and datagrams cost the worker time and nothing else. But a process
//!   that may write another client's slots can speak in that client's name. A datagram speaks for
//!   anybody who knows the session's secret ([`seal`]). A client that names a session other than
//!   its own is not served.

mod asked;
mod asker;
mod batch;
pub(crate) mod bells;
pub(crate) mod budget;
mod client;
mod counts;
mod kv;
pub mod layout;
pub mod mailboxes;
mod mapped;
mod memory;
pub mod message;
pub mod packet;
mod packing;
pub mod path;
mod peers;
mod results;
pub mod seal;
mod server;
mod sessions;
mod turns;
mod wait;
mod window;
mod worker;

use loch_fabric::{Buf, Fabric, FabricError, RegionId};

pub use asker::{Asker, Owners};
pub use client::{Reply, Requester, Timing};
pub use counts::Counts;
pub use kv::{Client, SendingClient};
pub use layout::{Area, RequestMap, WorkerId};
pub use message::{Body, Request, Ticket};
pub use packet::Failure;
pub use packing::Room;
pub use path::{
    BySend, ByUnreliableWrite, ByWrite, ReplyPath, RequestPath, Sent, SentReplies, WrittenReplies,
    make_known,
};
pub(crate) use results::Results;
pub use seal::Seal;
pub use server::{ROUND_MESSAGES_MAX, Round, Server};
pub use sessions::{Holder, Sessions};
pub(crate) use turns::Lanes;
pub use turns::Turns;
pub use wait::within;
pub use worker::{Inbox, Incoming};

pub use crate::region::Service;
pub use crate::secret::Secret;

/// WRITEs a reply that [`Inbox::complete`] or [`Inbox::repeat`] made into the slot that waits for
/// it. The worker's node is `home`. Gives the buffer back.
///
/// # Errors
/// The fabric's. The client will ask again.
pub async fn send_reply<F: Fabric>(
    fabric: &F,
    map: &RequestMap,
    home: RegionId,
    ticket: &Ticket,
    reply: Buf,
) -> (Buf, Result<(), FabricError>) {
    let service = map.area().service();
    let fits = ticket.reply < service.replies && reply.len() <= service.reply_bytes as usize;
    if !fits {
        // No client that keeps the rules waits for this reply.
        return (reply, Ok(()));
    }
    let slot = (map.reply_addr(ticket.client, ticket.reply), service.reply_bytes);
    let (reply, done) = path::write(fabric, home, slot, reply).await;
    (reply, done.map(|_| ()))
}
