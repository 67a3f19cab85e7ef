//! How much of a table's memory its requests take, before the longest value is known.

use super::message::{REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES};
use crate::error::LayoutError;
use crate::limits::{REPLIES_MAX, VALUE_BYTES_DEFAULT};
use crate::region::Service;
use crate::room::Room;
use crate::size::{ByteSize, InWords};

/// Requests that a client has under way at one worker, unless the table is told otherwise.
pub const WINDOW_DEFAULT: u16 = 8;

/// Bytes of key that a request slot has room for beside the longest value.
pub const REQUEST_KEY_BYTES: u64 = 256;

/// Of a table's memory one in so many bytes may be for requests and replies, if their lengths were
/// not chosen.
const REQUEST_SHARE: u64 = 8;

/// The longest value that is worth declaring a table for: less is a table with too little memory.
const VALUE_BYTES_MIN: u64 = 64;

/// How requests divide the memory of a table with their entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget<'a> {
    room: &'a Room,
    pub window: u16,
}

impl<'a> Budget<'a> {
    pub fn new(room: &'a Room) -> Self {
        Self { room, window: room.window.unwrap_or(WINDOW_DEFAULT) }
    }

    /// The service of a table without slots for requests or replies, whose clients have at most
    /// `replies_max` requests under way at all, or a window.
    pub fn service(&self, replies_max: u16) -> Service {
        Service {
            workers: self.room.workers,
            window: self.window,
            replies: self.replies(replies_max),
            sessions_per_node: self.room.slots,
            ..Service::default()
        }
    }

    /// The requests of a client that are under way at all: as many as all workers let it have, but
    /// no more than `most`.
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

    /// The bytes that each of so many slots may have.
    pub fn slot_bytes(&self, slots: u64) -> u64 {
        self.room.share / REQUEST_SHARE / slots.max(1)
    }

    /// The longest value, if that was not chosen: so that requests of `requests` slots and replies
    /// of `replies` take their share of the memory and no more.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that is next to nothing.
    pub fn value_max(&self, requests: u64, replies: u64) -> Result<u64, LayoutError> {
        if let Some(max) = self.room.value_max {
            return Ok(max);
        }
        let each = self.slot_bytes(requests + replies);
        // Slots are whole lines.
        let overhead = REQUEST_KEY_BYTES
            + (REQUEST_OVERHEAD_BYTES as u64).max(REPLY_TRAILER_BYTES as u64)
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

    /// What is left of the table's memory for values, behind so many bytes of requests.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that is less than half of it: more than half for requests is no
    /// table.
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
