//! Access to this crate's private parsers for fuzz targets. It is not part of the API: it exists
//! with the feature `fuzzing` only, and may change at any time.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use loch_engines::error::LayoutError;
use loch_engines::nessie::hash::TableMap;
use loch_engines::region::{Header, TableEntry};
use loch_fabric::shm::Region;

use crate::layout::memory::{ClusterMemory, Member};
use crate::node::plan::NodePlan;
use crate::node::sessions::{SessionEnd, Sessions};
use crate::session::connection::Connection;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{self, Decoder};
use crate::{NodeConfig, Result};

pub use crate::limits::FRAME_BYTES_MAX;
pub use crate::node::fuzzing::FuzzNode;

/// Cuts the bytes of these parts into frames. Returns the frames, and the error of the rest.
pub fn frames<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Option<String>) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for part in parts {
        decoder.push(part);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

/// Decodes the request in a frame, and encodes it as this version does.
///
/// # Errors
/// The error that the sender gets.
pub fn request(frame: &[u8]) -> Result<Vec<u8>, String> {
    wire::decode_request(frame).map(|m| wire::encode(&m)).map_err(|e| e.to_string())
}

/// Decodes the reply in a frame, and encodes it as this version does.
///
/// # Errors
/// The error of the frame.
pub fn reply(frame: &[u8]) -> Result<Vec<u8>, String> {
    wire::decode_reply(frame).map(|m| wire::encode(&m)).map_err(|e| e.to_string())
}

/// The number of session slots of the node in [`attach`].
const SLOTS: u32 = 8;

/// Attaches a client to a node that sends these bytes, whatever is asked, and closes. Returns the
/// outcome of `hello`, and of a session that is opened and closed.
///
/// # Panics
/// If the client accepts a session that is not possible.
pub fn attach(bytes: &[u8]) -> [String; 3] {
    use std::io::Write;
    let (client, mut node) = UnixStream::pair().expect("a pair of sockets can be made");
    node.set_nonblocking(true).expect("a socket can be set not to block");
    // Bytes that do not fit the socket's buffer are not sent, as if the node had gone in the
    // middle.
    let _ = node.write(bytes);
    let _ = node.shutdown(std::net::Shutdown::Write);
    let connection = Connection::over(client);
    let wait = Duration::from_secs(5);
    let greeted = connection.greet(wait).map(|welcome| format!("{welcome:?}"));
    let opened = connection.open_session(SLOTS, wait);
    if let Ok(SessionId { slot, incarnation }) = opened {
        assert!((1..=SLOTS).contains(&slot) && incarnation != 0, "slot {slot}, {incarnation}");
    }
    let closed = connection.close_session(1, 1, wait);
    [
        greeted.unwrap_or_else(|e| e.to_string()),
        opened.map_or_else(|e| e.to_string(), |opened| format!("{opened:?}")),
        closed.map_or_else(|e| e.to_string(), |()| String::new()),
    ]
}

/// Reads a region's header and directory as clients and nodes do, and the maps of its tables.
///
/// # Errors
/// [`LayoutError`] if the bytes are not a region.
#[allow(clippy::type_complexity, reason = "three things that belong to a region")]
pub fn layout(
    region: &Arc<Region>,
) -> Result<(Header, Vec<TableEntry>, Result<Vec<Arc<TableMap>>>), LayoutError> {
    let node = Member::read("fuzzed".into(), "fuzzed".into(), region.clone())?;
    let (header, tables) = (node.header, node.tables.clone());
    let home = header.node as usize;
    // The other nodes of the cluster cannot be reached.
    let mut nodes: Vec<_> = (0..header.nodes).map(|_| None).collect();
    nodes[home] = Some(node);
    let maps = ClusterMemory::join(nodes, home);
    let maps = maps.map(|m| m.tables.iter().filter_map(|t| t.nessie().cloned()).collect());
    Ok((header, tables, maps))
}

/// Takes over the session slots of a region as a starting node does, opens a session and closes it.
/// Returns the number of slots, the number of freed slots, and the incarnation of the session.
///
/// # Errors
/// [`LayoutError`] if the bytes are not a region.
///
/// # Panics
/// If the session that was opened cannot be closed.
pub fn sessions(region: &Arc<Region>) -> Result<(u32, usize, Option<u64>), LayoutError> {
    let node = Member::read("fuzzed".into(), "fuzzed".into(), region.clone())?;
    let (sessions, freed) = Sessions::restore(&node, false);
    let scrubber = sessions.open_scrubber().expect("nobody else scrubs");
    let opened = sessions.open(Process::own());
    if let Some(opened) = opened {
        let ended = sessions.close(opened, Process::own(), SessionEnd::Left);
        assert!(ended.is_some(), "it was just opened");
    }
    sessions.close_scrubber(scrubber);
    Ok((node.client_sessions(), freed, opened.map(|opened| opened.incarnation)))
}

/// The layout of a configuration.
///
/// # Errors
/// As [`Node::start`](crate::Node::start).
pub fn plan(config: &NodeConfig) -> Result<(Header, Vec<TableEntry>)> {
    let planned = NodePlan::new(config)?.plan;
    Ok((planned.header, planned.tables))
}
