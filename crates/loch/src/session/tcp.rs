//! The fabric `tcp`: endpoints that connect to the agents of nodes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use loch_fabric::tcp::{Answer, Dialed, Replies, TcpEndpoint, TcpError, TcpMessages, dial};
use loch_fabric::{RegionId, RemoteAddr};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::medium::{Medium, read_answer};
use crate::layout::memory::Member;
use crate::limits::DIAL_TIMEOUT;
use crate::{Error, Result};

/// TCP needs nothing that could be opened.
#[derive(Clone)]
pub(crate) struct Tcp;

/// What a client offers to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpOffer {
    /// Where its reply slots are in its home region, if workers WRITE its replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replies: Option<u64>,
}

impl Medium for Tcp {
    type Endpoint = TcpEndpoint;
    type Messages = TcpMessages;
    type Dialed = Dialed;

    fn endpoint(&self, home: &Member) -> Result<TcpEndpoint> {
        Ok(TcpEndpoint::new(RegionId(home.header.node as u8), home.region().clone()))
    }

    fn messages(&self, endpoint: &TcpEndpoint) -> Result<TcpMessages> {
        Ok(endpoint.messages())
    }

    fn take_replies(&self, endpoint: &TcpEndpoint, at: RemoteAddr, len: u32) {
        endpoint.take_replies(Replies { at, len });
    }

    fn go_far(endpoint: &TcpEndpoint) {
        endpoint.go_far();
    }

    fn bytes_carried(endpoint: &TcpEndpoint) -> Option<[u64; 2]> {
        Some(endpoint.bytes_carried())
    }

    fn offer(&self, endpoint: &TcpEndpoint, _: &Member, _: bool) -> Result<Value> {
        let replies = endpoint.replies().map(|replies| replies.at.offset());
        Ok(serde_json::to_value(TcpOffer { replies }).expect("an offer is plain data"))
    }

    fn dial(to: &Member, address: &str, answer: Value, patience: Duration) -> Result<Dialed> {
        let (answer, bytes): (Answer, _) = (read_answer(answer, to)?, to.header.region_bytes);
        // A host takes a connection at once, also if its agent is busy.
        let patience = [DIAL_TIMEOUT.min(patience), patience];
        let mut last = None;
        for address in looked_up(to, address)? {
            match dial(bytes, address, &answer, patience) {
                Ok(dialed) => return Ok(dialed),
                Err(error) => last = Some(error),
            }
        }
        Err(unreachable(to, last))
    }

    fn install(&self, endpoint: &TcpEndpoint, to: &Member, dialed: Dialed) -> Result<()> {
        endpoint.install(RegionId(to.header.node as u8), dialed);
        Ok(())
    }

    fn mend_when_left(endpoint: &TcpEndpoint, mend: impl Fn(&TcpEndpoint) + Send + Sync + 'static) {
        endpoint.mend_by(mend);
    }

    fn broken(endpoint: &TcpEndpoint) -> Vec<RegionId> {
        endpoint.broken()
    }
}

/// Looks the address of a node up.
fn looked_up(to: &Member, address: &str) -> Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs().map_err(|error| Error::NodeUnreachable {
        socket: to.socket.clone(),
        remedy: format!("its address, {address}, cannot be looked up: {error}"),
    })?;
    Ok(found.collect())
}

fn unreachable(to: &Member, error: Option<TcpError>) -> Error {
    let remedy = match error {
        Some(error) => error.to_string(),
        None => "its name has no address".into(),
    };
    Error::NodeUnreachable { socket: to.socket.clone(), remedy }
}
