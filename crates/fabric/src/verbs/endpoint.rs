//! The endpoint: how a thread's connections are made.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use rand::Rng;

use crate::away::keys::Keys;
use crate::away::ops::{OpId, Ops};
use crate::limits::{EMPTY_POLLS_MAX, SEND_QUEUE_WRS};
use crate::shm::{Region, ShmEndpoint};
use crate::{Counters, Fabric, RegionId, Result};

use super::engine::Engine;
use super::host::os;
use super::setup::{Answer, Offer, Transport};
use super::sys::{Allowed, Caps, Kind, Qp};
use super::{Device, VerbsError};

/// One thread's endpoint to the regions of a cluster, over InfiniBand or RoCE.
///
/// The home region is mapped into this process: it is read and written by the CPU. Atomics on it
/// still go through a connection to the node's own card, because a word that a card changes is
/// atomic only if no processor changes it; so the home node has to be connected like any other.
///
/// Dropping the endpoint cuts off its verbs under way.
pub struct VerbsEndpoint {
    pub(super) home: RegionId,
    /// The mapped region, the clock, and the counters.
    pub(super) local: ShmEndpoint,
    pub(super) engine: RefCell<Engine>,
    device: Arc<Device>,
    offers: RefCell<Vec<Offered>>,
    /// Polls in a row that brought nothing.
    empty_polls: Cell<u32>,
}

/// A queue pair that waits for its answer.
struct Offered {
    node: RegionId,
    offer: Offer,
    qp: Qp,
    caps: Caps,
}

impl VerbsEndpoint {
    /// An endpoint without connections.
    ///
    /// # Errors
    /// [`VerbsError::Os`], if the device has no queues left or memory cannot be locked.
    pub fn new(
        device: Arc<Device>,
        home: RegionId,
        home_region: Arc<Region>,
    ) -> Result<Self, VerbsError> {
        let mut local = ShmEndpoint::new(home);
        local.attach(home, home_region);
        let engine = Engine::new(&device).map_err(os("make queues and buffers"))?;
        let (engine, offers, empty_polls) =
            (RefCell::new(engine), RefCell::default(), Cell::new(0));
        Ok(Self { home, local, engine, device, offers, empty_polls })
    }

    /// Begins a reliable connection to a node, which may replace an earlier one. The offer is for
    /// [`Host::accept`](super::Host::accept) there, and [`VerbsEndpoint::connect`] takes its
    /// answer. Until then an existing connection stays in use.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn offer(&self, node: RegionId) -> Result<Offer, VerbsError> {
        self.offer_over(node, Transport::Reliable)
    }

    /// As [`VerbsEndpoint::offer`], for either transport; a node may be connected over both.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn offer_over(&self, node: RegionId, transport: Transport) -> Result<Offer, VerbsError> {
        let kind = match transport {
            Transport::Reliable => Kind::Rc,
            Transport::Unreliable => Kind::Uc,
        };
        let inline_bytes = self.device.info().inline_bytes;
        let wanted = Caps { send: SEND_QUEUE_WRS, receive: 1, inline_bytes };
        let cq = self.engine.borrow().cq.clone();
        let made = Qp::new(&self.device.pd, kind, &cq, &cq, wanted);
        let (qp, caps) = made.map_err(os("make a QP"))?;
        let offer = self.device.offer(&qp, rand::rng().next_u32() >> 8, transport);
        let mut offers = self.offers.borrow_mut();
        offers.retain(|one| (one.node, one.offer.transport) != (node, transport));
        offers.push(Offered { node, offer: offer.clone(), qp, caps });
        Ok(offer)
    }

    /// Takes the answer to the last offer to a node, whose region has `region_bytes`: from now on
    /// verbs go over that connection.
    ///
    /// The caller vouches that the passive end of an earlier connection, if there was one, is gone:
    /// that its [`Accepted`](super::Accepted) was dropped, or its process has ended. Verbs of
    /// unknown outcome count as settled from then on, because no card executes them any more.
    ///
    /// # Errors
    /// [`VerbsError::Hostile`] for an invalid answer, [`VerbsError::NoOffer`],
    /// [`VerbsError::OtherRegion`], or [`VerbsError::Os`]. An existing connection stays.
    pub fn connect(
        &self,
        node: RegionId,
        region_bytes: u64,
        answer: &Answer,
    ) -> Result<(), VerbsError> {
        answer.validate(region_bytes)?;
        if let Some(region) = self.local.region(node).filter(|region| region.len() != region_bytes)
        {
            let (have, want) = (region.len(), region_bytes);
            return Err(VerbsError::OtherRegion { region: node, have, want });
        }
        let mut offers = self.offers.borrow_mut();
        let is_it = |one: &Offered| (one.node, one.offer.transport) == (node, answer.transport);
        let index = offers.iter().position(is_it);
        let index = index.ok_or(VerbsError::NoOffer { region: node })?;
        let Offered { offer, qp, caps, .. } = offers.swap_remove(index);
        if answer.mtu_bytes > offer.mtu_bytes {
            return Err(VerbsError::Hostile { what: "larger packets than this port can carry" });
        }
        let agreed = (answer.mtu_bytes, answer.rd_atomic.min(offer.rd_atomic));
        let path = self.device.path(&answer.from, offer.from.psn, agreed);
        qp.connect(&path, Allowed::default()).map_err(os("connect a QP"))?;
        let keys = Keys::new(answer.grants.clone());
        let mut engine = self.engine.borrow_mut();
        engine.install((answer.transport, node), region_bytes, keys, (qp, caps));
        Ok(())
    }

    /// The nodes to which a connection broke and has to be made again.
    pub fn broken(&self) -> Vec<RegionId> {
        let mut engine = self.engine.borrow_mut();
        engine.progress(|| self.local.now_us());
        // A thread that waits for no verb, such as a worker, notices a broken connection here.
        engine.break_stalled(self.local.now_us());
        let broken = engine.ways().filter(|(_, way)| way.link.is_none());
        let mut broken: Vec<_> = broken.map(|(region, _)| region).collect();
        broken.sort_unstable();
        broken.dedup();
        broken
    }

    pub(super) fn tally(&self) -> &Counters {
        self.local.counters()
    }

    /// Waits until an operation is over.
    pub(super) fn poll_op(&self, op: OpId, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut engine = self.engine.borrow_mut();
        if let Some(outcome) = engine.ops.outcome(op) {
            return Poll::Ready(outcome);
        }
        engine.progress(|| self.local.now_us());
        if let Some(outcome) = engine.ops.outcome(op) {
            self.empty_polls.set(0);
            return Poll::Ready(outcome);
        }
        drop(engine);
        self.idle();
        // For executors that sleep; the lanes' waker does nothing.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Yields the processor after many polls that brought nothing: the awaited event is far off, or
    /// needs this processor.
    pub(super) fn idle(&self) {
        self.empty_polls.set(self.empty_polls.get() + 1);
        if self.empty_polls.get() > EMPTY_POLLS_MAX {
            self.empty_polls.set(0);
            self.engine.borrow_mut().break_stalled(self.local.now_us());
            std::thread::yield_now();
        }
    }
}

/// An operation that a future waits for. If this is dropped before the operation is over, the
/// operation continues.
pub(super) struct Posted<'a> {
    pub endpoint: &'a VerbsEndpoint,
    pub op: OpId,
}

impl Posted<'_> {
    pub async fn wait(&self) -> Result<()> {
        poll_fn(|cx| self.endpoint.poll_op(self.op, cx)).await
    }

    /// Takes the results of an operation that is over.
    pub fn with<T>(&self, take: impl FnOnce(&mut Ops, OpId) -> T) -> T {
        take(&mut self.endpoint.engine.borrow_mut().ops, self.op)
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.endpoint.engine.borrow_mut().ops.release(self.op);
    }
}
