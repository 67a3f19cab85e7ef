//! The client: asks the one worker that owns a key (herd §4.2, §4.3).
//!
//! The key's hash says which worker. The request goes there by WRITE over an unreliable connection,
//! or by SEND if there are too many clients for connections (herd §5.5); the reply comes by SEND.

use std::sync::Arc;

use loch_fabric::{
    Buf, Fabric, FabricError, MessageAddress, Messages, RemoteAddr, UnreliableWrites,
};

use super::key::KeyHash;
use crate::epoch::Session;
use crate::kv::Lengths;
use crate::requests::mailboxes::PACKET_MESSAGE_BYTES;
use crate::requests::{
    self, Area, Asker, BySend, ByUnreliableWrite, Owners, RequestMap, RequestPath, Requester, Room,
    Sent, SentReplies, Timing, WorkerId,
};

/// A client of a herd table.
///
/// `P` is the path of its requests: [`ByUnreliableWrite`], or [`BySend`] for a table without
/// request slots, or a [`Way`].
pub type Client<F, P> = requests::Client<F, P, SentReplies<<F as Messages>::Peer>, Partitions>;

/// The way of the requests of a table, as it declares it.
#[derive(Debug)]
pub enum Way<P> {
    /// By WRITE.
    Write(ByUnreliableWrite),
    /// By SEND.
    Send(BySend<P>),
}

impl<F: UnreliableWrites + Messages> RequestPath<F> for Way<F::Peer> {
    #[inline]
    async fn send(
        &self,
        fabric: &F,
        to: WorkerId,
        slot: (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        match self {
            Self::Write(way) => way.send(fabric, to, slot, message).await,
            Self::Send(way) => way.send(fabric, to, slot, message).await,
        }
    }

    #[inline]
    fn sends(&self, _: &F, _: usize) -> bool {
        matches!(self, Self::Send(_))
    }

    #[inline]
    fn room(&self, fabric: &F) -> usize {
        match self {
            Self::Write(_) => usize::MAX,
            Self::Send(way) => way.room(fabric),
        }
    }

    fn meet(&self, fabric: &F, worker: WorkerId, at: &MessageAddress) {
        if let Self::Send(way) = self {
            RequestPath::meet(way, fabric, worker, at);
        }
    }
}

/// The partitions of a table: each worker owns one.
#[derive(Clone, Copy, Debug)]
pub struct Partitions {
    /// The seed with which keys are hashed.
    pub seed: u64,
}

impl Owners for Partitions {
    #[inline]
    fn owner(&self, area: &Area, key: &[u8]) -> WorkerId {
        area.worker(KeyHash::of(self.seed, key).partition(area.workers()))
    }
}

impl<F: Fabric + Messages, P: RequestPath<F>> Client<F, P> {
    /// The client that holds `session`, at the `node`-th node of `map`. `workers` are the addresses
    /// at which all workers of the table receive, `seed` is the seed with which its keys are
    /// hashed, and the table takes keys and values of these `lengths`. The client packs up to
    /// `batch` operations into a request.
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
        lengths: Lengths,
        batch: usize,
    ) -> Self {
        let replies = SentReplies::new(workers, &map, session.secret());
        let room = Room::of(map.area(), PACKET_MESSAGE_BYTES, batch);
        let requester = Requester::new(map, session, node, requests, replies, timing);
        Self::over(fabric, Asker::new(requester, Partitions { seed }, lengths, room))
    }
}
