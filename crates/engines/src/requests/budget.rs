//! The share of a table's memory that its requests take, before the longest value is known.

use super::message::{REPLY_OVERHEAD_BYTES, REQUEST_OVERHEAD_BYTES};
use crate::error::LayoutError;
use crate::limits::{REPLIES_MAX, VALUE_BYTES_DEFAULT};
use crate::region::Service;
use crate::room::Room;
use crate::size::{ByteSize, InWords};

/// Requests that a client has under way at one worker, unless the table declares another number.
pub const WINDOW_DEFAULT: u16 = 8;

/// Bytes of key that a request slot has room for besides the longest value.
pub const REQUEST_KEY_BYTES: u64 = 256;

/// Bytes of the longest packet, unless a table declares another number or has no memory for so
/// many.
pub const PACKET_BYTES_DEFAULT: u64 = 4 << 10;

/// If the lengths of requests and replies were not chosen, they may take one byte in this many of a
/// table's memory.
const REQUEST_SHARE: u64 = 8;

/// The shortest "longest value" that is worth declaring a table for: a smaller one means that the
/// table has too little memory.
const VALUE_BYTES_MIN: u64 = 64;

/// The division of a table's memory between requests and entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget<'a> {
    room: &'a Room,
    pub window: u16,
}

impl<'a> Budget<'a> {
    pub fn new(room: &'a Room) -> Self {
        Self { room, window: room.window.unwrap_or(WINDOW_DEFAULT) }
    }

    /// The service of a table without slots for requests or replies. A client has at most
    /// `replies_max` requests under way at all, or at most a window if that is more.
    pub fn service(&self, replies_max: u16) -> Service {
        Service {
            workers: self.room.workers,
            window: self.window,
            replies: self.replies(replies_max),
            sessions_per_node: self.room.slots,
            ..Service::default()
        }
    }

    /// The requests that a client has under way at all: as many as all workers let it have, but no
    /// more than `most`.
    fn replies(&self, most: u16) -> u16 {
        let Room { workers, nodes, .. } = *self.room;
        let all = u32::from(self.window) * u32::from(workers) * u32::from(nodes);
        all.min(u32::from(most).max(u32::from(self.window))).min(u32::from(REPLIES_MAX)) as u16
    }

    /// Request slots of all clients at the workers of a node.
    pub fn request_slots(&self) -> u64 {
        let Room { workers, nodes, slots, .. } = *self.room;
        u64::from(workers) * u64::from(nodes) * u64::from(slots) * u64::from(self.window)
    }

    /// Reply slots of all clients of a node.
    pub fn reply_slots(&self, service: &Service) -> u64 {
        u64::from(self.room.slots) * u64::from(service.replies)
    }

    /// The bytes that each slot may have if there are `slots` slots.
    pub fn slot_bytes(&self, slots: u64) -> u64 {
        self.room.share / REQUEST_SHARE / slots.max(1)
    }

    /// Bytes of a packet if there are `slots` slots: the default, or their share of the memory.
    pub fn packet_bytes(&self, slots: u64) -> u64 {
        PACKET_BYTES_DEFAULT.min(self.slot_bytes(slots))
    }

    /// The longest value, if it was not chosen: the length at which `requests` request slots and
    /// `replies` reply slots take their share of the memory and no more.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that length is next to nothing.
    pub fn value_max(&self, requests: u64, replies: u64) -> Result<u64, LayoutError> {
        if let Some(max) = self.room.value_max {
            return Ok(max);
        }
        let each = self.slot_bytes(requests + replies);
        // Slots are whole lines.
        let overhead = REQUEST_KEY_BYTES
            + (REQUEST_OVERHEAD_BYTES as u64).max(REPLY_OVERHEAD_BYTES as u64)
            + 7
            + 63;
        let max = each.saturating_sub(overhead).min(VALUE_BYTES_DEFAULT);
        if max >= VALUE_BYTES_MIN {
            return Ok(max);
        }
        Err(LayoutError::Geometry(format!(
            "{requests} requests and {replies} replies of {each} bytes each would be an eighth of its \
             memory of {}: give it more memory, fewer sessions ({}) or workers ({}), a smaller \
             window ({}), or say how long its values are (value_max)",
            ByteSize::new(self.room.share),
            self.room.slots - 1,
            self.room.workers,
            self.window
        )))
    }

    /// The table's memory that is left for values when requests take this many bytes.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if less than half is left: a table must not spend more than half
    /// of its memory on requests.
    pub fn left(&self, requests: u64) -> Result<u64, LayoutError> {
        let left = self.room.share.checked_sub(requests).filter(|left| *left >= requests);
        left.ok_or_else(|| {
            LayoutError::Geometry(format!(
                "its requests take {} of its memory of {}: give it more memory, fewer sessions ({}) \
                 or workers ({}), a smaller window ({}) or shorter values (value_max)",
                InWords(requests),
                ByteSize::new(self.room.share),
                self.room.slots - 1,
                self.room.workers,
                self.window
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_half_of_a_tables_memory_and_no_more() {
        let room = Room {
            share: 1 << 20,
            nodes: 1,
            value_max: None,
            workers: 1,
            window: None,
            slots: 2,
            is_remote: false,
        };
        let budget = Budget::new(&room);
        assert_eq!(budget.left(1 << 19), Ok(1 << 19));
        let refused = budget.left((1 << 19) + 1).unwrap_err().to_string();
        assert!(refused.contains("fewer sessions (1)"), "{refused}");
        assert!(budget.left(u64::MAX).is_err());
    }
}
