//! The fabric `verbs`: a device, and endpoints of it.

use std::sync::Arc;
use std::time::Duration;

use loch_engines::registry::EngineId;
use loch_fabric::RegionId;
use loch_fabric::verbs::{
    Answer, Datagrams, Device, DeviceError, Selection, Transport, VerbsEndpoint, VerbsError,
};
use serde_json::Value;

use super::medium::{Medium, read_answer};
use crate::layout::memory::{ClusterMemory, Member};
use crate::session::wire::DeviceChoice;
use crate::{ByteSize, Error, Result};

/// An open device.
#[derive(Clone)]
pub(crate) struct Card(pub Arc<Device>);

impl Card {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn open(choice: &DeviceChoice) -> Result<Self> {
        let DeviceChoice { name, port, gid_index } = choice.clone();
        let selection = Selection { device: name, port, gid_index };
        let opened = Device::open(&selection);
        opened.map(Self).map_err(|error: DeviceError| Error::Device { problem: error.to_string() })
    }
}

impl Medium for Card {
    type Endpoint = VerbsEndpoint;
    type Messages = Datagrams;
    type Dialed = Answer;

    fn endpoint(&self, home: &Member) -> Result<VerbsEndpoint> {
        let region = RegionId(home.header.node as u8);
        VerbsEndpoint::new(self.0.clone(), region, home.region().clone())
            .map_err(|error| of_verbs(error, home.header.region_bytes))
    }

    /// Replies go to the address from which the request came, so no mailbox in memory is needed.
    fn messages(&self, _: &VerbsEndpoint) -> Result<Datagrams> {
        Datagrams::new(&self.0).map_err(|error| of_verbs(error, 0))
    }

    fn writes_unreliably(memory: &ClusterMemory, table: usize) -> bool {
        let entry = &memory.tables[table].entry;
        let may = EngineId::of(entry).is_some_and(|engine| engine.needs().unreliable_writes);
        may && entry.params.service.request_bytes > 0
    }

    fn offer(&self, endpoint: &VerbsEndpoint, to: &Member, unreliable: bool) -> Result<Value> {
        let transport = if unreliable { Transport::Unreliable } else { Transport::Reliable };
        let offer = endpoint.offer_over(RegionId(to.header.node as u8), transport);
        let offer = offer.map_err(|error| of_verbs(error, to.header.region_bytes))?;
        Ok(serde_json::to_value(&offer).expect("an offer is plain data"))
    }

    /// The cards connect without a message: the answer is all that there is to know.
    fn dial(to: &Member, _address: &str, answer: Value, _patience: Duration) -> Result<Answer> {
        read_answer(answer, to)
    }

    fn install(&self, endpoint: &VerbsEndpoint, to: &Member, answer: Answer) -> Result<()> {
        let (region, bytes) = (RegionId(to.header.node as u8), to.header.region_bytes);
        endpoint.connect(region, bytes, &answer).map_err(|error| of_verbs(error, bytes))
    }

    fn broken(endpoint: &VerbsEndpoint) -> Vec<RegionId> {
        endpoint.broken()
    }
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
