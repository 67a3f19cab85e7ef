//! What workers send to a client unasked: bytes for its reply slots, and messages.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::admission::Replies;
use super::frame::Garbage;
use super::sealed::Broken;
use super::socket::Moved;
use super::stream::Inward;
use crate::RegionId;
use crate::limits::TCP_ARRIVED_BYTES_MAX;
use crate::shm::Region;

/// A worker, as a client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpWorker {
    pub(super) region: RegionId,
    pub(super) mailbox: u32,
}

pub(super) struct Pushed {
    /// The home region.
    home: Arc<Region>,
    /// The slots in it, if replies are WRITTEN.
    pub replies: Option<Replies>,
    /// The node from which the bytes are that are looked at.
    pub from: RegionId,
    arrived: VecDeque<(TcpWorker, Vec<u8>)>,
    bytes: usize,
}

impl Pushed {
    pub fn new(home: Arc<Region>, region: RegionId) -> Self {
        let arrived = VecDeque::new();
        Self { home, replies: None, from: region, arrived, bytes: 0 }
    }

    /// Whether nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// The message that arrived first.
    pub fn take(&mut self) -> Option<(TcpWorker, Vec<u8>)> {
        let (from, message) = self.arrived.pop_front()?;
        self.bytes -= message.len();
        Some((from, message))
    }

    /// A message has arrived. It is lost if the client does not look at those before.
    pub fn arrive(&mut self, mailbox: u32, message: &[u8]) {
        if self.bytes + message.len() > TCP_ARRIVED_BYTES_MAX {
            return;
        }
        self.bytes += message.len();
        let from = TcpWorker { region: self.from, mailbox };
        self.arrived.push_back((from, message.to_vec()));
    }

    /// Checks that these bytes have a place in the reply slots.
    ///
    /// # Errors
    /// [`Garbage`].
    pub fn check(&self, offset: u32, len: u32) -> Result<(), Garbage> {
        let slots = self.replies.map_or(0, |replies| replies.len);
        match offset.checked_add(len).is_some_and(|end| end <= slots) {
            true => Ok(()),
            false => Err(Garbage("a reply that has no place")),
        }
    }

    /// Where a place of the slots is in the region. It was checked.
    fn place(&self, offset: u32) -> u64 {
        self.replies.expect("it was checked").at.offset() + u64::from(offset)
    }

    /// Stores bytes at a place that was checked.
    pub fn store(&self, offset: u32, bytes: &[u8]) {
        self.home.copy_in(self.place(offset), bytes);
    }

    /// Receives up to `len` bytes for a place that was checked.
    pub fn receive(
        &self,
        inward: &mut Inward,
        socket: BorrowedFd<'_>,
        offset: u32,
        len: usize,
    ) -> Result<Moved, Broken> {
        inward.receive_into(socket, &self.home, self.place(offset), len)
    }
}
