//! The client's side of a table, over any network.
//!
//! | file | contents |
//! | --- | --- |
//! | `attachment.rs` | a client's connections to the nodes' sockets, and their memory |
//! | `options.rs` | options of a client |
//! | `backend.rs` | a table's client: over shared memory by itself, over a network behind a trait |
//! | `batching.rs` | operations on many keys together, in stages or in packets |
//! | `operations.rs` | the operations of a table, over any network |
//! | `scanning.rs` | where a scan goes on, and what it has found |
//! | `in_place.rs` | a value that is written in the place where readers will find it |
//! | `counters.rs` | the costs of a table's operations |
//! | `table_client.rs` | the client of a table over one network |
//! | `net.rs` | the requirements on a network; shared memory as a network |
//! | `remote.rs` | a fabric between machines as a network |
//! | `connector.rs` | the connections to nodes of other machines, which are made again |
//! | `aside.rs` | work that makes its thread wait, on a thread of its own |
//! | `nodes.rs` | the nodes, and the requests to them |

mod aside;
pub(crate) mod attachment;
pub(crate) mod backend;
pub(crate) mod batching;
mod connector;
pub(crate) mod counters;
pub(crate) mod in_place;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod options;
mod remote;
pub(crate) mod scanning;
mod table_client;
