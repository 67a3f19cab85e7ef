//! The messages between nodes. Their frames are those of [`wire`](crate::session::wire).
//!
//! ```text
//! dialer     hello     living …   connect     fence …   ask         ping   …
//! acceptor    welcome        done    connected      done   told        pong
//! ```
//!
//! A probe (`probe.rs`) has a link of its own, which ends after one question:
//! ```text
//! dialer     probe
//! acceptor           probed
//! ```
//! To `living` and `fence` the acceptor may answer `later`; then the dialer asks again. The dialer
//! speaks for its clients. The acceptor answers each request once, in order, and can answer
//! `refused` to any request.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::node::control_client::Caller;
use crate::session::wire::{Connect, Question, Refused, Told};

/// What a node tells of itself now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeState {
    /// The session slots that are taken.
    pub sessions_taken: u32,
    /// Whether the file of the node's region was deleted.
    pub region_deleted: bool,
}

/// A request of the node that dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlRequest {
    /// Tells which node speaks.
    Hello(Hello),
    /// Tells which clients of the dialer live. After the `last` such message the acceptor ends the
    /// connections of all others.
    Living { callers: Vec<Caller>, last: bool },
    /// Asks for the connections of these clients to be ended.
    Fence { callers: Vec<Caller> },
    /// Asks for a connection to be let in.
    Connect { caller: Caller, connect: Connect },
    /// Asks the workers.
    Ask(Question),
    /// Asks who the acceptor is, in place of hello, for somebody who is no node.
    Probe {},
    /// Shows that the dialer is up.
    Ping(NodeState),
}

/// A reply of the node that was dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlReply {
    /// Tells which node answers.
    Welcome(Hello),
    /// The request was executed: all connections that were to be ended have ended.
    Done {},
    /// The connections have begun to end and have not ended yet. The dialer has to ask again.
    Later {},
    /// The connection was let in.
    Connected { answer: Value },
    /// The workers' answer.
    Told(Told),
    /// Tells which node answers, and lets in a connection that may READ while the link lives.
    Probed { hello: Hello, answer: Value },
    /// Shows that the acceptor is up.
    Pong(NodeState),
    /// The request was refused.
    Refused(Refused),
}

/// A node and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    /// The node's number.
    pub node: u16,
    /// The number of nodes of its cluster.
    pub nodes: u16,
    /// The node's name.
    pub name: String,
    /// Names its process among all processes that ever were this node.
    pub process: u64,
    /// The name of its fabric.
    pub fabric: String,
    /// The header of its region, in hexadecimal.
    pub header: String,
    /// The table directory of its region, in hexadecimal.
    pub directory: String,
}
