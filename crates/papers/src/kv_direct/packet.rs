//! Packets on the wire, and their operations as jobs of the processor.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_engines::EngineError;
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::processor::Job;
use loch_engines::operation::{self, Outcome};
use loch_engines::requests::Failure;
use loch_engines::requests::packet::{Cursor, OutcomeWriter, Packed, Writer};

/// A packet of operations on its way through the processor.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    /// When the client sent it.
    pub sent_ns: f64,
    count: usize,
    left: Cell<usize>,
    /// The replies, in the order of their arrival. In another order they would have as many bytes,
    /// except for fields that neighbours share.
    replies: RefCell<OutcomeWriter>,
    failed: Cell<u64>,
    done: Done,
}

/// Packets whose operations all were answered.
pub type Done = Rc<RefCell<Vec<Rc<Packet>>>>;

impl Packet {
    /// A packet with the contents of `writer`; once all its operations are answered, it is in
    /// `done`.
    pub fn new(writer: &Writer, sent_ns: f64, done: &Done) -> Rc<Self> {
        Rc::new(Self {
            bytes: writer.bytes().to_vec(),
            sent_ns,
            count: writer.count(),
            left: Cell::new(writer.count()),
            replies: RefCell::default(),
            failed: Cell::new(0),
            done: done.clone(),
        })
    }

    /// Operations in it.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the request.
    pub fn request_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the replies.
    pub fn reply_bytes(&self) -> usize {
        self.replies.borrow().bytes().len()
    }

    /// Operations that failed.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// Before the first operation.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(&self.bytes).expect("packets are written by the bench")
    }
}

/// One operation of a packet.
#[derive(Debug)]
pub struct Operation {
    packet: Rc<Packet>,
    packed: Packed,
    hash: KeyHash,
}

impl Operation {
    /// The next operation of a packet, if there is one.
    pub fn next(packet: &Rc<Packet>, cursor: &mut Cursor, seed: u64) -> Option<Self> {
        let packed = cursor.next(&packet.bytes)?.expect("packets are written by the bench");
        let hash = KeyHash::of(seed, packed.key(&packet.bytes));
        Some(Self { packet: packet.clone(), packed, hash })
    }
}

impl Job for Operation {
    fn hash(&self) -> KeyHash {
        self.hash
    }

    fn key(&self) -> &[u8] {
        self.packed.key(&self.packet.bytes)
    }

    fn operation(&self) -> operation::Operation<'_> {
        self.packed.operation(&self.packet.bytes)
    }

    fn answer(&self, outcome: Result<Outcome<'_>, EngineError>) {
        let Packet { left, replies, failed, done, .. } = &*self.packet;
        if matches!(outcome, Ok(Outcome::Absent | Outcome::Refused(_)) | Err(_)) {
            failed.set(failed.get() + 1);
        }
        replies.borrow_mut().push(&outcome.map_err(|error| Failure::from(&error)));
        left.set(left.get() - 1);
        if left.get() == 0 {
            done.borrow_mut().push(self.packet.clone());
        }
    }
}
