//! The knowledge of a worker's node about its clients: the session that holds each slot, and the
//! session's secret.
//!
//! A session's number stands in its messages, where a client can write any number. A worker
//! therefore does not believe a number because it is new or large: it serves only the session that,
//! as its node knows, holds the slot.

use super::message::session_number;
use crate::secret::Secret;

/// The session that holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number in messages.
    pub(super) session: u64,
    /// The secret that seals the session's datagrams.
    pub(super) secret: Option<Secret>,
}

impl Holder {
    /// The session of this incarnation. Without a `secret` its datagrams have checksums: for
    /// fabrics on which only clients of the cluster can send datagrams.
    pub fn new(incarnation: u64, secret: Option<Secret>) -> Self {
        Self { session: session_number(incarnation), secret }
    }
}

/// The holder of a node's session slot at this moment, as the worker's node knows it: from the
/// region of that node, or from its control plane. A worker asks when it first hears of a session,
/// and whenever a message comes from a session that holds no slot.
pub type Sessions = Box<dyn Fn(u16, u32) -> Option<Holder>>;
