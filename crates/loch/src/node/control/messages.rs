//! What nodes say to each other over a channel. Frames are those of [`wire`](crate::session::wire).
//!
//! ```text
//! dialer     hello     living …   connect     fence …   inspect     ping   …
//! acceptor    welcome        done    connected      done   inspected   pong
//! ```
//! To `living` and `fence` the acceptor may answer `later`, and is then asked again. The dialer
//! speaks for its clients: it asks, the acceptor answers each request once and in order. To
//! anything the acceptor can answer `refused`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::node::control_client::Caller;
use crate::session::wire::{Connect, Inspected, Refused};

/// From the node that dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlRequest {
    /// Who I am.
    Hello(Hello),
    /// These of my clients live, and maybe more to come; when the `last` of them is told, the
    /// connections of all others are to be ended.
    Living { callers: Vec<Caller>, last: bool },
    /// End the connections of these.
    Fence { callers: Vec<Caller> },
    /// Let a connection in.
    Connect { caller: Caller, connect: Connect },
    /// What do your workers have of a table?
    Inspect { table: u32 },
    /// I am there.
    Ping { sessions_taken: u32 },
}

/// From the node that was dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlReply {
    /// Who I am.
    Welcome(Hello),
    /// It is done: what was to be ended has ended.
    Done {},
    /// What was to be ended is about to end, and has not yet: ask again.
    Later {},
    /// It is let in.
    Connected { answer: Value },
    /// They have this.
    Inspected(Inspected),
    /// So am I.
    Pong { sessions_taken: u32 },
    /// No.
    Refused(Refused),
}

/// Who a node is and what its memory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    /// Its number.
    pub node: u16,
    /// Nodes of its cluster.
    pub nodes: u16,
    /// Its name.
    pub name: String,
    /// Names its process among all that ever were this node.
    pub process: u64,
    /// Header of its region, in hexadecimal.
    pub header: String,
    /// Table directory of its region, in hexadecimal.
    pub directory: String,
}
