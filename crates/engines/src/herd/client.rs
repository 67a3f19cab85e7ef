//! The client: asks the one worker that owns a key (herd §4.2, §4.3).
//!
//! The key's hash says which worker. The request goes there by WRITE over an unreliable connection,
//! or by SEND if there are too many clients for connections (herd §5.5); the reply comes by SEND.
//! An operation takes effect when the worker executes it, once, however often the request was sent
//! ([`requests`](crate::requests)).
//!
//! A client writes only its own request slots.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric, Messages, VerbCount};

use super::key::KeyHash;
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::limits::HERD_ITEM_BYTES_MAX;
use crate::operation::{Operation, Outcome, Value};
use crate::requests::{
    BySend, Counts, Reply, RequestMap, RequestPath, Requester, SentReplies, Timing, WorkerId,
};

/// A client of a herd table: one thread's session and endpoint.
///
/// `P` is the path of its requests: [`ByUnreliableWrite`](crate::requests::ByUnreliableWrite), or
/// [`BySend`] for a table without request slots. Its operations take `&self`, so any number of them
/// can be under way in the lanes of its thread.
pub struct Client<F: Messages, P> {
    fabric: F,
    requester: Requester<P, SentReplies<F::Peer>>,
    seed: u64,
}

impl<F: Fabric + Messages, P: RequestPath<F>> Client<F, P> {
    /// The client that holds `session`, at the `node`-th node of `map`. `workers` are the addresses
    /// at which all workers of the table receive, and `seed` is the seed with which its keys are
    /// hashed.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    #[expect(clippy::too_many_arguments, reason = "each is of another origin")]
    pub fn new(
        fabric: F,
        map: Arc<RequestMap>,
        session: &Session,
        node: u16,
        requests: P,
        workers: BySend<F::Peer>,
        timing: Timing,
        seed: u64,
    ) -> Self {
        let replies = SentReplies::new(workers, &map, session.secret());
        let requester = Requester::new(map, session, node, requests, replies, timing);
        Self { fabric, requester, seed }
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        self.requester.counts()
    }

    /// The worker that owns a key.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        let area = self.requester.map().area();
        let workers = u32::from(area.service().workers);
        let partition = KeyHash::of(self.seed, key).partition(u32::from(area.nodes()) * workers);
        WorkerId { node: (partition / workers) as u16, worker: (partition % workers) as u16 }
    }

    #[inline]
    async fn ask(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Reply, EngineError> {
        if key.len() > HERD_ITEM_BYTES_MAX {
            return Err(EngineError::KeyTooLong { len: key.len() });
        }
        let (len, max) = (operation.value().len() as u64, (HERD_ITEM_BYTES_MAX - key.len()) as u64);
        if len > max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        self.requester.call(&self.fabric, self.owner(key), key, operation, buf).await
    }
}

impl<F: Fabric + Messages, P: RequestPath<F>> Kv for Client<F, P> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The verbs that the endpoint counted, and the datagrams, which it does not count: each
    /// request that was sent, and its reply, which the worker sent.
    fn counted(&self) -> VerbCount {
        self.requester.counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.counts().repeated()
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.ask(key, Operation::Get, buf).await?.into_found()
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.ask(key, Operation::Contains, Buf::new()).await?.outcome()?.contained()
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        self.ask(key, operation, Buf::new()).await?.outcome()?.without_value()
    }
}
