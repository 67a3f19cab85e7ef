//! An endpoint that yields while it waits, and a worker's messages.
//!
//! On a machine with fewer cores than threads, a client that spins keeps the worker off the core.
//! It therefore yields after a while. A worker does the same: see `IdleBackoff` of the node. Over a
//! network, a waiting client also looks after its connections: without one neither its request
//! arrives nor the reply.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::Arc;

use loch_fabric::shm::{self, Region, ShmEndpoint, ShmMessages};
use loch_fabric::{
    Buf, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr, UnreliableWrites,
};

use crate::limits::PATIENT_POLLS;

/// An endpoint that has something to do while its user waits.
pub(crate) trait Waits: Fabric + UnreliableWrites {
    /// Called now and then while the user waits.
    fn wait(&self);
}

impl Waits for ShmEndpoint {
    #[inline]
    fn wait(&self) {
        std::thread::yield_now();
    }
}

/// An endpoint whose pauses let others work, with messages `M`.
pub(crate) struct Yielding<E, M> {
    endpoint: E,
    messages: M,
    /// Pauses since something was last sent.
    pauses: Cell<u32>,
}

impl<E: Waits, M> Yielding<E, M> {
    pub fn new(endpoint: E, messages: M) -> Self {
        Self { endpoint, messages, pauses: Cell::new(0) }
    }

    /// The endpoint without messages, which does not yield.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    pub fn messages(&self) -> &M {
        &self.messages
    }

    #[inline]
    fn sends(&self) {
        self.pauses.set(0);
    }

    /// Before a pause: offers the processor, now and then.
    #[inline]
    fn offer(&self) {
        let pauses = self.pauses.get().wrapping_add(1);
        self.pauses.set(pauses);
        if pauses.is_multiple_of(PATIENT_POLLS) {
            self.endpoint.wait();
        }
    }
}

impl<E: Waits, M> Fabric for Yielding<E, M> {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
        is_mapped store_before store_after announce load load_bytes reload will_store raw posted
        is_settled
        now_us wall_ms random => endpoint
    );

    #[inline]
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.write_unsignaled(at, bytes)
    }

    #[inline]
    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.sends();
        self.endpoint.write(at, buf)
    }

    #[inline]
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.store(at, parts)
    }

    #[inline]
    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.endpoint.pause(us)
    }

    #[inline]
    fn breathe(&self) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.endpoint.breathe()
    }
}

impl<E: Waits, M> UnreliableWrites for Yielding<E, M> {
    #[inline]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.write_unreliable(at, bytes)
    }
}

impl<E, M: Messages> Messages for Yielding<E, M> {
    type Peer = M::Peer;

    fn message_bytes_max(&self) -> usize {
        self.messages.message_bytes_max()
    }

    fn address(&self) -> MessageAddress {
        self.messages.address()
    }

    fn peer(&self, address: &MessageAddress) -> Result<M::Peer, FabricError> {
        self.messages.peer(address)
    }

    #[inline]
    fn send_all(&self, messages: &[(M::Peer, &[u8])]) -> Result<(), FabricError> {
        self.pauses.set(0);
        self.messages.send_all(messages)
    }

    #[inline]
    fn try_receive(&self, buf: Buf) -> Result<(M::Peer, Buf), Buf> {
        self.messages.try_receive(buf)
    }
}

/// A worker's messages. Nodes may come back with other memory, in which their clients have other
/// mailboxes: then it opens its own mailbox anew.
///
/// # Faults
/// What was not taken when that happens is lost, and where replies go is forgotten: clients that
/// get none introduce themselves and ask again.
pub(crate) struct WorkerMail {
    mailbox: RemoteAddr,
    /// How often it was opened anew.
    generation: Cell<u32>,
    messages: RefCell<Option<ShmMessages>>,
}

/// Messages that are sent in one doorbell.
const DOORBELL_MESSAGES: usize = 16;

/// A peer as a worker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerPeer {
    generation: u32,
    peer: shm::Peer,
}

impl WorkerMail {
    /// The worker's end of the mailbox at `mailbox`.
    ///
    /// # Errors
    /// As [`ShmMessages::open`].
    pub fn open(
        regions: impl IntoIterator<Item = (RegionId, Arc<Region>)>,
        mailbox: RemoteAddr,
    ) -> Result<Self, FabricError> {
        let messages = RefCell::new(Some(ShmMessages::open(regions, mailbox)?));
        Ok(Self { mailbox, generation: Cell::new(0), messages })
    }

    /// Goes on with these regions in place of those it had.
    ///
    /// # Errors
    /// As [`ShmMessages::open`].
    pub fn reopen(
        &self,
        regions: impl IntoIterator<Item = (RegionId, Arc<Region>)>,
    ) -> Result<(), FabricError> {
        // A mailbox has one owner at a time.
        self.messages.take();
        self.generation.set(self.generation.get().wrapping_add(1));
        self.messages.replace(Some(ShmMessages::open(regions, self.mailbox)?));
        Ok(())
    }

    fn named(&self, peer: shm::Peer) -> WorkerPeer {
        WorkerPeer { generation: self.generation.get(), peer }
    }
}

impl Messages for WorkerMail {
    type Peer = WorkerPeer;

    fn message_bytes_max(&self) -> usize {
        self.messages.borrow().as_ref().map_or(0, ShmMessages::message_bytes_max)
    }

    fn address(&self) -> MessageAddress {
        let messages = self.messages.borrow();
        messages.as_ref().expect("it is open between two calls of `reopen`").address()
    }

    fn peer(&self, address: &MessageAddress) -> Result<WorkerPeer, FabricError> {
        let messages = self.messages.borrow();
        let Some(messages) = &*messages else {
            return Err(FabricError::Unattached { region: self.mailbox.region() });
        };
        messages.peer(address).map(|peer| self.named(peer))
    }

    fn send_all(&self, messages: &[(WorkerPeer, &[u8])]) -> Result<(), FabricError> {
        let ours = self.messages.borrow();
        let Some(ours) = &*ours else { return Ok(()) };
        let now = self.generation.get();
        // Who is not known any more asks again.
        let mut known = messages.iter().filter(|(to, _)| to.generation == now);
        while let Some((first, bytes)) = known.next() {
            let mut doorbell = [(first.peer, *bytes); DOORBELL_MESSAGES];
            let mut len = 1;
            for (place, (to, bytes)) in doorbell[1..].iter_mut().zip(known.by_ref()) {
                *place = (to.peer, *bytes);
                len += 1;
            }
            ours.send_all(&doorbell[..len])?;
        }
        Ok(())
    }

    #[inline]
    fn try_receive(&self, buf: Buf) -> Result<(WorkerPeer, Buf), Buf> {
        match &*self.messages.borrow() {
            Some(messages) => messages.try_receive(buf).map(|(peer, buf)| (self.named(peer), buf)),
            None => Err(buf),
        }
    }
}
