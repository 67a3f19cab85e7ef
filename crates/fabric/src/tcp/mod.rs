//! The fabric for hosts without RDMA: an [`Agent`] at each node executes the verbs of clients,
//! which connect to it over TCP, on the region that the node's processes have mapped.
//!
//! # From a verb to its result
//! A request arrives in a frame (`frame.rs`), is checked against the keys of its connection
//! (`keys.rs`), is executed in its connection's turn by a thread of the agent or by a worker
//! (`connection.rs`, `drive.rs`, `seat.rs`), and is answered. Long values go straight between
//! socket and region (`socket.rs`); words are copied one by one.
//!
//! # From a request to a worker to its reply
//! A message waits in the worker's mailbox (`letters.rs`), until the worker takes it and answers on
//! the same connection (`mailbox.rs`). A request that was WRITTEN rings the worker's bell, and the
//! reply goes on the client's connection as well (`serving.rs`), to be stored by the client's own
//! thread (`pushed.rs`).
//!
//! # Encryption
//! An agent that [encrypts](AgentOptions::encrypt) gives each client a key beside its token. The
//! greetings carry a handshake (`noise.rs`), and all that follows travels in records (`sealed.rs`).
//! The rest of the module sees two ways, which are plain or sealed (`stream.rs`).
//!
//! # Invariants
//! 1. A verb is executed with the processor's accesses and atomics: it is atomic with those of the
//!    processes that have mapped the region. So are the words of a READ of up to
//!    [`WHOLE_WORDS_BYTES_MAX`](crate::limits) bytes.
//! 2. The verbs of a connection are executed in the order in which they were posted, and each is
//!    answered after it was executed.
//! 3. A client has the rights of its grants, whatever it sends, and none after its [`Accepted`] was
//!    dropped (`admission.rs`). A node has the right to its clients' reply slots.
//!
//! # Faults survived
//! Clients that die, stand still, take no answers or send anything at all; each costs the node a
//! bounded amount of memory, and the other clients at most the turns of one.
//!
//! # Not promised
//! That the words of a READ of more than [`WHOLE_WORDS_BYTES_MAX`](crate::limits) bytes are whole,
//! nor those of a WRITE of [`TCP_STRAIGHT_BYTES_MIN`](crate::limits) or more before it is over: the
//! system copies them, and may take the two parts of a word at two moments.

mod admission;
mod agent;
mod company;
mod connection;
mod drive;
mod endpoint;
mod engine;
mod error;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inbox;
mod keys;
mod lent;
mod letters;
mod link;
mod mailbox;
mod messages;
mod noise;
mod planted;
mod pushed;
mod sealed;
mod seat;
mod serving;
mod setup;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod thread;
mod turns;
mod unawaited;

use crate::{Atomics, Caps, RoundTrip, Validation};

pub use admission::{Client, Replies, SeatId};
pub use agent::{Agent, AgentOptions};
pub use endpoint::{Dialed, TcpEndpoint, dial};
pub use error::TcpError;
pub use frame::{Refusal, Token, Unwelcome};
pub use lent::Accepted;
pub use mailbox::{TcpClient, TcpMailbox};
pub use messages::TcpMessages;
pub use noise::ConnectionKey;
pub use pushed::TcpWorker;
pub use serving::AgentEndpoint;
pub use setup::Answer;
pub use thread::Others;

/// What the fabric can do.
const CAPS: Caps = Caps {
    atomics: Atomics::Coherent,
    validation: Validation::Checksum,
    round_trip: RoundTrip::Dear,
    round_trip_bytes: crate::limits::TCP_ROUND_TRIP_BYTES,
    inline_bytes: crate::limits::TCP_INLINE_BYTES,
};
