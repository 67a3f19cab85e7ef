//! A request from its first attempt to its reply.
//!
//! One future does it all, and only that future and `Looking` of `client.rs` are polled while the
//! client waits: each future around another one would cost every poll a dozen instructions or two.

use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, RemoteAddr};

use super::client::{Reply, Requester};
use super::counts::Paths;
use super::layout::WorkerId;
use super::message::{
    Body, Expected, REQUEST_OVERHEAD_BYTES, REQUEST_TRAILER_BYTES, ReplyHead, Ticket,
};
use super::packet::Writer;
use super::path::{ReplyPath, RequestPath, Sent, is_near};
use super::seal::Seal;
use super::window::{Line, Parked, Place, UnderWay};
use crate::error::EngineError;
use crate::planted::{self, Bug};
use crate::spare::SpareBuffers;

/// Waiting times are not doubled any more after this many attempts.
const DOUBLINGS_MAX: u32 = 6;
/// The clock is read once in this many polls.
const POLLS_PER_LOOK: u32 = 4;

impl<P, R> Requester<P, R> {
    /// Asks a worker, and returns what `read` makes of the reply. There is no future around this
    /// one that every poll would have to go through.
    pub(super) async fn ask<F, T>(
        &self,
        fabric: &F,
        to: WorkerId,
        mut content: impl Content,
        mut buf: Buf,
        read: impl FnOnce(Reply) -> Result<T, EngineError>,
    ) -> Result<T, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let ticket = content.ticket(self.client, self.session);
        let by_send = self.requests.sends(fabric, ticket.message_len());
        let seal = if by_send { Seal::of_request(self.secret) } else { Seal::CHECKSUM };
        if !by_send {
            content.check(self.map.area().service().request_bytes as usize)?;
        }
        let source = self.map.area().source(to.node, to.worker);
        let line = &self.lines[usize::from(source)];
        let until = fabric.now_us().saturating_add(self.timing.timeout_us);
        loop {
            let mut under_way = match self.parked(source, content.parks_at()) {
                Some(under_way) => under_way,
                None => self.number(fabric, line, until).await?,
            };
            if !line.heard.get() && self.has_to_meet(fabric, line, to) {
                Box::pin(self.seek(fabric, line, to)).await;
            }
            let mut asked = self.begin(fabric, to, ticket, line, &under_way)?;
            if let Some(parked) = under_way.parked() {
                asked.goes_on_with(&parked);
            }
            let perhaps_done = loop {
                let message = content.message(&asked.ticket, seal, &self.spare);
                under_way.arm(&self.parking, content.parks_at(), asked.parked());
                let (message, sent) = self.requests.send(fabric, to, asked.slot, message).await;
                under_way.disarm();
                content.give_back(message, &self.spare);
                let again = self.sent(fabric, to, &mut asked, sent)?.min(until);
                let mut polls = 0u32;
                let look = || self.look(fabric, &asked.expected, &mut polls, again, &mut buf);
                under_way.arm(&self.parking, content.parks_at(), asked.parked());
                let looked = self.until(fabric, true, look).await;
                under_way.disarm();
                if let Some(head) = looked? {
                    match self.answered(fabric, line, &asked, head) {
                        None => {
                            let at = self.map.incarnation_addr(to);
                            return read(Reply { head, message: buf, at });
                        }
                        Some(perhaps_done) => break perhaps_done,
                    }
                }
                if again == until {
                    return Err(self.give_up(to, &asked));
                }
                // The node may have started its workers anew: then no worker will answer at the old
                // address.
                if self.answers.seeks() {
                    under_way.arm(&self.parking, content.parks_at(), asked.parked());
                    Box::pin(self.seek(fabric, line, to)).await;
                    under_way.disarm();
                }
                if self.belief(fabric, line, to)? != asked.ticket.worker {
                    break asked.arrived;
                }
                self.counts.resent.set(self.counts.resent.get() + 1);
                self.introduce(fabric, to)?;
                asked.attempt += 1;
                asked.ticket.attempt = asked.attempt as u8;
            };
            self.counts.stale.set(self.counts.stale.get() + 1);
            if perhaps_done && !ticket.is_read() {
                return Err(self.unknown(to));
            }
        }
    }

    /// A number and a reply slot, as soon as there are some.
    #[inline]
    async fn number<'a, F>(
        &'a self,
        fabric: &F,
        line: &'a Line,
        until: u64,
    ) -> Result<UnderWay<'a>, EngineError>
    where
        F: Fabric,
        R: ReplyPath<F>,
    {
        if let Some(under_way) = self.number_of(line) {
            return Ok(under_way);
        }
        let place = line.queue_up();
        let number = || self.number_at(fabric, &place, line, until);
        let late = EngineError::Timeout { timeout_us: self.timing.timeout_us };
        self.until(fabric, true, number).await.ok_or(late)
    }

    /// A number and a reply slot, if there are any and no lane waits for them.
    #[inline]
    fn number_of<'a>(&'a self, line: &'a Line) -> Option<UnderWay<'a>> {
        self.reap();
        if line.is_awaited() { None } else { UnderWay::take(line, &self.replies) }
    }

    /// A number and a reply slot for the lane at this place in the queue, if it is the lane's turn;
    /// `Some(None)` if the lane's time is up.
    #[inline]
    fn number_at<'a, F: Fabric>(
        &'a self,
        fabric: &F,
        place: &Place<'_>,
        line: &'a Line,
        until: u64,
    ) -> Option<Option<UnderWay<'a>>> {
        self.reap();
        if place.is_first()
            && let Some(under_way) = UnderWay::take(line, &self.replies)
        {
            return Some(Some(under_way));
        }
        (fabric.now_us() >= until).then_some(None)
    }

    /// The request of one number, before it is sent.
    #[inline]
    fn begin<F: Fabric>(
        &self,
        fabric: &F,
        to: WorkerId,
        mut ticket: Ticket,
        line: &Line,
        under_way: &UnderWay<'_>,
    ) -> Result<Asked, EngineError>
    where
        R: ReplyPath<F>,
    {
        let UnderWay { number, reply, .. } = *under_way;
        ticket.worker = self.belief(fabric, line, to)?;
        (ticket.number, ticket.reply) = (number, reply);
        if !line.heard.get() {
            self.introduce(fabric, to)?;
        }
        let area = self.map.area();
        let slot = self.map.request_addr(to, self.client, number);
        let source = area.source(to.node, to.worker);
        Ok(Asked {
            ticket,
            slot: (slot, area.service().request_bytes),
            expected: Expected { number, reply, source, session: self.session as u16 },
            way: Sent::Written,
            attempt: 0,
            arrived: false,
        })
    }

    /// The request was sent, or could not be. Returns when it is to be sent again.
    #[inline]
    fn sent<F: Fabric>(
        &self,
        fabric: &F,
        to: WorkerId,
        asked: &mut Asked,
        sent: Result<Sent, FabricError>,
    ) -> Result<u64, EngineError> {
        asked.way = match sent {
            Ok(way) => way,
            Err(FabricError::Unreachable { .. } | FabricError::OutcomeUnknown { .. }) => {
                Sent::Written
            }
            Err(error) if !asked.arrived || asked.ticket.is_read() => return Err(error.into()),
            Err(_) => return Err(self.unknown(to)),
        };
        self.rings.note(self.map.bell_addr(to));
        // No worker executes a request for incarnation 0: such a request only asks for the
        // incarnation.
        let is_lost = matches!(sent, Err(FabricError::Unreachable { .. }));
        asked.arrived |= asked.ticket.worker != 0 && !is_lost;
        let patience = self.timing.resend_us << asked.attempt.min(DOUBLINGS_MAX);
        Ok(fabric.now_us().saturating_add(patience))
    }

    /// The reply, if it has come; nothing if it is time to send `again`.
    #[inline]
    fn look<F: Fabric>(
        &self,
        fabric: &F,
        expected: &Expected,
        polls: &mut u32,
        again: u64,
        buf: &mut Buf,
    ) -> Option<Result<Option<ReplyHead>, FabricError>>
    where
        R: ReplyPath<F>,
    {
        match self.answers.poll(fabric, expected, buf) {
            Ok(None) => (),
            reply => return Some(reply),
        }
        *polls = polls.wrapping_add(1);
        let is_late = polls.is_multiple_of(POLLS_PER_LOOK) && fabric.now_us() >= again;
        is_late.then_some(Ok(None))
    }

    /// Takes note of the worker that replied. A worker that says that it is another incarnation did
    /// not execute the request. The result then says whether an incarnation before it may have.
    #[inline]
    fn answered<F>(&self, fabric: &F, line: &Line, asked: &Asked, head: ReplyHead) -> Option<bool>
    where
        F: Fabric,
        R: ReplyPath<F>,
    {
        self.rings.found();
        let is_remote = !is_near(fabric, self.home, asked.slot.0);
        let ways = Paths { request: asked.way, reply_by_send: R::BY_SEND, is_remote };
        self.counts.count(&asked.ticket, &head, ways);
        if head.is_stale {
            line.believe(head.worker);
        }
        line.heard.set(true);
        // The first attempt came to this worker, which had started before: so no earlier
        // incarnation saw the request.
        head.is_stale.then_some(asked.ticket.worker != 0 && asked.attempt > 0)
    }

    /// The worker's incarnation as this client knows it. If the incarnation's word can be loaded,
    /// the client looks at it before every request, and so notices in time that a worker started
    /// anew. The word 0 says that the worker has no incarnation now. The client then keeps the old
    /// one: a caller that was told now that a request is ambiguous could still read the value from
    /// before the dead worker's last work, and the next worker may yet have that work, from its
    /// log.
    #[inline]
    fn belief<F: Fabric>(&self, fabric: &F, line: &Line, to: WorkerId) -> Result<u32, EngineError> {
        let word = self.map.incarnation_addr(to);
        if fabric.is_mapped(word.region()) && !fabric.is_far() {
            let known = fabric.load(word)? as u32;
            if known != 0 || planted::is(Bug::NobodyBelieved) {
                line.believe(known);
            }
        }
        Ok(line.incarnation.get())
    }

    /// Whether a look at the worker's line tells something that the client does not know: where the
    /// worker receives, or its incarnation. Without that the first request would be sent twice: no
    /// worker executes a request for incarnation 0.
    #[inline]
    fn has_to_meet<F: Fabric>(&self, fabric: &F, line: &Line, to: WorkerId) -> bool
    where
        R: ReplyPath<F>,
    {
        let is_seen = || fabric.is_mapped(self.map.base(to.node).region()) && !fabric.is_far();
        self.answers.seeks() || line.incarnation.get() == 0 && !is_seen()
    }

    /// Finds out where a worker receives, and which incarnation it has. Its callers box its future,
    /// which is rare. So the future of a request, which is boxed for each one, stays under 1,032
    /// bytes: for longer ones the system's allocator takes a slower path.
    async fn seek<F>(&self, fabric: &F, line: &Line, to: WorkerId)
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let mut words = [0; 1 + MessageAddress::WORDS];
        // A look that fails is repeated.
        if fabric.read_words(&[self.map.incarnation_addr(to)], &mut words).await.is_err() {
            return;
        }
        // The two may belong to different incarnations: then no worker answers, and the next look
        // is right.
        let [incarnation, address @ ..] = words;
        if self.answers.seeks() {
            let address = MessageAddress::from_words(address);
            self.requests.meet(fabric, to, &address);
            self.answers.meet(fabric, to, &address);
        }
        if let Some(incarnation) = u32::try_from(incarnation).ok().filter(|it| *it != 0) {
            line.believe(incarnation);
        }
    }

    fn introduce<F: Fabric>(&self, fabric: &F, to: WorkerId) -> Result<(), EngineError>
    where
        R: ReplyPath<F>,
    {
        let hello = || {
            let mut ticket = Ticket::new(self.client, self.session, &Body::Hello);
            // A greeting that comes again, or late, does not count.
            ticket.number = self.greetings.get() + 1;
            self.greetings.set(ticket.number);
            let mut message = Buf::new();
            ticket.write(&Body::Hello, Seal::of_request(self.secret), &mut message);
            message
        };
        Ok(self.answers.introduce(fabric, to, hello)?)
    }

    /// The error of an operation whose time is up.
    #[cold]
    fn give_up(&self, to: WorkerId, asked: &Asked) -> EngineError {
        if asked.arrived && !asked.ticket.is_read() {
            return self.unknown(to);
        }
        EngineError::Timeout { timeout_us: self.timing.timeout_us }
    }

    /// The error of a mutation that may have been executed, or may yet be executed.
    #[cold]
    fn unknown(&self, to: WorkerId) -> EngineError {
        let at = self.map.incarnation_addr(to);
        EngineError::Ambiguous(FabricError::OutcomeUnknown { at })
    }
}

/// A request's content.
pub(super) trait Content {
    /// The ticket of a request with this content.
    fn ticket(&self, client: u32, session: u64) -> Ticket;

    /// The place at which the request is parked if the future that asks is dropped: then another
    /// lane can ask with the same content, and goes on with the request.
    #[inline]
    fn parks_at(&self) -> Option<usize> {
        None
    }

    /// The request's message.
    fn message(&mut self, ticket: &Ticket, seal: Seal, spare: &SpareBuffers) -> Buf;

    /// Takes the message back, so that it can be made again.
    #[inline]
    fn give_back(&mut self, message: Buf, spare: &SpareBuffers) {
        spare.give_back(message);
    }

    /// Checks that a slot of this many bytes has room for the message.
    fn check(&self, slot_bytes: usize) -> Result<(), EngineError>;
}

impl Content for Body<'_> {
    #[inline]
    fn ticket(&self, client: u32, session: u64) -> Ticket {
        Ticket::new(client, session, self)
    }

    #[inline]
    fn message(&mut self, ticket: &Ticket, seal: Seal, spare: &SpareBuffers) -> Buf {
        let mut message = spare.take();
        ticket.write(self, seal, &mut message);
        message
    }

    #[inline]
    fn check(&self, slot_bytes: usize) -> Result<(), EngineError> {
        let [key, value] = if let Body::One(one) = self { one.lens() } else { [0, self.len()] };
        check_room(key, value, slot_bytes.saturating_sub(REQUEST_OVERHEAD_BYTES))
    }
}

/// The packet is the beginning of its message.
impl Content for &mut Writer {
    #[inline]
    fn ticket(&self, client: u32, session: u64) -> Ticket {
        Ticket::new(client, session, &Body::packed(self))
    }

    #[inline]
    fn message(&mut self, ticket: &Ticket, seal: Seal, _: &SpareBuffers) -> Buf {
        let mut message = self.take();
        ticket.finish(seal, &mut message);
        message
    }

    #[inline]
    fn give_back(&mut self, message: Buf, _: &SpareBuffers) {
        Writer::give_back(self, message);
    }

    #[inline]
    fn check(&self, slot_bytes: usize) -> Result<(), EngineError> {
        check_room(0, self.bytes().len(), slot_bytes.saturating_sub(REQUEST_TRAILER_BYTES))
    }
}

/// Checks that a key and its value have `room`.
#[inline]
pub(super) fn check_room(key: usize, value: usize, room: usize) -> Result<(), EngineError> {
    if key + value <= room {
        return Ok(());
    }
    if key > room {
        return Err(EngineError::KeyTooLong { len: key, max: room });
    }
    Err(EngineError::ValueTooLong { len: value as u64, max: (room - key) as u64 })
}

impl Asked {
    /// The request, for another lane to go on with it.
    #[inline]
    fn parked(&self) -> Parked {
        Parked { ticket: self.ticket, attempt: self.attempt }
    }

    /// Goes on with a request that another lane had sent: it is sent again, under its number.
    fn goes_on_with(&mut self, parked: &Parked) {
        self.attempt = parked.attempt + 1;
        self.ticket = parked.ticket;
        self.ticket.attempt = self.attempt as u8;
        self.arrived = parked.ticket.worker != 0;
    }
}

/// A request of one number.
struct Asked {
    ticket: Ticket,
    slot: (RemoteAddr, u32),
    expected: Expected,
    /// How it was sent the last time.
    way: Sent,
    /// How often it was sent again.
    attempt: u32,
    /// Whether a worker may have got it.
    arrived: bool,
}
