//! A client's operations as requests to the worker that serves the key.

use super::served::Served;
use crate::epoch::Session;
use crate::kv::Lengths;
use crate::nessie::hash::KeyHash;
use crate::requests::{
    self, Area, ByWrite, Owners, Requester, Room, Timing, WorkerId, WrittenReplies,
};

/// The asker of both served engines.
pub(crate) type Asker = requests::Asker<ByWrite, WrittenReplies, Served>;

impl Owners for Served {
    #[inline]
    fn owner(&self, _: &Area, key: &[u8]) -> WorkerId {
        self.worker_of(&KeyHash::of(&self.table, key))
    }
}

impl Asker {
    /// The asker for a session, whose home is a node of the map. It packs up to `batch` operations
    /// into a request.
    pub fn of(map: Served, session: &Session, timing: Timing, batch: usize) -> Self {
        let home = session.home();
        let node = map.node_of(home);
        let client = map.requests.area().client(node, session.slot());
        let replies = WrittenReplies::of(&map.requests, client);
        let requests = map.requests.clone();
        let requester = Requester::new(requests, session, node, ByWrite { home }, replies, timing);
        let value_bytes_max = map.table.shape.geometry.value_bytes_max;
        let lengths = Lengths { value_bytes_max, key_and_value_bytes_max: None, key_bytes: None };
        let room = Room::of(map.requests.area(), 0, batch);
        Self::new(requester, map, lengths, room)
    }
}
