//! The parts of a table that has mailboxes, on one node.
//!
//! ```text
//! requests            the area of loch_engines::requests
//! worker mailboxes    one for each of the node's workers: from all clients
//! client mailboxes    one for each of the node's session slots: from all workers
//! (pilaf) root, arena, from a whole page on
//! ```
//!
//! A herd table's values are not here: they are in the memory of the node's process.
//!
//! # Invariants
//! 1. A mailbox is its owner's name: that of session slot `n` is always used by the client that
//!    holds the slot, and that of worker `w` by worker `w`.
//! 2. A ring has room for all that its sender may have under way to its receiver, so nothing is lost
//!    for want of room unless something was sent again.

use loch_engines::herd::storage::{Mode, Plan as PartitionPlan};
use loch_engines::limits::HERD_ITEM_BYTES_MAX;
use loch_engines::pilaf;
use loch_engines::region::{EngineId, LayoutError, TableEntry};
use loch_engines::requests::message::{REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES};
use loch_engines::requests::{Area, Service};
use loch_fabric::limits::{
    CACHE_LINE_BYTES, MAIL_MESSAGE_BYTES_MAX, MAIL_RING_BYTES, MAIL_SENDERS_MAX,
};
use loch_fabric::shm::{MailboxShape, Region};

/// The arena of a pilaf table begins with a page.
const PAGE_BYTES: u64 = 4096;

/// Longer requests of pilaf are WRITTEN into request slots, so that mailboxes need not have room for
/// a window of them.
pub(crate) const PILAF_SEND_BYTES_MAX: usize = 1024;

const _: () = assert!(PILAF_SEND_BYTES_MAX <= MAIL_MESSAGE_BYTES_MAX);

/// Requests that are sent again and again find room too, some of them.
const ROOM_TO_SPARE: u64 = 2;

/// Where the parts are, from the table's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    engine: EngineId,
    area: Area,
    worker_mailbox: MailboxShape,
    client_mailbox: MailboxShape,
}

/// What a table's directory entry says besides, in [`TableEntry::words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    Herd {
        mode: Mode,
        /// Bytes of each worker's partition.
        partition_bytes: u64,
        /// Slots of each worker's index.
        index_slots: u64,
    },
    Pilaf {
        arena_bytes: u64,
        /// Slots that each node's index begins with.
        index_slots: u64,
    },
}

const CACHE: u64 = 1;
const STORE: u64 = 2;

impl Layout {
    /// The layout of a table of `engine`, one with mailboxes.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if there are too many clients or workers.
    pub fn new(engine: EngineId, service: Service, nodes: u16) -> Result<Self, LayoutError> {
        let area = Area::new(service, nodes)?;
        let workers = u32::from(nodes) * u32::from(service.workers);
        for (who, count) in [("clients", area.clients()), ("workers", workers)] {
            if count > MAIL_SENDERS_MAX {
                let text =
                    format!("{count} {who} are too many: a mailbox is for {MAIL_SENDERS_MAX}");
                return Err(LayoutError::Geometry(text));
            }
        }
        let by_send = service.request_bytes == 0 || engine == EngineId::Pilaf;
        let request = match (engine, by_send) {
            (EngineId::Pilaf, _) => PILAF_SEND_BYTES_MAX,
            (_, true) => HERD_ITEM_BYTES_MAX + REQUEST_OVERHEAD_BYTES,
            (_, false) => REQUEST_OVERHEAD_BYTES,
        };
        let reply = match engine {
            EngineId::Pilaf => REPLY_TRAILER_BYTES,
            _ => HERD_ITEM_BYTES_MAX + REPLY_TRAILER_BYTES,
        };
        let ring = |message: usize| ring_bytes(service.window, message);
        let worker_mailbox = MailboxShape::new(area.clients(), ring(request));
        let client_mailbox = MailboxShape::new(workers, ring(reply));
        Ok(Self { engine, area, worker_mailbox, client_mailbox })
    }

    /// The layout of a table of the directory, and what its entry says besides.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if its parts do not make a table of its engine.
    pub fn of(entry: &TableEntry) -> Result<(Self, Extra), LayoutError> {
        let wrong = |what: &str| LayoutError::Geometry(format!("a table's {what} cannot be"));
        let engine = entry.engine().ok_or_else(|| wrong("engine"))?;
        let layout = Self::new(engine, entry.service, entry.geometry.nodes)?;
        let extra = Extra::of_words(engine, entry.words).ok_or_else(|| wrong("parts"))?;
        let end = match extra {
            Extra::Herd { mode, partition_bytes, index_slots } => {
                PartitionPlan::new(mode, partition_bytes, index_slots)?;
                layout.end()
            }
            Extra::Pilaf { arena_bytes, .. } => layout
                .root_at()
                .checked_add(pilaf::layout::ARENA_OFFSET)
                .and_then(|at| at.checked_add(arena_bytes))
                .ok_or_else(|| wrong("arena"))?,
        };
        if end > entry.bytes { Err(wrong("length")) } else { Ok((layout, extra)) }
    }

    /// The requests, which come first.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// The mailbox of a worker.
    pub fn worker_mailbox_at(&self, worker: u16) -> u64 {
        assert!(worker < self.area.service().workers, "there is no worker {worker}");
        self.area.bytes() + u64::from(worker) * self.worker_mailbox.bytes()
    }

    /// The mailbox of the client that holds a session slot.
    pub fn client_mailbox_at(&self, slot: u32) -> u64 {
        assert!(slot < self.area.service().sessions_per_node, "there is no client {slot}");
        self.clients_at() + u64::from(slot) * self.client_mailbox.bytes()
    }

    fn clients_at(&self) -> u64 {
        self.area.bytes() + u64::from(self.area.service().workers) * self.worker_mailbox.bytes()
    }

    /// First byte after the mailboxes.
    pub fn end(&self) -> u64 {
        let clients = u64::from(self.area.service().sessions_per_node);
        self.clients_at() + clients * self.client_mailbox.bytes()
    }

    /// The root of a pilaf table.
    pub fn root_at(&self) -> u64 {
        self.end().next_multiple_of(PAGE_BYTES)
    }

    /// Makes the mailboxes of the table at `offset` of a new region.
    pub fn format(&self, region: &Region, offset: u64) {
        for worker in 0..self.area.service().workers {
            self.worker_mailbox.format(region, offset + self.worker_mailbox_at(worker));
        }
        for slot in 0..self.area.service().sessions_per_node {
            self.client_mailbox.format(region, offset + self.client_mailbox_at(slot));
        }
    }
}

/// Bytes of a ring with room for a window of such messages, and for as many again.
fn ring_bytes(window: u16, message: usize) -> u32 {
    // A record has a header of a word, and is whole lines.
    let record = (message as u64 + 8 + 7).next_multiple_of(CACHE_LINE_BYTES as u64);
    let bytes = (u64::from(window) * record * ROOM_TO_SPARE).next_power_of_two();
    bytes.clamp(u64::from(*MAIL_RING_BYTES.start()), u64::from(*MAIL_RING_BYTES.end())) as u32
}

impl Extra {
    /// As it is in a directory entry.
    pub fn words(self) -> [u64; 6] {
        match self {
            Self::Herd { mode, partition_bytes, index_slots } => {
                let mode = match mode {
                    Mode::Cache => CACHE,
                    Mode::Store => STORE,
                };
                [mode, partition_bytes, index_slots, 0, 0, 0]
            }
            Self::Pilaf { arena_bytes, index_slots } => [arena_bytes, index_slots, 0, 0, 0, 0],
        }
    }

    /// Slots of a worker's index, and bytes of it and of what it names.
    pub fn sizes(self) -> (u64, u64, u64) {
        match self {
            Self::Herd { partition_bytes, index_slots, .. } => {
                let index = (index_slots * 8).min(partition_bytes);
                (index_slots, index, partition_bytes - index)
            }
            Self::Pilaf { arena_bytes, index_slots } => {
                (index_slots, index_slots * pilaf::layout::LINE_BYTES, arena_bytes)
            }
        }
    }

    fn of_words(engine: EngineId, words: [u64; 6]) -> Option<Self> {
        match (engine, words) {
            (EngineId::Herd, [mode @ (CACHE | STORE), partition_bytes, index_slots, 0, 0, 0]) => {
                let mode = if mode == CACHE { Mode::Cache } else { Mode::Store };
                Some(Self::Herd { mode, partition_bytes, index_slots })
            }
            (EngineId::Pilaf, [arena_bytes, index_slots, 0, 0, 0, 0]) => {
                Some(Self::Pilaf { arena_bytes, index_slots })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loch_engines::herd;

    #[test]
    fn mailboxes_lie_behind_the_requests_and_apart() {
        for by_send in [false, true] {
            let service = herd::service(2, 8, 5, by_send);
            let layout = Layout::new(EngineId::Herd, service, 3).unwrap();
            let mut at = layout.area().bytes();
            for worker in 0..2 {
                assert_eq!(layout.worker_mailbox_at(worker), at);
                at += layout.worker_mailbox.bytes();
            }
            for slot in 0..5 {
                assert_eq!(layout.client_mailbox_at(slot), at);
                at += layout.client_mailbox.bytes();
            }
            assert_eq!(layout.end(), at);
            assert!(layout.root_at() >= at && layout.root_at().is_multiple_of(4096));
            let region = Region::anonymous((1 << 16) + at).unwrap();
            layout.format(&region, 1 << 16);
        }
    }

    #[test]
    fn a_ring_has_room_for_a_window() {
        assert_eq!(ring_bytes(1, 100), 8192);
        assert!(ring_bytes(8, 1016) >= 8 * 1088);
        assert_eq!(ring_bytes(256, 4096), 1 << 22);
    }

    #[test]
    fn what_an_entry_says_besides_survives_the_trip() {
        let herd = Extra::Herd { mode: Mode::Store, partition_bytes: 1 << 20, index_slots: 99 };
        let pilaf = Extra::Pilaf { arena_bytes: 1 << 20, index_slots: 64 };
        assert_eq!(Extra::of_words(EngineId::Herd, herd.words()), Some(herd));
        assert_eq!(Extra::of_words(EngineId::Pilaf, pilaf.words()), Some(pilaf));
        assert_eq!(Extra::of_words(EngineId::Herd, [3, 1, 1, 0, 0, 0]), None);
        assert_eq!(Extra::of_words(EngineId::Pilaf, [1, 1, 1, 0, 0, 0]), None);
        assert_eq!(Extra::of_words(EngineId::Nessie, [0; 6]), None);
    }
}
