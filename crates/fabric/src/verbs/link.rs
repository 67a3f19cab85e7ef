//! One connected queue pair: the verbs that wait to be posted to it, and those under way.

use std::collections::VecDeque;

use crate::away::keys::Keys;
use crate::away::ops::{OpId, Ops};
use crate::limits::{SLOT_BYTES, STALL_US_MAX};
use crate::{Buf, RegionId, RemoteAddr};

use super::flights::{Flight, Flights, Then};
use super::pool::{Pool, Slot};
use super::setup::Transport;
use super::sys::{Caps, Local, Qp, Request, Verb};

/// The work of a verb.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// READs into the operation's words, from that byte on.
    Words(u16),
    /// READs and appends to the operation's buffer.
    Append,
    /// READs over the operation's buffer, from that byte on.
    At(usize),
    /// WRITEs the operation's buffer.
    Write,
    /// WRITEs the operation's buffer, and nothing waits for it.
    Unsignaled,
    /// WRITEs the operation's first words, and nothing waits for it.
    UnsignaledWords,
    CompareSwap {
        expect: u64,
        new: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// Does nothing, with a completion.
    Flush,
}

impl Task {
    pub fn mutates(self) -> bool {
        !matches!(self, Task::Words(_) | Task::Append | Task::At(_) | Task::Flush)
    }
}

/// A verb that is not posted yet, or only in part: long verbs are cut into several work requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub op: Option<OpId>,
    pub task: Task,
    pub at: RemoteAddr,
    pub len: usize,
    /// Bytes posted.
    pub done: usize,
    pub number: u64,
}

impl Work {
    pub fn is_whole(&self) -> bool {
        self.done >= self.len
    }
}

/// A connected queue pair.
pub(super) struct Link {
    pub region: RegionId,
    pub transport: Transport,
    pub qp: Qp,
    pub inline_bytes: usize,
    pub flights: Flights,
    pub queue: VecDeque<Work>,
    /// It takes verbs. Otherwise it only waits until the verbs under way are flushed.
    pub works: bool,
    /// The peer's end is gone for good, and executes nothing any more.
    pub fenced: bool,
    /// It is in the list of links that wait for slots or room.
    pub waiting: bool,
    /// A flush is queued or under way.
    pub flushing: bool,
    /// Comes back with every completion.
    pub generation: u16,
    /// The first request at the last check for stalled completions, and since when it has been the
    /// first, in microseconds.
    watched: Option<(u32, u64)>,
}

impl Link {
    pub fn new(
        region: RegionId,
        transport: Transport,
        qp: Qp,
        caps: Caps,
        generation: u16,
    ) -> Self {
        // A queue may have got more places than were wanted; the bound of the flights stays the one
        // in `limits.rs`.
        let places = caps.send.min(crate::limits::SEND_QUEUE_WRS);
        Self {
            region,
            transport,
            qp,
            inline_bytes: caps.inline_bytes as usize,
            flights: Flights::new(places),
            queue: VecDeque::with_capacity(places as usize),
            works: true,
            fenced: false,
            waiting: false,
            flushing: false,
            generation,
            watched: None,
        }
    }

    /// Whether completions are long overdue, by this check and the earlier ones.
    pub fn has_stalled(&mut self, now_us: u64) -> bool {
        let first = self.flights.awaited();
        match self.watched {
            Some((watched, since)) if first == Some(watched) => {
                now_us.saturating_sub(since) > STALL_US_MAX
            }
            _ => {
                self.watched = first.map(|first| (first, now_us));
                false
            }
        }
    }

    /// The number of the oldest verb that changes memory and is not over.
    pub fn oldest_unsettled(&self) -> Option<u64> {
        let queued = || self.queue.iter().find(|work| work.task.mutates()).map(|work| work.number);
        self.flights.oldest_mutating().or_else(queued)
    }

    /// Cuts the next work request from the first verb of the queue; returns it and the record to
    /// remember it by. `None` if it has to wait for a slot.
    pub fn cut(
        &mut self,
        keys: &Keys,
        pool: &mut Pool,
        ops: &mut Ops,
    ) -> Option<(Request<'static>, Flight)> {
        let work = self.queue.front_mut()?;
        let flight = |then, slot, len: usize, signaled| Flight {
            number: work.number,
            mutates: work.task.mutates(),
            signaled,
            op: work.op,
            then,
            slot,
            len: len as u32,
            at: work.at,
        };
        let request =
            |verb, local, inline, signaled| Request { id: 0, verb, local, inline, signaled };
        if let Task::Flush = work.task {
            let verb = Verb::Write(keys.anywhere());
            work.done = work.len;
            return Some((request(verb, None, false, true), flight(Then::Flushed, None, 0, true)));
        }
        let place = work.at.offset() + work.done as u64;
        let (at, run) = keys.remote(place).expect("rights to every byte were checked");
        let left = (work.len - work.done).min(usize::try_from(run).unwrap_or(usize::MAX));
        let (verb, then) = match work.task {
            Task::Words(from) => (Verb::Read(at), Then::Words(from + work.done as u16)),
            Task::Append => (Verb::Read(at), Then::Append),
            Task::At(from) => (Verb::Read(at), Then::At(from + work.done)),
            Task::CompareSwap { expect, new } => {
                (Verb::CompareSwap { at, expect, new }, Then::Words(0))
            }
            Task::FetchAdd { add } => (Verb::FetchAdd { at, add }, Then::Words(0)),
            _ => (Verb::Write(at), Then::Nothing),
        };
        let (local, slot) = match work.task {
            Task::Write | Task::Unsignaled | Task::UnsignaledWords => {
                outgoing(work, left, ops, pool, self.inline_bytes)?
            }
            _ => {
                let slot = pool.take(left)?;
                (pool.local(slot, left.min(slot.len())), Some(slot))
            }
        };
        let is_awaited = !matches!(work.task, Task::Unsignaled | Task::UnsignaledWords);
        // A slot must come back even if nothing is posted after this.
        let signaled = is_awaited || slot.is_some() || self.flights.must_signal();
        let len = local.len as usize;
        let made = flight(then, slot, len, signaled);
        work.done += len;
        Some((request(verb, Some(local), slot.is_none(), signaled), made))
    }
}

/// The next `left` bytes of a verb that WRITEs: the bytes themselves if they go inline, else a slot
/// with a copy of them, or of the first of them.
fn outgoing(
    work: &Work,
    left: usize,
    ops: &mut Ops,
    pool: &mut Pool,
    inline_bytes: usize,
) -> Option<(Local, Option<Slot>)> {
    let op = ops.get(work.op.expect("what is written is an operation's"));
    let from = work.done;
    if left <= inline_bytes {
        let all: *const u8 = match work.task {
            Task::UnsignaledWords => op.words.as_ptr().cast(),
            _ => op.buf.as_ptr(),
        };
        // SAFETY: `from + left` is not over the verb's length, which is the length of the bytes.
        let start = unsafe { all.add(from) }.cast_mut();
        return Some((Local { start, len: left as u32, lkey: 0 }, None));
    }
    let slot = pool.take(left)?;
    let len = left.min(slot.len());
    match work.task {
        Task::UnsignaledWords => {
            let mut bytes = [0; SLOT_BYTES[1]];
            let words = op.words.iter().flat_map(|word| word.to_ne_bytes());
            bytes.iter_mut().zip(words).for_each(|(byte, from)| *byte = from);
            pool.fill(slot, &bytes[from..from + len]);
        }
        _ => pool.fill(slot, &op.buf[from..from + len]),
    }
    Some((pool.local(slot, len), Some(slot)))
}

/// Puts bytes that will be WRITTEN into the operation's first words, or into its buffer if they do
/// not fit.
pub(super) fn task_of_bytes(ops: &mut Ops, op: OpId, bytes: &[u8]) -> Task {
    let words = &mut ops.get(op).words;
    if bytes.len() > size_of_val(words) {
        ops.lend(op, Buf::from(bytes.to_vec()));
        return Task::Unsignaled;
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    Task::UnsignaledWords
}
