//! The packets that a client fills: those that the lanes of a thread fill together, with the
//! outcome for each lane, and those that a batch fills.
//!
//! # Invariants
//! 1. A packet is used anew when no lane holds it any more; until then it stays in its place.
//! 2. Packets are named by their place, not shared by allocation. So a client with all of its
//!    packets can go to another thread when none of its operations is under way.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;

use loch_fabric::Buf;

use super::asked::{Content, check_room};
use super::client::Reply;
use super::layout::Area;
use super::message::{Body, REPLY_TRAILER_BYTES, REQUEST_TRAILER_BYTES, Ticket};
use super::packet::{
    Answered, Failure, OPERATION_BYTES, OUTCOME_BYTES, Outcomes, Writer, strange_outcomes,
};
use super::seal::Seal;
use super::window::Parking;
use crate::error::EngineError;
use crate::limits::PACKET_OPS_MAX;
use crate::operation::{Done, Operation};
use crate::planted::{self, Bug};
use crate::region::Service;
use crate::spare::SpareBuffers;

/// The bounds of a client's packets.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The most operations in a packet; 1: each operation goes alone.
    pub batch: usize,
    /// Bytes of the longest packet of operations.
    pub request_bytes: usize,
    /// Bytes of the longest packet of outcomes.
    pub reply_bytes: usize,
}

impl Room {
    /// The bounds of a table's packets: they fill its slots, or messages of `sent_bytes` where
    /// there are none.
    pub fn of(area: &Area, sent_bytes: usize, batch: usize) -> Self {
        let Service { request_bytes, reply_bytes, .. } = *area.service();
        let room = |slot: u32, trailer| match slot as usize {
            0 => sent_bytes - trailer,
            slot => slot - trailer,
        };
        Self {
            batch,
            request_bytes: room(request_bytes, REQUEST_TRAILER_BYTES),
            reply_bytes: room(reply_bytes, REPLY_TRAILER_BYTES),
        }
    }
}

/// A client's packets.
#[derive(Debug)]
pub(super) struct Packing {
    pub room: Room,
    /// For each worker the packet to which lanes add operations.
    pub open: RefCell<Vec<Option<usize>>>,
    pub packets: Packets,
    /// The packets of the last batch, to be used again.
    pub bundles: RefCell<Option<Bundles>>,
    /// Bytes of the longest value that was found recently.
    found_bytes: Cell<usize>,
}

impl Packing {
    /// The packets for this many workers.
    pub fn new(room: Room, workers: usize) -> Self {
        let room = Room { batch: room.batch.clamp(1, PACKET_OPS_MAX), ..room };
        Self {
            room,
            open: RefCell::new(vec![None; workers]),
            packets: Packets::default(),
            bundles: RefCell::default(),
            found_bytes: Cell::new(0),
        }
    }

    /// Remembers the length of a value that was found, so that a packet's outcomes fit its reply.
    pub fn learn(&self, len: usize) {
        // The length falls slowly: one short value among long ones says little.
        let known = self.found_bytes.get();
        self.found_bytes.set(if len >= known { len } else { known - (known - len).div_ceil(64) });
    }

    /// Whether a packet has room for one more operation, and its reply for the outcome.
    #[inline]
    pub fn takes(
        &self,
        writer: &Writer,
        [request_bytes, reply_bytes]: [usize; 2],
        key: &[u8],
        operation: &Operation<'_>,
    ) -> bool {
        let gets = writer.gets() + usize::from(matches!(operation, Operation::Get));
        let bytes = key.len() + operation.value().len() + OPERATION_BYTES;
        let outcomes = (writer.count() + 1) * OUTCOME_BYTES + gets * self.found_bytes.get();
        writer.count() < self.room.batch
            && writer.bytes().len() + bytes <= request_bytes
            && outcomes <= reply_bytes
    }
}

/// A packet, from its first operation until all lanes have their outcomes.
#[derive(Debug, Default)]
pub(super) struct Packet {
    pub writer: RefCell<Writer>,
    pub stage: Cell<Stage>,
    pub error: RefCell<Option<EngineError>>,
    outcomes: RefCell<Vec<(Answered<'static>, Range<usize>)>>,
    pub message: RefCell<Buf>,
    /// The worker, by [`Area::source`].
    source: Cell<u16>,
    /// The number of lanes that hold the packet.
    holders: Cell<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Open,
    Sent,
    /// The outcomes are there.
    Answered,
    /// There is an error.
    Failed,
    /// The packet's leader is gone.
    Left {
        was_sent: bool,
    },
}

/// The outcome that an operation gets from its packet.
pub(super) enum Share {
    Done(Done),
    Failed(Failure),
    Again { alone: bool },
    Error(EngineError),
}

/// The packets of a client.
#[derive(Debug, Default)]
pub(super) struct Packets {
    all: RefCell<Vec<Packet>>,
    spare: RefCell<Vec<usize>>,
}

/// A lane's hold on a packet.
#[derive(Debug)]
pub(super) struct Held<'a> {
    packets: &'a Packets,
    parking: &'a Parking,
    place: usize,
}

impl Packets {
    /// Whether lanes hold any packet.
    #[inline]
    pub fn are_held(&self) -> bool {
        self.spare.borrow().len() < self.all.borrow().len()
    }

    /// An empty packet for a worker.
    pub fn new_packet<'a>(&'a self, source: u16, parking: &'a Parking) -> Held<'a> {
        let spare = self.spare.borrow_mut().pop();
        let place = spare.unwrap_or_else(|| {
            let mut all = self.all.borrow_mut();
            all.push(Packet::default());
            all.len() - 1
        });
        let held = self.hold(place, parking);
        held.packet().source.set(source);
        held
    }

    /// The packet at a place, held by one more lane.
    #[inline]
    pub fn hold<'a>(&'a self, place: usize, parking: &'a Parking) -> Held<'a> {
        let held = Held { packets: self, parking, place };
        let holders = held.packet().holders.get();
        held.packet().holders.set(holders + 1);
        held
    }
}

impl Held<'_> {
    /// The packet's place.
    #[inline]
    pub fn place(&self) -> usize {
        self.place
    }

    /// The packet. The borrow must end before the lane waits.
    #[inline]
    pub fn packet(&self) -> Ref<'_, Packet> {
        Ref::map(self.packets.all.borrow(), |all| &all[self.place])
    }
}

/// Invariant 1.
impl Drop for Held<'_> {
    fn drop(&mut self) {
        let packet = self.packet();
        let holders = packet.holders.get() - 1;
        packet.holders.set(holders);
        if holders == 0 {
            self.parking.leave(self.place, packet.source.get());
            packet.writer.borrow_mut().clear();
            packet.outcomes.borrow_mut().clear();
            packet.stage.set(Stage::Open);
            self.packets.spare.borrow_mut().push(self.place);
        }
    }
}

/// The packet that a leader sends: lanes hold it, so that another one can go on with the request.
impl Content for &Held<'_> {
    #[inline]
    fn ticket(&self, client: u32, session: u64) -> Ticket {
        Ticket::new(client, session, &Body::packed(&self.packet().writer.borrow()))
    }

    #[inline]
    fn parks_at(&self) -> Option<usize> {
        Some(self.place)
    }

    #[inline]
    fn message(&mut self, ticket: &Ticket, seal: Seal, spare: &SpareBuffers) -> Buf {
        let mut message = spare.take();
        message.extend_from_slice(self.packet().writer.borrow().bytes());
        if planted::is(Bug::ResendLosesOperation) && ticket.attempt > 0 && message[0] > 1 {
            let mut bytes = message.into_vec();
            bytes[0] -= 1;
            message = Buf::from(bytes);
        }
        ticket.finish(seal, &mut message);
        message
    }

    #[inline]
    fn check(&self, slot_bytes: usize) -> Result<(), EngineError> {
        let len = self.packet().writer.borrow().bytes().len();
        check_room(0, len, slot_bytes.saturating_sub(REQUEST_TRAILER_BYTES))
    }
}

impl Packet {
    /// Whether its leader is gone and had sent it.
    #[inline]
    pub fn is_left_behind(&self) -> bool {
        self.stage.get() == Stage::Left { was_sent: true }
    }

    /// Adds an operation. Returns its index.
    pub fn push(&self, key: &[u8], operation: &Operation<'_>) -> usize {
        let mut writer = self.writer.borrow_mut();
        writer.push(key, operation);
        writer.count() - 1
    }

    /// Reads the outcomes of `count` operations.
    pub fn read(&self, count: usize, reply: Reply) -> Result<(), EngineError> {
        let mut all = self.outcomes.borrow_mut();
        all.clear();
        let packet = reply.packet();
        let mut outcomes = Outcomes::new(count);
        while let Some(answered) = outcomes.next(packet) {
            let answered = answered.map_err(|_| strange_outcomes())?;
            let (end, len) = (outcomes.at(), answered.as_ref().map_or(0, |it| it.bytes().len()));
            all.push((answered.map(|it| it.with_bytes(&[])), end - len..end));
        }
        self.message.replace(reply.into_buf());
        Ok(())
    }

    /// The outcome of one operation, with its value in `buf`.
    pub fn share(&self, index: usize, is_read: bool, mut buf: Buf) -> Share {
        match self.stage.get() {
            Stage::Answered => {
                let (answered, at) = self.outcomes.borrow()[index].clone();
                match answered {
                    Err(Failure::NoRoom) if is_read => Share::Again { alone: true },
                    Err(failure) => Share::Failed(failure),
                    Ok(outcome) => {
                        buf.clear();
                        buf.extend_from_slice(&self.message.borrow()[at]);
                        let at = 0..buf.len();
                        Share::Done(Done::new(outcome, buf, at))
                    }
                }
            }
            Stage::Failed => {
                let error = self.error.borrow().clone().unwrap_or_else(strange_outcomes);
                // Other operations of the packet change something; the outcome of a read is never
                // ambiguous.
                let spared = is_read && matches!(error, EngineError::Ambiguous(_));
                if spared { Share::Again { alone: true } } else { Share::Error(error) }
            }
            Stage::Left { .. } | Stage::Open | Stage::Sent => Share::Again { alone: false },
        }
    }
}

/// A packet that is filled for one worker, and the numbers of its operations in their batch.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    /// The worker, by [`Area::source`](super::layout::Area::source).
    pub source: u16,
    pub packet: Writer,
    pub numbers: Vec<usize>,
    pub reply: Buf,
}

impl Bundle {
    /// Starts another packet, in the same memory.
    pub fn begin(&mut self, source: u16) {
        self.source = source;
        self.packet.clear();
        self.numbers.clear();
    }
}

/// What a client keeps from one batch to the next.
#[derive(Debug, Default)]
pub(super) struct Bundles {
    pub all: Vec<Bundle>,
    /// For each worker the bundle that is being filled.
    pub open: Vec<Option<usize>>,
}
