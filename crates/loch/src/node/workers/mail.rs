//! A worker's messages on shared memory.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loch_fabric::shm::{self, Region, ShmMessages};
use loch_fabric::{Buf, FabricError, MessageAddress, Messages, RegionId, RemoteAddr};

/// A worker's messages. If a node comes back with other memory, its clients have other mailboxes,
/// and the worker opens its own mailbox anew.
///
/// # Faults
/// Messages that were not taken before that are lost, and the addresses for replies are forgotten.
/// A client that gets no reply introduces itself and asks again.
pub(crate) struct WorkerMail {
    mailbox: RemoteAddr,
    /// How often the mailbox was opened anew.
    generation: Cell<u32>,
    messages: RefCell<Option<ShmMessages>>,
}

/// Messages that are sent with one doorbell.
const DOORBELL_MESSAGES: usize = 16;

/// A peer's address, with the generation of the mailbox in which it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerPeer {
    generation: u32,
    peer: shm::Peer,
}

impl WorkerMail {
    /// Opens the worker's end of the mailbox at `mailbox`.
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

    /// Replaces the regions by these.
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
        // A client whose address is not known any more asks again.
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
