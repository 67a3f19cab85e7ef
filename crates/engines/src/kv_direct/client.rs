//! The client: asks the processor that owns a key, with many operations in one packet (kv-direct
//! §4).
//!
//! The operations that the lanes of a thread ask of a processor at the same time go there in one
//! packet. The lane that begins a packet *leads* it: it lets the other lanes have their turn, waits
//! until a request slot is free, sends the packet, and waits for the results. Each lane then takes
//! its own result.
//!
//! # Invariants
//! 1. Lanes add operations to a packet until its leader sends it; every operation of it gets a
//!    result or an error.
//! 2. A leader whose future is dropped leaves a mark. The other lanes then ask again for the
//!    operations that it had not sent; a mutation that it had sent is ambiguous.
//!
//! A client writes only its own request slots.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loch_fabric::{Buf, Fabric, FabricError, VerbCount};

use super::OPERATION_BYTES;
use super::compute::{Compute, Computed};
use super::key::KeyHash;
use super::packing::{Bundles, Held, Packet, Packets, Share, Stage};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::limits::{KEY_BYTES_MAX, KV_DIRECT_PACKET_OPS_MAX};
use crate::operation::{Operation, Outcome, PutOptions, Value};
use crate::requests::message::{REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES};
use crate::requests::packet::{Failure, strange_outcomes};
use crate::requests::{ByWrite, Counts, RequestMap, Requester, Timing, WorkerId, WrittenReplies};

/// The part of a table that a client needs to know.
#[derive(Clone, Debug)]
pub struct Access {
    /// The table's requests.
    pub map: Arc<RequestMap>,
    /// The seed with which the table's keys are hashed.
    pub seed: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<u16>,
    /// The most operations in a packet; 1: each operation goes alone.
    pub batch: usize,
}

/// The most bytes that a result has besides a value.
pub(super) const RESULT_BYTES: usize = 24;

/// A client of a table: one thread's session slot, endpoint, and packets under way.
///
/// Its operations take `&self`, so any number of them can be under way in the lanes of its thread.
pub struct Client<F: Fabric> {
    pub(super) fabric: F,
    pub(super) requester: Requester<ByWrite, WrittenReplies>,
    seed: u64,
    value_bytes_max: u64,
    key_bytes: Option<u16>,
    pub(super) batch: usize,
    pub(super) request_room: usize,
    pub(super) reply_room: usize,
    /// For each processor the packet to which lanes add operations.
    open: RefCell<Vec<Option<usize>>>,
    packets: Packets,
    /// The packets of the last batch, to be used again.
    pub(super) bundles: Cell<Option<Bundles>>,
    /// Bytes of the longest value that was found recently.
    pub(super) found_bytes: Cell<usize>,
}

/// A result, with its value in the asking lane's buffer.
type Answered = (Outcome<'static>, Buf);

impl<F: Fabric> Client<F> {
    /// The client that holds `session`, at the `node`-th node of the table's map.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    pub fn new(fabric: F, access: Access, session: &Session, node: u16, timing: Timing) -> Self {
        let Access { map, seed, value_bytes_max, key_bytes, batch } = access;
        let service = *map.area().service();
        let partitions = usize::from(map.area().nodes()) * usize::from(service.workers);
        let replies = WrittenReplies::of(&map, map.area().client(node, session.slot()));
        let by = ByWrite { home: session.home() };
        Self {
            requester: Requester::new(map, session, node, by, replies, timing),
            seed,
            value_bytes_max,
            key_bytes,
            batch: batch.clamp(1, KV_DIRECT_PACKET_OPS_MAX),
            request_room: service.request_bytes as usize - REQUEST_OVERHEAD_BYTES,
            reply_room: service.reply_bytes as usize - REPLY_TRAILER_BYTES,
            open: RefCell::new(vec![None; partitions]),
            packets: Packets::default(),
            bundles: Cell::default(),
            found_bytes: Cell::new(0),
            fabric,
        }
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        self.requester.counts()
    }

    /// The processor that owns a key.
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        self.worker(self.partition(key))
    }

    #[inline]
    pub(super) fn partition(&self, key: &[u8]) -> u32 {
        KeyHash::of(self.seed, key).partition(self.requester.map().area().workers())
    }

    #[inline]
    pub(super) fn worker(&self, partition: u32) -> WorkerId {
        self.requester.map().area().worker(partition)
    }

    pub(super) fn check(&self, key: &[u8], operation: &Operation<'_>) -> Result<(), EngineError> {
        if key.is_empty() {
            return Err(EngineError::KeyEmpty);
        }
        if let Some(want) = self.key_bytes.map(usize::from).filter(|want| *want != key.len()) {
            return Err(EngineError::KeyOfOtherLength { len: key.len(), want });
        }
        let room = self.request_room - OPERATION_BYTES;
        let max = KEY_BYTES_MAX.min(room);
        if key.len() > max {
            return Err(EngineError::KeyTooLong { len: key.len(), max });
        }
        let len = operation.value().len() as u64;
        let max = self.value_bytes_max.min((room - key.len()) as u64);
        if len > max { Err(EngineError::ValueTooLong { len, max }) } else { Ok(()) }
    }

    /// Asks for an operation. `buf` is filled with the value of the result.
    async fn ask(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        mut buf: Buf,
    ) -> Result<Answered, EngineError> {
        self.check(key, &operation)?;
        let partition = self.partition(key);
        let mut alone = self.batch == 1 || operation.returns_vector();
        let until = self.fabric.now_us().saturating_add(self.requester.timing().timeout_us);
        loop {
            let (packet, index, leads) = self.join(partition, key, &operation, alone);
            if leads {
                // In a box: the other lanes' futures need no room for what only a leader does.
                Box::pin(self.lead(partition, &packet, alone)).await;
            } else {
                let is_settled = || {
                    let stage = packet.packet().stage.get();
                    (!matches!(stage, Stage::Open | Stage::Sent)).then_some(())
                };
                self.requester.until(&self.fabric, true, is_settled).await;
            }
            let unknown = || self.unknown(partition);
            let share = packet.packet().share(index, operation.is_read(), buf, unknown);
            drop(packet);
            match share {
                Share::Answered(Err(failure), _) => return Err(self.error(partition, failure)),
                Share::Answered(Ok(outcome), buf) => {
                    if matches!(outcome, Outcome::Found { .. }) {
                        self.learn(buf.len());
                    }
                    return Ok((outcome, buf));
                }
                Share::Error(error) => return Err(error),
                Share::Again { alone: by_itself } if self.fabric.now_us() < until => {
                    alone |= by_itself;
                    buf = Buf::new();
                }
                Share::Again { .. } => {
                    let timeout_us = self.requester.timing().timeout_us;
                    return Err(EngineError::Timeout { timeout_us });
                }
            }
        }
    }

    /// Asks for an operation that returns the value.
    async fn ask_for_value(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        match self.ask(key, operation, buf).await? {
            (Outcome::Found { version, expires_at_ms, .. }, buf) => {
                Ok(Some(Value::new_whole(buf, version, expires_at_ms)))
            }
            (Outcome::Absent, _) => Ok(None),
            _ => Err(strange_outcomes()),
        }
    }

    /// Remembers the length of a value that was found, so that a packet's results fit its reply.
    pub(super) fn learn(&self, len: usize) {
        // The length falls slowly: one short value among long ones says little.
        let known = self.found_bytes.get();
        self.found_bytes.set(if len >= known { len } else { known - (known - len).div_ceil(64) });
    }

    /// The error of an operation that was not done.
    #[cold]
    pub(super) fn error(&self, partition: u32, failure: Failure) -> EngineError {
        failure.into_error(self.requester.map().incarnation_addr(self.worker(partition)))
    }

    fn unknown(&self, partition: u32) -> EngineError {
        let at = self.requester.map().incarnation_addr(self.worker(partition));
        EngineError::Ambiguous(FabricError::OutcomeUnknown { at })
    }

    /// Adds an operation to the processor's open packet, or to a new one. Returns the packet, the
    /// operation's index in it, and whether it is the first.
    fn join(
        &self,
        partition: u32,
        key: &[u8],
        operation: &Operation<'_>,
        alone: bool,
    ) -> (Held<'_>, usize, bool) {
        let mut open = self.open.borrow_mut();
        let open = &mut open[partition as usize];
        if !alone && let Some(place) = *open {
            let packet = self.packets.hold(place);
            if self.takes(&packet.packet(), key, operation) {
                let index = packet.packet().push(key, operation);
                if index + 1 == self.batch {
                    *open = None;
                }
                return (packet, index, false);
            }
            // The packet's leader sends it as it is.
            *open = None;
        }
        let packet = self.packets.new_packet();
        let index = packet.packet().push(key, operation);
        if !alone {
            *open = Some(packet.place());
        }
        (packet, index, true)
    }

    /// Whether the packet has room for one more operation, and its reply for the result.
    fn takes(&self, packet: &Packet, key: &[u8], operation: &Operation<'_>) -> bool {
        let writer = packet.writer.borrow();
        let reads = packet.reads.get() + usize::from(matches!(operation, Operation::Get));
        let results = (writer.count() + 1) * RESULT_BYTES + reads * self.found_bytes.get();
        writer.count() < self.batch
            && writer.len_with(key, operation) <= self.request_room
            && results <= self.reply_room
    }

    /// Sends a packet, to which other lanes may add until then, and waits for the results.
    async fn lead(&self, partition: u32, packet: &Held<'_>, alone: bool) {
        let leading = Leading { client_open: &self.open, partition, packet };
        let to = self.worker(partition);
        if !alone {
            self.fabric.yield_now().await;
            let may_go = || (!leading.is_open() || self.requester.is_free(to)).then_some(());
            self.requester.until(&self.fabric, false, may_go).await;
        }
        leading.close();
        let writer = packet.packet().writer.take();
        let buf = packet.packet().message.take();
        packet.packet().stage.set(Stage::Sent);
        let (bytes, is_read) = (writer.bytes(), writer.is_read());
        let called = self.requester.call_packed(&self.fabric, to, bytes, is_read, buf).await;
        let (count, packet) = (writer.count(), packet.packet());
        packet.writer.replace(writer);
        match called.and_then(|reply| packet.read(count, reply)) {
            Ok(()) => packet.stage.set(Stage::Answered),
            Err(error) => {
                packet.error.replace(Some(error));
                packet.stage.set(Stage::Failed);
            }
        }
    }
}

impl<F: Fabric> Compute for Client<F> {
    async fn compute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Computed, EngineError> {
        match self.ask(key, operation, buf).await? {
            (Outcome::Scalar(word), _) => Ok(Computed::Scalar(word)),
            (Outcome::Updated(elements), _) => Ok(Computed::Updated(elements)),
            (Outcome::Vector(_), buf) => Ok(Computed::Vector(Value::new_whole(buf, 0, None))),
            (Outcome::Absent, _) => Ok(Computed::Absent),
            _ => Err(strange_outcomes()),
        }
    }
}

impl<F: Fabric> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The verbs that the endpoint counted, and the replies, which the workers sent.
    fn counted(&self) -> VerbCount {
        self.requester.counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.counts().repeated()
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.ask_for_value(key, Operation::Get, buf).await
    }

    /// In one step: the worker keeps the answer to a packet that changed something, and the values
    /// in it, until the client has it.
    async fn get_and_touch(
        &self,
        key: &[u8],
        options: PutOptions,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        self.ask_for_value(key, Operation::GetAndTouch(options), buf).await
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        match self.ask(key, Operation::Contains, Buf::new()).await?.0 {
            Outcome::Contained(is) => Ok(is),
            _ => Err(strange_outcomes()),
        }
    }

    /// The version of a value is 0 in a table without versions, where a PUT that expects a version
    /// is [`EngineError::NoVersions`].
    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        if operation == Operation::Get {
            return Err(EngineError::Unsupported);
        }
        self.ask(key, operation, Buf::new()).await?.0.without_value()
    }
}

/// A packet's leader, which leaves a mark when it ends.
struct Leading<'a> {
    client_open: &'a RefCell<Vec<Option<usize>>>,
    partition: u32,
    packet: &'a Held<'a>,
}

impl Leading<'_> {
    /// Whether operations may still be added.
    fn is_open(&self) -> bool {
        self.client_open.borrow()[self.partition as usize] == Some(self.packet.place())
    }

    /// Closes the packet: no operation is added from now on.
    fn close(&self) {
        if self.is_open() {
            self.client_open.borrow_mut()[self.partition as usize] = None;
        }
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.close();
        let packet = self.packet.packet();
        let stage = packet.stage.get();
        if matches!(stage, Stage::Open | Stage::Sent) {
            packet.stage.set(Stage::Left { was_sent: stage == Stage::Sent });
        }
    }
}
