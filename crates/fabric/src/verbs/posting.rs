//! From the trait's verbs to operations: the checks, counts and queues before a doorbell.

use crate::away::ops::OpId;
use crate::counters::Verb;
use crate::limits::{DOORBELL_READS_MAX, READ_WORDS_MAX};
use crate::rights::Access;
use crate::{Buf, FabricError, RemoteAddr, Result, Swap};

use super::VerbsEndpoint;
use super::endpoint::Posted;
use super::engine::Engine;
use super::link::{Task, task_of_bytes};
use super::setup::Transport;

pub(super) const RC: Transport = Transport::Reliable;

/// Links with something new in their queues: one doorbell each.
#[derive(Default)]
struct Doorbells {
    links: [Option<u16>; DOORBELL_READS_MAX],
}

impl Doorbells {
    fn add(&mut self, link: Option<u16>) {
        if link.is_some() && !self.links.contains(&link) {
            let free = self.links.iter_mut().find(|place| place.is_none());
            *free.expect("there are no more links than READs") = link;
        }
    }

    fn ring(self, engine: &mut Engine) {
        self.links.into_iter().flatten().for_each(|link| engine.pump(link));
    }
}

impl VerbsEndpoint {
    pub(super) fn count(&self, verb: Verb, at: RemoteAddr, bytes: usize) {
        self.tally().count(verb, at.region() != self.home, bytes as u64);
    }

    /// Posts READs of `each` words; READs of the home region are copied now.
    fn post_words(&self, at: &[RemoteAddr], each: usize) -> Result<(Posted<'_>, Doorbells)> {
        let engine = &mut *self.engine.borrow_mut();
        for at in at.iter().filter(|at| at.region() != self.home) {
            engine.check_words(*at, each, Access::Read)?;
        }
        let mut home = [[0; READ_WORDS_MAX]; DOORBELL_READS_MAX];
        for (at, out) in at.iter().zip(&mut home).filter(|(at, _)| at.region() == self.home) {
            self.local.read_now(*at, &mut out[..each])?;
        }
        let op = engine.ops.add(at.len() as u32, false);
        let mut doorbells = Doorbells::default();
        for (index, at) in at.iter().enumerate() {
            self.count(Verb::Read, *at, each * 8);
            let from = index * each;
            if at.region() == self.home {
                engine.ops.get(op).words[from..from + each].copy_from_slice(&home[index][..each]);
                engine.ops.end(op, Ok(()));
            } else {
                let task = Task::Words(from as u16 * 8);
                doorbells.add(engine.queue(RC, op, task, *at, each * 8));
            }
        }
        Ok((Posted { endpoint: self, op }, doorbells))
    }

    fn ring(&self, doorbells: Doorbells) {
        doorbells.ring(&mut self.engine.borrow_mut());
    }

    pub(super) fn post_reads(&self, at: &[RemoteAddr], each: usize) -> Result<Posted<'_>> {
        let (posted, doorbells) = self.post_words(at, each)?;
        self.ring(doorbells);
        self.tally().count_round_trip();
        Ok(posted)
    }

    /// Queues a READ that appends to a buffer.
    fn queue_read(&self, engine: &mut Engine, op: OpId, at: RemoteAddr, len: usize) -> Option<u16> {
        self.count(Verb::Read, at, len);
        engine.ops.get(op).buf.reserve(len);
        engine.queue(RC, op, Task::Append, at, len)
    }

    pub(super) fn post_read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> Result<Posted<'_>, Refusal> {
        let engine = &mut *self.engine.borrow_mut();
        if let Err(error) = engine.check(RC, at, len, Access::Read) {
            return Err((buf, error));
        }
        let op = engine.ops.add(1, false);
        engine.ops.lend(op, buf);
        if let Some(link) = self.queue_read(engine, op, at, len) {
            engine.pump(link);
        }
        self.tally().count_round_trip();
        Ok(Posted { endpoint: self, op })
    }

    /// Posts READs into one buffer, one after the other there; READs of the home region are copied
    /// now.
    pub(super) fn post_read_many(
        &self,
        reads: &[(RemoteAddr, usize)],
        mut buf: Buf,
    ) -> Result<Posted<'_>, Refusal> {
        let engine = &mut *self.engine.borrow_mut();
        let check = |(at, len): &(RemoteAddr, usize)| match at.region() == self.home {
            true => self.local.check_read(*at, *len),
            false => engine.check(RC, *at, *len, Access::Read),
        };
        if let Err(error) = reads.iter().try_for_each(check) {
            return Err((buf, error));
        }
        let op = engine.ops.add(reads.len() as u32, false);
        let (start, mut links, mut near) = (buf.len(), Vec::new(), Buf::new());
        buf.append_zeros(reads.iter().map(|read| read.1).sum());
        engine.ops.lend(op, buf);
        engine.ops.starts_at(op, start);
        let mut from = start;
        for (at, len) in reads {
            self.count(Verb::Read, *at, *len);
            if at.region() == self.home {
                near.clear();
                self.local.append_now(*at, *len, &mut near);
                engine.ops.get(op).buf.part(from, *len).copy_from_slice(&near);
                engine.ops.end(op, Ok(()));
            } else {
                links.extend(engine.queue(RC, op, Task::At(from), *at, *len));
            }
            from += len;
        }
        engine.pump_all(links);
        self.tally().count_round_trip();
        Ok(Posted { endpoint: self, op })
    }

    /// Posts swaps, each of which has an outcome of its own.
    pub(super) fn post_swaps(&self, swaps: &[Swap]) -> Vec<Result<Posted<'_>>> {
        let engine = &mut *self.engine.borrow_mut();
        let mut links = Vec::new();
        let mut queue = |Swap { at, expect, new }: Swap| {
            engine.check_words(at, 1, Access::ReadAtomic)?;
            self.count(Verb::CompareSwap, at, 8);
            let op = engine.ops.add(1, false);
            links.extend(engine.queue(RC, op, Task::CompareSwap { expect, new }, at, 8));
            Ok(Posted { endpoint: self, op })
        };
        let posted = swaps.iter().map(|swap| queue(*swap)).collect();
        engine.pump_all(links);
        self.tally().count_round_trip();
        posted
    }

    pub(super) fn post_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> Result<Posted<'_>, Refusal> {
        let is_home = at.region() == self.home;
        let checked = match is_home {
            true => self.local.check_read(at, len),
            false => self.engine.borrow().check(RC, at, len, Access::Read),
        };
        let posted = checked.and_then(|()| self.post_words(&[word], 1));
        let (posted, mut doorbells) = match posted {
            Ok(posted) => posted,
            Err(error) => return Err((buf, error)),
        };
        let engine = &mut *self.engine.borrow_mut();
        let op = posted.op;
        let start = buf.len();
        if is_home {
            self.count(Verb::Read, at, len);
            self.local.append_now(at, len, &mut buf);
            engine.ops.lend(op, buf);
            engine.ops.starts_at(op, start);
        } else {
            engine.ops.lend(op, buf);
            engine.ops.begin(op);
            doorbells.add(self.queue_read(engine, op, at, len));
        }
        doorbells.ring(engine);
        self.tally().count_round_trip();
        Ok(posted)
    }

    pub(super) fn post_write(&self, at: RemoteAddr, buf: Buf) -> Result<Posted<'_>, Refusal> {
        let engine = &mut *self.engine.borrow_mut();
        let len = buf.len();
        if let Err(error) = engine.check(RC, at, len, Access::Full) {
            return Err((buf, error));
        }
        self.count(Verb::Write, at, len);
        let op = engine.ops.add(1, false);
        engine.ops.lend(op, buf);
        if let Some(link) = engine.queue(RC, op, Task::Write, at, len) {
            engine.pump(link);
        }
        self.tally().count_round_trip();
        Ok(Posted { endpoint: self, op })
    }

    pub(super) fn post_atomic(&self, verb: Verb, task: Task, at: RemoteAddr) -> Result<Posted<'_>> {
        let engine = &mut *self.engine.borrow_mut();
        engine.check_words(at, 1, Access::ReadAtomic)?;
        self.count(verb, at, 8);
        let op = engine.ops.add(1, false);
        if let Some(link) = engine.queue(RC, op, task, at, 8) {
            engine.pump(link);
        }
        self.tally().count_round_trip();
        Ok(Posted { endpoint: self, op })
    }

    pub(super) async fn old_word(posted: Result<Posted<'_>>) -> Result<u64> {
        let posted = posted?;
        posted.wait().await?;
        Ok(posted.with(|ops, op| ops.get(op).words[0]))
    }

    /// Posts a WRITE that nothing waits for.
    pub(super) fn post_unsignaled(
        &self,
        transport: Transport,
        at: RemoteAddr,
        bytes: &[u8],
    ) -> Result<()> {
        let engine = &mut *self.engine.borrow_mut();
        engine.check(transport, at, bytes.len(), Access::Full)?;
        let region = at.region();
        if engine.way(transport, region).is_none_or(|way| way.link.is_none()) {
            return Err(FabricError::Unreachable { region });
        }
        self.count(Verb::Write, at, bytes.len());
        let op = engine.ops.add(1, true);
        let task = task_of_bytes(&mut engine.ops, op, bytes);
        if let Some(link) = engine.queue(transport, op, task, at, bytes.len()) {
            engine.pump(link);
        }
        Ok(())
    }
}

/// A buffer that is given back because nothing was posted.
pub(super) type Refusal = (Buf, FabricError);
