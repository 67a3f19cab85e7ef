//! An RDMA device, and an endpoint whose connections are made again when they break.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use loch_fabric::verbs::Device;
use loch_fabric::verbs::{Answer, DeviceError, Selection, Transport, VerbsEndpoint, VerbsError};
use loch_fabric::{Fabric, RegionId, UnreliableWrites};
use serde::Deserialize;

use super::connection::Connection;
use super::endpoint::WhileWaiting;
use super::table_session::{At, TableSession};
use crate::layout::memory::Member;
use crate::session::wire::{self, DeviceChoice, Reply, Request};
use crate::{ByteSize, Error, Result};

/// Whether this build can open devices.
pub(crate) const IS_BUILT: bool = true;

/// An endpoint with the links that make its connections.
pub(crate) struct Linked<L> {
    endpoint: VerbsEndpoint,
    links: L,
}

/// Makes the connections of an endpoint.
pub(crate) trait Links {
    /// Called now and then while the endpoint's user waits.
    fn wait(&self, endpoint: &VerbsEndpoint);
}

impl<L> Linked<L> {
    pub fn new(endpoint: VerbsEndpoint, links: L) -> Self {
        Self { endpoint, links }
    }

    pub fn endpoint(&self) -> &VerbsEndpoint {
        &self.endpoint
    }

    pub fn links(&self) -> &L {
        &self.links
    }
}

impl<L> Fabric for Linked<L> {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read chase read_many read_word_and_bytes
        compare_swap compare_swap_many fetch_add write_unsignaled
        write is_mapped store_before store_after announce
        load load_bytes reload will_read will_store raw posted is_settled now_us wall_ms random
        pause poll_wait yield_now store
        => endpoint
    );
}

impl<L> UnreliableWrites for Linked<L> {
    loch_fabric::pass_on!(write_unreliable => endpoint);
}

impl<L: Links> WhileWaiting for Linked<L> {
    fn tend(&self) {
        self.links.wait(&self.endpoint);
    }
}

impl Connection {
    /// Has a node of the cluster let a connection in. Returns that node's side of it.
    ///
    /// # Errors
    /// As [`Connection::member`].
    pub fn connect(&self, connect: wire::Connect, wait: Duration) -> Result<serde_json::Value> {
        match self.request(&Request::Connect(connect), wait)? {
            Reply::Connected { answer } => Ok(answer),
            other => Err(self.unexpected(&other)),
        }
    }
}

impl TableSession {
    /// The session as a node knows it, and the number of an endpoint without a session.
    pub fn caller(&self) -> (Option<(u32, u64)>, u64) {
        match &self.at {
            At::Reader(_, endpoint) => (None, *endpoint),
            At::Node(_, it) | At::Embedded(_, it) | At::Fenced(_, it, _) => {
                (Some((it.slot, it.incarnation)), 0)
            }
            At::Observer(_) => (None, 0),
        }
    }
}

/// Connects an endpoint to a node; `asked` takes the offer to the node and returns the answer.
///
/// # Errors
/// [`Error::Device`], and the errors of `asked`.
pub(crate) fn connect(
    endpoint: &VerbsEndpoint,
    member: &Member,
    transport: Transport,
    ask: wire::Connect,
    asked: impl FnOnce(wire::Connect) -> Result<serde_json::Value>,
) -> Result<()> {
    let region = RegionId(member.header.node as u8);
    let bytes = member.header.region_bytes;
    let offer = endpoint.offer_over(region, transport).map_err(|error| of_verbs(error, bytes))?;
    let offer = serde_json::to_value(&offer).expect("an offer is plain data");
    let unreliable = transport == Transport::Unreliable;
    let answer = asked(wire::Connect { offer, unreliable, ..ask })?;
    let answer = of_answer(&answer, &member.socket)?;
    endpoint.connect(region, bytes, &answer).map_err(|error| of_verbs(error, bytes))
}

/// Reads the answer of the node at `socket`.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn of_answer(answer: &serde_json::Value, socket: &Path) -> Result<Answer> {
    Answer::deserialize(answer).map_err(|error| Error::Device {
        problem: format!("{} sent an answer that cannot be read: {error}", socket.display()),
    })
}

/// Opens a device.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn open_device(choice: &DeviceChoice) -> Result<Arc<Device>> {
    let DeviceChoice { name, port, gid_index } = choice.clone();
    let selection = Selection { device: name, port, gid_index };
    let opened = Device::open(&selection);
    opened.map_err(|error: DeviceError| Error::Device { problem: error.to_string() })
}

/// Makes an error of the device one of this crate; `region_bytes` is the size of the region.
pub(crate) fn of_verbs(error: VerbsError, region_bytes: u64) -> Error {
    let locked = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    of_verbs_within(error, region_bytes, locked)
}

fn of_verbs_within(error: VerbsError, region_bytes: u64, limit: Option<u64>) -> Error {
    match (&error, limit) {
        (VerbsError::Register { .. }, Some(limit)) if limit < region_bytes => {
            Error::LockedMemory { needed: ByteSize::new(region_bytes), limit: ByteSize::new(limit) }
        }
        _ => Error::Device { problem: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_is_told_in_numbers() {
        let error = || VerbsError::Register {
            bytes: 1 << 20,
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        let told = of_verbs_within(error(), 64 << 20, Some(8 << 20)).to_string();
        for word in ["64MiB", "8MiB", "ulimit -l", "LimitMEMLOCK"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        let other = of_verbs_within(error(), 64 << 20, None);
        assert!(matches!(other, Error::Device { .. }), "{other}");
    }
}
