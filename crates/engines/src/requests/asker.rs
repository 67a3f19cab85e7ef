//! The client of a table in which a worker owns each key: it asks the owner for every operation.
//!
//! An operation takes effect when the worker executes it, once, however often the request was sent
//! ([the module's invariants](super)). A client writes only its own request slots.
//!
//! The operations that the lanes of a thread ask of a worker at the same time go there in one
//! packet (kv-direct §4). The lane that begins a packet *leads* it: it lets the other lanes have
//! their turn, waits until a request slot is free, sends the packet, and waits for the outcomes.
//! Each lane then takes its own outcome. A lane that has no company does not wait for it: if
//! nothing of the client is under way, and no lane holds a packet, the operation goes at once.
//!
//! # Invariants
//! 1. Lanes add operations to a packet until its leader sends it; every operation of it gets an
//!    outcome or an error.
//! 2. A leader whose future is dropped leaves a mark. If it had sent the packet, another lane goes
//!    on with the same request, which the worker executes once; else the other lanes ask again.

use std::cell::RefCell;

use loch_fabric::{Buf, Fabric};

use super::asked::check_room;
use super::client::{Reply, Requester};
use super::layout::{Area, WorkerId};
use super::message::Body;
use super::packet::{Failure, OPERATION_BYTES};
use super::packing::{Held, Packing, Room, Share, Stage};
use super::path::{ReplyPath, RequestPath};
use crate::error::EngineError;
use crate::kv::{Lengths, get_and_touch};
use crate::operation::{Done, Operation, Outcome};
use crate::spare::SpareBuffers;

/// Which worker owns a key.
pub trait Owners {
    /// Whether the workers compute on values, and return values that they touch.
    const COMPUTES: bool = false;

    /// The owner of a key, among the workers of `area`.
    fn owner(&self, area: &Area, key: &[u8]) -> WorkerId;
}

/// Asks the owners of keys. `P` is the path of the requests, `R` the path of the replies.
#[derive(Debug)]
pub struct Asker<P, R, O> {
    pub(super) requester: Requester<P, R>,
    owners: O,
    lengths: Lengths,
    pub(super) packing: Packing,
}

impl<P, R, O: Owners> Asker<P, R, O> {
    /// The asker of a table that takes keys and values of these lengths.
    pub fn new(requester: Requester<P, R>, owners: O, lengths: Lengths, room: Room) -> Self {
        let workers = requester.map().area().workers() as usize;
        Self { requester, owners, lengths, packing: Packing::new(room, workers) }
    }

    /// The owner of a key.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> WorkerId {
        self.owners.owner(self.requester.map().area(), key)
    }

    /// The number of the owner of a key.
    #[inline]
    pub(super) fn source(&self, key: &[u8]) -> u16 {
        let WorkerId { node, worker } = self.owner(key);
        self.requester.map().area().source(node, worker)
    }

    #[inline]
    pub(super) fn worker(&self, source: u16) -> WorkerId {
        self.requester.map().area().worker(source.into())
    }

    /// The owners.
    pub fn owners(&self) -> &O {
        &self.owners
    }

    /// The requests.
    pub fn requester(&self) -> &Requester<P, R> {
        &self.requester
    }

    /// Checks that the table takes an operation, and that a packet has room for it.
    #[inline]
    pub(super) fn check(&self, key: &[u8], operation: Operation<'_>) -> Result<(), EngineError> {
        let len = operation.value().len();
        self.lengths.check(key, len)?;
        check_room(key.len(), len, self.packing.room.request_bytes.saturating_sub(OPERATION_BYTES))
    }

    /// Bytes of the longest packet of operations, and of outcomes, at this moment.
    #[inline]
    pub(super) fn rooms<F: Fabric>(&self, fabric: &F) -> [usize; 2]
    where
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let Room { request_bytes, reply_bytes, .. } = self.packing.room;
        let Requester { requests, answers, .. } = &self.requester;
        [request_bytes.min(requests.room(fabric)), reply_bytes.min(answers.room(fabric))]
    }

    /// The error of an operation that a worker did not do.
    #[cold]
    pub(super) fn error(&self, source: u16, failure: Failure) -> EngineError {
        failure.into_error(self.requester.map().incarnation_addr(self.worker(source)))
    }

    /// Asks the owner of `key` and waits for the outcome. `buf` is filled with the bytes that it
    /// has.
    ///
    /// # Errors
    /// As [`Requester::call`].
    pub async fn ask<F>(
        &self,
        fabric: &F,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        self.check(key, operation)?;
        if let Operation::GetAndTouch(options) = operation
            && !O::COMPUTES
        {
            let ask = async |operation, buf| self.ask(fabric, key, operation, buf).await;
            return Box::pin(get_and_touch(fabric, options, buf, ask)).await;
        }
        let has_company = !self.requester.is_idle() || self.packing.packets.are_held();
        if has_company && self.packing.room.batch > 1 && !operation.returns_vector() {
            return self.ask_in_packet(fabric, key, operation, buf).await;
        }
        // The reply of an operation that returns no bytes needs a buffer only until it is read.
        let spare = (!operation.returns_bytes()).then_some(&self.requester.spare);
        let buf = spare.map_or(buf, SpareBuffers::take);
        let read = move |reply: Reply| {
            let done = reply.into_done()?;
            let Some(spare) = spare else { return Ok(done) };
            let outcome = done.outcome().without_value();
            spare.give_back(done.into_buf());
            Ok(Done::without_bytes(outcome?, Buf::new()))
        };
        let (to, body) = (self.owner(key), Body::one(key, operation));
        self.requester.ask(fabric, to, body, buf, read).await
    }

    /// The same, in a packet that other lanes may share.
    async fn ask_in_packet<F>(
        &self,
        fabric: &F,
        key: &[u8],
        operation: Operation<'_>,
        mut buf: Buf,
    ) -> Result<Done, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let source = self.source(key);
        let mut alone = false;
        let until = fabric.now_us().saturating_add(self.requester.timing().timeout_us);
        loop {
            let (packet, index, leads) =
                self.join(source, self.rooms(fabric), key, &operation, alone);
            if leads {
                // In a box: the other lanes' futures need no room for what only a leader does.
                Box::pin(self.lead(fabric, source, &packet, alone)).await;
            } else {
                let is_settled = || {
                    let stage = packet.packet().stage.get();
                    (!matches!(stage, Stage::Open | Stage::Sent)).then_some(())
                };
                self.requester.until(fabric, true, is_settled).await;
            }
            while packet.packet().is_left_behind() {
                packet.packet().stage.set(Stage::Sent);
                Box::pin(self.send(fabric, source, &packet)).await;
            }
            let share = packet.packet().share(index, operation.is_read(), buf);
            drop(packet);
            match share {
                Share::Failed(failure) => return Err(self.error(source, failure)),
                Share::Done(done) => {
                    if let Outcome::Found { value, .. } = done.outcome() {
                        self.packing.learn(value.len());
                    }
                    return Ok(done);
                }
                Share::Error(error) => return Err(error),
                Share::Again { alone: by_itself } if fabric.now_us() < until => {
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

    /// Adds an operation to the worker's open packet, or to a new one. Returns the packet, the
    /// operation's index in it, and whether it is the first.
    fn join(
        &self,
        source: u16,
        rooms: [usize; 2],
        key: &[u8],
        operation: &Operation<'_>,
        alone: bool,
    ) -> (Held<'_>, usize, bool) {
        let mut open = self.packing.open.borrow_mut();
        let open = &mut open[usize::from(source)];
        if !alone && let Some(place) = *open {
            let packet = self.packing.packets.hold(place, &self.requester.parking);
            if self.packing.takes(&packet.packet().writer.borrow(), rooms, key, operation) {
                let index = packet.packet().push(key, operation);
                if index + 1 == self.packing.room.batch {
                    *open = None;
                }
                return (packet, index, false);
            }
            // The packet's leader sends it as it is.
            *open = None;
        }
        let packet = self.packing.packets.new_packet(source, &self.requester.parking);
        let index = packet.packet().push(key, operation);
        if !alone {
            *open = Some(packet.place());
        }
        (packet, index, true)
    }

    /// Sends a packet, to which other lanes may add until then, and waits for the outcomes.
    async fn lead<F>(&self, fabric: &F, source: u16, packet: &Held<'_>, alone: bool)
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let leading = Leading { open: &self.packing.open, source, packet };
        let to = self.worker(source);
        if !alone {
            fabric.yield_now().await;
            let may_go = || (!leading.is_open() || self.requester.is_free(to)).then_some(());
            self.requester.until(fabric, false, may_go).await;
        }
        leading.close();
        packet.packet().stage.set(Stage::Sent);
        self.send(fabric, source, packet).await;
    }

    /// Sends a packet to which no lane adds, or goes on with the request of a leader that is gone,
    /// and waits for the outcomes.
    async fn send<F>(&self, fabric: &F, source: u16, packet: &Held<'_>)
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let _leading = Leading { open: &self.packing.open, source, packet };
        let buf = packet.packet().message.take();
        let asked = self.requester.ask(fabric, self.worker(source), packet, buf, Ok).await;
        let packet = packet.packet();
        let count = packet.writer.borrow().count();
        match asked.and_then(|reply| packet.read(count, reply)) {
            Ok(()) => packet.stage.set(Stage::Answered),
            Err(error) => {
                packet.error.replace(Some(error));
                packet.stage.set(Stage::Failed);
            }
        }
    }
}

/// A packet's leader, which leaves a mark when it ends.
struct Leading<'a> {
    open: &'a RefCell<Vec<Option<usize>>>,
    source: u16,
    packet: &'a Held<'a>,
}

impl Leading<'_> {
    /// Whether operations may still be added.
    fn is_open(&self) -> bool {
        self.open.borrow()[usize::from(self.source)] == Some(self.packet.place())
    }

    /// Closes the packet: no operation is added from now on.
    fn close(&self) {
        if self.is_open() {
            self.open.borrow_mut()[usize::from(self.source)] = None;
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
