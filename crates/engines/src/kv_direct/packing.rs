//! Packets that the lanes of a thread fill together, and the results for each lane; and packets
//! that a batch fills.
//!
//! # Invariants
//! 1. A packet is used anew when no lane holds it any more; until then it stays in its place.
//! 2. Packets are named by their place, not shared by allocation. So a client with all of its
//!    packets can go to another thread when none of its operations is under way.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;

use loch_fabric::Buf;

use super::answers::{bytes_of, with_bytes};
use crate::error::EngineError;
use crate::operation::Operation;
use crate::requests::packet::{Answered, Failure, Outcomes, Writer, strange_outcomes};

/// A packet, from its first operation until all lanes have their results.
#[derive(Debug, Default)]
pub(super) struct Packet {
    pub writer: RefCell<Writer>,
    /// Operations that return a value.
    pub reads: Cell<usize>,
    pub stage: Cell<Stage>,
    pub error: RefCell<Option<EngineError>>,
    results: RefCell<Vec<(Answered<'static>, Range<usize>)>>,
    pub message: RefCell<Buf>,
    /// The number of lanes that hold the packet.
    holders: Cell<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Open,
    Sent,
    /// The results are there.
    Answered,
    /// There is an error.
    Failed,
    /// The packet's leader is gone.
    Left {
        was_sent: bool,
    },
}

/// The result that an operation gets from its packet.
pub(super) enum Share {
    Answered(Answered<'static>, Buf),
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
    place: usize,
}

impl Packets {
    /// An empty packet.
    pub fn new_packet(&self) -> Held<'_> {
        let spare = self.spare.borrow_mut().pop();
        let place = spare.unwrap_or_else(|| {
            let mut all = self.all.borrow_mut();
            all.push(Packet::default());
            all.len() - 1
        });
        self.hold(place)
    }

    /// The packet at a place, held by one more lane.
    #[inline]
    pub fn hold(&self, place: usize) -> Held<'_> {
        let held = Held { packets: self, place };
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
            packet.writer.borrow_mut().clear();
            packet.results.borrow_mut().clear();
            packet.reads.set(0);
            packet.stage.set(Stage::Open);
            self.packets.spare.borrow_mut().push(self.place);
        }
    }
}

impl Packet {
    /// Adds an operation. Returns its index.
    pub fn push(&self, key: &[u8], operation: &Operation<'_>) -> usize {
        if matches!(operation, Operation::Get) {
            self.reads.set(self.reads.get() + 1);
        }
        let mut writer = self.writer.borrow_mut();
        writer.push(key, operation);
        writer.count() - 1
    }

    /// Reads the results of `count` operations.
    pub fn read(&self, count: usize, reply: crate::requests::Reply) -> Result<(), EngineError> {
        let mut results = self.results.borrow_mut();
        results.clear();
        let packed = reply.packed()?;
        let at = reply.value_at().start;
        let mut replies = Outcomes::new(count);
        while let Some(result) = replies.next(packed) {
            let result = result.map_err(|_| strange_outcomes())?;
            let end = at + replies.at();
            results.push((with_bytes(&result, &[]), end - bytes_of(&result).len()..end));
        }
        self.message.replace(reply.into_buf());
        Ok(())
    }

    /// The result of one operation, with its value in `buf`.
    pub fn share(
        &self,
        index: usize,
        is_read: bool,
        mut buf: Buf,
        unknown: impl FnOnce() -> EngineError,
    ) -> Share {
        match self.stage.get() {
            Stage::Answered => {
                let (answered, at) = self.results.borrow()[index].clone();
                if is_read && answered == Err(Failure::NoRoom) {
                    return Share::Again { alone: true };
                }
                buf.clear();
                buf.extend_from_slice(&self.message.borrow()[at]);
                Share::Answered(answered, buf)
            }
            Stage::Failed => {
                let error = self.error.borrow().clone().unwrap_or_else(strange_outcomes);
                // Other operations of the packet change something; the outcome of a read is never
                // ambiguous.
                let spared = is_read && matches!(error, EngineError::Ambiguous(_));
                if spared { Share::Again { alone: true } } else { Share::Error(error) }
            }
            Stage::Left { was_sent: true } if !is_read => Share::Error(unknown()),
            Stage::Left { .. } | Stage::Open | Stage::Sent => Share::Again { alone: false },
        }
    }
}

/// A packet that is filled for one processor, and the numbers of its operations in their batch.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    pub partition: u32,
    pub packet: Writer,
    pub numbers: Vec<usize>,
    pub reply: Buf,
}

impl Bundle {
    /// Starts another packet, in the same memory.
    pub fn begin(&mut self, partition: u32) {
        self.partition = partition;
        self.packet.clear();
        self.numbers.clear();
    }
}

/// What a client keeps from one batch to the next.
#[derive(Debug, Default)]
pub(super) struct Bundles {
    pub all: Vec<Bundle>,
    /// For each processor the bundle that is being filled.
    pub open: Vec<Option<usize>>,
}
