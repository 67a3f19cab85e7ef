//! A table as its client has it, over whatever network.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `backend.rs` | a table's client: over shared memory by itself, over a network behind a trait |
//! | `operations.rs` | what can be asked of that client |
//! | `table_client.rs` | the client of a table over one network |
//! | `net.rs` | what is asked of a network; shared memory as one |
//! | `endpoint.rs` | an endpoint that yields while it waits |
//! | `nodes.rs` | where the nodes are, and what can be asked of them |

pub(crate) mod backend;
pub(crate) mod endpoint;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod table_client;
