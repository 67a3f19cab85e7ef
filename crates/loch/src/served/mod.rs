//! Tables that workers serve: the client's side of them.
//!
//! | file | what it has |
//! | --- | --- |
//! | `net.rs` | the fabrics, as clients of such tables use them |
//! | `endpoint.rs` | an endpoint that lets workers have the processor, with messages |
//! | `client.rs` | the client of a table, whatever its engine |
//! | `whereabouts.rs` | how a table asks its nodes for what only they know |

pub(crate) mod client;
pub(crate) mod endpoint;
pub(crate) mod net;
pub(crate) mod whereabouts;
