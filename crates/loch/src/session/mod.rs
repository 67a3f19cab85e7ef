//! Between a client and its node: the socket, the session that is opened over it, and the endpoints
//! of both sides.
//!
//! | file | contents |
//! | --- | --- |
//! | `wire.rs` | the messages between client and node |
//! | `connection.rs` | the client's side of the socket |
//! | `slot.rs` | a session's slot in the node's memory |
//! | `slot_lock.rs` | how a client shows that it lives, where its process is not seen |
//! | `table_session.rs` | a table's session, and how it ends |
//! | `local.rs` | nodes inside this process, as their clients see them |
//! | `endpoint.rs` | an endpoint that yields while it waits |
//! | `medium.rs` | the fabrics between machines, and endpoints with links that make connections |
//! | `opened.rs` | the fabric that a process has opened |
//! | `tcp.rs` | the fabric `tcp` |
//! | `verbs.rs` | the fabric `verbs`: a device, and endpoints of it |

pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod local;
pub(crate) mod medium;
pub(crate) mod opened;
pub(crate) mod slot;
pub(crate) mod slot_lock;
pub(crate) mod table_session;
pub(crate) mod tcp;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
pub(crate) mod wire;
