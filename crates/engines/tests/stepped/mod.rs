//! A fabric that stops before every verb, so that a test decides who goes on.
//!
//! It wraps the shm endpoint. READs of one doorbell are executed one at a time in random order, and
//! a READ of bytes in two halves, either first: RDMA promises no more. Time is the number of steps.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Steps and randomness, shared by all endpoints of a run.
pub struct Run {
    pub steps: Cell<u64>,
    pub random: RefCell<ChaCha8Rng>,
}

pub struct Stepped {
    inner: ShmEndpoint,
    run: Rc<Run>,
}

/// Microseconds of a step.
const STEP_US: u64 = 10;

impl Stepped {
    pub fn new(inner: ShmEndpoint, run: Rc<Run>) -> Self {
        Self { inner, run }
    }

    fn toss(&self) -> bool {
        self.run.random.borrow_mut().random()
    }

    async fn read_halves(
        &self,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> (Buf, Result<(), FabricError>) {
        let half = len / 16 * 8;
        let mut parts = [(0, half), (half, len - half)].map(|(from, len)| (from, len, Buf::new()));
        let first = self.toss() as usize;
        for i in [first, 1 - first] {
            step().await;
            let (from, len, part) = &mut parts[i];
            let (read, done) =
                self.inner.read(at.add(*from as u64), *len, std::mem::take(part)).await;
            *part = read;
            if done.is_err() {
                return (buf, done);
            }
        }
        for (_, _, part) in parts {
            buf.extend_from_slice(&part);
        }
        (buf, Ok(()))
    }
}

/// Lets the others go first, as often as the test likes.
async fn step() {
    let mut taken = false;
    std::future::poll_fn(move |_| {
        let first = !std::mem::replace(&mut taken, true);
        if first { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

impl Fabric for Stepped {
    loch_fabric::pass_on!(
        caps counters write_unsignaled is_mapped store store_before store_after announce load
        reload raw
        posted is_settled wall_ms => inner
    );

    async fn read_words(&self, at: &[RemoteAddr], out: &mut [u64]) -> Result<(), FabricError> {
        let each = out.len() / at.len();
        let mut order: Vec<usize> = (0..at.len()).collect();
        while !order.is_empty() {
            let next = self.run.random.borrow_mut().random_range(0..order.len());
            let i = order.swap_remove(next);
            for w in 0..each {
                step().await;
                let word = &mut out[i * each + w..][..1];
                self.inner.read_words(&[at[i].add(w as u64 * 8)], word).await?;
            }
        }
        Ok(())
    }

    async fn read_bucket(&self, at: RemoteAddr, words: usize) -> Result<[u64; 4], FabricError> {
        let mut bucket = [0; 4];
        self.read_words(&[at], &mut bucket[..words]).await?;
        Ok(bucket)
    }

    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.read_halves(at, len, buf)
    }

    async fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> (Buf, Result<u64, FabricError>) {
        let mut value = [0];
        let word_first = self.toss();
        if word_first && let Err(error) = self.read_words(&[word], &mut value).await {
            return (buf, Err(error));
        }
        let (buf, done) = self.read_halves(at, len, buf).await;
        if !word_first && let Err(error) = self.read_words(&[word], &mut value).await {
            return (buf, Err(error));
        }
        (buf, done.map(|()| value[0]))
    }

    async fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> Result<u64, FabricError> {
        step().await;
        self.inner.compare_swap(at, expect, new).await
    }

    async fn fetch_add(&self, at: RemoteAddr, add: u64) -> Result<u64, FabricError> {
        step().await;
        self.inner.fetch_add(at, add).await
    }

    async fn write(&self, at: RemoteAddr, buf: Buf) -> (Buf, Result<(), FabricError>) {
        step().await;
        self.inner.write(at, buf).await
    }

    fn now_us(&self) -> u64 {
        self.run.steps.get() * STEP_US
    }

    fn random(&self) -> u64 {
        self.run.random.borrow_mut().random()
    }

    async fn pause(&self, us: u64) {
        let until = self.now_us() + us;
        while self.now_us() < until {
            step().await;
        }
    }
}
