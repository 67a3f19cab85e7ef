//! The endpoint of a simulated process.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use rand::Rng;

use super::datagram::DATAGRAM_BYTES_MAX;
use super::posted::Posted;
use super::process::Connection;
use super::state::{Event, Inner};
use super::verb::{ProcessId, Verb, VerbId, Work};
use super::watch::{Change, How};
use crate::bounds::is_inside;
use crate::fabric::words_of_each;
use crate::limits::{BUCKET_WORDS_MAX, DOORBELL_READS_MAX, TRANSFER_BYTES_MAX};
use crate::{Buf, Caps, Counters, Fabric, FabricError, RegionId, RemoteAddr, Result, Swap};

/// How often a process is stopped before an access that is not a store: a share of
/// [`Faults::stops`](super::Faults).
const BEFORE_OTHERS: f64 = 0.25;

/// A simulated process's way to the cluster: see [`World::endpoint`](super::World::endpoint).
pub struct SimEndpoint {
    pub(super) world: Rc<Inner>,
    pub(super) process: ProcessId,
    pub(super) home: RegionId,
    pub(super) message_bytes_max: usize,
    pub(super) counters: Counters,
}

impl SimEndpoint {
    pub(super) fn new(world: Rc<Inner>, process: ProcessId) -> Self {
        let home = world.process(process).node;
        let (message_bytes_max, counters) = (DATAGRAM_BYTES_MAX, Counters::default());
        Self { world, process, home, message_bytes_max, counters }
    }

    /// The process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Takes `ns` of processor time: the work of a request, say.
    pub fn work(&self, ns: u64) {
        self.world.process(self.process).spent_ns += ns;
    }

    /// Sends a datagram to a process, which may never get it, or get it twice.
    ///
    /// # Errors
    /// [`FabricError::TooLong`] beyond the network's longest message.
    pub fn send(&self, to: ProcessId, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.message_bytes_max {
            let max = self.message_bytes_max as u64;
            return Err(FabricError::TooLong { len: bytes.len() as u64, max });
        }
        if let Some(ns) = self.leave(self.world.profile.post_ns) {
            self.world.send_datagram(self.process, to, bytes, ns);
        }
        Ok(())
    }

    /// The next datagram, and its sender.
    pub async fn receive(&self) -> (ProcessId, Vec<u8>) {
        poll_fn(|_| match self.world.take_datagram(self.process) {
            Some(datagram) => Poll::Ready(datagram),
            None => Poll::Pending,
        })
        .await
    }

    /// Whether the process was not killed.
    pub fn is_alive(&self) -> bool {
        self.world.process(self.process).alive
    }

    pub(super) fn check(&self, at: RemoteAddr, len: usize) -> Result<()> {
        let nodes = self.world.nodes.borrow();
        let Some(node) = nodes.get(at.region().0 as usize) else {
            return Err(FabricError::Unattached { region: at.region() });
        };
        if len > TRANSFER_BYTES_MAX {
            return Err(FabricError::TooLong { len: len as u64, max: TRANSFER_BYTES_MAX as u64 });
        }
        if !is_inside(at.offset(), len as u64, node.memory.len()) {
            let region_bytes = node.memory.len();
            return Err(FabricError::OutOfBounds { at, len: len as u64, region_bytes });
        }
        Ok(())
    }

    fn check_words(&self, at: RemoteAddr, words: usize) -> Result<()> {
        self.check(at, words * 8)?;
        if at.offset().is_multiple_of(8) {
            return Ok(());
        }
        let region_bytes = self.world.memory(at.region()).len();
        Err(FabricError::OutOfBounds { at, len: words as u64 * 8, region_bytes })
    }

    /// Spends processor time; returns when a verb that is posted then leaves, if the process is
    /// alive.
    fn leave(&self, ns: u64) -> Option<u64> {
        let now = self.world.now_ns.get();
        let mut process = self.world.process(self.process);
        if process.logic.is_none() {
            process.spent_ns += ns;
        }
        let leaves = (now + process.spent_ns).max(process.stores.drained_ns);
        process.alive.then_some(leaves)
    }

    /// Posts a verb.
    pub(super) fn post(&self, work: Work, at: RemoteAddr, data: Vec<u8>) -> Result<VerbId> {
        let words = matches!(work, Work::CompareSwap { .. } | Work::FetchAdd { .. });
        if words {
            self.check_words(at, 1)?
        } else {
            self.check(at, data.len())?
        }
        self.world.stop(self.process, BEFORE_OTHERS);
        let bytes = if words { 8 } else { data.len() as u64 };
        self.counters.count(work.kind(), at.region() != self.home, bytes);
        // A fault may strike before the verb is posted, or after.
        let strikes_first = self.world.up_to(1) == 0;
        if strikes_first {
            self.world.strike(self.process, at.region());
        }
        let is_cut_off = self.world.is_cut_off(self.process, at.region());
        let Connection { works, queue, .. } = *self.connection(at.region());
        if !works || is_cut_off {
            return Err(FabricError::Unreachable { region: at.region() });
        }
        let turn_ns = queue.map_or(0, |queue| self.world.take_turn(self.process, queue));
        let leaves = self.leave(turn_ns + self.world.profile.post_ns);
        let mut process = self.world.process(self.process);
        let number = process.posted;
        process.posted += 1;
        drop(process);
        let id = self.world.verbs.borrow_mut().add(Verb {
            queue,
            posted_ns: self.world.now_ns.get(),
            leaves_ns: leaves.unwrap_or(0),
            ..Verb::new(self.process, number, work, at, data)
        });
        if let Some(ns) = leaves {
            if work != Work::Read {
                self.world.process(self.process).unsettled.insert(number);
            }
            self.world.at(ns, Event::Leave(id));
        }
        if !strikes_first {
            self.world.tempt(self.process);
        }
        Ok(id)
    }

    pub(super) fn doorbell(&self) {
        self.leave(self.world.profile.doorbell_ns);
        self.counters.count_round_trip();
    }

    /// Posts one verb that will be waited for.
    fn post_one(&self, work: Work, at: RemoteAddr, data: Vec<u8>) -> Result<Posted<'_>> {
        self.doorbell();
        let id = self.post(work, at, data)?;
        let mut verbs = [None; DOORBELL_READS_MAX];
        verbs[0] = Some(id);
        Ok(Posted { world: &self.world, verbs })
    }

    fn post_reads(&self, at: &[RemoteAddr], each: usize) -> Result<Posted<'_>> {
        self.doorbell();
        let mut posted = Posted { world: &self.world, verbs: [None; DOORBELL_READS_MAX] };
        for (verb, at) in posted.verbs.iter_mut().zip(at) {
            self.check_words(*at, each)?;
            *verb = Some(self.post(Work::Read, *at, vec![0; each * 8])?);
        }
        Ok(posted)
    }

    fn atomic(&self, work: Work, at: RemoteAddr) -> impl Future<Output = Result<u64>> + '_ {
        let by_cpu = self.is_by_cpu(at).then(|| self.atomic_by_cpu(work, at));
        let posted = by_cpu.is_none().then(|| self.post_one(work, at, Vec::new()));
        async move {
            let Some(posted) = posted else { return by_cpu.expect("it is one or the other") };
            let mut posted = posted?;
            posted.wait().await?;
            Ok(posted.take(0).expect("it is over").old)
        }
    }

    /// Whether an atomic is executed by the processor, by a fault.
    pub(super) fn is_by_cpu(&self, at: RemoteAddr) -> bool {
        let by_cpu = self.world.faults.borrow().cpu_atomics;
        by_cpu && self.is_mapped(at.region()) && self.is_alive()
    }

    pub(super) fn atomic_by_cpu(&self, work: Work, at: RemoteAddr) -> Result<u64> {
        self.check_words(at, 1)?;
        self.drain_stores();
        let memory = self.world.memory(at.region());
        let old = memory.load(at.offset());
        let to = match work {
            Work::CompareSwap { expect, new } if expect == old => new,
            Work::FetchAdd { add } => old.wrapping_add(add),
            _ => return Ok(old),
        };
        memory.store(at.offset(), to);
        let (by, how) = (self.process, How::Atomic { from: old, to });
        self.world.changed(Change { by, at, len: 8, before: old, how });
        Ok(old)
    }

    /// The aligned word at `at` of a mapped region, as this process sees it.
    fn own_word(&self, at: RemoteAddr) -> Result<u64> {
        self.check_words(at, 1)?;
        self.check_mapped(at)?;
        let word = self.world.memory(at.region()).load(at.offset());
        let process = self.world.process(self.process);
        Ok(if process.stores.is_empty() { word } else { process.stores.over(at, word) })
    }

    fn check_mapped(&self, at: RemoteAddr) -> Result<()> {
        if self.is_mapped(at.region()) {
            return Ok(());
        }
        Err(FabricError::Unattached { region: at.region() })
    }

    /// Stores bytes now or, if a fault strikes, later.
    fn store_part(&self, at: RemoteAddr, bytes: &[u8], slow: bool) {
        if !slow {
            return self.world.change(self.process, at, bytes, How::Store);
        }
        let now = self.world.now_ns.get();
        let ns = self.world.faults.borrow().store_ns;
        let mut process = self.world.process(self.process);
        let pieces = process.stores.add(at, bytes, |from| from.max(now) + self.world.up_to(ns));
        drop(process);
        for (piece, ns) in pieces {
            self.world.at(ns, Event::Store(self.process, piece));
        }
    }

    fn is_slow(&self) -> bool {
        let rate = self.world.faults.borrow().slow_stores;
        // Once one store is late, those after it must not be early.
        let waiting = !self.world.process(self.process).stores.is_empty();
        waiting || self.world.happens(rate)
    }

    fn drain_stores(&self) {
        let all = self.world.process(self.process).stores.take_all();
        for store in all {
            self.world.change(self.process, store.at, store.bytes(), How::Store);
        }
    }
}

impl Fabric for SimEndpoint {
    fn caps(&self) -> Caps {
        self.world.profile.caps
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<()>> + 'a {
        let each = words_of_each(at.len(), out.len());
        let posted = self.post_reads(at, each);
        async move {
            let mut posted = posted?;
            posted.wait().await?;
            for (index, out) in out.chunks_exact_mut(each).enumerate() {
                let verb = posted.take(index).expect("it is over");
                out.iter_mut().zip(words_of(&verb.data)).for_each(|(out, word)| *out = word);
            }
            Ok(())
        }
    }

    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX]>> + '_ {
        assert!(words <= BUCKET_WORDS_MAX, "words of a bucket");
        let posted = self.post_reads(&[at], words);
        async move {
            let mut posted = posted?;
            posted.wait().await?;
            let verb = posted.take(0).expect("it is over");
            let mut bucket = [0; BUCKET_WORDS_MAX];
            bucket.iter_mut().zip(words_of(&verb.data)).for_each(|(out, word)| *out = word);
            Ok(bucket)
        }
    }

    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        // A length that no memory has must not be allocated before it is refused.
        let posted = self.check(at, len).and_then(|()| self.post_one(Work::Read, at, vec![0; len]));
        async move {
            let mut posted = match posted {
                Ok(posted) => posted,
                Err(error) => return (buf, Err(error)),
            };
            let done = posted.wait().await;
            if done.is_ok() {
                buf.extend_from_slice(&posted.take(0).expect("it is over").data);
            }
            (buf, done)
        }
    }

    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64>)> + '_ {
        let posted = self.check(at, len).and_then(|()| {
            let mut posted = self.post_reads(&[word], 1)?;
            posted.verbs[1] = Some(self.post(Work::Read, at, vec![0; len])?);
            Ok(posted)
        });
        async move {
            let mut posted = match posted {
                Ok(posted) => posted,
                Err(error) => return (buf, Err(error)),
            };
            if let Err(error) = posted.wait().await {
                return (buf, Err(error));
            }
            let word = words_of(&posted.take(0).expect("it is over").data).next();
            buf.extend_from_slice(&posted.take(1).expect("it is over").data);
            (buf, Ok(word.expect("a READ of a word has one")))
        }
    }

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic(Work::CompareSwap { expect, new }, at)
    }

    fn read_many<'a>(
        &'a self,
        reads: &'a [(RemoteAddr, usize)],
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + 'a {
        self.post_read_many(reads, buf)
    }

    fn compare_swap_many<'a>(
        &'a self,
        swaps: &'a [Swap],
        seen: impl FnMut(usize, Result<u64>) + 'a,
    ) -> impl Future<Output = ()> + 'a {
        self.post_swaps(swaps, seen)
    }

    fn fetch_add(&self, at: RemoteAddr, add: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic(Work::FetchAdd { add }, at)
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let max = self.caps().inline_bytes;
        assert!(bytes.len() <= max, "an inline WRITE has at most {max} bytes");
        let id = self.post(Work::Write, at, bytes.to_vec())?;
        if let Some(verb) = self.world.verbs.borrow_mut().get(id) {
            verb.detached = true;
        }
        Ok(())
    }

    fn write(&self, at: RemoteAddr, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let posted = self.check(at, buf.len());
        let posted = posted.and_then(|()| self.post_one(Work::Write, at, buf.to_vec()));
        async move {
            match posted {
                Ok(mut posted) => (buf, posted.wait().await),
                Err(error) => (buf, Err(error)),
            }
        }
    }

    fn is_mapped(&self, region: RegionId) -> bool {
        let exists = (region.0 as usize) < self.world.nodes.borrow().len();
        region == self.home || (self.world.profile.one_host && exists)
    }

    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.check(at, len)?;
        self.check_mapped(at)?;
        self.work((len as f64 / self.world.profile.copy_gbyte_s) as u64);
        let slow = self.is_alive() && self.is_slow();
        let mut to = at;
        for part in parts {
            self.world.stop(self.process, 1.0);
            if self.is_alive() {
                self.store_part(to, part, slow);
            }
            to = to.add(part.len() as u64);
        }
        Ok(())
    }

    fn store_before(&self, at: RemoteAddr, word: u64) -> Result<()> {
        self.check_words(at, 1)?;
        self.check_mapped(at)?;
        self.world.stop(self.process, 1.0);
        if self.is_alive() {
            self.store_part(at, &word.to_le_bytes(), self.is_slow());
            self.world.process(self.process).stores.close_segment();
        }
        Ok(())
    }

    fn store_after(&self, at: RemoteAddr, word: u64) -> Result<()> {
        self.check_words(at, 1)?;
        self.check_mapped(at)?;
        self.world.stop(self.process, 1.0);
        if self.is_alive() {
            self.world.process(self.process).stores.close_segment();
            self.store_part(at, &word.to_le_bytes(), self.is_slow());
        }
        Ok(())
    }

    fn announce(&self, at: RemoteAddr, word: u64) -> Result<()> {
        self.check_words(at, 1)?;
        self.check_mapped(at)?;
        self.world.stop(self.process, 1.0);
        if self.is_alive() {
            self.drain_stores();
            self.world.change(self.process, at, &word.to_le_bytes(), How::Store);
        }
        Ok(())
    }

    fn load(&self, at: RemoteAddr) -> Result<u64> {
        self.world.stop(self.process, BEFORE_OTHERS);
        self.own_word(at)
    }

    fn load_bytes(&self, at: RemoteAddr, len: usize, buf: &mut Buf) -> Result<()> {
        let end = buf.len() + len;
        // A process that is stopped in a copy may be anywhere in the copy.
        let stops = self.world.faults.borrow().stops > 0.0;
        let stop_at = if stops { self.world.up_to(len as u64 / 8) * 8 } else { u64::MAX };
        for offset in (0..len as u64).step_by(8) {
            if offset == stop_at {
                self.world.stop(self.process, BEFORE_OTHERS);
            }
            buf.extend_from_slice(&self.own_word(at.add(offset))?.to_le_bytes());
        }
        buf.truncate(end);
        self.work((len as f64 / self.world.profile.copy_gbyte_s) as u64);
        Ok(())
    }

    fn reload(&self, at: RemoteAddr) -> Result<u64> {
        self.world.stop(self.process, BEFORE_OTHERS);
        self.own_word(at)
    }

    fn raw(&self, at: RemoteAddr, len: usize) -> Result<*mut u8> {
        self.check(at, len)?;
        self.check_mapped(at)?;
        if !self.is_alive() {
            // A dead process changes nothing, but the simulation cannot see raw writes.
            return Err(FabricError::Unreachable { region: at.region() });
        }
        // For the same reason no late store may reach these bytes after the raw writes.
        self.drain_stores();
        Ok(self.world.memory(at.region()).place(at.offset()))
    }

    fn posted(&self) -> u64 {
        self.world.process(self.process).posted
    }

    fn is_settled(&self, mark: u64) -> bool {
        self.world.process(self.process).unsettled.first().is_none_or(|oldest| *oldest >= mark)
    }

    fn store_when_settled(&self, at: RemoteAddr, word: u64) {
        let mark = self.posted();
        match self.is_settled(mark) {
            true => self.world.change(self.process, at, &word.to_le_bytes(), How::Store),
            false => self.world.process(self.process).left = Some((mark, at, word)),
        }
    }

    fn take_back(&self) {
        self.world.process(self.process).left = None;
    }

    fn now_us(&self) -> u64 {
        (self.world.now_ns.get() + self.world.process(self.process).spent_ns) / 1000
    }

    fn wall_ms(&self) -> u64 {
        let skew = self.world.process(self.process).wall_skew_ms;
        // Some day in the past, so that a skew does not lead before the epoch.
        (1_700_000_000_000 + (self.world.now_ns.get() / 1_000_000) as i64 + skew) as u64
    }

    fn random(&self) -> u64 {
        self.world.random.borrow_mut().next_u64()
    }

    async fn pause(&self, us: u64) {
        let spent_ns = self.world.process(self.process).spent_ns;
        let until = self.world.now_ns.get() + spent_ns + us * 1000;
        poll_fn(|_| {
            if self.world.now_ns.get() >= until {
                return Poll::Ready(());
            }
            self.world.wake(self.process, until);
            Poll::Pending
        })
        .await;
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}
