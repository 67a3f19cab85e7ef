//! The client of a table in which a worker owns each key: it asks the owner for every operation.
//!
//! An operation takes effect when the worker executes it, once, however often the request was sent
//! ([the module's invariants](super)). A client writes only its own request slots.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric, Messages, VerbCount};

use super::client::{Reply, Requester, Timing};
use super::counts::Counts;
use super::layout::{Area, RequestMap, WorkerId};
use super::path::{BySend, ReplyPath, RequestPath, SentReplies};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::{Kv, Lengths};
use crate::operation::{Operation, Outcome, Value};

/// Which worker owns a key.
pub trait Owners {
    /// The owner of a key, among the workers of `area`.
    fn owner(&self, area: &Area, key: &[u8]) -> WorkerId;
}

/// Asks the owners of keys. `P` is the path of the requests, `R` the path of the replies.
#[derive(Debug)]
pub struct Asker<P, R, O> {
    requester: Requester<P, R>,
    owners: O,
    lengths: Lengths,
}

impl<P, R, O: Owners> Asker<P, R, O> {
    /// The asker of a table that takes keys and values of these lengths.
    pub fn new(requester: Requester<P, R>, owners: O, lengths: Lengths) -> Self {
        Self { requester, owners, lengths }
    }

    /// The owner of a key.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        self.owners.owner(self.requester.map().area(), key)
    }

    /// The owners.
    pub fn owners(&self) -> &O {
        &self.owners
    }

    /// The requests.
    pub fn requester(&self) -> &Requester<P, R> {
        &self.requester
    }

    /// Asks the owner of `key`, waits for the outcome of the operation, and returns what `read`
    /// makes of it. `buf` is filled with the reply.
    ///
    /// # Errors
    /// As [`Requester::call`].
    #[inline]
    pub fn ask<F, T>(
        &self,
        fabric: &F,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
        read: impl FnOnce(Reply) -> Result<T, EngineError>,
    ) -> impl Future<Output = Result<T, EngineError>>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let to = move || {
            self.lengths.check(key, operation.value().len())?;
            Ok(self.owner(key))
        };
        self.requester.ask(fabric, to, (key, operation), buf, read)
    }
}

/// A client of such a table: one thread's session, endpoint, and requests under way.
///
/// Its operations take `&self`, so any number of them can be under way in the lanes of its thread.
/// Operations beyond the window wait for each other.
pub struct Client<F, P, R, O> {
    fabric: F,
    asker: Asker<P, R, O>,
}

/// A client whose requests and replies are SENT.
pub type SendingClient<F, O> =
    Client<F, BySend<<F as Messages>::Peer>, SentReplies<<F as Messages>::Peer>, O>;

impl<F, P, R, O> Client<F, P, R, O> {
    /// A client over `fabric`.
    pub fn over(fabric: F, asker: Asker<P, R, O>) -> Self {
        Self { fabric, asker }
    }

    /// The asker.
    pub fn asker(&self) -> &Asker<P, R, O> {
        &self.asker
    }
}

impl<F: Fabric + Messages, O: Owners> SendingClient<F, O> {
    /// The client that holds `session`, at the `node`-th node of `map`.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    pub fn sending(
        fabric: F,
        map: Arc<RequestMap>,
        session: &Session,
        node: u16,
        timing: Timing,
        owners: O,
        lengths: Lengths,
    ) -> Self {
        let workers = BySend::seeking(&map);
        let replies = SentReplies::new(workers.clone(), &map, session.secret());
        let requester = Requester::new(map, session, node, workers, replies, timing);
        Self::over(fabric, Asker::new(requester, owners, lengths))
    }
}

impl<F, P, R, O> Client<F, P, R, O>
where
    F: Fabric,
    P: RequestPath<F>,
    R: ReplyPath<F>,
    O: Owners,
{
    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        self.asker.requester.counts()
    }

    /// The worker that owns a key.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        self.asker.owner(key)
    }
}

impl<F, P, R, O> Kv for Client<F, P, R, O>
where
    F: Fabric,
    P: RequestPath<F>,
    R: ReplyPath<F>,
    O: Owners,
{
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn counted(&self) -> VerbCount {
        self.asker.requester.counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.counts().repeated()
    }

    fn get(
        &self,
        key: &[u8],
        buf: Buf,
    ) -> impl Future<Output = Result<Option<Value>, EngineError>> {
        self.asker.ask(&self.fabric, key, Operation::Get, buf, Reply::into_found)
    }

    fn contains(&self, key: &[u8]) -> impl Future<Output = Result<bool, EngineError>> {
        let spare = &self.asker.requester.spare;
        let read = |reply: Reply| {
            let contained = reply.outcome()?.contained();
            spare.give_back(reply.into_buf());
            contained
        };
        self.asker.ask(&self.fabric, key, Operation::Contains, spare.take(), read)
    }

    fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> impl Future<Output = Result<Outcome<'static>, EngineError>> {
        let spare = &self.asker.requester.spare;
        let read = |reply: Reply| {
            let outcome = reply.outcome()?.without_value();
            spare.give_back(reply.into_buf());
            outcome
        };
        self.asker.ask(&self.fabric, key, operation, spare.take(), read)
    }
}
