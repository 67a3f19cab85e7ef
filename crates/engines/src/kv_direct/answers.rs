//! A packet whose operations are under way, and their results. The results go back in the order in
//! which the operations stand in the packet, whatever the order of their execution.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_fabric::Buf;

use super::key::KeyHash;
use super::processor::Job;
use crate::error::EngineError;
use crate::operation::{Operation, Outcome};
use crate::requests::packet::{Answered, Cursor, Failure, Malformed, Packed};
use crate::requests::{Results, Ticket};

/// Packets with all operations answered.
pub(super) type Finished = Rc<RefCell<Vec<Rc<Opened>>>>;

/// A packet that was taken out of its slot.
#[derive(Debug, Default)]
pub(super) struct Opened {
    ticket: Cell<Option<Ticket>>,
    message: Buf,
    /// The operations, up to the first one that cannot be read, with the hashes of their keys. They
    /// stay here until the packet is used again: other code refers to them by number.
    operations: Vec<(Packed, KeyHash)>,
    left: Cell<usize>,
    count: usize,
    results: RefCell<Results>,
    finished: Option<Finished>,
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
        (room, memory): (usize, Buf),
        finished: &Finished,
        expect: impl Fn(KeyHash),
    ) -> (Buf, Result<(), Malformed>) {
        self.ticket.set(Some(ticket));
        let before = std::mem::replace(&mut self.message, message);
        self.finished.get_or_insert_with(|| finished.clone());
        let bytes = ticket.packet(&self.message);
        let mut cursor = match Cursor::new(bytes) {
            Ok(cursor) => cursor,
            Err(malformed) => return (before, Err(malformed)),
        };
        self.left.set(cursor.left());
        self.count = cursor.left();
        self.results.get_mut().begin(cursor.left(), room, memory);
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
        (number < self.count).then(|| {
            // An operation that cannot be read is not executed.
            self.answer(number, &Err(Failure::Malformed));
            Err(Malformed { at: self.bytes().len() as u32 })
        })
    }

    /// The key of an operation, if it is a GET.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<(KeyHash, &[u8])> {
        let (packed, hash) = self.operations.get(number)?;
        packed.is_get().then(|| (*hash, packed.key(self.bytes())))
    }

    pub fn bytes(&self) -> &[u8] {
        self.ticket().packet(&self.message)
    }

    pub fn ticket(&self) -> Ticket {
        self.ticket.get().expect("it was opened")
    }

    /// The number of operations that have no answer yet.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    /// The packet of all outcomes, once they are known.
    pub fn outcomes(&self) -> Buf {
        self.results.borrow_mut().packet()
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
