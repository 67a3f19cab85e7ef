//! A client's operations, asked of the worker that serves the key.

use loch_fabric::{Buf, Fabric};

use super::served::Served;
use crate::epoch::Session;
use crate::error::EngineError;
use crate::nessie::hash::KeyHash;
use crate::operation::{Conditional, Expect, Operation, PutOptions, Value};
use crate::requests::{ByWrite, Counts, Reply, Requester, Timing, WrittenReplies};

/// What both served engines ask for.
#[derive(Debug)]
pub(crate) struct Asker {
    map: Served,
    requester: Requester<ByWrite, WrittenReplies>,
}

impl Asker {
    /// The session's, whose home is a node of the map.
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

    #[inline]
    async fn ask<F: Fabric>(
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

    pub async fn get<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        self.ask(fabric, key, Operation::Get, buf).await?.into_found()
    }

    pub async fn contains<F: Fabric>(&self, fabric: &F, key: &[u8]) -> Result<bool, EngineError> {
        self.ask(fabric, key, Operation::Contains, Buf::new()).await?.contained()
    }

    pub async fn put<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<u64, EngineError> {
        let operation = Operation::Put { value, options };
        self.ask(fabric, key, operation, Buf::new()).await?.stored()
    }

    pub async fn put_if<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        let operation = Operation::PutIf { value, expect, options };
        self.ask(fabric, key, operation, Buf::new()).await?.conditional()
    }

    pub async fn delete<F: Fabric>(&self, fabric: &F, key: &[u8]) -> Result<bool, EngineError> {
        self.ask(fabric, key, Operation::Delete, Buf::new()).await?.deleted()
    }

    pub async fn fetch_add<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        add: u64,
    ) -> Result<u64, EngineError> {
        self.ask(fabric, key, Operation::FetchAdd(add), Buf::new()).await?.before()
    }
}
