//! The client's half: sends a request, waits for its reply, and sends it again if none comes.
//!
//! A request is sent again under its number with another attempt, after a time that doubles, until
//! it is answered or its time is up. A mutation whose time is up, or that an earlier incarnation of
//! the worker may have executed, is [`EngineError::Ambiguous`].

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, RegionId, VerbCount};

use super::counts::{Counts, Ways};
use super::layout::{RequestMap, WorkerId};
use super::message::{Body, REQUEST_OVERHEAD_BYTES, ReplyHead, Ticket, session_number};
use super::path::{Path, ReplyPath, RequestPath, Sent};
use super::reply::Answer;
use super::seal::Seal;
use super::window::{Line, Replies, UnderWay};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::check_key;
use crate::operation::{Operation, Outcome, Value};
use crate::planted::{self, Bug};
use crate::secret::Secret;

/// A client's patience, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the first reply is waited for before the request is sent again.
    pub resend_us: u64,
    /// How long an operation may take.
    pub timeout_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { resend_us: 1_000, timeout_us: 5_000_000 }
    }
}

/// One client's way to the workers of a table.
#[derive(Debug)]
pub struct Requester<P, R> {
    map: Arc<RequestMap>,
    home: RegionId,
    client: u32,
    session: u64,
    secret: Option<Secret>,
    /// Greetings that were sent.
    greetings: Cell<u64>,
    /// By [`Area::source`](super::layout::Area::source).
    lines: Vec<Line>,
    replies: Replies,
    requests: P,
    answers: R,
    timing: Timing,
    counts: Counts,
    scratch: RefCell<Vec<Buf>>,
}

/// The reply to a request, with the bytes it came with.
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

    /// What the operation came to.
    ///
    /// # Errors
    /// [`EngineError::Damaged`] if this is the reply to a packet; so are those below.
    pub fn outcome(&self) -> Result<Outcome<'_>, EngineError> {
        match self.answer() {
            Answer::Done(outcome) => Ok(outcome),
            other => Err(other.of_another_request()),
        }
    }

    /// Of a GET: the value, if there is one.
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

    /// Of a packet: the packed results.
    ///
    /// # Errors
    /// As [`Reply::outcome`].
    pub fn packed(&self) -> Result<&[u8], EngineError> {
        match self.answer() {
            Answer::Packet(results) => Ok(results),
            other => Err(other.of_another_request()),
        }
    }

    /// Where the value, or the packed results, are in [that](Self::into_buf).
    pub fn value_at(&self) -> std::ops::Range<usize> {
        self.head.value_at()
    }

    /// The buffer that it came in.
    pub fn into_buf(self) -> Buf {
        self.message
    }
}

/// How one number's request ended.
enum Exchanged {
    Reply(ReplyHead),
    /// The worker started anew. Whether the earlier one may have executed the request.
    Renewed {
        perhaps_done: bool,
    },
}

/// Times are not doubled any more after so many attempts.
const DOUBLINGS_MAX: u32 = 6;
/// The clock is looked at once in so many polls.
const POLLS_PER_LOOK: u32 = 4;

impl<P: Path, R: Path> Requester<P, R> {
    /// The client that holds `session`, at the `node`-th node of `map`.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot none of the map's.
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
            scratch: RefCell::default(),
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

    /// What was counted besides verbs.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What an endpoint counted, and what its client's requests took beside that: the reply to each
    /// request of another node's worker, which that worker sent, and SENDs.
    pub fn counted<F: Fabric>(&self, fabric: &F) -> VerbCount {
        fabric.counters().snapshot() + self.counts.beside()
    }

    /// Whether a request to this worker could be sent at once.
    #[inline]
    pub fn is_free(&self, to: WorkerId) -> bool {
        self.lines[usize::from(self.map.area().source(to.node, to.worker))].is_free()
    }

    /// Asks a worker for an operation on a key and waits for what it came to. `buf` is filled with
    /// the reply.
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
    /// As [`Requester::call`]; nothing of the packet was executed after any error but
    /// [`EngineError::Ambiguous`].
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
        if !P::BY_SEND {
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
    ) -> Result<UnderWay<'a>, EngineError> {
        if !line.is_awaited()
            && let Some(under_way) = UnderWay::take(line, &self.replies)
        {
            return Ok(under_way);
        }
        let place = line.queue_up();
        loop {
            if place.is_first()
                && let Some(under_way) = UnderWay::take(line, &self.replies)
            {
                return Ok(under_way);
            }
            if fabric.now_us() >= until {
                return Err(EngineError::Timeout { timeout_us: self.timing.timeout_us });
            }
            fabric.breathe().await;
        }
    }

    /// Sends one number's request until it is answered.
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
            let mut message = self.scratch.borrow_mut().pop().unwrap_or_default();
            ticket.write(body, seal, &mut message);
            let (mut message, sent) = self.requests.send(fabric, to, slot, message).await;
            message.clear();
            self.scratch.borrow_mut().push(message);
            let way = match sent {
                Ok(way) => way,
                Err(FabricError::Unreachable { .. } | FabricError::OutcomeUnknown { .. }) => {
                    Sent::Written
                }
                Err(error) if !arrived || body.is_read() => return Err(error.into()),
                Err(_) => return Err(self.unknown(to)),
            };
            // Nobody executes what is meant for no incarnation: such a request only asks for one.
            arrived |= ticket.worker != 0 && !matches!(sent, Err(FabricError::Unreachable { .. }));
            let patience = self.timing.resend_us << attempt.min(DOUBLINGS_MAX);
            let again = fabric.now_us().saturating_add(patience).min(until);
            if let Some(head) = self.reply_until(fabric, &ticket, expected, again, buf).await? {
                let is_remote = slot.0.region() != self.home;
                let ways = Ways { request: way, reply_by_send: R::BY_SEND, is_remote };
                self.counts.count(&ticket, &head, ways);
                return Ok(sort(line, head, ticket.worker != 0 && attempt > 0));
            }
            if again == until {
                return Err(self.give_up(to, body, arrived));
            }
            // The node may have started its workers anew: then nobody will answer.
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
            fabric.breathe().await;
        }
    }

    /// The worker's incarnation as it is known here. Where its word can be loaded, it is looked at
    /// before every request: so a worker that started anew meanwhile is noticed in time. A word of
    /// 0 says that none has: whoever is told now that a request is ambiguous could still read what
    /// was before the dead one's last work, and the next one may have it yet, from its log.
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

    /// Looks where a worker receives, if that has to be found out, and which incarnation it is.
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
        // The two may be of different incarnations: then nobody answers, and the next look is
        // right.
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
            return Err(EngineError::KeyTooLong { len: key.len() });
        }
        Err(EngineError::ValueTooLong { len: value as u64, max: (room - key.len()) as u64 })
    }

    fn introduce<F: Fabric>(&self, fabric: &F, to: WorkerId) -> Result<(), EngineError>
    where
        R: ReplyPath<F>,
    {
        let hello = || {
            let mut ticket = Ticket::new(self.client, self.session, &Body::Hello);
            // One that comes again, or late, does not count.
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

    /// The error of a mutation that may have been executed, or may still be.
    #[cold]
    fn unknown(&self, to: WorkerId) -> EngineError {
        let at = self.map.incarnation_addr(to);
        EngineError::Ambiguous(FabricError::OutcomeUnknown { at })
    }
}

/// What is asked of which worker, and until when.
struct Asked<'a> {
    to: WorkerId,
    body: &'a Body<'a>,
    line: &'a Line,
    under_way: UnderWay<'a>,
    until: u64,
}

/// Takes note of who replied; a worker that says that it is another one did not do what was asked.
/// `perhaps_done`: whether one before it may have.
fn sort(line: &Line, head: ReplyHead, perhaps_done: bool) -> Exchanged {
    if let Some(Answer::Stale(incarnation)) = head.short.answer(&[]) {
        line.believe(incarnation);
        line.heard.set(true);
        // The first attempt came to a worker that had started before: so none before it saw it.
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
