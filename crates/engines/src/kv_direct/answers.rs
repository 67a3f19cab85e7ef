//! A packet whose operations are under way, and their results. The results go back in the order in
//! which the operations stand in the packet, whatever the order of their execution.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use loch_fabric::Buf;

use super::key::KeyHash;
use super::processor::Job;
use crate::error::EngineError;
use crate::operation::{Operation, Outcome};
use crate::planted::{self, Bug};
use crate::requests::Ticket;
use crate::requests::packet::{Answered, Cursor, Failure, Malformed, OutcomeWriter, Packed};

/// Packets with all operations answered.
pub(super) type Finished = Rc<RefCell<Vec<Rc<Opened>>>>;

/// The most bytes of a result without a value: an operation always has this many in its reply.
const SHORT_RESULT_BYTES: usize = 24;

/// A packet that was taken out of its slot.
#[derive(Debug, Default)]
pub(super) struct Opened {
    ticket: Cell<Option<Ticket>>,
    message: Buf,
    packet: Range<usize>,
    /// The operations, up to the first one that cannot be read, with the hashes of their keys. They
    /// stay here until the packet is used again: other code refers to them by number.
    operations: Vec<(Packed, KeyHash)>,
    left: Cell<usize>,
    results: RefCell<Results>,
    finished: Option<Finished>,
}

/// The results that are known so far.
#[derive(Debug, Default)]
struct Results {
    writer: OutcomeWriter,
    /// Results that became known before an earlier one, by number, with the places of their values.
    early: Vec<Option<(Answered<'static>, Range<u32>)>>,
    early_values: Vec<u8>,
    count: usize,
    written: usize,
    /// The number of bytes that the results may take.
    room: usize,
}

impl Opened {
    /// Opens a packet of a table whose keys are hashed with `seed`. `expect` hears of the key of
    /// each operation. The results may take `room` bytes. Gives back the message that the packet
    /// held before, and says whether it has operations.
    pub fn open(
        &mut self,
        ticket: Ticket,
        message: Buf,
        seed: u64,
        room: usize,
        finished: &Finished,
        expect: impl Fn(KeyHash),
    ) -> (Buf, Result<(), Malformed>) {
        self.ticket.set(Some(ticket));
        let before = std::mem::replace(&mut self.message, message);
        self.packet = ticket.packet_at(&self.message);
        self.finished.get_or_insert_with(|| finished.clone());
        let bytes = &self.message[self.packet.clone()];
        let mut cursor = match Cursor::new(bytes) {
            Ok(cursor) => cursor,
            Err(malformed) => return (before, Err(malformed)),
        };
        self.left.set(cursor.left());
        self.results.get_mut().begin(cursor.left(), room);
        self.operations.clear();
        while let Some(Ok(packed)) = cursor.next(bytes) {
            let hash = KeyHash::of(seed, packed.key(bytes));
            expect(hash);
            self.operations.push((packed, hash));
        }
        (before, Ok(()))
    }

    /// The operation with this number; `None` after the last one.
    ///
    /// # Errors
    /// The operation cannot be read, and is answered with that.
    #[inline]
    pub fn job(self: &Rc<Self>, number: usize) -> Option<Result<PackedJob, Malformed>> {
        if number < self.operations.len() {
            return Some(Ok(PackedJob { packet: self.clone(), number: number as u32 }));
        }
        let count = self.results.borrow().count;
        (number < count).then(|| {
            // An operation that cannot be read is not executed.
            self.answer(number, &Err(Failure::Malformed));
            Err(Malformed { at: self.packet.len() as u32 })
        })
    }

    /// The key of an operation, if it is a GET.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<(KeyHash, &[u8])> {
        let (packed, hash) = self.operations.get(number)?;
        packed.is_get().then(|| (*hash, packed.key(self.bytes())))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.message[self.packet.clone()]
    }

    pub fn ticket(&self) -> Ticket {
        self.ticket.get().expect("it was opened")
    }

    /// The number of operations that have no answer yet.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    /// The results, once all of them are known.
    pub fn results(&self, with: impl FnOnce(&[u8])) {
        with(self.results.borrow().writer.bytes());
    }

    /// Answers the operations from this number on with the replies that `work` gives to
    /// [`Answers::take`] in their order. Returns how many they are.
    #[inline(always)]
    pub fn answer_each(self: &Rc<Self>, from: usize, work: impl FnOnce(&mut Answers<'_>)) -> usize {
        let mut answers = Answers { results: &mut self.results.borrow_mut(), next: from };
        work(&mut answers);
        let count = answers.next - from;
        self.answered(count);
        count
    }

    #[inline(always)]
    fn answer(self: &Rc<Self>, number: usize, answered: &Answered<'_>) {
        self.results.borrow_mut().take(number, answered);
        self.answered(1);
    }

    #[inline]
    fn answered(self: &Rc<Self>, count: usize) {
        self.left.set(self.left.get() - count);
        if self.left() == 0 && count > 0 {
            let finished = self.finished.as_ref().expect("it was opened");
            finished.borrow_mut().push(self.clone());
        }
    }
}

/// Answers of consecutive operations.
pub(super) struct Answers<'a> {
    results: &'a mut Results,
    next: usize,
}

impl Answers<'_> {
    /// Takes the answer of the next operation.
    #[inline(always)]
    pub fn take(&mut self, answered: &Answered<'_>) {
        self.results.take(self.next, answered);
        self.next += 1;
    }
}

impl Results {
    fn begin(&mut self, count: usize, room: usize) {
        self.writer.clear();
        self.early.clear();
        self.early_values.clear();
        (self.count, self.written, self.room) = (count, 0, room);
    }

    #[inline(always)]
    fn take(&mut self, number: usize, answered: &Answered<'_>) {
        let is_next = number == self.written || planted::is(Bug::ResultsAsTheyCome);
        if is_next && self.early.is_empty() {
            self.written += 1;
            push(&mut self.writer, self.room, self.count - self.written, answered);
        } else {
            self.take_one_of_many(is_next, number, answered);
        }
    }

    /// Takes a result if some became known before earlier ones.
    #[inline(never)]
    fn take_one_of_many(&mut self, is_next: bool, number: usize, answered: &Answered<'_>) {
        if !is_next {
            return self.keep(number, answered);
        }
        self.written += 1;
        push(&mut self.writer, self.room, self.count - self.written, answered);
        // The results that waited for this one follow.
        while let Some(slot) = self.early.get_mut(self.written)
            && let Some((answered, at)) = slot.take()
        {
            self.written += 1;
            let value = &self.early_values[at.start as usize..at.end as usize];
            let answered = with_bytes(&answered, value);
            push(&mut self.writer, self.room, self.count - self.written, &answered);
        }
    }

    fn keep(&mut self, number: usize, answered: &Answered<'_>) {
        if self.early.len() < self.count {
            self.early.resize(self.count, None);
        }
        let from = self.early_values.len() as u32;
        self.early_values.extend_from_slice(bytes_of(answered));
        let at = from..self.early_values.len() as u32;
        self.early[number] = Some((with_bytes(answered, &[]), at));
    }
}

/// Writes the next result, unless its room is needed for `others`.
#[inline(always)]
fn push(writer: &mut OutcomeWriter, room: usize, others: usize, answered: &Answered<'_>) {
    let room = room.saturating_sub(others * SHORT_RESULT_BYTES);
    let bytes = bytes_of(answered).len();
    if bytes > 0 && writer.bytes().len() + bytes + SHORT_RESULT_BYTES > room {
        writer.push(&Err(Failure::NoRoom));
    } else {
        writer.push(answered);
    }
}

/// The bytes that a result carries.
#[inline]
pub(super) fn bytes_of<'a>(answered: &Answered<'a>) -> &'a [u8] {
    match answered {
        Ok(Outcome::Found { value, .. } | Outcome::Vector(value)) => value,
        _ => &[],
    }
}

/// A result with other bytes.
pub(super) fn with_bytes<'b>(answered: &Answered<'_>, bytes: &'b [u8]) -> Answered<'b> {
    answered.map(|outcome| outcome.with_bytes(bytes))
}

/// One operation of a packet, by its number.
#[derive(Debug)]
pub(super) struct PackedJob {
    packet: Rc<Opened>,
    number: u32,
}

impl PackedJob {
    /// Answers an operation on a key of another processor.
    #[cold]
    pub fn misdirected(&self) {
        self.packet.answer(self.number as usize, &Err(Failure::Malformed));
    }

    #[inline(always)]
    fn packed(&self) -> &(Packed, KeyHash) {
        &self.packet.operations[self.number as usize]
    }
}

impl Job for PackedJob {
    #[inline(always)]
    fn hash(&self) -> KeyHash {
        self.packed().1
    }

    #[inline(always)]
    fn key(&self) -> &[u8] {
        self.packed().0.key(self.packet.bytes())
    }

    #[inline(always)]
    fn operation(&self) -> Operation<'_> {
        self.packed().0.operation(self.packet.bytes())
    }

    #[inline(always)]
    fn answer(&self, outcome: Result<Outcome<'_>, EngineError>) {
        let answered = outcome.map_err(|error| Failure::from(&error));
        self.packet.answer(self.number as usize, &answered);
    }
}
