//! One connection at its node: executes what the client requests, and answers.
//!
//! # Invariants
//! 1. Requests are executed in their order. An answer is sent when the request was executed.
//! 2. Every request is checked against the connection's keys before it touches the region, and
//!    executed while the [gate](super::admission) of the client is held open.
//! 3. A connection holds at most one chunk that was received and not executed, and one that was
//!    executed and not sent, whatever the client does. If the client does not take its answers,
//!    its requests wait. One that is encrypted holds as much once more, in records.
//! 4. A turn moves [`TCP_TURN_BYTES`] each way and not much more, so that other clients have
//!    theirs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use zerocopy::{FromBytes, IntoBytes};

use super::admission::{Admitted, Entered, SeatId};
use super::frame::{
    ANSWER_BYTES, Answer, Garbage, REQUEST_BYTES, Refusal, RequestHeader, SwapWords, Unwelcome,
    Verb, Wanted,
};
use super::lent::Lent;
use super::letters::Letters;
use super::planted::Fault;
use super::sealed::{BadRecord, Broken};
use super::socket::Moved;
use super::stream::{Halves, Inward};
use super::turns::Waker;
use crate::Buf;
use crate::limits::{
    TCP_CHUNK_BYTES, TCP_STRAIGHT_BYTES_MIN, TCP_TURN_BYTES, WHOLE_WORDS_BYTES_MAX,
};
use crate::shm::Region;

/// Why a connection has to end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    /// The client has ended it.
    #[error("the client has ended the connection")]
    Ended,
    /// The client was fenced, or its keys are dropped.
    #[error("the client is fenced")]
    Fenced,
    /// The client does not keep to the protocol.
    #[error(transparent)]
    Garbage(#[from] Garbage),
    /// The client was not let in, and was told why.
    #[error("the client is not let in: {0}")]
    Unwelcome(Unwelcome),
    /// The client sent a WRITE that it may not, and for which there is no answer.
    #[error("it sent a WRITE that nobody waits for and that it may not do: {0}")]
    Forbidden(Refusal),
    /// What came on an encrypted connection is not what the client has sent.
    #[error("it sent, or somebody on the way, {0}")]
    Record(BadRecord),
    /// The system has ended it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Broken> for Cut {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Record(bad) => Self::Record(bad),
            Broken::Io(error) => Self::Io(error),
        }
    }
}

/// Answers of so many bytes are sent before the next is added: that one may be a READ of words.
const ANSWERS_FULL_BYTES: usize = TCP_CHUNK_BYTES - WHOLE_WORDS_BYTES_MAX - ANSWER_BYTES;

/// What a connection waits for after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Requests.
    Read,
    /// Room for answers.
    Write,
    /// Its next turn.
    Turn,
    /// A worker, whose mailbox is full.
    Worker,
}

/// The bytes of one thread that its connections use in their turns.
pub(super) struct Scratch {
    received: Box<[u8]>,
    /// The part of `received` that was not taken.
    begin: usize,
    end: usize,
    answers: Buf,
}

/// A long transfer of which a part is left, straight between socket and region.
#[derive(Clone, Copy, Debug)]
enum Body {
    /// Of a READ, to the socket.
    Out { offset: u64, left: usize },
    /// Of a WRITE, from the socket. One that was refused goes nowhere.
    In { offset: u64, left: usize, tag: Option<u32>, result: Result<(), Refusal> },
}

/// A connection of a client that was let in.
pub(super) struct Connection {
    socket: Arc<OwnedFd>,
    client: Arc<Admitted>,
    /// The other way is behind the client's gate.
    inward: Inward,
    /// What was received and not taken.
    received: Vec<u8>,
    /// Answers that the socket did not take.
    answers: Buf,
    body: Option<Body>,
}

impl Scratch {
    pub fn new() -> Self {
        let received = vec![0; TCP_CHUNK_BYTES].into();
        Self { received, begin: 0, end: 0, answers: Buf::with_capacity(TCP_CHUNK_BYTES) }
    }

    fn load(&mut self, received: &mut Vec<u8>, answers: &mut Buf) {
        (self.begin, self.end) = (0, received.len());
        self.received[..received.len()].copy_from_slice(received);
        self.answers.clear();
        self.answers.extend_from_slice(answers);
        // A connection at rest holds no memory.
        (*received, *answers) = (Vec::new(), Buf::new());
    }

    fn rest(&self) -> &[u8] {
        &self.received[self.begin..self.end]
    }

    /// Makes room behind what is left.
    fn room(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.received.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        &mut self.received[self.end..]
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.client.has_gone();
    }
}

/// How far a turn has come.
struct Turn<'a, 'b> {
    lent: &'a Lent,
    /// The way out.
    gate: &'a mut Entered<'b>,
    scratch: &'a mut Scratch,
    /// Bytes that may still be received, and sent.
    budget: [usize; 2],
    /// Whether the socket had nothing more a moment ago.
    has_all: bool,
    /// Whether the region was changed.
    has_changed: bool,
    /// The mailbox that got the last message.
    mailbox: Option<(u32, Arc<Letters>)>,
}

impl Turn<'_, '_> {
    fn region(&self) -> &Region {
        &self.lent.region
    }

    /// Puts a message into a mailbox. Returns whether it has room. What is for a mailbox that is
    /// not open is lost.
    fn deliver(&mut self, from: &Arc<Admitted>, mailbox: u32, at: usize, len: usize) -> bool {
        if self.mailbox.as_ref().is_none_or(|(number, _)| *number != mailbox) {
            self.ring();
            self.mailbox = self.lent.letters(mailbox).map(|letters| (mailbox, letters));
        }
        let message = &self.scratch.received[at..at + len];
        self.mailbox.as_ref().is_none_or(|(_, letters)| letters.put(from, message))
    }

    fn ring(&mut self) {
        if let Some((_, letters)) = self.mailbox.take() {
            letters.ring();
        }
    }
}

impl Connection {
    /// The connection of a client that is welcome, which it is told by these bytes.
    ///
    /// # Errors
    /// [`Cut`] if it has ended meanwhile.
    pub fn new(
        socket: Arc<OwnedFd>,
        client: Arc<Admitted>,
        halves: Halves,
        welcome: &[u8],
    ) -> Result<Self, Cut> {
        let Halves { inward, outward } = halves;
        client.enter().ok_or(Cut::Fenced)?.connect(&socket, outward, welcome)?;
        let (received, answers) = (Vec::new(), Buf::new());
        Ok(Self { socket, client, inward, received, answers, body: None })
    }

    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// The seat of the worker that drives the connection, unless an agent's thread does.
    pub fn seat(&self) -> Option<SeatId> {
        self.client.seat()
    }

    /// Another thread drives the connection from now on, and gives it a turn next.
    pub fn wakes(&self, waker: Waker) {
        self.client.wakes(waker);
    }

    /// Bytes that the connection holds between turns.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        let sealed = self.inward.held_bytes() + self.client.held_bytes();
        self.received.capacity() + self.answers.capacity() + sealed
    }

    /// Executes requests for a while.
    ///
    /// # Errors
    /// [`Cut`] if the connection has to end.
    pub fn turn(&mut self, lent: &Lent, scratch: &mut Scratch) -> Result<Next, Cut> {
        self.turn_within(lent, scratch, TCP_TURN_BYTES)
    }

    /// The same, for so many bytes each way.
    pub(super) fn turn_within(
        &mut self,
        lent: &Lent,
        scratch: &mut Scratch,
        bytes: usize,
    ) -> Result<Next, Cut> {
        let client = self.client.clone();
        // Held to the end of the turn: whoever fences the client waits for it (invariant 2).
        let mut gate = client.enter().ok_or(Cut::Fenced)?;
        if !self.is_answering() && !gate.send_pushed()? {
            return Ok(Next::Write);
        }
        scratch.load(&mut self.received, &mut self.answers);
        let (has_all, has_changed, mailbox) = (false, false, None);
        let (gate_of_turn, budget) = (&mut gate, [bytes; 2]);
        let mut turn =
            Turn { lent, gate: gate_of_turn, scratch, budget, has_all, has_changed, mailbox };
        let next = self.go_on(&mut turn);
        turn.ring();
        if turn.has_changed {
            client.ring();
        }
        let next = next?;
        self.received.extend_from_slice(scratch.rest());
        self.answers = scratch.answers.to_vec().into();
        self.after_turn(&mut gate, next)
    }

    /// Whether the stream is in the middle of an answer.
    fn is_answering(&self) -> bool {
        !self.answers.is_empty() || self.body_is_out()
    }

    /// Sends what was pushed while the connection was in the middle of an answer.
    fn after_turn(&self, gate: &mut Entered<'_>, next: Next) -> Result<Next, Cut> {
        let is_answering = self.is_answering();
        gate.answers(is_answering);
        let is_clear = is_answering || gate.send_pushed()?;
        Ok(if is_clear { next } else { Next::Write })
    }

    fn go_on(&mut self, turn: &mut Turn<'_, '_>) -> Result<Next, Cut> {
        loop {
            let full = turn.scratch.answers.len() >= ANSWERS_FULL_BYTES;
            let sends = matches!(self.body, Some(Body::Out { .. }));
            if (full || sends) && !self.send_answers(turn)? {
                return Ok(Next::Write);
            }
            let waits = match self.body.take() {
                Some(Body::Out { offset, left }) => self.send_body(turn, offset, left)?,
                Some(Body::In { offset, left, tag, result }) => {
                    self.receive_body(turn, (offset, left), tag, result)?
                }
                None if turn.budget[1] == 0 => Some(Next::Turn),
                None => self.execute_next(turn)?,
            };
            if let Some(next) = waits {
                let all_sent = self.body_is_out() || self.send_answers(turn)?;
                return Ok(if all_sent { next } else { Next::Write });
            }
        }
    }

    fn body_is_out(&self) -> bool {
        matches!(self.body, Some(Body::Out { .. }))
    }

    /// Sends the answers. Returns whether the socket took them all.
    fn send_answers(&self, turn: &mut Turn<'_, '_>) -> Result<bool, Cut> {
        let answers = &mut turn.scratch.answers;
        let mut sent = 0;
        while sent < answers.len() {
            match turn.gate.send(&answers[sent..])? {
                Moved::Bytes(bytes) => sent += bytes,
                Moved::Nothing => break,
                Moved::End => return Err(Cut::Ended),
            }
        }
        answers.remove_first(sent);
        Ok(answers.is_empty())
    }

    /// Receives a chunk behind what is left. Returns what the connection waits for if nothing came.
    fn receive(&mut self, turn: &mut Turn<'_, '_>) -> Result<Option<Next>, Cut> {
        if turn.budget[0] == 0 {
            return Ok(Some(Next::Turn));
        }
        if turn.has_all {
            return Ok(Some(Next::Read));
        }
        let room = turn.scratch.room();
        let some = room.len().min(turn.budget[0]);
        match self.inward.receive(self.socket.as_fd(), &mut room[..some])? {
            Moved::Bytes(bytes) => {
                turn.scratch.end += bytes;
                turn.budget[0] = turn.budget[0].saturating_sub(self.inward.cost_of(bytes));
                turn.has_all = bytes < some;
                Ok(None)
            }
            Moved::Nothing => Ok(Some(Next::Read)),
            Moved::End => Err(Cut::Ended),
        }
    }

    /// Executes the next request. Returns what the connection waits for, if it is not there.
    fn execute_next(&mut self, turn: &mut Turn<'_, '_>) -> Result<Option<Next>, Cut> {
        let Ok((header, _)) = RequestHeader::read_from_prefix(turn.scratch.rest()) else {
            return self.receive(turn);
        };
        let request = match Wanted::parse(&header)? {
            Wanted::Verb(request) => request,
            Wanted::Message { mailbox, len } => return self.deliver(turn, mailbox, len as usize),
        };
        let is_straight = match request.verb {
            Verb::Read => request.len as usize > WHOLE_WORDS_BYTES_MAX,
            _ => request.len as usize >= TCP_STRAIGHT_BYTES_MIN,
        };
        let body_bytes = if is_straight { 0 } else { request.body_bytes() };
        if turn.scratch.rest().len() < REQUEST_BYTES + body_bytes {
            return self.receive(turn);
        }
        turn.scratch.begin += REQUEST_BYTES;
        let (offset, left) = (request.offset, request.len as usize);
        let has_rights = turn.lent.planted.is(Fault::KeysUnchecked);
        let result = if has_rights { Ok(()) } else { self.client.keys().check(&request) };
        if is_straight && request.verb == Verb::Write {
            let tag = request.is_signaled.then_some(request.tag);
            self.body = Some(Body::In { offset, left, tag, result });
            return Ok(None);
        }
        let region = &turn.lent.region;
        let answers = &mut turn.scratch.answers;
        let body = &turn.scratch.received[turn.scratch.begin..][..body_bytes];
        let begin = answers.len();
        if request.is_signaled {
            let bytes = match request.verb {
                Verb::Read => request.len,
                Verb::Write => 0,
                Verb::CompareSwap | Verb::FetchAdd => 8,
            };
            let answer = Answer { tag: request.tag, result: result.map(|()| bytes) };
            answers.extend_from_slice(answer.header().as_bytes());
        } else if let Err(refusal) = result {
            return Err(Cut::Forbidden(refusal));
        }
        break_promise(turn.lent, turn.gate, answers)?;
        if result.is_ok() {
            turn.has_changed |= request.verb != Verb::Read;
            match request.verb {
                Verb::Read if is_straight => self.body = Some(Body::Out { offset, left }),
                Verb::Read => region.append_to(offset, left, answers),
                Verb::Write => region.copy_in(offset, body),
                Verb::CompareSwap => {
                    let (words, _) = SwapWords::read_from_prefix(body).expect("it is as long");
                    let (expect, new) = (words.expect.get(), words.new.get());
                    let was = region.compare_swap(offset, expect, new);
                    answers.extend_from_slice(&was.to_le_bytes());
                }
                Verb::FetchAdd => {
                    let add = u64::from_le_bytes(body.try_into().expect("it is a word"));
                    let was = region.fetch_add(offset, add);
                    answers.extend_from_slice(&was.to_le_bytes());
                }
            }
        }
        turn.scratch.begin += body_bytes;
        turn.budget[1] = turn.budget[1].saturating_sub(answers.len() - begin);
        Ok(None)
    }

    /// Delivers the next message, if it is there.
    fn deliver(
        &mut self,
        turn: &mut Turn<'_, '_>,
        mailbox: u32,
        len: usize,
    ) -> Result<Option<Next>, Cut> {
        if turn.scratch.rest().len() < REQUEST_BYTES + len {
            return self.receive(turn);
        }
        let at = turn.scratch.begin + REQUEST_BYTES;
        if !turn.deliver(&self.client, mailbox, at, len) {
            return Ok(Some(Next::Worker));
        }
        turn.scratch.begin = at + len;
        Ok(None)
    }

    fn send_body(
        &mut self,
        turn: &mut Turn<'_, '_>,
        offset: u64,
        left: usize,
    ) -> Result<Option<Next>, Cut> {
        let keep = |it: &mut Self, offset, left| it.body = Some(Body::Out { offset, left });
        let some = left.min(turn.budget[1]);
        if some == 0 {
            keep(self, offset, left);
            return Ok(Some(Next::Turn));
        }
        match turn.gate.send_from(&turn.lent.region, offset, some)? {
            Moved::Bytes(bytes) => {
                turn.budget[1] -= bytes;
                if bytes < left {
                    keep(self, offset + bytes as u64, left - bytes);
                }
                Ok(None)
            }
            Moved::Nothing => {
                keep(self, offset, left);
                Ok(Some(Next::Write))
            }
            Moved::End => Err(Cut::Ended),
        }
    }

    fn receive_body(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (offset, left): (u64, usize),
        tag: Option<u32>,
        result: Result<(), Refusal>,
    ) -> Result<Option<Next>, Cut> {
        let mut next = None;
        let rest = turn.scratch.rest();
        let taken = if rest.is_empty() {
            let some = left.min(turn.budget[0]);
            let moved = match result {
                _ if some == 0 => {
                    next = Some(Next::Turn);
                    Moved::Nothing
                }
                Ok(()) => {
                    self.inward.receive_into(self.socket.as_fd(), turn.region(), offset, some)?
                }
                Err(_) => {
                    let room = turn.scratch.room();
                    let some = some.min(room.len());
                    self.inward.receive(self.socket.as_fd(), &mut room[..some])?
                }
            };
            match moved {
                Moved::Bytes(bytes) => {
                    turn.budget[0] = turn.budget[0].saturating_sub(self.inward.cost_of(bytes));
                    bytes
                }
                Moved::Nothing => {
                    next = next.or(Some(Next::Read));
                    0
                }
                Moved::End => return Err(Cut::Ended),
            }
        } else {
            let taken = rest.len().min(left);
            if result.is_ok() {
                turn.region().copy_in(offset, &rest[..taken]);
            }
            turn.scratch.begin += taken;
            taken
        };
        turn.has_changed |= taken == left;
        if taken < left {
            // Of a WRITE that is refused the place may be none: its bytes are only skipped.
            let (offset, left) = (offset.wrapping_add(taken as u64), left - taken);
            self.body = Some(Body::In { offset, left, tag, result });
            return Ok(next);
        }
        match (tag, result) {
            (Some(tag), result) => {
                let answer = Answer { tag, result: result.map(|()| 0) };
                turn.scratch.answers.extend_from_slice(answer.header().as_bytes());
            }
            (None, Err(refusal)) => return Err(Cut::Forbidden(refusal)),
            (None, Ok(())) => (),
        }
        Ok(None)
    }
}

/// Answers before the verb was applied, if a test has planted that.
#[inline(always)]
fn break_promise(lent: &Lent, gate: &mut Entered<'_>, answers: &mut Buf) -> io::Result<()> {
    if lent.planted.is(Fault::AnsweredBeforeApplied) {
        gate.send(answers)?;
        answers.clear();
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

const _: () = assert!(TCP_STRAIGHT_BYTES_MIN + REQUEST_BYTES <= TCP_CHUNK_BYTES / 2);
const _: () = assert!(mem::size_of::<Connection>() <= 256);
