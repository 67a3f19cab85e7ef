//! The client: asks the processor that owns a key, with many operations in one packet (kv-direct
//! §4). A client writes only its own request slots.

use std::sync::Arc;

use loch_fabric::Fabric;

use super::key::KeyHash;
use crate::epoch::Session;
use crate::kv::Lengths;
use crate::requests::{
    self, Area, Asker, ByWrite, Owners, RequestMap, Requester, Room, Timing, WorkerId,
    WrittenReplies,
};

/// The part of a table that a client needs to know.
#[derive(Clone, Debug)]
pub struct Access {
    /// The table's requests.
    pub map: Arc<RequestMap>,
    /// The seed with which the table's keys are hashed.
    pub seed: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<u16>,
    /// The most operations in a packet; 1: each operation goes alone.
    pub batch: usize,
}

/// The processors of a table: each owns one partition.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// The seed with which keys are hashed.
    pub seed: u64,
}

impl Owners for Processors {
    const COMPUTES: bool = true;

    #[inline]
    fn owner(&self, area: &Area, key: &[u8]) -> WorkerId {
        area.worker(KeyHash::of(self.seed, key).partition(area.workers()))
    }
}

/// A client of a table.
///
/// The version of a value is 0 in a table without versions, where an operation that expects a
/// version is [`EngineError::NoVersions`](crate::EngineError::NoVersions).
pub type Client<F> = requests::Client<F, ByWrite, WrittenReplies, Processors>;

impl<F: Fabric> Client<F> {
    /// The client that holds `session`, at the `node`-th node of the table's map.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    pub fn new(fabric: F, access: Access, session: &Session, node: u16, timing: Timing) -> Self {
        let Access { map, seed, value_bytes_max, key_bytes, batch } = access;
        let replies = WrittenReplies::of(&map, map.area().client(node, session.slot()));
        let by = ByWrite { home: session.home() };
        let room = Room::of(map.area(), 0, batch);
        let requester = Requester::new(map, session, node, by, replies, timing);
        let lengths = Lengths {
            value_bytes_max,
            key_and_value_bytes_max: None,
            key_bytes: key_bytes.map(usize::from),
        };
        Self::over(fabric, Asker::new(requester, Processors { seed }, lengths, room))
    }
}
