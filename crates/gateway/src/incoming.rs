//! A long value on its way from a client into the table.
//!
//! A plain SET of a long value begins before all of it has come: the bytes go into a reservation as
//! they come, so a connection needs no memory for them. While a reservation lives, memory that
//! others wait to reuse has to wait as well. So a client that is slow has one for a moment only;
//! then its request goes on like any other, in the memory of the gateway, of which its connection
//! has had enough from the beginning.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use loch::{Reservation, Version};

use crate::context::Context;
use crate::item;
use crate::limits::{RESERVATION_TIME, RESERVATIONS_MAX};
use crate::protocol::LongSet;

/// A value of which a part has come.
pub(crate) struct Incoming<'t> {
    /// The request up to the value.
    head: Vec<u8>,
    set: LongSet,
    reservation: Reservation<'t>,
    /// What stands before the client's bytes in the stored value.
    header: usize,
    /// The bytes that have come.
    filled: usize,
    until: Instant,
    /// Counts the reservations of the thread.
    _one: Rc<()>,
}

impl<'t> Incoming<'t> {
    /// Makes room in the table for a value of which these bytes of a request have come. Otherwise
    /// the request has to go on like any other.
    pub async fn begin(cx: &Context<'t>, request: &[u8], set: LongSet) -> Option<Self> {
        let value = &request[set.start..];
        let count = &cx.reservations;
        let table = cx.store.table();
        if value.len() < item::MARK_BYTES
            || Rc::strong_count(count) > RESERVATIONS_MAX
            || !table.reserves_in_place()
        {
            return None;
        }
        let header = item::header(set.traits, value).unwrap_or_default();
        let (key, len) = (&request[set.key.0..set.key.1], header.len() + set.len);
        let options = set.expires.options();
        let mut reservation = table.asynch().reserve_with(key, len, options).await.ok()?;
        reservation.write_at(0, &header).ok()?;
        let until = Instant::now() + RESERVATION_TIME;
        let (head, header, filled) = (request[..set.start].to_vec(), header.len(), 0);
        Some(Self { head, set, reservation, header, filled, until, _one: count.clone() })
    }

    /// Takes as many of these bytes as belong to the value.
    pub fn fill(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.set.len - self.filled);
        let written = self.reservation.write_at(self.header + self.filled, &bytes[..taken]);
        written.map_err(io::Error::other)?;
        self.filled += taken;
        Ok(taken)
    }

    /// Whether all of the value has come, and these bytes stand behind it as they have to. None:
    /// more has to come.
    pub fn is_right(&self, behind: &[u8]) -> Option<bool> {
        let end = behind.first_chunk::<2>().filter(|_| self.filled == self.set.len)?;
        Some(end == b"\r\n" || self.set.ends_anyhow)
    }

    /// The length of the request.
    pub fn needed(&self) -> usize {
        self.head.len() + self.set.len + 2
    }

    /// The moment from which on the request goes on like any other.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Makes the value the key's. Returns what tells the client so, if it wants any answer.
    pub async fn commit(self) -> (Option<&'static str>, loch::Result<Version>) {
        (self.set.answer, self.reservation.commit_async().await)
    }

    /// The request as far as it has come, and its length.
    pub async fn take_back(self) -> io::Result<(Vec<u8>, usize)> {
        let needed = self.needed();
        let stored = self.reservation.take_back_async(self.header + self.filled).await;
        let mut request = self.head;
        request.extend_from_slice(&stored.map_err(io::Error::other)?[self.header..]);
        Ok((request, needed))
    }
}
