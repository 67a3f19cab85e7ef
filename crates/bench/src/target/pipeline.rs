//! The client of all socket peers: a connection that keeps a window of
//! requests outstanding.
//!
//! It is written in favour of the peer, because published comparisons rest on it: requests of a
//! refill leave in one `send`, replies are read in large pieces and parsed in place, nothing is
//! allocated per operation, and a value is handed over without another copy. At depth 1 an
//! operation is one `send` and one `recv`.
//!
//! A server may stop reading while its replies are not taken. So bytes that do not fit into the
//! socket are sent while replies are read: client and server never wait for each other.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::protocol::{Parsed, Protocol, Reply};
use super::{Result, Target, server};
use crate::error::TargetError;
use crate::measure::{Kind, Op, Outcome, Run};
use crate::tally::Usage;
use crate::workload::Workload;

/// Requests are made ahead up to this many bytes, or one request.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Replies are read in pieces of up to this size, larger for larger values.
const IN_BYTES_MIN: usize = 256 << 10;
/// The window while loading.
const LOAD_DEPTH: usize = 128;
/// Loading goes on if a cache refuses up to this part of the records: memcached refuses a value if
/// all that it looks at to make room is in use. The value is then as if it was evicted.
const REFUSED_PARTS: u64 = 16;
/// Progress is reported after this many records.
const PROGRESS_EVERY: u64 = 8192;
/// An answer is quoted in an error up to this length.
const QUOTE_BYTES_MAX: usize = 80;
/// Tries of a spinning client, of about 0.2 µs each: longer than a server needs.
const SPINS: u32 = 500;

/// The source of operations and the receiver of their results. A result may bring more operations.
trait Feed {
    fn next(&mut self, now: u64) -> Option<Op>;
    fn done(&mut self, op: &Op, reply: &Reply<'_>, now: u64);
    fn now(&self) -> u64;
}

/// A connection to a peer.
pub struct Pipeline<P> {
    /// The peer's name in errors.
    peer: &'static str,
    protocol: P,
    socket: OwnedFd,
    depth: usize,
    /// Tries to receive before sleeping.
    spins: u32,
    key: Vec<u8>,
    /// Requests that are made but not yet sent, from `out_sent` on.
    out: Vec<u8>,
    out_sent: usize,
    /// Replies that are received but not yet parsed: `inbox[in_start..in_end]`.
    inbox: Vec<u8>,
    in_start: usize,
    in_end: usize,
    /// Bytes without which parsing is useless.
    in_needed: usize,
    /// Operations whose replies are outstanding, oldest first.
    window: VecDeque<Op>,
}

impl<P: Protocol> Pipeline<P> {
    /// Connects with a window of `depth` requests.
    pub fn connect(peer: &'static str, protocol: P, socket: &Path, depth: usize) -> Result<Self> {
        let socket = server::connect(socket).map_err(TargetError::lost(peer, "connect"))?;
        Ok(Self::over(peer, protocol, socket, depth))
    }

    fn over(peer: &'static str, protocol: P, socket: OwnedFd, depth: usize) -> Self {
        Pipeline {
            peer,
            protocol,
            socket,
            depth,
            spins: 0,
            key: Vec::new(),
            out: Vec::with_capacity(OUT_BYTES_MAX),
            out_sent: 0,
            inbox: vec![0; IN_BYTES_MIN],
            in_start: 0,
            in_end: 0,
            in_needed: 1,
            window: VecDeque::with_capacity(depth.max(LOAD_DEPTH)),
        }
    }

    /// Keeps `depth` operations of `feed` outstanding until it has no more and
    /// all are answered.
    ///
    /// The window is refilled when half of it is free: the server works on one
    /// half while the other is made, and neither side wakes for single requests.
    fn drive(&mut self, depth: usize, workload: &Workload, feed: &mut impl Feed) -> Result<()> {
        let mut now = feed.now();
        loop {
            if self.window.len() <= depth / 2 {
                self.refill(depth, workload, feed, now);
            }
            if self.window.is_empty() {
                return Ok(());
            }
            self.exchange()?;
            now = feed.now();
            self.take_replies(feed, now)?;
        }
    }

    /// Makes requests until the window or the buffer is full, or the feed has none for now.
    fn refill(&mut self, depth: usize, workload: &Workload, feed: &mut impl Feed, now: u64) {
        while self.window.len() < depth && self.out.len() < OUT_BYTES_MAX {
            let Some(op) = feed.next(now) else {
                return;
            };
            workload.write_key(op.record, &mut self.key);
            match op.kind {
                Kind::Get => self.protocol.get(&self.key, &mut self.out),
                Kind::Put => {
                    let len = op.size as usize;
                    self.protocol.put_head(&self.key, len, &mut self.out);
                    let at = self.out.len();
                    self.out.resize(at + len, 0);
                    workload.write_value(op.record, op.version, &mut self.out[at..]);
                    self.out.extend_from_slice(self.protocol.put_tail());
                }
            }
            self.window.push_back(op);
        }
    }

    /// Sends waiting requests without blocking, then waits for replies or, if requests are left,
    /// for room to send them.
    fn exchange(&mut self) -> Result<()> {
        self.send()?;
        if self.out.is_empty() {
            for _ in 0..self.spins {
                if self.receive(RecvFlags::DONTWAIT)? {
                    return Ok(());
                }
            }
            self.receive(RecvFlags::empty())?;
            return Ok(());
        }
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(self.lost("wait for an answer", error)),
        }
        self.receive(RecvFlags::DONTWAIT)?;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        while self.out_sent < self.out.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.out[self.out_sent..], flags) {
                Ok(sent) => self.out_sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.lost("send", error)),
            }
        }
        self.out.clear();
        self.out_sent = 0;
        Ok(())
    }

    /// Takes bytes that have arrived; returns false if there are none.
    fn receive(&mut self, flags: RecvFlags) -> Result<bool> {
        self.make_room();
        match recv(&self.socket, &mut self.inbox[self.in_end..], flags) {
            Ok((0, _)) => Err(self.lost("receive", "the server closed the connection")),
            Ok((received, _)) => {
                self.in_end += received;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(self.lost("receive", error)),
        }
    }

    /// Room for the rest of the reply that has begun to arrive.
    fn make_room(&mut self) {
        if self.in_start == self.in_end {
            (self.in_start, self.in_end) = (0, 0);
        }
        let wanted = (self.in_start + self.in_needed).max(self.in_end + 1);
        if wanted > self.inbox.len() {
            self.inbox.copy_within(self.in_start..self.in_end, 0);
            self.in_end -= self.in_start;
            self.in_start = 0;
            if self.in_needed > self.inbox.len() {
                // Twice, so that the next reply need not move to the front.
                self.inbox.resize(self.in_needed * 2, 0);
            }
        }
    }

    fn take_replies(&mut self, feed: &mut impl Feed, now: u64) -> Result<()> {
        while self.in_end - self.in_start >= self.in_needed {
            let bytes = &self.inbox[self.in_start..self.in_end];
            match self.protocol.parse(bytes) {
                Parsed::Partial(needed) => {
                    self.in_needed = needed.max(bytes.len() + 1);
                    return Ok(());
                }
                Parsed::Whole(len, reply) => {
                    let Some(op) = self.window.pop_front() else {
                        return Err(self.garbage(bytes));
                    };
                    let fits = match reply {
                        Reply::Value(_) | Reply::Missing => op.kind == Kind::Get,
                        Reply::Stored => op.kind == Kind::Put,
                        Reply::Refused(_) => true,
                    };
                    if !fits {
                        return Err(self.garbage(bytes));
                    }
                    feed.done(&op, &reply, now);
                    self.in_start += len;
                    self.in_needed = 1;
                }
                Parsed::Garbage => return Err(self.garbage(bytes)),
            }
        }
        Ok(())
    }

    fn lost(&self, action: &'static str, reason: impl ToString) -> TargetError {
        TargetError::lost(self.peer, action)(reason)
    }

    fn garbage(&self, bytes: &[u8]) -> TargetError {
        let quoted = &bytes[..bytes.len().min(QUOTE_BYTES_MAX)];
        TargetError::Protocol { store: self.peer, answer: quoted.escape_ascii().to_string() }
    }
}

impl<P: Protocol> Pipeline<P> {
    /// Asks the server what it holds and has evicted. Nothing else is outstanding.
    fn ask_usage(&mut self) -> Result<Usage> {
        self.out.extend_from_slice(P::STATISTICS);
        loop {
            self.exchange()?;
            let bytes = &self.inbox[self.in_start..self.in_end];
            match self.protocol.parse_statistics(bytes) {
                Parsed::Partial(needed) => self.in_needed = needed.max(bytes.len() + 1),
                Parsed::Whole(len, Reply::Value(text)) => {
                    let usage = std::str::from_utf8(text).ok().and_then(P::usage);
                    let usage = usage.ok_or_else(|| self.garbage(text))?;
                    self.in_start += len;
                    self.in_needed = 1;
                    return Ok(usage);
                }
                _ => return Err(self.garbage(bytes)),
            }
        }
    }
}

impl<P: Protocol> Target for Pipeline<P> {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.key.resize(workload.key_size(), 0);
        let mut feed = LoadFeed {
            value_size: workload.value_size(),
            next: records.start,
            end: records.end,
            done: 0,
            refusals_max: if workload.fills() {
                (records.end - records.start) / REFUSED_PARTS
            } else {
                0
            },
            refused: 0,
            answer: String::new(),
            progress,
        };
        self.drive(LOAD_DEPTH, workload, &mut feed)?;
        if feed.refused > feed.refusals_max {
            return Err(TargetError::Refused {
                store: self.peer,
                refused: feed.refused,
                answer: feed.answer,
            });
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<()> {
        self.key.resize(run.workload().key_size(), 0);
        self.drive(self.depth, run.workload(), &mut RunFeed { run, fills: VecDeque::new() })
    }

    fn usage(&mut self) -> Result<Option<Usage>> {
        self.ask_usage().map(Some)
    }

    fn set_spinning(&mut self, spinning: bool) {
        self.spins = if spinning { SPINS } else { 0 };
    }
}

/// Operations of a measured phase.
struct RunFeed<'a, 'b> {
    run: &'a Run<'b>,
    /// PUTs of values that were not found. They come first.
    fills: VecDeque<Op>,
}

impl Feed for RunFeed<'_, '_> {
    fn next(&mut self, now: u64) -> Option<Op> {
        self.fills.pop_front().or_else(|| self.run.next_at(now))
    }

    fn done(&mut self, op: &Op, reply: &Reply<'_>, now: u64) {
        let outcome = match *reply {
            Reply::Value(value) => Outcome::Found(value),
            Reply::Missing => Outcome::Missing,
            Reply::Stored => Outcome::Stored,
            Reply::Refused(_) => Outcome::Failed,
        };
        self.run.finish_at(op, outcome, now);
        self.fills.extend(self.run.fill(op, outcome));
    }

    fn now(&self) -> u64 {
        self.run.now()
    }
}

/// A PUT of every record.
struct LoadFeed<'a> {
    value_size: usize,
    next: u64,
    end: u64,
    done: u64,
    refusals_max: u64,
    refused: u64,
    answer: String,
    progress: &'a mut dyn FnMut(u64),
}

impl Feed for LoadFeed<'_> {
    fn next(&mut self, _now: u64) -> Option<Op> {
        // A full server refuses all the rest.
        if self.next == self.end || self.refused > self.refusals_max {
            return None;
        }
        self.next += 1;
        Some(Op::load(self.next - 1, self.value_size))
    }

    fn done(&mut self, _op: &Op, reply: &Reply<'_>, _now: u64) {
        if let Reply::Refused(answer) = reply {
            self.refused += 1;
            self.answer = String::from_utf8_lossy(answer).into_owned();
        }
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_EVERY) || self.done == self.end {
            (self.progress)(self.done);
        }
    }

    fn now(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
