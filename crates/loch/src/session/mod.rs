//! Between a client and its node: the socket, the session that is opened over it, and the endpoints
//! of both sides.
//!
//! | file | contents |
//! | --- | --- |
//! | `wire.rs` | the messages between client and node |
//! | `connection.rs` | the client's side of the socket |
//! | `slot.rs` | a session's slot in the node's memory |
//! | `table_session.rs` | a table's session, and how it ends |
//! | `local.rs` | nodes inside this process, as their clients see them |
//! | `endpoint.rs` | an endpoint that yields while it waits |
//! | `device.rs` | an RDMA device, and an endpoint of it |

pub(crate) mod connection;
#[cfg(feature = "verbs")]
pub(crate) mod device;
#[cfg(not(feature = "verbs"))]
#[path = "no_device.rs"]
pub(crate) mod device;
pub(crate) mod endpoint;
pub(crate) mod local;
pub(crate) mod slot;
pub(crate) mod table_session;
pub(crate) mod wire;
