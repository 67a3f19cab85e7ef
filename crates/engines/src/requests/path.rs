//! The paths of messages: WRITEs into slots or SENDs of datagrams, for requests and for replies.
//!
//! A message into the sender's own node's memory is a store, which is not a verb (nessie §5).

use std::cell::{Cell, RefCell};
use std::future::Future;

use loch_fabric::{
    Buf, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr, UnreliableWrites,
};

use super::layout::{RequestMap, WorkerId};
use super::mapped;
use super::message::{Expected, REPLY_TRAILER_BYTES, REQUEST_TRAILER_BYTES, ReplyHead};
use super::seal::Seal;
use crate::secret::Secret;
use crate::spare::SpareBuffers;

/// How a request was sent, which decides what the fabric's counters know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// As a datagram, which they do not count.
    Datagram,
    /// By WRITE, without waiting for it: they count no round trip. Or by a store, which is not a
    /// verb.
    Written,
    /// By WRITE, and the client waited for its round trip.
    Awaited,
}

/// How a client's requests reach workers.
pub trait RequestPath<F: Fabric> {
    /// Whether requests are SENT, which the fabric's counters do not count, or WRITTEN.
    const BY_SEND: bool = false;

    /// Sends a message to a worker. The worker looks for it in the slot at `slot`, which has
    /// `bytes` bytes. Gives the buffer back.
    ///
    /// # Errors
    /// The fabric's errors. Only [`FabricError::OutcomeUnknown`] leaves open whether the message
    /// arrived.
    fn send(
        &self,
        fabric: &F,
        to: WorkerId,
        slot: (RemoteAddr, u32),
        message: Buf,
    ) -> impl Future<Output = (Buf, Result<Sent, FabricError>)>;

    /// Whether a message of this length goes as a datagram.
    #[inline]
    fn sends(&self, _fabric: &F, _len: usize) -> bool {
        Self::BY_SEND
    }

    /// Bytes of the longest packet that can be sent now, besides the bound of the request slots.
    #[inline]
    fn room(&self, _fabric: &F) -> usize {
        usize::MAX
    }

    /// From now on the worker receives at this address.
    fn meet(&self, _fabric: &F, _worker: WorkerId, _at: &MessageAddress) {}
}

/// How replies reach a client.
pub trait ReplyPath<F: Fabric> {
    /// Whether replies are SENT, which the fabric's counters do not count, or WRITTEN.
    const BY_SEND: bool = false;

    /// The `expected` reply, with its bytes in `message`; `None` if it has not come yet.
    ///
    /// # Errors
    /// The fabric's, if the client's own region is not mapped.
    fn poll(
        &self,
        fabric: &F,
        expected: &Expected,
        message: &mut Buf,
    ) -> Result<Option<ReplyHead>, FabricError>;

    /// Whether a poll since the last call has taken a reply that another lane waits for.
    fn has_taken_for_others(&self) -> bool {
        false
    }

    /// Sends a greeting to a worker before the client's first request, and when the client had no
    /// answer for a while, so that the worker knows where replies go. `hello` makes the message.
    ///
    /// # Errors
    /// The fabric's.
    fn introduce(
        &self,
        _fabric: &F,
        _to: WorkerId,
        _hello: impl FnOnce() -> Buf,
    ) -> Result<(), FabricError> {
        Ok(())
    }

    /// Bytes of the longest packet of outcomes that can be sent now, besides the bound of the reply
    /// slots.
    #[inline]
    fn room(&self, _fabric: &F) -> usize {
        usize::MAX
    }

    /// Whether the client has to find out, from the workers' lines, where the workers receive.
    fn seeks(&self) -> bool {
        false
    }

    /// As [`RequestPath::meet`].
    fn meet(&self, _fabric: &F, _worker: WorkerId, _at: &MessageAddress) {}
}

/// Whether a message for a worker of the region that has `slot` is a store, and no verb.
#[inline(always)]
pub(super) fn is_near<F: Fabric>(fabric: &F, home: RegionId, slot: RemoteAddr) -> bool {
    slot.region() == home && !fabric.is_far()
}

/// WRITEs a message into the end of a slot, inline and unsignaled if the fabric copies messages of
/// its length.
pub(super) async fn write<F: Fabric>(
    fabric: &F,
    home: RegionId,
    (slot, bytes): (RemoteAddr, u32),
    message: Buf,
) -> (Buf, Result<Sent, FabricError>) {
    debug_assert!(message.len() <= bytes as usize, "a slot has room for its longest message");
    let at = mapped::start_of(slot, bytes, message.len());
    if is_near(fabric, home, slot) {
        let done = fabric.store(at, &[&message]);
        return (message, done.map(|()| Sent::Written));
    }
    if message.len() <= fabric.caps().inline_bytes {
        let done = fabric.write_unsignaled(at, &message);
        return (message, done.map(|()| Sent::Written));
    }
    let (message, done) = fabric.write(at, message).await;
    (message, done.map(|()| Sent::Awaited))
}

/// Requests by WRITE over reliable connections (nessie §5).
#[derive(Clone, Copy, Debug)]
pub struct ByWrite {
    /// The client's node.
    pub home: RegionId,
}

impl<F: Fabric> RequestPath<F> for ByWrite {
    #[inline]
    async fn send(
        &self,
        fabric: &F,
        _: WorkerId,
        slot: (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        write(fabric, self.home, slot, message).await
    }
}

/// Requests by WRITE over unreliable connections (herd §4.2).
#[derive(Clone, Copy, Debug)]
pub struct ByUnreliableWrite {
    /// The client's node.
    pub home: RegionId,
}

impl<F: UnreliableWrites> RequestPath<F> for ByUnreliableWrite {
    #[inline]
    async fn send(
        &self,
        fabric: &F,
        _: WorkerId,
        (slot, bytes): (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        let at = mapped::start_of(slot, bytes, message.len());
        let done = if is_near(fabric, self.home, slot) {
            fabric.store(at, &[&message])
        } else {
            fabric.write_unreliable(at, &message)
        };
        (message, done.map(|()| Sent::Written))
    }
}

/// Requests by SEND (herd §5.5, pilaf §4), with the workers' names on the network.
#[derive(Clone, Debug)]
pub struct BySend<P> {
    /// The name of each worker, by [`Area::source`](super::layout::Area::source), once it is known.
    workers: RefCell<Vec<Option<P>>>,
    /// Workers of a node.
    per_node: u16,
    /// Whether the client has to find out the names.
    seeks: bool,
}

impl<P: Copy> BySend<P> {
    /// A path to workers that are found by these names, whenever they start.
    pub fn new(workers: &[P], per_node: u16) -> Self {
        let workers = RefCell::new(workers.iter().copied().map(Some).collect());
        Self { workers, per_node, seeks: false }
    }

    /// A path to workers that make known where they receive whenever they start ([`make_known`]).
    pub fn seeking(map: &RequestMap) -> Self {
        let per_node = map.area().service().workers;
        let workers = usize::from(map.area().nodes()) * usize::from(per_node);
        Self { workers: RefCell::new(vec![None; workers]), per_node, seeks: true }
    }

    fn place(&self, to: WorkerId) -> usize {
        usize::from(to.node) * usize::from(self.per_node) + usize::from(to.worker)
    }

    /// A message to a worker whose name is not known yet is lost, as messages may be.
    #[inline]
    fn post<F: Messages<Peer = P>>(
        &self,
        fabric: &F,
        to: WorkerId,
        message: &[u8],
    ) -> Result<(), FabricError> {
        let known = self.workers.borrow()[self.place(to)];
        known.map_or(Ok(()), |peer| fabric.send(peer, message))
    }

    /// An impossible address, such as the one of a worker that never started, is no place to send
    /// to.
    #[cold]
    fn know<F: Messages<Peer = P>>(&self, fabric: &F, worker: WorkerId, at: &MessageAddress) {
        if self.seeks
            && let Ok(peer) = fabric.peer(at)
        {
            self.workers.borrow_mut()[self.place(worker)] = Some(peer);
        }
    }
}

/// Tells clients where a worker receives, before it makes its incarnation known.
///
/// # Errors
/// The fabric's, if the region of the worker's node is not mapped and writable.
pub fn make_known<F: Fabric + Messages>(
    fabric: &F,
    map: &RequestMap,
    id: WorkerId,
) -> Result<(), FabricError> {
    let words = fabric.address().words().map(u64::to_le_bytes);
    fabric.store(map.worker_address_addr(id), &[words.as_flattened()])
}

impl<F: Fabric + Messages> RequestPath<F> for BySend<F::Peer> {
    const BY_SEND: bool = true;

    #[inline]
    async fn send(
        &self,
        fabric: &F,
        to: WorkerId,
        _: (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        let done = self.post(fabric, to, &message);
        (message, done.map(|()| Sent::Datagram))
    }

    #[inline]
    fn room(&self, fabric: &F) -> usize {
        fabric.message_bytes_max().saturating_sub(REQUEST_TRAILER_BYTES)
    }

    fn meet(&self, fabric: &F, worker: WorkerId, at: &MessageAddress) {
        self.know(fabric, worker, at);
    }
}

/// Replies by WRITE into reply slots of the client's own node.
#[derive(Clone, Debug)]
pub struct WrittenReplies {
    /// The first of the client's reply slots.
    pub first: RemoteAddr,
    /// Bytes of each slot.
    pub bytes: u32,
}

impl WrittenReplies {
    /// The reply slots of a client.
    pub fn of(map: &RequestMap, client: u32) -> Self {
        let bytes = map.area().service().reply_bytes;
        assert!(bytes > 0, "the table has reply slots");
        Self { first: map.reply_addr(client, 0), bytes }
    }
}

impl<F: Fabric> ReplyPath<F> for WrittenReplies {
    #[inline]
    fn poll(
        &self,
        fabric: &F,
        expected: &Expected,
        message: &mut Buf,
    ) -> Result<Option<ReplyHead>, FabricError> {
        let slot = self.first.add(u64::from(expected.reply) * u64::from(self.bytes));
        mapped::load_reply(fabric, slot, self.bytes, expected, message)
    }
}

/// Replies by SEND (herd §4.3). A reply for another lane is kept until that lane looks for it.
#[derive(Debug)]
pub struct SentReplies<P> {
    to: BySend<P>,
    seal: Seal,
    /// For each reply slot, the newest reply that came and was not taken.
    arrived: RefCell<Vec<Option<(ReplyHead, Buf)>>>,
    has_taken_for_others: Cell<bool>,
    /// Buffers for incoming replies, used again and again.
    spare: SpareBuffers,
}

impl<P: Copy> SentReplies<P> {
    /// The replies of these workers to a client whose session has this secret.
    pub fn new(to: BySend<P>, map: &RequestMap, secret: Option<Secret>) -> Self {
        let replies = usize::from(map.area().service().replies);
        let arrived = RefCell::new((0..replies).map(|_| None).collect());
        let (seal, has_taken_for_others) = (Seal::of_reply(secret), Cell::default());
        Self { to, seal, arrived, has_taken_for_others, spare: SpareBuffers::default() }
    }
}

impl<F: Fabric + Messages> ReplyPath<F> for SentReplies<F::Peer> {
    const BY_SEND: bool = true;

    fn poll(
        &self,
        fabric: &F,
        expected: &Expected,
        message: &mut Buf,
    ) -> Result<Option<ReplyHead>, FabricError> {
        let mut arrived = self.arrived.borrow_mut();
        if let Some((head, bytes)) = arrived[usize::from(expected.reply)].take() {
            let old = std::mem::replace(message, bytes);
            self.spare.give_back(old);
            if expected.is(&head) {
                return Ok(Some(head));
            }
        }
        loop {
            let bytes = match fabric.try_receive(self.spare.take()) {
                Ok((_, bytes)) => bytes,
                Err(back) => {
                    self.spare.give_back(back);
                    break;
                }
            };
            let Some(head) = ReplyHead::read(&bytes, self.seal) else {
                self.spare.give_back(bytes);
                continue;
            };
            if expected.is(&head) {
                self.spare.give_back(std::mem::replace(message, bytes));
                return Ok(Some(head));
            }
            self.has_taken_for_others.set(true);
            let old = match arrived.get_mut(usize::from(head.reply)) {
                Some(place) => place.replace((head, bytes)).map(|(_, bytes)| bytes),
                None => Some(bytes),
            };
            old.into_iter().for_each(|old| self.spare.give_back(old));
        }
        Ok(None)
    }

    #[inline]
    fn room(&self, fabric: &F) -> usize {
        fabric.message_bytes_max().saturating_sub(REPLY_TRAILER_BYTES)
    }

    fn has_taken_for_others(&self) -> bool {
        self.has_taken_for_others.take()
    }

    fn introduce(
        &self,
        fabric: &F,
        to: WorkerId,
        hello: impl FnOnce() -> Buf,
    ) -> Result<(), FabricError> {
        self.to.post(fabric, to, &hello())
    }

    fn seeks(&self) -> bool {
        self.to.seeks
    }

    fn meet(&self, fabric: &F, worker: WorkerId, at: &MessageAddress) {
        self.to.know(fabric, worker, at);
    }
}
