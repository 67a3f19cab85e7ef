//! An endpoint of which one region is mapped, the home region, and which reaches all others by a
//! [`Carrier`]: a network. For measurements it can reach the home region by the network, too.
//!
//! A verb is checked against the rights that the peer has told, so that a mistake is an error and
//! costs no connection (`keys.rs`); it becomes an operation, which holds its buffer until it is
//! over (`ops.rs`), and is queued at its carrier.

pub(crate) mod keys;
mod later;
pub(crate) mod ops;
mod pause;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use self::later::Later;
use self::ops::{OpId, Ops};
use crate::counters::Verb;
use crate::fabric::words_of_each;
use crate::limits::{BUCKET_WORDS_MAX, DOORBELL_READS_MAX, READ_WORDS_MAX};
use crate::networks::Network;
use crate::rights::Access;
use crate::shm::{ShmEndpoint, parking};
use crate::{
    Atomics, Buf, Caps, Counters, Fabric, FabricError, RegionId, RemoteAddr, Result, Swap,
};

/// The work of a verb.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// READs into the operation's words, from that byte on.
    Words(u16),
    /// READs and appends to the operation's buffer.
    Append,
    /// READs over the operation's buffer, from that byte on.
    At(usize),
    /// WRITEs the operation's buffer.
    Write,
    CompareSwap {
        expect: u64,
        new: u64,
    },
    FetchAdd {
        add: u64,
    },
}

impl Task {
    pub fn mutates(self) -> bool {
        !matches!(self, Self::Words(_) | Self::Append | Self::At(_))
    }
}

/// What carries the verbs of one thread to the regions of other nodes.
pub(crate) trait Carrier: Network {
    /// What it can do. Where its atomics are coherent, those of the home region are the
    /// processor's.
    const CAPS: Caps;

    /// The operations under way.
    fn ops(&mut self) -> &mut Ops;

    /// Whether `len` bytes at `at` may be used with `access`.
    fn check(&self, at: RemoteAddr, len: usize, access: Access) -> Result<()>;

    /// The same for `words` aligned words.
    fn check_words(&self, at: RemoteAddr, words: usize, access: Access) -> Result<()>;

    /// Queues a verb of `op`, which was checked. One that touches no byte is over at once, and so
    /// is one that cannot be sent.
    fn queue(&mut self, op: OpId, task: Task, at: RemoteAddr, len: usize);

    /// Queues a WRITE that nobody waits for, which was checked.
    fn queue_unsignaled(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<()>;

    /// Sends what is queued, sooner or later, but without being called again.
    fn ring(&mut self);

    /// A lane waits for what comes unasked: the thread looks after this round, too.
    fn listen(&mut self);

    /// See [`Fabric::posted`].
    fn posted(&self) -> u64;

    /// See [`Fabric::is_settled`].
    fn is_settled(&mut self, mark: u64) -> bool;
}

/// One thread's endpoint.
pub(crate) struct Away<C> {
    pub home: RegionId,
    /// The mapped region, the clock, and the counters.
    pub local: ShmEndpoint,
    pub carrier: Arc<Mutex<C>>,
    /// Whether verbs reach the home region over the network, too.
    pub is_far: Cell<bool>,
    later: Later,
}

impl<C> Drop for Away<C> {
    fn drop(&mut self) {
        // The place may be another's soon.
        self.later.end();
    }
}

/// An operation that a future waits for. If this is dropped before the operation is over, the
/// operation continues.
struct Posted<'a, C: Carrier> {
    away: &'a Away<C>,
    op: OpId,
}

/// A buffer that is given back because nothing was posted.
type Refusal = (Buf, FabricError);

impl<C: Carrier> Away<C> {
    pub fn new(local: ShmEndpoint, home: RegionId, carrier: Arc<Mutex<C>>) -> Self {
        Self { home, local, carrier, is_far: Cell::new(false), later: Later::new() }
    }

    /// The carrier. Only this endpoint's thread, and nobody for long, holds it.
    #[inline]
    pub fn carrier(&self) -> MutexGuard<'_, C> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn is_home(&self, at: RemoteAddr) -> bool {
        at.region() == self.home && !self.is_far.get()
    }

    fn count(&self, verb: Verb, at: RemoteAddr, bytes: usize) {
        self.local.counters().count(verb, !self.is_home(at), bytes as u64);
    }

    fn posted(&self, op: OpId) -> Posted<'_, C> {
        self.local.counters().count_round_trip();
        Posted { away: self, op }
    }

    /// Waits until an operation is over.
    fn poll_op(&self, op: OpId, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut carrier = self.carrier();
        if let Some(outcome) = carrier.ops().outcome(op) {
            return Poll::Ready(outcome);
        }
        if parking::is_own(cx) {
            // The thread looks after each round of its lanes.
            carrier.ring();
            return Poll::Pending;
        }
        carrier.progress(false);
        if let Some(outcome) = carrier.ops().outcome(op) {
            return Poll::Ready(outcome);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn check(&self, carrier: &C, at: RemoteAddr, len: usize) -> Result<()> {
        match self.is_home(at) {
            true => self.local.check_read(at, len),
            false => carrier.check(at, len, Access::Read),
        }
    }

    /// READs `each` words from each place; those of the home region are copied now. `more` further
    /// verbs belong to the operation.
    fn post_words(&self, at: &[RemoteAddr], each: usize, more: u32) -> Result<OpId> {
        let carrier = &mut *self.carrier();
        for at in at.iter().filter(|at| !self.is_home(**at)) {
            carrier.check_words(*at, each, Access::Read)?;
        }
        let mut near = [[0; READ_WORDS_MAX]; DOORBELL_READS_MAX];
        for (at, out) in at.iter().zip(&mut near).filter(|(at, _)| self.is_home(**at)) {
            self.local.read_now(*at, &mut out[..each])?;
        }
        let op = carrier.ops().add(at.len() as u32 + more, false);
        for (index, at) in at.iter().enumerate() {
            self.count(Verb::Read, *at, each * 8);
            let from = index * each;
            if self.is_home(*at) {
                carrier.ops().get(op).words[from..from + each]
                    .copy_from_slice(&near[index][..each]);
                carrier.ops().end(op, Ok(()));
            } else {
                carrier.queue(op, Task::Words(from as u16 * 8), *at, each * 8);
            }
        }
        Ok(op)
    }

    fn post_reads(&self, at: &[RemoteAddr], each: usize) -> Result<Posted<'_, C>> {
        let op = self.post_words(at, each, 0)?;
        self.carrier().ring();
        Ok(self.posted(op))
    }

    fn post_read(&self, at: RemoteAddr, len: usize, buf: Buf) -> Result<Posted<'_, C>, Refusal> {
        let carrier = &mut *self.carrier();
        if let Err(error) = carrier.check(at, len, Access::Read) {
            return Err((buf, error));
        }
        let op = carrier.ops().add(1, false);
        carrier.ops().lend(op, buf);
        self.count(Verb::Read, at, len);
        carrier.queue(op, Task::Append, at, len);
        carrier.ring();
        Ok(self.posted(op))
    }

    /// READs into one buffer, one after the other there; READs of the home region are copied now.
    fn post_read_many(
        &self,
        reads: &[(RemoteAddr, usize)],
        mut buf: Buf,
    ) -> Result<Posted<'_, C>, Refusal> {
        let carrier = &mut *self.carrier();
        let checked = reads.iter().try_for_each(|(at, len)| self.check(carrier, *at, *len));
        if let Err(error) = checked {
            return Err((buf, error));
        }
        let op = carrier.ops().add(reads.len() as u32, false);
        let (start, mut near) = (buf.len(), Buf::new());
        buf.append_zeros(reads.iter().map(|read| read.1).sum());
        carrier.ops().lend(op, buf);
        carrier.ops().starts_at(op, start);
        let mut from = start;
        for (at, len) in reads {
            self.count(Verb::Read, *at, *len);
            if self.is_home(*at) {
                near.clear();
                self.local.append_now(*at, *len, &mut near);
                carrier.ops().get(op).buf.part(from, *len).copy_from_slice(&near);
                carrier.ops().end(op, Ok(()));
            } else {
                carrier.queue(op, Task::At(from), *at, *len);
            }
            from += len;
        }
        carrier.ring();
        Ok(self.posted(op))
    }

    fn post_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> Result<Posted<'_, C>, Refusal> {
        let checked = self.check(&self.carrier(), at, len);
        let op = match checked.and_then(|()| self.post_words(&[word], 1, 1)) {
            Ok(op) => op,
            Err(error) => return Err((buf, error)),
        };
        let carrier = &mut *self.carrier();
        self.count(Verb::Read, at, len);
        let start = buf.len();
        if self.is_home(at) {
            self.local.append_now(at, len, &mut buf);
        }
        carrier.ops().lend(op, buf);
        carrier.ops().starts_at(op, start);
        match self.is_home(at) {
            true => carrier.ops().end(op, Ok(())),
            false => carrier.queue(op, Task::Append, at, len),
        }
        carrier.ring();
        Ok(self.posted(op))
    }

    fn post_write(&self, at: RemoteAddr, buf: Buf) -> Result<Posted<'_, C>, Refusal> {
        let carrier = &mut *self.carrier();
        let len = buf.len();
        if let Err(error) = carrier.check(at, len, Access::Full) {
            return Err((buf, error));
        }
        self.count(Verb::Write, at, len);
        let op = carrier.ops().add(1, false);
        carrier.ops().lend(op, buf);
        carrier.queue(op, Task::Write, at, len);
        carrier.ring();
        Ok(self.posted(op))
    }

    /// Queues an atomic.
    fn queue_atomic(&self, carrier: &mut C, task: Task, at: RemoteAddr) -> Result<OpId> {
        carrier.check_words(at, 1, Access::ReadAtomic)?;
        let verb = match task {
            Task::FetchAdd { .. } => Verb::FetchAdd,
            _ => Verb::CompareSwap,
        };
        self.count(verb, at, 8);
        let op = carrier.ops().add(1, false);
        carrier.queue(op, task, at, 8);
        Ok(op)
    }

    fn post_atomic(&self, task: Task, at: RemoteAddr) -> Result<Posted<'_, C>> {
        let carrier = &mut *self.carrier();
        let op = self.queue_atomic(carrier, task, at)?;
        carrier.ring();
        Ok(self.posted(op))
    }

    /// As [`Fabric::write_unsignaled`], for more bytes.
    pub fn write_unsignaled_of_any_length(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if self.is_home(at) {
            self.count(Verb::Write, at, bytes.len());
            return self.local.store(at, &[bytes]);
        }
        let carrier = &mut *self.carrier();
        carrier.check(at, bytes.len(), Access::Full)?;
        carrier.queue_unsignaled(at, bytes)?;
        self.count(Verb::Write, at, bytes.len());
        carrier.ring();
        Ok(())
    }

    /// Posts swaps of words of other nodes, each of which has an outcome of its own.
    fn post_swaps(&self, swaps: &[Swap]) -> Vec<Result<Posted<'_, C>>> {
        let carrier = &mut *self.carrier();
        let mut queue = |swap: &Swap| {
            let Swap { at, expect, new } = *swap;
            let op = self.queue_atomic(carrier, Task::CompareSwap { expect, new }, at)?;
            Ok(Posted { away: self, op })
        };
        let posted = swaps.iter().map(&mut queue).collect();
        carrier.ring();
        self.local.counters().count_round_trip();
        posted
    }

    async fn old_word(posted: Result<Posted<'_, C>>) -> Result<u64> {
        let posted = posted?;
        posted.wait().await?;
        Ok(posted.with(|ops, op| ops.get(op).words[0]))
    }

    fn has_own_atomics(&self, at: RemoteAddr) -> bool {
        self.is_home(at) && C::CAPS.atomics == Atomics::Coherent
    }
}

impl<C: Carrier> Posted<'_, C> {
    async fn wait(&self) -> Result<()> {
        poll_fn(|cx| self.away.poll_op(self.op, cx)).await
    }

    /// Takes the results of an operation that is over.
    fn with<T>(&self, take: impl FnOnce(&mut Ops, OpId) -> T) -> T {
        take(self.away.carrier().ops(), self.op)
    }

    async fn buffer(self) -> (Buf, Result<()>) {
        let done = self.wait().await;
        (self.with(|ops, op| ops.take_buf(op)), done)
    }
}

impl<C: Carrier> Drop for Posted<'_, C> {
    fn drop(&mut self) {
        self.away.carrier().ops().release(self.op);
    }
}

/// One of two ways to do the same.
enum Either<H, A> {
    Home(H),
    Away(A),
}

impl<C: Carrier + 'static> Fabric for Away<C> {
    crate::pass_on!(
        store store_before store_after announce load load_bytes reload will_store raw now_us
        wall_ms random => local
    );

    fn caps(&self) -> Caps {
        C::CAPS
    }

    fn counters(&self) -> &Counters {
        self.local.counters()
    }

    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<()>> + 'a {
        let each = words_of_each(at.len(), out.len());
        let which = match at.iter().all(|at| self.is_home(*at)) {
            true => Either::Home(self.local.read_words(at, out)),
            false => Either::Away((self.post_reads(at, each), out)),
        };
        async move {
            let (posted, out) = match which {
                Either::Home(read) => return read.await,
                Either::Away((posted, out)) => (posted?, out),
            };
            posted.wait().await?;
            posted.with(|ops, op| out.copy_from_slice(&ops.get(op).words[..out.len()]));
            Ok(())
        }
    }

    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX]>> + '_ {
        assert!(words <= BUCKET_WORDS_MAX, "words of a bucket");
        let which = match self.is_home(at) {
            true => Either::Home(self.local.read_bucket(at, words)),
            false => Either::Away(self.post_reads(&[at], words)),
        };
        async move {
            let posted = match which {
                Either::Home(read) => return read.await,
                Either::Away(posted) => posted?,
            };
            posted.wait().await?;
            let mut bucket = [0; BUCKET_WORDS_MAX];
            posted.with(|ops, op| bucket[..words].copy_from_slice(&ops.get(op).words[..words]));
            Ok(bucket)
        }
    }

    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let which = match self.is_home(at) {
            true => Either::Home(self.local.read(at, len, buf)),
            false => Either::Away(self.post_read(at, len, buf)),
        };
        async move {
            match which {
                Either::Home(read) => read.await,
                Either::Away(Ok(posted)) => posted.buffer().await,
                Either::Away(Err((buf, error))) => (buf, Err(error)),
            }
        }
    }

    fn read_many<'a>(
        &'a self,
        reads: &'a [(RemoteAddr, usize)],
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + 'a {
        let posted = self.post_read_many(reads, buf);
        async move {
            match posted {
                Ok(posted) => posted.buffer().await,
                Err((buf, error)) => (buf, Err(error)),
            }
        }
    }

    fn compare_swap_many<'a>(
        &'a self,
        swaps: &'a [Swap],
        mut seen: impl FnMut(usize, Result<u64>) + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let is_far = |swap: &&Swap| !self.has_own_atomics(swap.at);
        let far: Vec<_> = swaps.iter().filter(is_far).copied().collect();
        let mut posted = self.post_swaps(&far).into_iter();
        async move {
            for (number, swap) in swaps.iter().enumerate() {
                let Swap { at, expect, new } = *swap;
                let was = match self.has_own_atomics(at) {
                    true => {
                        self.count(Verb::CompareSwap, at, 8);
                        self.local.swap_now(at, expect, new)
                    }
                    false => Self::old_word(posted.next().expect("each was posted")).await,
                };
                seen(number, was);
            }
        }
    }

    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64>)> + '_ {
        let which = match self.is_home(word) && self.is_home(at) {
            true => Either::Home(self.local.read_word_and_bytes(word, at, len, buf)),
            false => Either::Away(self.post_word_and_bytes(word, at, len, buf)),
        };
        async move {
            match which {
                Either::Home(read) => read.await,
                Either::Away(Ok(posted)) => {
                    let done = posted.wait().await;
                    let take = posted.with(|ops, op| (ops.get(op).words[0], ops.take_buf(op)));
                    (take.1, done.map(|()| take.0))
                }
                Either::Away(Err((buf, error))) => (buf, Err(error)),
            }
        }
    }

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_ {
        let which = match self.has_own_atomics(at) {
            true => Either::Home(self.local.compare_swap(at, expect, new)),
            false => Either::Away(self.post_atomic(Task::CompareSwap { expect, new }, at)),
        };
        async move {
            match which {
                Either::Home(swap) => swap.await,
                Either::Away(posted) => Self::old_word(posted).await,
            }
        }
    }

    fn fetch_add(&self, at: RemoteAddr, add: u64) -> impl Future<Output = Result<u64>> + '_ {
        let which = match self.has_own_atomics(at) {
            true => Either::Home(self.local.fetch_add(at, add)),
            false => Either::Away(self.post_atomic(Task::FetchAdd { add }, at)),
        };
        async move {
            match which {
                Either::Home(add) => add.await,
                Either::Away(posted) => Self::old_word(posted).await,
            }
        }
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let max = C::CAPS.inline_bytes;
        assert!(bytes.len() <= max, "an inline WRITE has at most {max} bytes");
        self.write_unsignaled_of_any_length(at, bytes)
    }

    fn write(&self, at: RemoteAddr, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let which = match self.is_home(at) {
            true => Either::Home(self.local.write(at, buf)),
            false => Either::Away(self.post_write(at, buf)),
        };
        async move {
            match which {
                Either::Home(write) => write.await,
                Either::Away(Ok(posted)) => {
                    let done = posted.wait().await;
                    (posted.with(|ops, op| ops.take_written(op)), done)
                }
                Either::Away(Err((buf, error))) => (buf, Err(error)),
            }
        }
    }

    fn is_mapped(&self, region: RegionId) -> bool {
        region == self.home
    }

    fn posted(&self) -> u64 {
        self.carrier().posted()
    }

    fn is_settled(&self, mark: u64) -> bool {
        self.carrier().is_settled(mark)
    }

    fn store_when_settled(&self, at: RemoteAddr, word: u64) {
        let region = self.local.region(at.region()).expect("the region is mapped");
        self.later.leave(&self.carrier, (region.clone(), at.offset()), word);
    }

    fn take_back(&self) {
        self.later.take_back();
    }

    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_ {
        self.pause_for(us)
    }
}
