//! The parts of a table that has mailboxes, on one node.
//!
//! ```text
//! requests            the area of the requests
//! worker mailboxes    one for each of the node's workers: from all clients
//! client mailboxes    one for each of the node's session slots: from all workers
//! what the engine has besides, from a whole page on
//! ```
//!
//! # Invariants
//! 1. A mailbox stands for its owner: the mailbox of session slot `n` is always used by the client
//!    that holds the slot, and the mailbox of worker `w` by worker `w`.
//! 2. A ring has room for all messages that its sender may have under way to its receiver. A
//!    message is lost for want of room only if some message was sent again.

use std::sync::Arc;

use loch_fabric::limits::{CACHE_LINE_BYTES, MAIL_RING_BYTES, MAIL_SENDERS_MAX};
use loch_fabric::{MailboxShape, RemoteAddr};

use super::layout::{Area, RequestMap, WorkerId};
use super::message::{REPLY_OVERHEAD_BYTES, REQUEST_OVERHEAD_BYTES};
use crate::error::LayoutError;
use crate::region::Service;

/// The engine's own part begins at a page.
const PAGE_BYTES: u64 = 4096;

/// A ring has this many times the room that it needs, so that some requests that are sent again
/// find room too.
const ROOM_TO_SPARE: u64 = 2;

/// Bytes of the longest message with a packet of many operations or outcomes: the rings for a
/// [default window](super::budget::WINDOW_DEFAULT) of messages of this length are not larger than
/// those for messages of half the length.
pub const PACKET_MESSAGE_BYTES: usize = 2032;

/// The offsets of the requests and the mailboxes, from the table's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailboxes {
    area: Area,
    worker: MailboxShape,
    client: MailboxShape,
}

impl Mailboxes {
    /// The mailboxes of a table whose longest messages to workers, and from workers, have these
    /// lengths.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if there are too many clients or workers.
    pub fn new(
        service: Service,
        nodes: u16,
        request_bytes: usize,
        reply_bytes: usize,
    ) -> Result<Self, LayoutError> {
        let area = Area::new(service, nodes)?;
        let workers = u32::from(nodes) * u32::from(service.workers);
        for (who, count) in [("clients", area.clients()), ("workers", workers)] {
            if count > MAIL_SENDERS_MAX {
                let text =
                    format!("{count} {who} are too many: a mailbox is for {MAIL_SENDERS_MAX}");
                return Err(LayoutError::Geometry(text));
            }
        }
        let ring = |message: usize| ring_bytes(service.window, message);
        let worker = MailboxShape::new(area.clients(), ring(request_bytes));
        let client = MailboxShape::new(workers, ring(reply_bytes));
        Ok(Self { area, worker, client })
    }

    /// As [`Mailboxes::new`], from the longest key together with its value that a request and a
    /// reply carry; 0 if no message is one. A message can also be a packet of many.
    ///
    /// # Errors
    /// As [`Mailboxes::new`].
    pub fn for_items(
        service: Service,
        nodes: u16,
        request: usize,
        reply: usize,
    ) -> Result<Self, LayoutError> {
        let [request, reply] = [(request, REQUEST_OVERHEAD_BYTES), (reply, REPLY_OVERHEAD_BYTES)]
            .map(|it| match it {
                (0, overhead) => overhead,
                (item, overhead) => PACKET_MESSAGE_BYTES.max(item + overhead),
            });
        Self::new(service, nodes, request, reply)
    }

    /// The requests, which come first.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// The mailbox of a worker.
    pub fn worker_at(&self, worker: u16) -> u64 {
        assert!(worker < self.area.service().workers, "there is no worker {worker}");
        self.area.bytes() + u64::from(worker) * self.worker.bytes()
    }

    /// The mailbox of the client that holds a session slot.
    pub fn client_at(&self, slot: u32) -> u64 {
        assert!(slot < self.area.service().sessions_per_node, "there is no client {slot}");
        self.clients_at() + u64::from(slot) * self.client.bytes()
    }

    fn clients_at(&self) -> u64 {
        self.area.bytes() + u64::from(self.area.service().workers) * self.worker.bytes()
    }

    /// First byte after the mailboxes.
    pub fn end(&self) -> u64 {
        let clients = u64::from(self.area.service().sessions_per_node);
        self.clients_at() + clients * self.client.bytes()
    }

    /// The first page after the mailboxes.
    pub fn next_page(&self) -> u64 {
        self.end().next_multiple_of(PAGE_BYTES)
    }

    /// All mailboxes, with their offsets.
    pub fn all(&self) -> Vec<(u64, MailboxShape)> {
        let Service { workers, sessions_per_node, .. } = *self.area.service();
        let of_workers = (0..workers).map(|worker| (self.worker_at(worker), self.worker));
        let of_clients = (0..sessions_per_node).map(|slot| (self.client_at(slot), self.client));
        of_workers.chain(of_clients).collect()
    }
}

/// The requests and the mailboxes with which a table begins on all nodes.
#[derive(Clone, Debug)]
pub struct MailedRequests {
    requests: Arc<RequestMap>,
    mailboxes: Mailboxes,
}

impl MailedRequests {
    /// The requests and mailboxes of a table that begins at `places[n].0` on node `n`.
    ///
    /// # Panics
    /// If there are not as many places as nodes.
    pub fn new(mailboxes: Mailboxes, places: &[(RemoteAddr, u32)]) -> Self {
        let bases = places.iter().map(|(at, _)| *at).collect();
        Self { requests: Arc::new(RequestMap::new(*mailboxes.area(), bases)), mailboxes }
    }

    /// The requests.
    pub fn requests(&self) -> &Arc<RequestMap> {
        &self.requests
    }

    /// The mailboxes of each node.
    pub fn mailboxes(&self) -> &Mailboxes {
        &self.mailboxes
    }

    /// The address at which a worker of any node receives.
    pub fn of_worker(&self, id: WorkerId) -> RemoteAddr {
        self.requests.base(id.node).add(self.mailboxes.worker_at(id.worker))
    }

    /// The address at which the client that holds a session slot of a node receives.
    pub fn of_client(&self, node: u16, slot: u32) -> RemoteAddr {
        self.requests.base(node).add(self.mailboxes.client_at(slot))
    }
}

/// Bytes of a ring with room for a window of such messages, and for as many again.
fn ring_bytes(window: u16, message: usize) -> u32 {
    // A record consists of a header of one word and the message, rounded up to whole lines.
    let record = (message as u64 + 8 + 7).next_multiple_of(CACHE_LINE_BYTES as u64);
    let bytes = (u64::from(window) * record * ROOM_TO_SPARE).next_power_of_two();
    bytes.clamp(u64::from(*MAIL_RING_BYTES.start()), u64::from(*MAIL_RING_BYTES.end())) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_lie_behind_the_requests_and_apart() {
        let service = Service {
            workers: 2,
            window: 8,
            replies: 16,
            sessions_per_node: 5,
            ..Service::default()
        };
        for request_bytes in [0, 1024] {
            let service = Service { request_bytes, ..service };
            let mailboxes = Mailboxes::new(service, 3, 1000, 100).unwrap();
            let mut at = mailboxes.area().bytes();
            for (begin, shape) in mailboxes.all() {
                assert_eq!(begin, at);
                at += shape.bytes();
            }
            assert_eq!(mailboxes.all().len(), 2 + 5);
            assert_eq!(mailboxes.end(), at);
            assert_eq!(mailboxes.worker_at(1), mailboxes.all()[1].0);
            assert_eq!(mailboxes.client_at(4), mailboxes.all()[6].0);
            let page = mailboxes.next_page();
            assert!(page >= at && page.is_multiple_of(4096));
        }
        let crowded = Service { sessions_per_node: 1 << 16, ..service };
        assert!(Mailboxes::new(crowded, 256, 100, 100).is_err());
    }

    #[test]
    fn a_ring_has_room_for_a_window() {
        assert_eq!(ring_bytes(1, 100), 8192);
        assert!(ring_bytes(8, 1016) >= 8 * 1088);
        assert_eq!(ring_bytes(256, 4096), 1 << 22);
    }
}
