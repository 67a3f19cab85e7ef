//! The client of a table whose workers do everything.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric, Messages, VerbCount};

use super::asker::{Asker, Owners};
use super::client::{Requester, Timing};
use super::counts::Counts;
use super::layout::{RequestMap, WorkerId};
use super::mailboxes::PACKET_MESSAGE_BYTES;
use super::packing::Room;
use super::path::{BySend, ReplyPath, RequestPath, SentReplies};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::{Kv, Lengths};
use crate::operation::{Batch, Done, Operation, Outcome};

/// A client of such a table: one thread's session, endpoint, and requests under way.
///
/// Its operations take `&self`, so any number of them can be under way in the lanes of its thread.
/// Requests beyond the window wait for each other.
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
    /// The client that holds `session`, at the `node`-th node of `map`. It packs up to `batch`
    /// operations into a request.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    #[expect(clippy::too_many_arguments, reason = "each is of another origin")]
    pub fn sending(
        fabric: F,
        map: Arc<RequestMap>,
        session: &Session,
        node: u16,
        timing: Timing,
        owners: O,
        lengths: Lengths,
        batch: usize,
    ) -> Self {
        let workers = BySend::seeking(&map);
        let replies = SentReplies::new(workers.clone(), &map, session.secret());
        let room = Room::of(map.area(), PACKET_MESSAGE_BYTES, batch);
        let requester = Requester::new(map, session, node, workers, replies, timing);
        Self::over(fabric, Asker::new(requester, owners, lengths, room))
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

    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> impl Future<Output = Result<Done, EngineError>> {
        self.asker.ask(&self.fabric, key, operation, buf)
    }

    fn shares(&self, _: bool) -> bool {
        true
    }

    fn execute_many<'a>(
        &'a self,
        batch: Batch<'a>,
        done: &'a mut dyn FnMut(usize, Outcome<'_>),
    ) -> impl Future<Output = Result<(), EngineError>> {
        self.asker.ask_many(&self.fabric, batch, done)
    }
}
