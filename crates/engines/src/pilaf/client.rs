//! The client: reads by itself, and asks the server for everything else (pilaf §3.1, Figure 3).
//!
//! A client writes only its own request slots, and only for requests that are too long for a
//! datagram. A broken or hostile client can only make requests that it may make anyway: it cannot
//! damage a value of the table.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric, Messages, RemoteAddr, VerbCount};

use super::get::{ReadCounts, Reader};
use super::hash::KeyHash;
use super::path::{REPLY_BYTES_MAX, SendOrWrite};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::{Kv, Lengths};
use crate::operation::{Batch, Operation, Outcome, Value};
use crate::requests::{
    Area, Asker, BySend, ByWrite, Counts, Owners, RequestMap, Requester, Room, SentReplies, Timing,
    WorkerId,
};

/// A table's places and the paths to it, as a client has to know them.
#[derive(Clone, Debug)]
pub struct Access<P> {
    /// The root of each node's part.
    pub roots: Vec<RemoteAddr>,
    /// The table's requests.
    pub map: Arc<RequestMap>,
    /// The addresses at which the nodes' servers receive.
    pub servers: BySend<P>,
    /// The seed with which the table's keys are hashed.
    pub seed: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Bytes of the longest request that goes by SEND, if the fabric can send that many; longer
    /// requests are WRITTEN into request slots.
    pub send_bytes_max: usize,
    /// The most operations in a request.
    pub batch: usize,
}

/// A client of a pilaf table: one thread's session and endpoint.
///
/// Its operations take `&self`, so any number of them can be under way in the lanes of its thread.
pub struct Client<F: Messages> {
    fabric: F,
    reader: Reader,
    asker: Asker<SendOrWrite<F::Peer>, SentReplies<F::Peer>, Nodes>,
}

/// The nodes of a table: each has one worker.
#[derive(Clone, Copy, Debug)]
struct Nodes {
    seed: u64,
    count: usize,
}

impl Owners for Nodes {
    #[inline]
    fn owner(&self, _: &Area, key: &[u8]) -> WorkerId {
        WorkerId { node: KeyHash::of(self.seed, key).node(self.count) as u16, worker: 0 }
    }
}

impl<F: Fabric + Messages> Client<F> {
    /// The client that holds `session`.
    ///
    /// # Panics
    /// If the session is an observer's, if its slot is not one of the map's, or if its home is not
    /// one of the table's nodes.
    pub fn new(fabric: F, access: Access<F::Peer>, session: &Session, timing: Timing) -> Self {
        let Access { roots, map, servers, seed, value_bytes_max, send_bytes_max, batch } = access;
        let node = roots.iter().position(|root| root.region() == session.home());
        let node = node.expect("a session's home is one of the table's nodes") as u16;
        let replies = SentReplies::new(servers.clone(), &map, session.secret());
        let write = ByWrite { home: session.home() };
        let path = SendOrWrite { send: servers, write, send_bytes_max };
        let room = Room::of(map.area(), REPLY_BYTES_MAX, batch);
        let requester = Requester::new(map, session, node, path, replies, timing);
        let nodes = Nodes { seed, count: roots.len() };
        let lengths = Lengths { value_bytes_max, key_and_value_bytes_max: None, key_bytes: None };
        let asker = Asker::new(requester, nodes, lengths, room);
        let reader = Reader::new(roots, seed, timing.timeout_us);
        Self { fabric, reader, asker }
    }

    /// The counts of reads.
    pub fn reads(&self) -> &ReadCounts {
        self.reader.counts()
    }

    /// The counts of requests, besides verbs.
    pub fn requests(&self) -> &Counts {
        self.asker.requester().counts()
    }

    /// The value of `key`, if it has one, as the server returns it: Pilaf is compared with this way
    /// of reading (pilaf §5.1, "Pilaf-VO"). A value that is too long for a datagram is an error.
    ///
    /// # Errors
    /// [`EngineError`].
    pub async fn get_by_message(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.asker.ask(&self.fabric, key, Operation::Get, buf).await?.into_found()
    }
}

impl<F: Fabric + Messages> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The verbs that the endpoint counted, and the datagrams, which it does not count: each
    /// request that was sent, and its reply, which the worker sent.
    fn counted(&self) -> VerbCount {
        self.asker.requester().counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.requests().repeated()
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        let found = self.reader.get(&self.fabric, key, buf).await;
        self.asker.requester().was_busy();
        found
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        let found = self.reader.contains(&self.fabric, key).await;
        self.asker.requester().was_busy();
        found
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        let done = self.asker.ask(&self.fabric, key, operation, Buf::new()).await?;
        done.outcome().without_value()
    }

    /// Reads need no message.
    fn shares(&self, is_read: bool) -> bool {
        !is_read
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        self.asker.ask_many(&self.fabric, batch, done).await
    }
}

/// A client without a session, which can only read.
pub struct Observer<F> {
    fabric: F,
    reader: Reader,
}

impl<F> Observer<F> {
    /// The client of a reader, over `fabric`.
    pub fn new(fabric: F, reader: Reader) -> Self {
        Self { fabric, reader }
    }
}

impl<F: Fabric> Kv for Observer<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn retries(&self) -> u64 {
        0
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.reader.get(&self.fabric, key, buf).await
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.reader.contains(&self.fabric, key).await
    }

    async fn execute(&self, _: &[u8], _: Operation<'_>) -> Result<Outcome<'static>, EngineError> {
        Err(EngineError::ReadOnly)
    }
}
