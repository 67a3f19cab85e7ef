//! What a node tells a client that it lets in.

use serde::{Deserialize, Serialize};

use super::TcpError;
use super::frame::Token;
use super::noise::ConnectionKey;
use crate::rights::{self, Granted};

/// The answer of a node that lets a client in. Made by [`Agent::accept`](super::Agent::accept). It
/// travels over a channel of the caller, and comes from another machine: it is checked when it is
/// used, and not trusted before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What the connection has to begin with.
    pub token: Token,
    /// The key of the connection, which is encrypted if there is one. It is a secret as the token
    /// is, and in contrast to that it does not travel over the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ConnectionKey>,
    /// The ranges that the keys open.
    pub grants: Vec<Granted>,
}

impl Answer {
    /// Checks the answer for a region of `region_bytes`.
    ///
    /// # Errors
    /// [`TcpError::Hostile`] says what it cannot be.
    pub fn validate(&self, region_bytes: u64) -> Result<(), TcpError> {
        let hostile = |what| TcpError::Hostile { what };
        if self.grants.iter().any(|granted| granted.address != granted.offset) {
            return Err(hostile("an address that is no offset"));
        }
        let ranges = self.grants.iter().map(|it| (it.offset, it.len)).collect();
        rights::check_ranges(ranges, region_bytes).map_err(hostile)
    }
}
