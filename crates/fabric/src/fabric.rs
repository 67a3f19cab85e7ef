//! The fabric trait: RDMA's semantics, and no more.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use crate::limits::{BUCKET_WORDS_MAX, DOORBELL_READS_MAX, READ_WORDS_MAX, WHOLE_WORDS_BYTES_MAX};
use crate::sync::{Ordering, fence};
use crate::{Buf, Counters, RegionId, RemoteAddr, Result};

/// The accesses with which remote atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// Only with other atomics of the same NIC: every access to a word that is ever a target of a
    /// CAS goes through the fabric, even on the node of the word.
    Nic,
    /// With CPU atomics as well.
    Coherent,
}

/// How a reader learns that its copy is one entry and not a mix of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Read the generation again after the copy: cheap where memory is near.
    Reread,
    /// Compare a checksum: saves the second round trip.
    Checksum,
}

/// Whether a round trip costs more than reading additional bytes that save the round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTrip {
    /// A round trip is a cache miss: read only what is needed, one thing after another.
    Cheap,
    /// A round trip crosses a network: read everything that may be needed at once.
    Dear,
}

/// What a backend can do, and what is cheap on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The accesses with which remote atomics are atomic.
    pub atomics: Atomics,
    /// The cheaper way to validate an entry.
    pub validation: Validation,
    /// The cost of a round trip.
    pub round_trip: RoundTrip,
    /// A READ brings about so many bytes in the time of one more round trip: where fewer may be
    /// READ in vain, READing them at once is cheaper than to ask first.
    pub round_trip_bytes: usize,
    /// Bytes of the longest WRITE that is copied when it is posted
    /// ([`Fabric::write_unsignaled`]).
    pub inline_bytes: usize,
}

/// Pointers that are chased, from buckets to entries. See [`Fabric::chase`].
pub trait Chase {
    /// The bucket in which a chase begins.
    fn bucket(&mut self, number: usize) -> RemoteAddr;

    /// Where a chase goes from a bucket. The words that were not READ are zero.
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step;

    /// A chase ends with the bytes of an entry. `again` is their first word, READ again after all
    /// of them, as by [`Fabric::reload`], where [`Validation::Reread`] says that this is cheap;
    /// elsewhere it is the first word of the bytes.
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64);
}

/// What a chase does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It READs this entry.
    Entry(RemoteAddr),
    /// It READs another bucket.
    Bucket(RemoteAddr),
    /// Nothing.
    End,
}

/// A compare-and-swap among many: see [`Fabric::compare_swap_many`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The word.
    pub at: RemoteAddr,
    /// The value that it must have.
    pub expect: u64,
    /// The value that it then gets.
    pub new: u64,
}

/// The words of each of `reads` READs in one doorbell, which bring `words` words together.
///
/// # Panics
/// As [`Fabric::read_words`].
#[inline(always)]
pub(crate) fn words_of_each(reads: usize, words: usize) -> usize {
    assert!(reads > 0 && reads <= DOORBELL_READS_MAX, "READs in a doorbell");
    let each = words / reads;
    assert!(each <= READ_WORDS_MAX && each * reads == words, "words of a READ");
    each
}

/// The longest time that an idle thread waits before it looks again.
const YIELD_US: u64 = 1;

/// One thread's way to the regions of a cluster.
///
/// # Promises
/// * An aligned 8-byte word is read, written, swapped and added to atomically with respect to other
///   verbs.
/// * A verb posted after another *completed* takes effect after it.
/// * A posted verb runs even if its future is dropped. A dropped future never leaves a verb writing
///   memory that another owner may use: buffers are given to the verb by value.
///
/// # Not promised
/// * The order of bytes inside a transfer; that a READ of more than a word sees one moment; any
///   order between verbs of which neither waited for the other.
/// * That remote atomics are atomic with CPU accesses: see [`Caps::atomics`].
///
/// # Posting and waiting
/// Every method that returns a future *posts when it is called* and waits when it is awaited, so a
/// caller may do other work in between. One call is one doorbell, and one awaited call is one round
/// trip in [`Counters`]. The exceptions are [`Fabric::chase`] and, where a backend has no way of
/// its own, the verbs of many places.
pub trait Fabric {
    /// What this backend can do.
    fn caps(&self) -> Caps;

    /// The counters of this endpoint.
    fn counters(&self) -> &Counters;

    /// READs `out.len() / at.len()` words from each of `at`, all in one doorbell.
    ///
    /// # Errors
    /// [`OutOfBounds`](crate::FabricError::OutOfBounds) if an address is not 8-aligned or not
    /// inside its region.
    ///
    /// # Panics
    /// If `at` is empty or longer than [`limits::DOORBELL_READS_MAX`](crate::limits), or the words
    /// of one READ exceed [`limits::READ_WORDS_MAX`](crate::limits).
    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<()>> + 'a;

    /// READs the first `words` words of a bucket; the rest of the result is zero. One READ of
    /// [`Fabric::read_words`], for the path that every operation takes.
    ///
    /// # Errors
    /// As [`Fabric::read_words`].
    ///
    /// # Panics
    /// If `words` exceeds [`limits::BUCKET_WORDS_MAX`](crate::limits).
    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX]>> + '_;

    /// READs `len` bytes and appends them to `buf`. A verb that is refused appends nothing. The
    /// aligned words of a READ of up to [`limits::WHOLE_WORDS_BYTES_MAX`](crate::limits) bytes are
    /// whole; those of a longer one may be torn ([`Fabric::read_whole_words`]).
    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + '_;

    /// Chases `count` pointers: READs the first `words` words of each bucket, and `len` bytes of
    /// each entry to which it points. This is for batches of operations, which have neither a
    /// future nor a buffer each. `buf` is memory for what is READ; its contents are unspecified
    /// afterwards.
    ///
    /// A backend may READ in any order, except that a bucket comes before what it points to. A
    /// backend that has no way of its own READs in stages, each with one doorbell of
    /// [`Fabric::read_many`]: all first buckets, then all that they point to, and so on.
    ///
    /// # Errors
    /// As [`Fabric::read_words`]; then some chases may have come to their end.
    ///
    /// # Panics
    /// If `words` exceeds [`limits::BUCKET_WORDS_MAX`](crate::limits), or `len` is less than a
    /// word.
    fn chase<'a>(
        &'a self,
        count: usize,
        words: usize,
        len: usize,
        buf: &'a mut Buf,
        chase: &'a mut impl Chase,
    ) -> impl Future<Output = Result<()>> + 'a {
        assert!(words <= BUCKET_WORDS_MAX && len >= 8, "a bucket's words, and a word of an entry");
        async move {
            let mut next: Vec<_> = (0..count).map(|n| (n, Step::Bucket(chase.bucket(n)))).collect();
            let mut reads = Vec::with_capacity(count);
            while !next.is_empty() {
                reads.clear();
                for (_, step) in &next {
                    match *step {
                        Step::Bucket(at) if at.offset().is_multiple_of(8) => {
                            reads.push((at, words * 8));
                        }
                        // Words that are not aligned are refused.
                        Step::Bucket(at) => _ = self.read_bucket(at, words).await?,
                        Step::Entry(at) => reads.push((at, len)),
                        Step::End => unreachable!("these have been left out"),
                    }
                }
                buf.clear();
                let (filled, done) = self.read_many(&reads, std::mem::take(buf)).await;
                *buf = filled;
                done?;
                let mut rest = &buf[..];
                let mut follow = Vec::with_capacity(next.len());
                for ((number, step), (at, len)) in next.into_iter().zip(&reads) {
                    let (bytes, after) = rest.split_at(*len);
                    rest = after;
                    if let Step::Entry(_) = step {
                        let again = match self.caps().validation {
                            Validation::Reread => self.reload(*at)?,
                            Validation::Checksum => {
                                u64::from_le_bytes(*bytes.first_chunk().expect("a word at least"))
                            }
                        };
                        chase.arrived(number, bytes, again);
                        continue;
                    }
                    let mut bucket = [0; BUCKET_WORDS_MAX];
                    for (word, bytes) in bucket.iter_mut().zip(bytes.as_chunks().0) {
                        *word = u64::from_le_bytes(*bytes);
                    }
                    match chase.step(number, &bucket) {
                        Step::End => (),
                        step => follow.push((number, step)),
                    }
                }
                next = follow;
            }
            Ok(())
        }
    }

    /// READs from many places, from each as many bytes as are named, and appends all of them to
    /// `buf` in this order. If one of the READs is refused or fails, nothing is appended.
    ///
    /// All are posted in one doorbell, or in as few as the send queue allows; together they are one
    /// round trip in [`Counters`]. A backend that has no way of its own posts the READs one after
    /// the other.
    fn read_many<'a>(
        &'a self,
        reads: &'a [(RemoteAddr, usize)],
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + 'a {
        let posted: Vec<_> =
            reads.iter().map(|(at, len)| self.read(*at, *len, Buf::new())).collect();
        async move {
            let (start, mut result) = (buf.len(), Ok(()));
            for read in posted {
                let (bytes, done) = read.await;
                buf.extend_from_slice(&bytes);
                result = result.and(done);
            }
            if result.is_err() {
                buf.truncate(start);
            }
            (buf, result)
        }
    }

    /// Swaps many words, as [`Fabric::compare_swap`] does one, in any order. `seen` is called once
    /// for each, with its number and its own outcome: if the outcome of one is unknown, or one was
    /// refused, others may have been executed.
    ///
    /// All are posted in one doorbell, or in as few as the send queue allows; together they are one
    /// round trip in [`Counters`]. A backend that has no way of its own does one after the other.
    fn compare_swap_many<'a>(
        &'a self,
        swaps: &'a [Swap],
        mut seen: impl FnMut(usize, Result<u64>) + 'a,
    ) -> impl Future<Output = ()> + 'a {
        async move {
            for (number, swap) in swaps.iter().enumerate() {
                seen(number, self.compare_swap(swap.at, swap.expect, swap.new).await);
            }
        }
    }

    /// READs `len` bytes of words and appends them to `buf`. However many there are, each aligned
    /// word is whole. The READs are one round trip, and are posted when this is first polled.
    fn read_whole_words(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        async move {
            if len <= WHOLE_WORDS_BYTES_MAX {
                return self.read(at, len, buf).await;
            }
            let mut pieces = Vec::with_capacity(len / WHOLE_WORDS_BYTES_MAX + 1);
            let mut done = 0;
            while done < len {
                // Each piece but the last ends with a word.
                let from = at.add(done as u64);
                let some = WHOLE_WORDS_BYTES_MAX - (from.offset() % 8) as usize;
                pieces.push((from, some.min(len - done)));
                done += some;
            }
            self.read_many(&pieces, buf).await
        }
    }

    /// READs a word and, in the same doorbell, `len` bytes that are appended to `buf`. The order of
    /// the two is not promised.
    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64>)> + '_;

    /// Replaces the word at `at` by `new` if it is `expect`; returns what it was.
    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_;

    /// Adds `add` to the word at `at`, wrapping; returns what it was.
    fn fetch_add(&self, at: RemoteAddr, add: u64) -> impl Future<Output = Result<u64>> + '_;

    /// WRITEs up to [`Caps::inline_bytes`] without waiting: unsignaled and inline. Aligned words of
    /// it are written atomically. If the peer takes so little that too many of these wait already,
    /// it is [`Unreachable`](crate::FabricError::Unreachable).
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()>;

    /// WRITEs `buf` and gives it back.
    fn write(&self, at: RemoteAddr, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_;

    /// Whether `region` is mapped into this process, so that the `store` family may be used on it.
    fn is_mapped(&self, region: RegionId) -> bool;

    /// Whether the endpoint reaches its home region over the network, as it does others, although
    /// it is mapped: then a message for a worker there is a WRITE and not a store.
    fn is_far(&self) -> bool {
        false
    }

    /// Copies `parts`, one after the other, into a mapped region by CPU stores, in any order.
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<()>;

    /// Stores a word of a mapped region such that no later store is seen before it.
    fn store_before(&self, at: RemoteAddr, word: u64) -> Result<()>;

    /// Stores a word of a mapped region such that a reader that sees it also sees every earlier
    /// store, and that every earlier load has been executed.
    fn store_after(&self, at: RemoteAddr, word: u64) -> Result<()>;

    /// Stores a word of a mapped region such that the store is seen before any READ made after it
    /// is executed: one half of the handshake between a client's epoch and a grace period.
    fn announce(&self, at: RemoteAddr, word: u64) -> Result<()>;

    /// Loads a word of a mapped region; no later access is executed before it.
    fn load(&self, at: RemoteAddr) -> Result<u64>;

    /// Orders all loads and stores of this thread before it, and all that they show of others,
    /// before all loads after it.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Appends `len` bytes of a mapped region to `buf` by CPU loads, in any order: the bytes may be
    /// of different moments. `at` is 8-aligned.
    fn load_bytes(&self, at: RemoteAddr, len: usize, buf: &mut Buf) -> Result<()> {
        let end = buf.len() + len;
        for offset in (0..len as u64).step_by(8) {
            buf.extend_from_slice(&self.load(at.add(offset))?.to_le_bytes());
        }
        buf.truncate(end);
        Ok(())
    }

    /// READs a word after all earlier READs: the second look at a generation, where
    /// [`Validation::Reread`] says that it is cheap. It is part of the READ that it validates, and
    /// therefore not counted.
    ///
    /// Only for backends whose [`Caps::validation`] is [`Validation::Reread`].
    fn reload(&self, at: RemoteAddr) -> Result<u64>;

    /// Announces that a READ of the word at `at` follows shortly. This is a hint: it may do
    /// nothing, and any address is allowed.
    fn will_read(&self, _at: RemoteAddr) {}

    /// Announces that stores to the `len` bytes at `at` of a mapped region follow shortly. This is
    /// a hint: it may do nothing, or be about the first and the last of these bytes alone, and any
    /// address is allowed.
    fn will_store(&self, _at: RemoteAddr, _len: usize) {}

    /// A bare pointer to `len` bytes of a mapped region, for callers that fill them in place. The
    /// bytes are shared: only raw writes and system calls may go through it, never a reference.
    fn raw(&self, at: RemoteAddr, len: usize) -> Result<*mut u8>;

    /// The number of verbs posted so far: a mark for [`Fabric::is_settled`].
    fn posted(&self) -> u64;

    /// Whether every verb posted before `mark` that changes memory was executed, or never will be.
    /// This does not hold while one of these is under way: an unsignaled WRITE, a verb whose future
    /// was dropped, or a verb of unknown outcome on a connection that has not been made again.
    fn is_settled(&self, mark: u64) -> bool;

    /// Leaves a word of a mapped region to be stored, as by [`Fabric::store_after`], when all verbs
    /// have settled that were posted so far: also if this thread does nothing any more, and if it
    /// does not [take the word back](Fabric::take_back) before. There is one such word at a time.
    ///
    /// A backend whose verbs are over when they were posted, or whose verbs only its thread can
    /// move on, does nothing.
    fn store_when_settled(&self, _at: RemoteAddr, _word: u64) {}

    /// Takes back the word that was left to be stored. When this returns, the word was stored, or
    /// never will be.
    fn take_back(&self) {}

    /// Monotonic time in microseconds.
    fn now_us(&self) -> u64;

    /// Wall-clock time in milliseconds since the Unix epoch. Never used for safety.
    fn wall_ms(&self) -> u64;

    /// A random word, for back-off.
    fn random(&self) -> u64;

    /// Waits for `us` microseconds of [`Fabric::now_us`], letting other lanes work; but a pause of
    /// more than [`LANES_PAUSE_US_MAX`](crate::limits::LANES_PAUSE_US_MAX) may put the thread to
    /// sleep.
    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_;

    /// Lets the other lanes have a turn: for callers that poll memory until it changes. The future
    /// is pending once; a thread without other lanes may wait a microsecond at most.
    fn yield_now(&self) -> impl Future<Output = ()> + '_ {
        let mut taken = false;
        poll_fn(move |cx| {
            if std::mem::replace(&mut taken, true) {
                return Poll::Ready(());
            }
            self.poll_wait(cx, None);
            Poll::Pending
        })
    }

    /// Called by a future that polls memory until it changes, just before it returns `Pending`: it
    /// is polled again after the other lanes, as one that awaits [`Fabric::yield_now`].
    ///
    /// With a bell the caller says that it waits for something after which another thread
    /// [rings](Fabric::ring) it. If all lanes of this thread wait so, the thread may yield its core
    /// or sleep. The caller must not be what another of these lanes waits for: a caller that has
    /// done something since its last turn names no bell.
    fn poll_wait(&self, cx: &mut Context<'_>, _bell: Option<RemoteAddr>) {
        // The pause is polled only once, so that a sleeping executor is woken by it. Nothing waits
        // for its end: any earlier event that wakes the thread is worth a look.
        if pin!(self.pause(YIELD_US)).poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Wakes the threads that sleep at these bells, if any do. They find what was stored or sent
    /// before. Bells that are not mapped are left out.
    fn ring(&self, _bells: &[RemoteAddr]) {}

    /// Whether other threads need the core of this one, as its last yield has shown. A thread that
    /// is woken then takes a core from another.
    fn is_core_wanted(&self) -> bool {
        false
    }
}
