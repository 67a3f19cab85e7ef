//! A packet whose operations are under way, and their results, which go back in the order in which
//! the operations stand in the packet, whatever the order in which they are executed.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use loch_fabric::Buf;

use super::key::KeyHash;
use super::operation::{Action, Failure, Reply};
use super::packet::{Cursor, Malformed, Packed, ReplyWriter};
use super::processor::Job;
use crate::planted::{self, Bug};
use crate::requests::Ticket;

/// Packets whose last operation was answered.
pub(super) type Finished = Rc<RefCell<Vec<Rc<Opened>>>>;

/// Bytes of a result without a value, at most: an operation always has as many in its reply.
const SHORT_RESULT_BYTES: usize = 24;

/// A packet that was taken out of its slot.
#[derive(Debug, Default)]
pub(super) struct Opened {
    ticket: Cell<Option<Ticket>>,
    message: Buf,
    packet: Range<usize>,
    left: Cell<usize>,
    results: RefCell<Results>,
    finished: Option<Finished>,
}

/// Results, as far as they are known.
#[derive(Debug, Default)]
struct Results {
    writer: ReplyWriter,
    /// Those that are known before one that stands before them is, by number.
    early: Vec<Option<(Reply<'static>, Range<usize>)>>,
    early_bytes: Vec<u8>,
    count: usize,
    written: usize,
    /// Bytes that the results may take.
    room: usize,
}

impl Opened {
    /// Opens a packet, whose results may take `room` bytes. Gives back the message that it had before,
    /// and where its operations begin.
    pub fn open(
        &mut self,
        ticket: Ticket,
        message: Buf,
        room: usize,
        finished: &Finished,
    ) -> (Buf, Result<Cursor, Malformed>) {
        self.ticket.set(Some(ticket));
        let before = std::mem::replace(&mut self.message, message);
        self.packet = ticket.packet_at(&self.message);
        let cursor = Cursor::new(self.bytes());
        let count = cursor.as_ref().map_or(0, Cursor::left);
        self.left.set(count);
        self.results.get_mut().begin(count, room);
        self.finished.get_or_insert_with(|| finished.clone());
        (before, cursor)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.message[self.packet.clone()]
    }

    pub fn ticket(&self) -> Ticket {
        self.ticket.get().expect("it was opened")
    }

    /// Whether all operations were answered.
    pub fn is_over(&self) -> bool {
        self.left.get() == 0
    }

    /// The results, all of which are there.
    pub fn results(&self, with: impl FnOnce(&[u8])) {
        with(self.results.borrow().writer.bytes());
    }

    fn answer(self: &Rc<Self>, index: usize, reply: Reply<'_>) {
        self.results.borrow_mut().take(index, reply);
        self.left.set(self.left.get() - 1);
        if self.is_over() {
            let finished = self.finished.as_ref().expect("it was opened");
            finished.borrow_mut().push(self.clone());
        }
    }

    /// The index of the operation that a cursor comes to next.
    pub fn index(&self, cursor: &Cursor) -> usize {
        self.results.borrow().count - cursor.left()
    }

    /// What cannot be read is not executed.
    #[cold]
    pub fn refuse(self: &Rc<Self>, index: usize) {
        self.answer(index, Reply::Failed(Failure::Malformed));
    }
}

impl Results {
    fn begin(&mut self, count: usize, room: usize) {
        self.writer.clear();
        self.early.clear();
        self.early_bytes.clear();
        (self.count, self.written, self.room) = (count, 0, room);
    }

    #[inline]
    fn take(&mut self, index: usize, reply: Reply<'_>) {
        if index != self.written && !planted::is(Bug::ResultsAsTheyCome) {
            return self.keep(index, reply);
        }
        self.push(reply);
        // Those that waited for it follow.
        while let Some(slot) = self.early.get_mut(self.written)
            && let Some((reply, at)) = slot.take()
        {
            let bytes = std::mem::take(&mut self.early_bytes);
            self.push(with_bytes(reply, &bytes[at]));
            self.early_bytes = bytes;
        }
    }

    /// Writes the next result, unless there must be room for others.
    #[inline]
    fn push(&mut self, reply: Reply<'_>) {
        self.written += 1;
        let others = self.count - self.written;
        let room = self.room.saturating_sub(others * SHORT_RESULT_BYTES);
        let bytes = bytes_of(&reply).len();
        if bytes > 0 && self.writer.bytes().len() + bytes + SHORT_RESULT_BYTES > room {
            self.writer.push(&Reply::Failed(Failure::NoRoom));
        } else {
            self.writer.push(&reply);
        }
    }

    fn keep(&mut self, index: usize, reply: Reply<'_>) {
        if self.early.len() < self.count {
            self.early.resize(self.count, None);
        }
        let from = self.early_bytes.len();
        self.early_bytes.extend_from_slice(bytes_of(&reply));
        self.early[index] = Some((with_bytes(reply, &[]), from..self.early_bytes.len()));
    }
}

/// The bytes that a result brings.
#[inline]
pub(super) fn bytes_of<'a>(reply: &Reply<'a>) -> &'a [u8] {
    match reply {
        Reply::Found { value, .. } | Reply::Vector(value) => value,
        _ => &[],
    }
}

/// A result with other bytes.
pub(super) fn with_bytes<'b>(reply: Reply<'_>, bytes: &'b [u8]) -> Reply<'b> {
    match reply {
        Reply::Found { version, expires_at_ms, .. } => {
            Reply::Found { version, expires_at_ms, value: bytes }
        }
        Reply::Vector(_) => Reply::Vector(bytes),
        Reply::Absent => Reply::Absent,
        Reply::Contained(is) => Reply::Contained(is),
        Reply::Stored(version) => Reply::Stored(version),
        Reply::Refused(version) => Reply::Refused(version),
        Reply::Deleted(was) => Reply::Deleted(was),
        Reply::Scalar(word) => Reply::Scalar(word),
        Reply::Updated(elements) => Reply::Updated(elements),
        Reply::Failed(failure) => Reply::Failed(failure),
    }
}

/// One operation of a packet.
#[derive(Debug)]
pub(super) struct PackedJob {
    packet: Rc<Opened>,
    packed: Packed,
    index: u32,
    hash: KeyHash,
}

impl PackedJob {
    #[inline]
    pub fn new(packet: &Rc<Opened>, packed: Packed, index: usize, seed: u64) -> Self {
        let hash = KeyHash::of(seed, packed.key(packet.bytes()));
        Self { packet: packet.clone(), packed, index: index as u32, hash }
    }

    /// Answers an operation on a key of another processor.
    #[cold]
    pub fn misdirected(&self) {
        self.answer(Reply::Failed(Failure::Malformed));
    }
}

impl Job for PackedJob {
    #[inline]
    fn hash(&self) -> KeyHash {
        self.hash
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.packed.key(self.packet.bytes())
    }

    #[inline]
    fn action(&self) -> Action<'_> {
        self.packed.action(self.packet.bytes())
    }

    #[inline]
    fn answer(&self, reply: Reply<'_>) {
        self.packet.answer(self.index as usize, reply);
    }
}
