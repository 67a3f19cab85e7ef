//! The client's half: sends a request, waits for its reply, and sends the request again if no reply
//! comes.
//!
//! A client sends a request again under the same number with a new attempt, after a time that
//! doubles, until the request is answered or its time is up. A mutation is
//! [`EngineError::Ambiguous`] if its time is up, or if an earlier incarnation of the worker may
//! have executed it.

use std::cell::Cell;
use std::sync::Arc;

use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, RegionId, RemoteAddr, VerbCount};

use super::bells::Rings;
use super::counts::{Counts, Paths};
use super::layout::{RequestMap, WorkerId};
use super::message::{Body, REQUEST_OVERHEAD_BYTES, ReplyHead, Ticket, session_number};
use super::path::{ReplyPath, RequestPath, Sent};
use super::reply::Answer;
use super::seal::Seal;
use super::window::{Line, Replies, UnderWay};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::check_key;
use crate::operation::{Operation, Outcome, Value};
use crate::planted::{self, Bug};
use crate::region::session_bell_addr;
use crate::secret::Secret;
use crate::spare::SpareBuffers;

/// How long a client waits, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the client waits for the first reply before it sends the request again.
    pub resend_us: u64,
    /// How long an operation may take.
    pub timeout_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { resend_us: 1_000, timeout_us: 5_000_000 }
    }
}

/// One client's connection to the workers of a table.
#[derive(Debug)]
pub struct Requester<P, R> {
    map: Arc<RequestMap>,
    home: RegionId,
    client: u32,
    session: u64,
    secret: Option<Secret>,
    /// The number of greetings that were sent.
    greetings: Cell<u64>,
    /// The lines of all workers, by [`Area::source`](super::layout::Area::source).
    lines: Vec<Line>,
    /// The bell at which the client's thread sleeps.
    bell: RemoteAddr,
    /// The workers that were sent something.
    rings: Rings,
    replies: Replies,
    requests: P,
    answers: R,
    timing: Timing,
    counts: Counts,
    spare: SpareBuffers,
}

/// The reply to a request, with the buffer that holds its bytes.
#[derive(Debug)]
pub struct Reply {
    head: ReplyHead,
    message: Buf,
}

impl Reply {
    fn answer(&self) -> Answer<'_> {
        let answer = self.head.short.answer(&self.message[self.head.value_at()]);
        answer.expect("what does not answer does not become a reply")
    }

    /// The outcome of the operation.
    ///
    /// # Errors
    /// [`EngineError::Damaged`] if this is the reply to a packet. The methods below fail likewise.
    pub fn outcome(&self) -> Result<Outcome<'_>, EngineError> {
        match self.answer() {
            Answer::Done(outcome) => Ok(outcome),
            other => Err(other.of_another_request()),
        }
    }

    /// The reply to a GET: the value, if there is one.
    ///
    /// # Errors
    /// As [`Reply::outcome`].
    pub fn into_found(self) -> Result<Option<Value>, EngineError> {
        match self.outcome()? {
            Outcome::Found { version, expires_at_ms, .. } => {
                Ok(Some(Value::new(self.message, self.head.value_at(), version, expires_at_ms)))
            }
            Outcome::Absent => Ok(None),
            other => Err(other.of_another_operation()),
        }
    }

    /// The reply to a packet: the packed results.
    ///
    /// # Errors
    /// As [`Reply::outcome`].
    pub fn packed(&self) -> Result<&[u8], EngineError> {
        match self.answer() {
            Answer::Packet(results) => Ok(results),
            other => Err(other.of_another_request()),
        }
    }

    /// The range of the value, or of the packed results, in [the buffer](Self::into_buf).
    pub fn value_at(&self) -> std::ops::Range<usize> {
        self.head.value_at()
    }

    /// The buffer that holds the reply.
    pub fn into_buf(self) -> Buf {
        self.message
    }
}

/// How the request of one number ended.
enum Exchanged {
    Reply(ReplyHead),
    /// The worker started anew; says whether the earlier incarnation may have executed the request.
    Renewed {
        perhaps_done: bool,
    },
}

/// Waiting times are not doubled any more after this many attempts.
const DOUBLINGS_MAX: u32 = 6;
/// The clock is read once in this many polls.
const POLLS_PER_LOOK: u32 = 4;

impl<P, R> Requester<P, R> {
    /// The client that holds `session`, at the `node`-th node of `map`.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    pub fn new(
        map: Arc<RequestMap>,
        session: &Session,
        node: u16,
        requests: P,
        answers: R,
        timing: Timing,
    ) -> Self {
        assert!(!session.is_observer(), "a client needs a session to be told from others");
        let service = *map.area().service();
        let workers = usize::from(map.area().nodes()) * usize::from(service.workers);
        Self {
            bell: session_bell_addr(session.home(), session.slot()),
            rings: Rings::default(),
            home: session.home(),
            client: map.area().client(node, session.slot()),
            session: session_number(session.incarnation()),
            secret: session.secret(),
            greetings: Cell::new(0),
            lines: (0..workers).map(|_| Line::new(service.window)).collect(),
            replies: Replies::new(service.replies),
            requests,
            answers,
            timing,
            counts: Counts::default(),
            spare: SpareBuffers::default(),
            map,
        }
    }

    /// The client's patience.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The table's requests.
    pub fn map(&self) -> &Arc<RequestMap> {
        &self.map
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The verbs that an endpoint counted, and those that its client's requests took besides:
    /// SENDs, and the reply to each request to another node's worker, which that worker sent.
    pub fn counted<F: Fabric>(&self, fabric: &F) -> VerbCount {
        fabric.counters().snapshot() + self.counts.beside()
    }

    /// Whether a request to this worker could be sent at once.
    #[inline]
    pub fn is_free(&self, to: WorkerId) -> bool {
        self.lines[usize::from(self.map.area().source(to.node, to.worker))].is_free()
    }

    /// Asks a worker for an operation on a key and waits for the outcome. `buf` is filled with the
    /// reply.
    ///
    /// # Errors
    /// [`EngineError`]; after any but [`EngineError::Ambiguous`] nothing was changed.
    pub async fn call<F>(
        &self,
        fabric: &F,
        to: WorkerId,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Reply, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        check_key(key)?;
        self.ask(fabric, to, Body::one(key, operation), buf).await
    }

    /// Sends a worker a packet of operations and waits for the results. `buf` is filled with the
    /// reply.
    ///
    /// # Errors
    /// As [`Requester::call`]. After any error but [`EngineError::Ambiguous`] no operation of the
    /// packet was executed.
    pub async fn call_packed<F>(
        &self,
        fabric: &F,
        to: WorkerId,
        packet: &[u8],
        is_read: bool,
        buf: Buf,
    ) -> Result<Reply, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        self.ask(fabric, to, Body::Packet { bytes: packet, is_read }, buf).await
    }

    async fn ask<F>(
        &self,
        fabric: &F,
        to: WorkerId,
        body: Body<'_>,
        mut buf: Buf,
    ) -> Result<Reply, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let len = Ticket::new(self.client, self.session, &body).message_len();
        if !self.requests.sends(fabric, len) {
            self.check_length(&body)?;
        }
        let until = fabric.now_us().saturating_add(self.timing.timeout_us);
        let line = &self.lines[usize::from(self.map.area().source(to.node, to.worker))];
        loop {
            let under_way = self.enter(fabric, line, until).await?;
            let request = Asked { to, body: &body, line, under_way, until };
            match self.exchange(fabric, request, &mut buf).await? {
                Exchanged::Reply(head) => {
                    return self.finish(to, Reply { head, message: buf });
                }
                Exchanged::Renewed { perhaps_done } => {
                    self.counts.stale.set(self.counts.stale.get() + 1);
                    if perhaps_done && !body.is_read() {
                        return Err(self.unknown(to));
                    }
                }
            }
        }
    }

    /// Waits for a number and a reply slot.
    async fn enter<'a, F: Fabric>(
        &'a self,
        fabric: &F,
        line: &'a Line,
        until: u64,
    ) -> Result<UnderWay<'a>, EngineError>
    where
        R: ReplyPath<F>,
    {
        if !line.is_awaited()
            && let Some(under_way) = UnderWay::take(line, &self.replies)
        {
            return Ok(under_way);
        }
        let place = line.queue_up();
        let mut is_first = true;
        loop {
            if place.is_first()
                && let Some(under_way) = UnderWay::take(line, &self.replies)
            {
                return Ok(under_way);
            }
            if fabric.now_us() >= until {
                return Err(EngineError::Timeout { timeout_us: self.timing.timeout_us });
            }
            self.wait(fabric, std::mem::take(&mut is_first)).await;
        }
    }

    /// Sends the request of one number until it is answered.
    async fn exchange<F>(
        &self,
        fabric: &F,
        asked: Asked<'_>,
        buf: &mut Buf,
    ) -> Result<Exchanged, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let Asked { to, body, line, under_way, until } = asked;
        let mut ticket = Ticket::new(self.client, self.session, body);
        if !line.heard.get() {
            self.seek(fabric, line, to).await;
        }
        ticket.worker = self.belief(fabric, line, to)?;
        (ticket.number, ticket.reply) = (under_way.number, under_way.reply);
        if !line.heard.get() {
            self.introduce(fabric, to)?;
        }
        let bytes = self.map.area().service().request_bytes;
        let slot = (self.map.request_addr(to, self.client, ticket.number), bytes);
        let (source, session) = (self.map.area().source(to.node, to.worker), self.session as u16);
        let expected = |head: &ReplyHead| {
            head.number == ticket.number && head.source == source && head.session == session
        };
        let seal = match self.requests.sends(fabric, ticket.message_len()) {
            true => Seal::of_request(self.secret),
            false => Seal::CHECKSUM,
        };
        let mut arrived = false;
        for attempt in 0u32.. {
            ticket.attempt = attempt as u8;
            let mut message = self.spare.take();
            ticket.write(body, seal, &mut message);
            let (message, sent) = self.requests.send(fabric, to, slot, message).await;
            self.spare.give_back(message);
            let way = match sent {
                Ok(way) => way,
                Err(FabricError::Unreachable { .. } | FabricError::OutcomeUnknown { .. }) => {
                    Sent::Written
                }
                Err(error) if !arrived || body.is_read() => return Err(error.into()),
                Err(_) => return Err(self.unknown(to)),
            };
            self.rings.note(self.map.bell_addr(to));
            // No worker executes a request for incarnation 0: such a request only asks for the
            // incarnation.
            arrived |= ticket.worker != 0 && !matches!(sent, Err(FabricError::Unreachable { .. }));
            let patience = self.timing.resend_us << attempt.min(DOUBLINGS_MAX);
            let again = fabric.now_us().saturating_add(patience).min(until);
            if let Some(head) = self.reply_until(fabric, &ticket, expected, again, buf).await? {
                self.rings.found();
                let is_remote = slot.0.region() != self.home;
                let ways = Paths { request: way, reply_by_send: R::BY_SEND, is_remote };
                self.counts.count(&ticket, &head, ways);
                return Ok(sort(line, head, ticket.worker != 0 && attempt > 0));
            }
            if again == until {
                return Err(self.give_up(to, body, arrived));
            }
            // The node may have started its workers anew: then no worker will answer at the old
            // address.
            self.seek(fabric, line, to).await;
            if self.belief(fabric, line, to)? != ticket.worker {
                return Ok(Exchanged::Renewed { perhaps_done: arrived });
            }
            self.counts.resent.set(self.counts.resent.get() + 1);
            self.introduce(fabric, to)?;
        }
        unreachable!("an operation's time is up before its attempts are")
    }

    /// The reply, if it comes before `again`.
    async fn reply_until<F: Fabric>(
        &self,
        fabric: &F,
        ticket: &Ticket,
        expected: impl Fn(&ReplyHead) -> bool,
        again: u64,
        buf: &mut Buf,
    ) -> Result<Option<ReplyHead>, EngineError>
    where
        R: ReplyPath<F>,
    {
        let mut polls = 0u32;
        loop {
            if let Some(head) = self.answers.poll(fabric, ticket.reply, &expected, buf)? {
                return Ok(Some(head));
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_LOOK) && fabric.now_us() >= again {
                return Ok(None);
            }
            self.wait(fabric, polls == 1).await;
        }
    }

    /// Lets other lanes work, between two looks for what workers or other lanes of this client do.
    /// If all lanes of the thread wait, the thread lets time pass. After the first look it does
    /// not: until then the lane may have done what another lane waits for.
    #[inline]
    pub async fn wait<F: Fabric>(&self, fabric: &F, is_first: bool)
    where
        R: ReplyPath<F>,
    {
        let has_rung = self.rings.looked(fabric, self.replies.taken());
        if is_first || !has_rung || self.answers.has_taken_for_others() {
            fabric.yield_now().await;
        } else {
            fabric.wait(self.bell).await;
        }
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
        if fabric.is_mapped(word.region()) {
            let known = fabric.load(word)? as u32;
            if known != 0 || planted::is(Bug::NobodyBelieved) {
                line.believe(known);
            }
        }
        Ok(line.incarnation.get())
    }

    /// Finds out where a worker receives, if the path needs that, and which incarnation it has.
    async fn seek<F>(&self, fabric: &F, line: &Line, to: WorkerId)
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        if !self.answers.seeks() {
            return;
        }
        let mut words = [0; 1 + MessageAddress::WORDS];
        // A look that fails is repeated.
        if fabric.read_words(&[self.map.incarnation_addr(to)], &mut words).await.is_err() {
            return;
        }
        // The two may belong to different incarnations: then no worker answers, and the next look
        // is right.
        let [incarnation, address @ ..] = words;
        let address = MessageAddress::from_words(address);
        self.requests.meet(fabric, to, &address);
        self.answers.meet(fabric, to, &address);
        if let Some(incarnation) = u32::try_from(incarnation).ok().filter(|it| *it != 0) {
            line.believe(incarnation);
        }
    }

    /// Whether a request slot has room for the request.
    #[inline]
    fn check_length(&self, body: &Body<'_>) -> Result<(), EngineError> {
        let (key, value) = (body.key(), body.value().len());
        let room = self.map.area().service().request_bytes as usize - REQUEST_OVERHEAD_BYTES;
        if key.len() + value <= room {
            return Ok(());
        }
        if key.len() > room {
            return Err(EngineError::KeyTooLong { len: key.len(), max: room });
        }
        Err(EngineError::ValueTooLong { len: value as u64, max: (room - key.len()) as u64 })
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

    fn finish(&self, to: WorkerId, reply: Reply) -> Result<Reply, EngineError> {
        let value = &reply.message[reply.head.value_at()];
        match reply.head.short.answer(value) {
            Some(Answer::Done(_) | Answer::Packet(_)) => Ok(reply),
            Some(Answer::Failed(failure)) => Err(failure.into_error(self.map.incarnation_addr(to))),
            Some(Answer::Stale(_)) | None => Err(strange_reply(to)),
        }
    }

    /// The error of an operation whose time is up.
    #[cold]
    fn give_up(&self, to: WorkerId, body: &Body<'_>, arrived: bool) -> EngineError {
        if arrived && !body.is_read() {
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

/// An operation, the worker that is asked for it, and the time until which it is asked.
struct Asked<'a> {
    to: WorkerId,
    body: &'a Body<'a>,
    line: &'a Line,
    under_way: UnderWay<'a>,
    until: u64,
}

/// Takes note of the worker that replied. A worker that says that it is another incarnation did not
/// execute the request. `perhaps_done`: whether an incarnation before it may have.
fn sort(line: &Line, head: ReplyHead, perhaps_done: bool) -> Exchanged {
    if let Some(Answer::Stale(incarnation)) = head.short.answer(&[]) {
        line.believe(incarnation);
        line.heard.set(true);
        // The first attempt came to this worker, which had started before: so no earlier
        // incarnation saw the request.
        return Exchanged::Renewed { perhaps_done };
    }
    line.heard.set(true);
    Exchanged::Reply(head)
}

#[cold]
fn strange_reply(to: WorkerId) -> EngineError {
    let what = format!("worker {} of node {} replies what nobody knows", to.worker, to.node);
    EngineError::Damaged { what }
}
