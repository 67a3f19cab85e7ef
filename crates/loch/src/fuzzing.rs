//! What fuzz targets need of this crate's private parsers. Not part of the API: it is there with
//! the feature `fuzzing` only, and promises nothing.

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
use crate::session::slot::Process;
use crate::session::wire::{self, Decoder};
use crate::{Error, NodeConfig};

pub use crate::limits::FRAME_BYTES_MAX;
pub use crate::node::fuzzing::FuzzNode;

/// The frames that bytes are cut into which arrive in these parts, and what is wrong with the rest.
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

/// The request in a frame, as this version writes it.
///
/// # Errors
/// What is wrong with it, as its sender is told.
pub fn request(frame: &[u8]) -> Result<Vec<u8>, String> {
    wire::decode_request(frame).map(|m| wire::encode(&m)).map_err(|e| e.to_string())
}

/// The reply in a frame, as this version writes it.
///
/// # Errors
/// What is wrong with it.
pub fn reply(frame: &[u8]) -> Result<Vec<u8>, String> {
    wire::decode_reply(frame).map(|m| wire::encode(&m)).map_err(|e| e.to_string())
}

/// Session slots of the node that [`attach`] is about.
const SLOTS: u32 = 8;

/// A client whose node sends these bytes, whatever is asked, and closes: what becomes of a `hello`,
/// and of a session that is opened and closed.
///
/// # Panics
/// If a session is taken that cannot be one.
pub fn attach(bytes: &[u8]) -> [String; 3] {
    use std::io::Write;
    let (client, mut node) = UnixStream::pair().expect("a pair of sockets can be made");
    node.set_nonblocking(true).expect("a socket can be set not to block");
    // What does not fit the socket's buffer is not sent: the node went away in the middle.
    let _ = node.write(bytes);
    let _ = node.shutdown(std::net::Shutdown::Write);
    let connection = Connection::over(client);
    let wait = Duration::from_secs(5);
    let greeted = connection.greet(wait).map(|welcome| format!("{welcome:?}"));
    let opened = connection.open_session(SLOTS, wait);
    if let Ok((slot, incarnation)) = opened {
        assert!((1..=SLOTS).contains(&slot) && incarnation != 0, "slot {slot}, {incarnation}");
    }
    let closed = connection.close_session(1, 1, wait);
    [
        greeted.unwrap_or_else(|e| e.to_string()),
        opened.map_or_else(|e| e.to_string(), |opened| format!("{opened:?}")),
        closed.map_or_else(|e| e.to_string(), |()| String::new()),
    ]
}

/// A region's header and directory, as a client or a node reads them, and the maps of its tables.
///
/// # Errors
/// [`LayoutError`] if the region is none.
#[allow(clippy::type_complexity, reason = "three things that belong to a region")]
pub fn layout(
    region: &Arc<Region>,
) -> Result<(Header, Vec<TableEntry>, Result<Vec<Arc<TableMap>>, Error>), LayoutError> {
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

/// Takes over the session slots of a region, as a node does that starts, opens a session and closes
/// it. Slots there are, those that were freed, and the incarnation of the session.
///
/// # Errors
/// [`LayoutError`] if the region is none.
///
/// # Panics
/// If a session that was opened is not there.
pub fn sessions(region: &Arc<Region>) -> Result<(u32, usize, Option<u64>), LayoutError> {
    let node = Member::read("fuzzed".into(), "fuzzed".into(), region.clone())?;
    let (sessions, freed) = Sessions::restore(&node, false);
    let scrubber = sessions.open_scrubber().expect("nobody else scrubs");
    let opened = sessions.open(Process::own());
    if let Some(opened) = opened {
        assert!(sessions.close(opened, Process::own(), SessionEnd::Left), "it was just opened");
    }
    sessions.close_scrubber(scrubber);
    Ok((node.client_sessions(), freed, opened.map(|opened| opened.incarnation)))
}

/// The layout that a configuration stands for.
///
/// # Errors
/// As [`Node::start`](crate::Node::start).
pub fn plan(config: &NodeConfig) -> Result<(Header, Vec<TableEntry>), Error> {
    let planned = NodePlan::new(config)?.plan;
    Ok((planned.header, planned.tables))
}
