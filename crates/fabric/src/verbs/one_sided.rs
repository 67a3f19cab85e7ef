//! The verbs of the trait: the processor executes them on the home region, the card on all others.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

use crate::counters::Verb;
use crate::fabric::words_of_each;
use crate::limits::{BUCKET_WORDS_MAX, CACHE_LINE_BYTES, ROUND_TRIP_BYTES};
use crate::{
    Atomics, Buf, Caps, Counters, Fabric, RegionId, RemoteAddr, Result, RoundTrip, Swap,
    UnreliableWrites, Validation,
};

use super::VerbsEndpoint;
use super::link::Task;
use super::posting::RC;
use super::setup::Transport;

/// A short time, for one that waits.
const WAIT_US: u64 = 1;

/// One of two ways to do the same.
enum Either<H, A> {
    Home(H),
    Away(A),
}

impl Fabric for VerbsEndpoint {
    crate::pass_on!(
        store store_before store_after announce load load_bytes reload will_store raw now_us
        wall_ms random ring => local
    );

    fn caps(&self) -> Caps {
        Caps {
            atomics: Atomics::Nic,
            validation: Validation::Checksum,
            round_trip: RoundTrip::Dear,
            round_trip_bytes: ROUND_TRIP_BYTES,
            inline_bytes: CACHE_LINE_BYTES,
        }
    }

    fn counters(&self) -> &Counters {
        self.tally()
    }

    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<()>> + 'a {
        let each = words_of_each(at.len(), out.len());
        let is_home = at.iter().all(|at| at.region() == self.home);
        let which = if is_home {
            Either::Home(self.local.read_words(at, out))
        } else {
            Either::Away((self.post_reads(at, each), out))
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
        let which = if at.region() == self.home {
            Either::Home(self.local.read_bucket(at, words))
        } else {
            Either::Away(self.post_reads(&[at], words))
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
        let which = if at.region() == self.home {
            Either::Home(self.local.read(at, len, buf))
        } else {
            Either::Away(self.post_read(at, len, buf))
        };
        async move {
            match which {
                Either::Home(read) => read.await,
                Either::Away(Ok(posted)) => {
                    let done = posted.wait().await;
                    (posted.with(|ops, op| ops.take_buf(op)), done)
                }
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
                Ok(posted) => {
                    let done = posted.wait().await;
                    (posted.with(|ops, op| ops.take_buf(op)), done)
                }
                Err((buf, error)) => (buf, Err(error)),
            }
        }
    }

    fn compare_swap_many<'a>(
        &'a self,
        swaps: &'a [Swap],
        mut seen: impl FnMut(usize, Result<u64>) + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let posted = self.post_swaps(swaps);
        async move {
            for (number, swap) in posted.into_iter().enumerate() {
                seen(number, Self::old_word(swap).await);
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
        let is_home = word.region() == self.home && at.region() == self.home;
        let which = if is_home {
            Either::Home(self.local.read_word_and_bytes(word, at, len, buf))
        } else {
            Either::Away(self.post_word_and_bytes(word, at, len, buf))
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
        let task = Task::CompareSwap { expect, new };
        Self::old_word(self.post_atomic(Verb::CompareSwap, task, at))
    }

    fn fetch_add(&self, at: RemoteAddr, add: u64) -> impl Future<Output = Result<u64>> + '_ {
        Self::old_word(self.post_atomic(Verb::FetchAdd, Task::FetchAdd { add }, at))
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let max = CACHE_LINE_BYTES;
        assert!(bytes.len() <= max, "an inline WRITE has at most {max} bytes");
        if at.region() == self.home {
            return self.local.write_unsignaled(at, bytes);
        }
        self.post_unsignaled(RC, at, bytes)
    }

    fn write(&self, at: RemoteAddr, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let which = if at.region() == self.home {
            Either::Home(self.local.write(at, buf))
        } else {
            Either::Away(self.post_write(at, buf))
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
        self.engine.borrow().posted
    }

    fn is_settled(&self, mark: u64) -> bool {
        self.engine.borrow_mut().is_settled(mark, || self.now_us())
    }

    /// A caller that names a bell waits for a device's stores: nothing has to be moved on for them.
    fn poll_wait(&self, cx: &mut Context<'_>, bell: Option<RemoteAddr>) {
        if bell.is_some() || pin!(self.pause(WAIT_US)).poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    async fn pause(&self, us: u64) {
        let until = self.now_us() + us;
        // Queued verbs move on only if completions are taken, so the thread does not sleep before
        // all are over.
        loop {
            let idle = {
                let mut engine = self.engine.borrow_mut();
                engine.progress(|| self.local.now_us());
                engine.in_flight == 0
            };
            let now = self.now_us();
            if idle || now >= until {
                self.local.pause(until.saturating_sub(now)).await;
                return;
            }
            self.idle();
            self.local.yield_now().await;
        }
    }
}

impl UnreliableWrites for VerbsEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if at.region() != self.home {
            return self.post_unsignaled(Transport::Unreliable, at, bytes);
        }
        self.count(Verb::Write, at, bytes.len());
        self.local.store(at, &[bytes])
    }
}
