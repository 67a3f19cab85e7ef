//! The client: reads by itself, and asks the server for everything else (pilaf §3.1, Figure 3).
//!
//! A client writes only its own request slots, and only for requests that are too long for a
//! datagram. A broken or hostile client can only make requests that it may make anyway: it cannot
//! damage a value of the table.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric, Messages, RemoteAddr, VerbCount};

use super::get::Reader;
use super::hash::KeyHash;
use super::path::{REPLY_BYTES_MAX, SendOrWrite};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::{Kv, Lengths, get_and_touch};
use crate::operation::{Batch, Done, Operation, Outcome};
use crate::requests::{
    Area, Asker, BySend, ByWrite, Owners, RequestMap, Requester, Room, SentReplies, Timing,
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
    /// A client without a session has none: it can only read.
    asker: Option<ServerAsker<F::Peer>>,
}

type ServerAsker<P> = Asker<SendOrWrite<P>, SentReplies<P>, Nodes>;

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
        Self { asker: Some(asker), ..Self::observer(fabric, roots, seed, timing) }
    }

    /// A client without a session, which can only read.
    pub fn observer(fabric: F, roots: Vec<RemoteAddr>, seed: u64, timing: Timing) -> Self {
        Self { fabric, reader: Reader::new(roots, seed, timing.timeout_us), asker: None }
    }

    /// Asks the server for any operation, also for a GET: Pilaf is compared with this way of
    /// reading (pilaf §5.1, "Pilaf-VO"). A value that is too long for a datagram is an error.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::ReadOnly`] without a session.
    pub async fn ask(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        self.asker()?.ask(&self.fabric, key, operation, buf).await
    }

    fn asker(&self) -> Result<&ServerAsker<F::Peer>, EngineError> {
        self.asker.as_ref().ok_or(EngineError::ReadOnly)
    }

    /// Called after a read.
    #[inline]
    fn has_read(&self) {
        if let Some(asker) = &self.asker {
            asker.requester().was_busy();
        }
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
        match &self.asker {
            Some(asker) => asker.requester().counted(&self.fabric),
            None => self.fabric.counters().snapshot(),
        }
    }

    fn retries(&self) -> u64 {
        self.asker.as_ref().map_or(0, |asker| asker.requester().counts().repeated())
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        match operation {
            Operation::Get => {
                let found = self.reader.get(&self.fabric, key, buf).await;
                self.has_read();
                Ok(found?.into())
            }
            Operation::Contains => {
                let found = self.reader.contains(&self.fabric, key).await;
                self.has_read();
                Ok(Done::without_bytes(Outcome::Contained(found?), buf))
            }
            Operation::GetAndTouch(options) => {
                let execute = async |operation, buf| self.execute(key, operation, buf).await;
                Box::pin(get_and_touch(&self.fabric, options, buf, execute)).await
            }
            _ => self.asker()?.ask(&self.fabric, key, operation, buf).await,
        }
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
        self.asker()?.ask_many(&self.fabric, batch, done).await
    }
}
