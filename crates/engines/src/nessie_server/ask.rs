//! A client's operations as requests to the worker that serves the key.

use loch_fabric::{Buf, Fabric};

use super::served::Served;
use crate::epoch::Session;
use crate::error::EngineError;
use crate::nessie::hash::KeyHash;
use crate::operation::Operation;
use crate::requests::{ByWrite, Counts, Reply, Requester, Timing, WrittenReplies};

/// The requester of both served engines.
#[derive(Debug)]
pub(crate) struct Asker {
    map: Served,
    requester: Requester<ByWrite, WrittenReplies>,
}

impl Asker {
    /// The requester for a session, whose home is a node of the map.
    pub fn new(map: Served, session: &Session, timing: Timing) -> Self {
        let home = session.home();
        let node = map.node_of(home);
        let client = map.requests.area().client(node, session.slot());
        let replies = WrittenReplies::of(&map.requests, client);
        let requests = map.requests.clone();
        let requester = Requester::new(requests, session, node, ByWrite { home }, replies, timing);
        Self { map, requester }
    }

    pub fn map(&self) -> &Served {
        &self.map
    }

    pub fn requester(&self) -> &Requester<ByWrite, WrittenReplies> {
        &self.requester
    }

    pub fn counts(&self) -> &Counts {
        self.requester.counts()
    }

    /// Asks the worker that serves `key`, and waits for the outcome of the operation.
    #[inline]
    pub async fn ask<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Reply, EngineError> {
        let (len, max) =
            (operation.value().len() as u64, self.map.table.shape.geometry.value_bytes_max);
        if len > max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        let to = self.map.worker_of(&KeyHash::of(&self.map.table, key));
        self.requester.call(fabric, to, key, operation, buf).await
    }
}
