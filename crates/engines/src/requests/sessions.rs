//! What a worker's node knows of its clients: which session holds which slot, and its secret.
//!
//! A session's number stands in its messages, and a client writes there what it likes. So no number
//! is believed for being new or large: a worker serves the session that its node knows to hold the
//! slot, and no other.

use super::message::session_number;
use crate::secret::Secret;

/// The session that holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number in messages.
    pub(super) session: u64,
    /// What its datagrams are sealed with.
    pub(super) secret: Option<Secret>,
}

impl Holder {
    /// The session of this incarnation. Without a `secret` its datagrams have checksums: for
    /// fabrics on which only clients of the cluster can send any.
    pub fn new(incarnation: u64, secret: Option<Secret>) -> Self {
        Self { session: session_number(incarnation), secret }
    }
}

/// The holder of a node's session slot at this moment, as the worker's node knows it: from the
/// region of that node, or from its control plane. It is asked when a session is heard of for the
/// first time, and whenever something comes from one that holds no slot.
pub type Sessions = Box<dyn Fn(u16, u32) -> Option<Holder>>;
