//! An endpoint for those who wait for workers, and one with messages.
//!
//! Who waits for a worker on a machine that has not a processor for each of them waits until the
//! worker gets one. So a client that has polled for a while offers its own in between. A worker
//! does that as well; see `node/workers/rest.rs`. Over a network a client that waits looks after
//! its connections: without one neither its request arrives nor the reply.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::Arc;

use loch_fabric::shm::{self, Region, ShmMessages};
use loch_fabric::{
    Buf, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr, UnreliableWrites,
};

use super::net::Net;
use crate::limits::PATIENT_POLLS;

/// An endpoint of `N` whose pauses let others work, with messages `M`.
pub(crate) struct Patient<N: Net, M = ()> {
    fabric: N::Fabric,
    patience: N::Patience,
    messages: M,
    /// Pauses since something was last sent.
    pauses: Cell<u32>,
}

impl<N: Net, M> Patient<N, M> {
    pub fn new(fabric: N::Fabric, patience: N::Patience, messages: M) -> Self {
        Self { fabric, patience, messages, pauses: Cell::new(0) }
    }

    /// The endpoint without messages.
    #[cfg(feature = "verbs")]
    pub fn bare(&self) -> &N::Fabric {
        &self.fabric
    }

    /// What is done in its pauses.
    #[cfg(feature = "verbs")]
    pub fn patience(&self) -> &N::Patience {
        &self.patience
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
            N::wait(&self.fabric, &self.patience);
        }
    }
}

impl<N: Net, M> Fabric for Patient<N, M> {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
        is_mapped store_before store_after announce load load_bytes reload will_store raw posted
        is_settled
        now_us wall_ms random => fabric
    );

    #[inline]
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.fabric.write_unsignaled(at, bytes)
    }

    #[inline]
    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.sends();
        self.fabric.write(at, buf)
    }

    #[inline]
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.sends();
        self.fabric.store(at, parts)
    }

    #[inline]
    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.fabric.pause(us)
    }

    #[inline]
    fn breathe(&self) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.fabric.breathe()
    }
}

impl<N: Net, M> UnreliableWrites for Patient<N, M> {
    #[inline]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.fabric.write_unreliable(at, bytes)
    }
}

impl<N: Net, M: Messages> Messages for Patient<N, M> {
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
        self.sends();
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
