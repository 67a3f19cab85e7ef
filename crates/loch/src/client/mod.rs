//! A table as its client has it, over whatever network.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `attachment.rs` | a client's connections to the nodes' sockets, and their memory |
//! | `options.rs` | how a client attaches |
//! | `backend.rs` | a table's client: over shared memory by itself, over a network behind a trait |
//! | `operations.rs` | what can be asked of a table, over whatever network |
//! | `in_place.rs` | a value that is written where it will be read |
//! | `counters.rs` | what a table's operations cost |
//! | `table_client.rs` | the client of a table over one network |
//! | `net.rs` | what is asked of a network; shared memory as one |
//! | `verbs.rs` | verbs as a network: connections that are made again when they break |
//! | `nodes.rs` | where the nodes are, and what can be asked of them |

pub(crate) mod attachment;
pub(crate) mod backend;
pub(crate) mod counters;
pub(crate) mod in_place;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod options;
pub(crate) mod table_client;
#[cfg(feature = "verbs")]
mod verbs;
#[cfg(not(feature = "verbs"))]
#[path = "no_verbs.rs"]
mod verbs;
