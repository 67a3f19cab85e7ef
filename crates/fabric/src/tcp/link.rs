//! One connection at its client: the requests that wait to be sent, and those that wait for
//! answers.
//!
//! # Invariants
//! 1. The flights are the requests in the order in which they stand in the stream. The node answers
//!    in that order, so an answer is that of the first flight that has one, and says that all
//!    before it are over, too.
//! 2. A flight that begins behind what [may have left](Link::may_have_left) was not sent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use super::company::Company;
use super::frame::{
    ANSWER_BYTES, Answer, AnswerHeader, Garbage, REQUEST_BYTES, Refusal, Request, SwapWords, Told,
    Verb, Wanted,
};
use super::pushed::Pushed;
use super::sealed::{BadRecord, Broken};
use super::socket::Moved;
use super::stream::Halves;
use super::unawaited::Unawaited;
use crate::away::Task;
use crate::away::keys::Remote;
use crate::away::ops::{OpId, Ops};
use crate::limits::{
    TCP_SILENCE_MAX, TCP_STRAIGHT_BYTES_MIN, TCP_UNANSWERED_MAX, TCP_UNAWAITED_BYTES_MAX,
};
use crate::{FabricError, RemoteAddr, Result};

/// A request that was queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// The verb's number among all of the endpoint.
    pub number: u64,
    pub op: Option<OpId>,
    pub task: Then,
    pub at: RemoteAddr,
    pub len: usize,
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Verb(Task),
    /// A WRITE without an answer.
    Unsignaled,
    /// A READ of nothing: its answer says that all before it are over.
    Flush,
}

impl Flight {
    pub fn mutates(&self) -> bool {
        match self.task {
            Then::Verb(task) => task.mutates(),
            Then::Unsignaled => true,
            Then::Flush => false,
        }
    }
}

/// A part of what is to be sent.
enum Piece {
    Bytes(Vec<u8>),
    /// A part of an operation's buffer.
    Buffer {
        op: OpId,
        from: usize,
        len: usize,
    },
}

/// What has come in part, and where the rest goes.
struct Body {
    to: Goal,
    /// Bytes that have come.
    done: usize,
    len: usize,
}

#[derive(Clone, Copy)]
enum Goal {
    /// An answer's.
    Flight(Flight),
    /// The reply slots', from this place on.
    Replies(u32),
}

/// Why a connection broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("the node has ended it")]
    Ended,
    #[error("the node was silent for too long")]
    Silent,
    #[error("the node does not keep to the protocol: {0}")]
    Garbage(#[from] Garbage),
    #[error("the node has sent {0}")]
    Record(BadRecord),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Broken> for Lost {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Record(bad) => Self::Record(bad),
            Broken::Io(error) => Self::Io(error),
        }
    }
}

/// A connection.
pub(super) struct Link {
    socket: OwnedFd,
    halves: Halves,
    region_bytes: u64,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    front: usize,
    /// Bytes of the stream that were queued, and sent.
    queued: u64,
    sent: u64,
    unawaited: Unawaited,
    /// With the place in the stream at which each begins.
    flights: VecDeque<(u64, Flight)>,
    /// How many of them have answers.
    waiting: u32,
    /// Requests without answers since the last that has one.
    unanswered: u32,
    company: Company,
    /// Whether anything has been sent or received since the last look at that.
    has_moved: bool,
    /// Since when nothing has moved, although something is under way.
    still_since: Option<Instant>,
    /// The tag of the next request.
    tag: u32,
    received: Vec<u8>,
    body: Option<Body>,
}

impl Link {
    pub fn new(socket: OwnedFd, halves: Halves, region_bytes: u64) -> Self {
        Self {
            socket,
            halves,
            region_bytes,
            pieces: VecDeque::new(),
            front: 0,
            queued: 0,
            sent: 0,
            unawaited: Unawaited::default(),
            flights: VecDeque::new(),
            waiting: 0,
            unanswered: 0,
            company: Company::default(),
            has_moved: false,
            still_since: None,
            tag: 0,
            received: Vec::new(),
            body: None,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> u64 {
        self.queued - self.sent
    }

    #[cfg(test)]
    pub fn flights_held(&self) -> usize {
        self.flights.len()
    }

    /// Whether nothing has to be sent, and nothing will be answered.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.unsent() == 0 && self.body.is_none()
    }

    /// Whether a request with an answer should follow, as there were many without.
    pub fn owes_flush(&self) -> bool {
        self.unanswered >= TCP_UNANSWERED_MAX
    }

    /// Whether one more request that nobody awaits may be queued.
    pub fn has_room(&mut self) -> bool {
        self.unawaited.bytes(self.queued, self.sent) <= TCP_UNAWAITED_BYTES_MAX
    }

    /// The number of the first verb that changes memory and is not known to be over.
    pub fn oldest_mutating(&self) -> Option<u64> {
        self.flights.iter().map(|(_, flight)| flight).find(|it| it.mutates()).map(|it| it.number)
    }

    /// Whether an answer will come that says that all is over.
    pub fn ends_with_answer(&self) -> bool {
        self.flights.back().is_none_or(|(_, last)| !matches!(last.task, Then::Unsignaled))
    }

    /// Queues a request. The bytes that it WRITEs are `bytes`, or those of the operation's buffer
    /// from `from` on.
    pub fn push(&mut self, flight: Flight, to: Remote, from: usize, bytes: &[u8], ops: &mut Ops) {
        let (verb, is_signaled) = match flight.task {
            Then::Verb(Task::Words(_) | Task::Append | Task::At(_)) | Then::Flush => {
                (Verb::Read, true)
            }
            Then::Verb(Task::Write) => (Verb::Write, true),
            Then::Unsignaled => (Verb::Write, false),
            Then::Verb(Task::CompareSwap { .. }) => (Verb::CompareSwap, true),
            Then::Verb(Task::FetchAdd { .. }) => (Verb::FetchAdd, true),
        };
        let len = flight.len as u32;
        let (tag, key, offset) = (self.tag, to.rkey, to.address);
        let request = Request { verb, is_signaled, tag, key, offset, len };
        self.flights.push_back((self.queued, flight));
        self.tag = self.tag.wrapping_add(u32::from(is_signaled));
        self.waiting += u32::from(is_signaled);
        self.unanswered = if is_signaled { 0 } else { self.unanswered + 1 };
        self.company.is_joined();
        self.put(request.header().as_bytes());
        match flight.task {
            Then::Verb(Task::CompareSwap { expect, new }) => {
                self.put(SwapWords { expect: expect.into(), new: new.into() }.as_bytes());
            }
            Then::Verb(Task::FetchAdd { add }) => self.put(&add.to_le_bytes()),
            Then::Verb(Task::Write) => {
                let op = flight.op.expect("somebody waits for it");
                if flight.len >= TCP_STRAIGHT_BYTES_MIN {
                    self.pieces.push_back(Piece::Buffer { op, from, len: flight.len });
                    self.queued += flight.len as u64;
                } else {
                    self.put(&ops.get(op).buf[from..from + flight.len]);
                }
            }
            Then::Unsignaled => {
                self.put(bytes);
                self.unawaited.add(REQUEST_BYTES + bytes.len());
            }
            Then::Verb(_) | Then::Flush => (),
        }
    }

    /// Queues a message.
    pub fn push_message(&mut self, mailbox: u32, message: &[u8]) {
        self.company.is_joined();
        let wanted = Wanted::Message { mailbox, len: message.len() as u32 };
        self.put(wanted.header().as_bytes());
        self.put(message);
        self.unawaited.add(REQUEST_BYTES + message.len());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.queued += bytes.len() as u64;
        match self.pieces.back_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push_back(Piece::Bytes(bytes.to_vec())),
        }
    }

    /// Whether requests are queued that should leave with others, which will be queued soon.
    pub fn waits_for_company(&mut self, is_busy: bool) -> bool {
        self.unsent() > 0 && self.front == 0 && self.company.is_awaited(is_busy)
    }

    /// Whether the node is given up: something is under way, and nothing has moved for long.
    pub fn is_silent(&mut self) -> bool {
        if std::mem::take(&mut self.has_moved) || self.is_idle() {
            self.still_since = None;
            return false;
        }
        let now = Instant::now();
        now - *self.still_since.get_or_insert(now) > TCP_SILENCE_MAX
    }

    /// Whether requests wait for others.
    pub fn holds_back(&self) -> bool {
        self.company.waits()
    }

    /// Whether nothing can have arrived.
    pub fn expects_nothing(&self) -> bool {
        !self.company.expects_some() && self.body.is_none()
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn send(&mut self, ops: &mut Ops) -> Result<(), Lost> {
        self.company.have_left();
        loop {
            let is_last = self.pieces.len() == 1;
            let Some(piece) = self.pieces.front_mut() else { return Ok(()) };
            let rest = match piece {
                Piece::Bytes(bytes) => &bytes[self.front..],
                Piece::Buffer { op, from, len } => {
                    &ops.get(*op).buf[*from + self.front..*from + *len]
                }
            };
            let len = rest.len();
            if len == 0 {
                // Only the last piece is empty: it waits for more.
                return Ok(());
            }
            let sent = match self.halves.outward.send(self.socket.as_fd(), rest)? {
                Moved::Bytes(sent) => sent,
                Moved::Nothing => return Ok(()),
                Moved::End => return Err(Lost::Ended),
            };
            self.has_moved = true;
            self.sent += sent as u64;
            self.front += sent;
            if sent < len {
                continue;
            }
            self.front = 0;
            match piece {
                // The next requests use its memory.
                Piece::Bytes(bytes) if is_last => {
                    bytes.clear();
                    return Ok(());
                }
                _ => _ = self.pieces.pop_front(),
            }
        }
    }

    /// Takes what has arrived. Returns whether there was anything.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive(
        &mut self,
        ops: &mut Ops,
        pushed: &mut Pushed,
        scratch: &mut [u8],
    ) -> Result<bool, Lost> {
        let mut has_come = false;
        loop {
            if let Some(mut body) = self.body.take() {
                let come = self.receive_straight(&mut body, ops, pushed)?;
                match (body.done == body.len, body.to) {
                    (true, Goal::Flight(flight)) => self.end(&flight, Ok(()), ops),
                    (true, Goal::Replies(_)) => (),
                    (false, _) => self.body = Some(body),
                }
                has_come |= come;
                self.has_moved |= come;
                if !come {
                    return Ok(has_come);
                }
                continue;
            }
            let held = self.received.len();
            scratch[..held].copy_from_slice(&self.received);
            self.received.clear();
            let (inward, socket) = (&mut self.halves.inward, self.socket.as_fd());
            let come = match inward.receive(socket, &mut scratch[held..])? {
                Moved::Bytes(bytes) => bytes,
                Moved::Nothing => 0,
                Moved::End => return Err(Lost::Ended),
            };
            let is_full = held + come == scratch.len();
            let taken = self.take(&scratch[..held + come], ops, pushed)?;
            self.received.extend_from_slice(&scratch[taken..held + come]);
            has_come |= come > 0;
            self.has_moved |= come > 0;
            if come == 0 || !is_full && self.body.is_none() {
                return Ok(has_come);
            }
        }
    }

    /// Takes what is here. Returns how many bytes it has.
    fn take(&mut self, bytes: &[u8], ops: &mut Ops, pushed: &mut Pushed) -> Result<usize, Lost> {
        let mut at = 0;
        while self.body.is_none() {
            let Ok((header, rest)) = AnswerHeader::read_from_prefix(&bytes[at..]) else { break };
            let taken = match Told::parse(&header)? {
                Told::Answer(answer) => self.take_answer(&answer, rest, ops)?,
                Told::Write { offset, len } => self.take_replies(offset, len, rest, pushed)?,
                Told::Message { mailbox, len } => match rest.get(..len as usize) {
                    Some(message) => {
                        pushed.arrive(mailbox, message);
                        Some(message.len())
                    }
                    None => None,
                },
            };
            let Some(taken) = taken else { break };
            self.company.has_come();
            at += ANSWER_BYTES + taken;
        }
        Ok(at)
    }

    /// Takes an answer, of which `rest` has come. Returns how many bytes of that are taken; `None`
    /// if it has to come whole.
    fn take_answer(
        &mut self,
        answer: &Answer,
        rest: &[u8],
        ops: &mut Ops,
    ) -> Result<Option<usize>, Lost> {
        let len = answer.result.unwrap_or(0) as usize;
        let flight = self.answered(answer)?;
        if rest.len() < len {
            let is_straight = matches!(flight.task, Then::Verb(Task::Append | Task::At(_)));
            if !is_straight || len < TCP_STRAIGHT_BYTES_MIN {
                return Ok(None);
            }
            bring(&flight, rest, ops);
            self.pop();
            self.body = Some(Body { to: Goal::Flight(flight), done: rest.len(), len });
            return Ok(Some(rest.len()));
        }
        self.pop();
        if answer.result.is_ok() {
            bring(&flight, &rest[..len], ops);
        }
        let result = answer.result.map(drop).map_err(|it| self.error(&flight, it));
        self.end(&flight, result, ops);
        Ok(Some(len))
    }

    /// The same for bytes of the reply slots.
    fn take_replies(
        &mut self,
        offset: u32,
        len: u32,
        rest: &[u8],
        pushed: &Pushed,
    ) -> Result<Option<usize>, Lost> {
        pushed.check(offset, len)?;
        let len = len as usize;
        let some = rest.len().min(len);
        if some < len && len < TCP_STRAIGHT_BYTES_MIN {
            return Ok(None);
        }
        pushed.store(offset, &rest[..some]);
        if some < len {
            self.body = Some(Body { to: Goal::Replies(offset), done: some, len });
        }
        Ok(Some(some))
    }

    /// The number of the first byte that has certainly not left this end.
    fn may_have_left(&self) -> u64 {
        self.sent + self.halves.outward.untold_bytes() as u64
    }

    /// The flight that an answer is for.
    fn answered(&self, answer: &Answer) -> Result<Flight, Lost> {
        let signaled = |(_, flight): &&(u64, Flight)| !matches!(flight.task, Then::Unsignaled);
        let Some((begin, flight)) = self.flights.iter().find(signaled) else {
            return Err(Garbage("an answer that nobody waits for").into());
        };
        let expected = match flight.task {
            Then::Verb(Task::Words(_) | Task::Append | Task::At(_)) => flight.len,
            Then::Verb(Task::CompareSwap { .. } | Task::FetchAdd { .. }) => 8,
            Then::Verb(Task::Write) | Then::Unsignaled | Then::Flush => 0,
        };
        if answer.tag != self.tag.wrapping_sub(self.waiting)
            || *begin >= self.may_have_left()
            || answer.result.is_ok_and(|len| len as usize != expected)
        {
            return Err(Garbage("an answer to something else").into());
        }
        Ok(*flight)
    }

    /// Takes the flight that was answered, and those before it, out of the list (invariant 1).
    fn pop(&mut self) {
        while let Some((_, flight)) = self.flights.pop_front() {
            if !matches!(flight.task, Then::Unsignaled) {
                self.waiting -= 1;
                return;
            }
            // If a frame was to follow it, that has come already, or comes later than this.
            self.company.has_come();
        }
    }

    fn receive_straight(
        &mut self,
        body: &mut Body,
        ops: &mut Ops,
        pushed: &Pushed,
    ) -> Result<bool, Lost> {
        let (left, socket) = (body.len - body.done, self.socket.as_fd());
        let inward = &mut self.halves.inward;
        let moved = match body.to {
            Goal::Replies(offset) => {
                pushed.receive(inward, socket, offset + body.done as u32, left)?
            }
            Goal::Flight(flight) => {
                let buf = &mut ops.get(flight.op.expect("somebody waited")).buf;
                match flight.task {
                    Then::Verb(Task::At(from)) => {
                        inward.receive(socket, buf.part(from + body.done, left))?
                    }
                    _ => inward.append(socket, left, buf)?,
                }
            }
        };
        match moved {
            Moved::Bytes(bytes) => {
                body.done += bytes;
                Ok(true)
            }
            Moved::Nothing => Ok(false),
            Moved::End => Err(Lost::Ended),
        }
    }

    fn error(&self, flight: &Flight, refusal: Refusal) -> FabricError {
        let at = flight.at;
        match refusal {
            Refusal::UnknownKey => FabricError::AccessDenied { at },
            Refusal::ReadOnly => FabricError::ReadOnly { at },
            Refusal::OutOfBounds | Refusal::Misaligned => {
                let (len, region_bytes) = (flight.len as u64, self.region_bytes);
                FabricError::OutOfBounds { at, len, region_bytes }
            }
        }
    }

    fn end(&self, flight: &Flight, result: Result<()>, ops: &mut Ops) {
        if let Some(op) = flight.op {
            ops.end(op, result);
        }
    }

    /// Ends everything that is under way. Returns the number of the first verb of unknown outcome
    /// that changes memory.
    pub fn break_off(mut self, ops: &mut Ops) -> Option<u64> {
        let mut first = None;
        if let Some(Body { to: Goal::Flight(flight), .. }) = self.body.take() {
            self.end(&flight, Err(FabricError::lost(flight.at, flight.mutates())), ops);
        }
        let may_have_left = self.may_have_left();
        for (begin, flight) in std::mem::take(&mut self.flights) {
            let is_unknown = begin < may_have_left && flight.mutates();
            if is_unknown && first.is_none() {
                first = Some(flight.number);
            }
            self.end(&flight, Err(FabricError::lost(flight.at, is_unknown)), ops);
        }
        first
    }
}

/// Hands the first bytes that a verb has read to its operation.
fn bring(flight: &Flight, bytes: &[u8], ops: &mut Ops) {
    let (Then::Verb(task), Some(op)) = (flight.task, flight.op) else { return };
    if !ops.is_wanted(op) {
        return;
    }
    let op = ops.get(op);
    match task {
        Task::Words(from) => {
            let from = usize::from(from);
            op.words.as_mut_bytes()[from..from + bytes.len()].copy_from_slice(bytes);
        }
        Task::Append => op.buf.extend_from_slice(bytes),
        Task::At(from) => op.buf.part(from, bytes.len()).copy_from_slice(bytes),
        Task::CompareSwap { .. } | Task::FetchAdd { .. } => {
            op.words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        }
        Task::Write => (),
    }
}
