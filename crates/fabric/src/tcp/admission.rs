//! A client that its node has let in: its rights, and the gate behind which it is.
//!
//! # The fence
//! To shut the gate ([`Admitted::shut`]) is to wait for the turn in which the client's connection
//! is, and no later turn begins. So afterwards no verb of the client is executed, also none that
//! the node has received already.
//!
//! # What is pushed
//! Workers of the node send to the client unasked ([`Admitted::push`]): replies. These stand behind
//! the gate until the stream is between two answers. A client that does not take them loses those
//! for which there is no room.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use zerocopy::IntoBytes;

use super::frame::Told;
use super::keys::Keys;
use super::noise::ConnectionKey;
use super::socket::{self, Moved};
use super::stream::Outward;
use super::turns::{Waker, lock};
use crate::RemoteAddr;
use crate::limits::TCP_PUSHED_BYTES_MAX;
use crate::rights::Grant;
use crate::shm::{Bell, Region};

/// The reply slots of a client, in its home region. Its own thread writes what comes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    /// Where they begin.
    pub at: RemoteAddr,
    /// Their bytes.
    pub len: u32,
}

impl Replies {
    /// The place of `len` bytes at `at` in these slots, if they have one.
    pub(super) fn place_of(&self, at: RemoteAddr, len: usize) -> Option<u32> {
        let place = at.offset().checked_sub(self.at.offset())?;
        let room = u64::from(self.len).checked_sub(place)?;
        (at.region() == self.at.region() && len as u64 <= room).then_some(place as u32)
    }
}

/// Names the seat of a worker that drives the connections of its clients. Made by
/// [`Agent::seat`](super::Agent::seat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatId(pub(super) u32);

/// A client that is to be let in.
pub struct Client<'a> {
    /// Its rights.
    pub grants: &'a [Grant],
    /// Where it takes replies that workers WRITE, if any do.
    pub replies: Option<Replies>,
    /// The bells of the workers that execute what it WRITEs. Those to which it sends messages have
    /// given theirs to their mailboxes.
    pub bells: Vec<Bell>,
    /// The seat of the worker that drives its connection, unless an agent's thread does.
    pub seat: Option<SeatId>,
}

/// A client that was let in.
pub(super) struct Admitted {
    /// Names it among all clients of the agent.
    pub number: u64,
    /// The key of its connection, if that is encrypted.
    pub key: Option<ConnectionKey>,
    keys: Keys,
    replies: Option<Replies>,
    bells: Vec<Bell>,
    seat: Option<SeatId>,
    gate: Mutex<Gate>,
    /// Whether something was pushed since it was last sent.
    is_dirty: AtomicBool,
}

/// The gate of a client.
#[derive(Default)]
pub(super) struct Gate {
    is_shut: bool,
    /// The client's connection, if it has come.
    connected: Option<Connected>,
    /// Invariant: unless this is empty, no answer is sent in part.
    pushed: Vec<u8>,
    /// The stream is in the middle of an answer.
    is_answering: bool,
}

struct Connected {
    socket: Arc<OwnedFd>,
    /// Behind the gate, since what is pushed and what is answered go the same way.
    outward: Outward,
    /// Gives the connection a turn, once a thread drives it.
    waker: Option<Waker>,
}

/// What became of a frame that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// The client is gone, or does not take what was pushed before.
    Lost,
    /// The client has to be flushed.
    First,
    /// Others were pushed before, and the client will be flushed.
    Behind,
}

/// The right to execute a client's verbs for one turn.
pub(super) struct Entered<'a>(MutexGuard<'a, Gate>);

impl Entered<'_> {
    /// Says whether the stream is in the middle of an answer after the turn.
    pub fn answers(&mut self, is_answering: bool) {
        self.0.is_answering = is_answering;
    }

    /// Sends what was pushed, if it can be sent now. Returns whether nothing is left.
    pub fn send_pushed(&mut self) -> std::io::Result<bool> {
        self.0.send_pushed()
    }

    /// Takes note of the client's connection, on which the client is told that it is welcome before
    /// anything else.
    pub fn connect(
        &mut self,
        socket: &Arc<OwnedFd>,
        outward: Outward,
        welcome: &[u8],
    ) -> std::io::Result<()> {
        if !welcome.is_empty()
            && socket::send(socket.as_fd(), welcome)? != Moved::Bytes(welcome.len())
        {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        self.0.connected = Some(Connected { socket: socket.clone(), outward, waker: None });
        Ok(())
    }

    /// Sends a part of an answer.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<Moved> {
        let Some(Connected { socket, outward, .. }) = &mut self.0.connected else {
            return Ok(Moved::End);
        };
        outward.send(socket.as_fd(), bytes)
    }

    /// The same, from a region.
    pub fn send_from(
        &mut self,
        region: &Region,
        offset: u64,
        len: usize,
    ) -> std::io::Result<Moved> {
        let Some(Connected { socket, outward, .. }) = &mut self.0.connected else {
            return Ok(Moved::End);
        };
        outward.send_from(socket.as_fd(), region, offset, len)
    }
}

impl Gate {
    fn send_pushed(&mut self) -> std::io::Result<bool> {
        let Some(connected) = self.connected.as_mut().filter(|_| !self.is_answering) else {
            return Ok(self.pushed.is_empty());
        };
        let Connected { socket, outward, .. } = connected;
        let mut sent = 0;
        while sent < self.pushed.len() {
            match outward.send(socket.as_fd(), &self.pushed[sent..])? {
                Moved::Bytes(bytes) => sent += bytes,
                Moved::Nothing | Moved::End => break,
            }
        }
        self.pushed.drain(..sent);
        if self.pushed.is_empty() && self.pushed.capacity() > TCP_PUSHED_BYTES_MAX {
            // A connection at rest holds little memory.
            self.pushed = Vec::new();
        }
        Ok(self.pushed.is_empty())
    }
}

impl Admitted {
    pub fn new(number: u64, keys: Keys, key: Option<ConnectionKey>, client: Client<'_>) -> Self {
        let Client { replies, bells, seat, .. } = client;
        let (gate, is_dirty) = (Mutex::default(), AtomicBool::new(false));
        Self { number, key, keys, replies, bells, seat, gate, is_dirty }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn replies(&self) -> Option<Replies> {
        self.replies
    }

    /// The seat of the worker that drives the client's connection.
    pub fn seat(&self) -> Option<SeatId> {
        self.seat
    }

    /// Wakes the workers for which the client has written something.
    pub fn ring(&self) {
        self.bells.iter().for_each(Bell::ring);
    }

    /// Holds the gate open; `None` if it is shut.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let gate = lock(&self.gate);
        (!gate.is_shut).then_some(Entered(gate))
    }

    /// Shuts the gate, and cuts the client off.
    pub fn shut(&self) {
        let mut gate = lock(&self.gate);
        gate.is_shut = true;
        gate.pushed = Vec::new();
        if let Some(connected) = gate.connected.take() {
            // Its thread notices, and closes it. A connection that has ended is no error.
            let _ = socket::shut_down(connected.socket.as_fd());
        }
    }

    /// The client's connection has ended.
    pub fn has_gone(&self) {
        let mut gate = lock(&self.gate);
        (gate.connected, gate.pushed) = (None, Vec::new());
    }

    /// Bytes of memory that the way to the client holds between turns.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        let gate = lock(&self.gate);
        gate.pushed.capacity() + gate.connected.as_ref().map_or(0, |it| it.outward.held_bytes())
    }

    /// Another thread drives the client's connection from now on, and gives it a turn next.
    pub fn wakes(&self, waker: Waker) {
        if let Some(connected) = &mut lock(&self.gate).connected {
            connected.waker = Some(waker);
        }
    }

    /// Pushes a frame, which leaves with the next [`Admitted::flush`].
    pub fn push(&self, told: Told, parts: &[&[u8]]) -> Push {
        let mut gate = lock(&self.gate);
        let room = TCP_PUSHED_BYTES_MAX + self.replies.map_or(0, |it| it.len as usize);
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        if gate.is_shut || gate.connected.is_none() || gate.pushed.len() + bytes > room {
            return Push::Lost;
        }
        gate.pushed.extend_from_slice(told.header().as_bytes());
        parts.iter().for_each(|part| gate.pushed.extend_from_slice(part));
        match self.is_dirty.swap(true, Ordering::Relaxed) {
            true => Push::Behind,
            false => Push::First,
        }
    }

    /// Sends what was pushed.
    pub fn flush(&self) {
        let mut gate = lock(&self.gate);
        self.is_dirty.store(false, Ordering::Relaxed);
        // The thread that drives it sends the rest, and notices a broken connection.
        if !gate.is_shut
            && !matches!(gate.send_pushed(), Ok(true))
            && let Some(Connected { waker: Some(waker), .. }) = &gate.connected
        {
            waker.wake();
        }
    }
}
