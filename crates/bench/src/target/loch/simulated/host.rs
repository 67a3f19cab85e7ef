//! The endpoint of a process that reaches its own node's memory with its processor.
//!
//! The simulated fabric's own endpoint goes through the network card for every verb, also to its
//! own node, as a client of nessie must if cards execute atomics. Workers and their clients need
//! not: only processors change the memory that they change (nessie §5). So here READs, WRITEs and
//! atomics of the own node are loads and stores, which take the processor time in [`Costs`] and are
//! no verbs; all others go through the fabric.
//!
//! In the fabric, each datagram has the sending card to itself. Here the datagrams of one node take
//! turns: a worker whose card is behind waits for it.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use loch::simulated::Endpoint;
use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::sim::{ProcessId, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, FabricError, Messages, RegionId, RemoteAddr, UnreliableWrites};

use super::costs::Costs;

/// How far a card may be behind before a sender waits for it: the length of a send queue.
const QUEUE_SENDS: f64 = 64.0;
/// Pauses up to this length are those of a process that polls.
const POLL_US: u64 = 1;

/// When the card of a node has sent all its messages, in nanoseconds.
pub type Card = Rc<Cell<f64>>;

/// The endpoint of a worker, or of a client that polls.
pub struct Host {
    endpoint: SimEndpoint,
    world: World,
    home: RegionId,
    costs: Costs,
    card: Card,
    /// For a worker: messages lie in its own memory from here on, and each that it writes there is
    /// a reply.
    replies_at: Option<u64>,
    /// Processor time that is not yet a whole nanosecond.
    fraction_ns: Cell<f64>,
    /// When this process last had nothing to do.
    idled_ns: Cell<u64>,
    turn: Rc<Turn>,
}

/// The work of a worker's processor since its last turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Whether it did more than poll.
    pub worked: Cell<bool>,
    /// How long it waited for its card.
    pub waited_ns: Cell<u64>,
    /// Requests that it answered.
    pub answered: Cell<u64>,
}

impl Host {
    /// The endpoint of a client.
    pub fn client(world: &World, process: ProcessId, home: RegionId, costs: Costs) -> Self {
        Self {
            endpoint: world.endpoint(process),
            world: world.clone(),
            home,
            costs,
            card: Card::default(),
            replies_at: None,
            fraction_ns: Cell::new(0.0),
            idled_ns: Cell::new(u64::MAX),
            turn: Rc::default(),
        }
    }

    /// The endpoint of a worker: each message that it sends, WRITEs elsewhere or stores in its own
    /// memory from `replies_at` on is the answer to a request. Its work is noted in `turn`.
    pub fn worker(self, replies_at: u64, card: Card, turn: Rc<Turn>) -> Self {
        Self { replies_at: Some(replies_at), card, turn, ..self }
    }

    /// Lets the processor's next turn come at once.
    pub async fn go_on(&self) {
        self.endpoint.pause(0).await;
    }

    fn is_own(&self, at: RemoteAddr) -> bool {
        at.region() == self.home
    }

    fn charge(&self, ns: f64) {
        let sum = self.fraction_ns.get() + ns;
        self.endpoint.work(sum as u64);
        self.fraction_ns.set(sum.fract());
    }

    /// Charges an access to memory and `bytes` copied from there.
    fn charge_read(&self, bytes: usize) {
        self.turn.worked.set(true);
        self.charge(self.costs.memory_ns as f64 + bytes as f64 * self.costs.byte_ns);
    }

    /// A client lets the time of its own accesses pass before it continues, so that it is part of
    /// their latencies. The time of a worker's accesses shows in its reply, which leaves later.
    async fn let_pass(&self) {
        if self.replies_at.is_none() {
            self.go_on().await;
        }
    }

    /// Charges a request, if this is its answer.
    fn charge_reply(&self, at: RemoteAddr) {
        let is_reply = self.replies_at.is_some_and(|from| !self.is_own(at) || at.offset() >= from);
        if is_reply {
            self.turn.worked.set(true);
            self.answers(1);
        }
    }

    /// Charges several requests.
    fn answers(&self, requests: u64) {
        self.turn.answered.set(self.turn.answered.get() + requests);
        self.endpoint.work(self.costs.request_ns * requests);
    }

    /// Own bytes, which may begin and end inside words.
    fn copy(&self, at: RemoteAddr, len: usize, buf: &mut Buf) -> Result<(), FabricError> {
        let first = RemoteAddr::new(at.region(), at.offset() & !7);
        let skip = (at.offset() - first.offset()) as usize;
        let mut left = len;
        for (index, skip) in std::iter::once(skip).chain(std::iter::repeat(0)).enumerate() {
            if left == 0 {
                break;
            }
            let word = self.endpoint.load(first.add(index as u64 * 8))?.to_le_bytes();
            let part = &word[skip..8.min(skip + left)];
            buf.extend_from_slice(part);
            left -= part.len();
        }
        Ok(())
    }

    fn load_words(&self, at: RemoteAddr, out: &mut [u64]) -> Result<(), FabricError> {
        for (word, out) in (0..).zip(out) {
            *out = self.endpoint.load(at.add(word * 8))?;
        }
        Ok(())
    }

    /// The outcome of a READ, see [`answered`].
    async fn answered_read<T>(&self, outcome: Result<impl Future<Output = T>, T>) -> T {
        if outcome.is_err() {
            self.let_pass().await;
        }
        answered(outcome).await
    }

    /// Changes an own word in one step: no other process has a turn in it.
    fn exchange(&self, at: RemoteAddr, new: impl Fn(u64) -> u64) -> Result<u64, FabricError> {
        let old = self.endpoint.load(at)?;
        self.endpoint.announce(at, new(old))?;
        Ok(old)
    }

    /// The node's card takes up the messages of a doorbell, one after the other.
    fn occupy_card(&self, lengths: impl Iterator<Item = usize>) {
        let now = self.world.now_ns() as f64;
        let sends: f64 = lengths.map(|len| self.costs.of_send(len)).sum();
        let free = self.card.get().max(now) + sends;
        self.card.set(free);
        let behind = (free - now - QUEUE_SENDS * self.costs.send_ns).max(0.0) as u64;
        self.endpoint.work(behind);
        self.turn.waited_ns.set(self.turn.waited_ns.get() + behind);
    }
}

/// The outcome of a verb: that of another host's memory comes, that of the own is there.
async fn answered<T>(outcome: Result<impl Future<Output = T>, T>) -> T {
    match outcome {
        Ok(far) => far.await,
        Err(own) => own,
    }
}

impl Fabric for Host {
    loch_fabric::pass_on!(
        caps counters is_mapped store_before store_after announce load_bytes reload raw posted
        is_settled
        now_us wall_ms random => endpoint
    );

    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<(), FabricError>> + 'a {
        self.answered_read(if at.iter().all(|at| self.is_own(*at)) {
            self.charge_read(out.len() * 8);
            let each = out.len() / at.len();
            let mut reads = at.iter().zip(out.chunks_exact_mut(each));
            Err(reads.try_for_each(|(at, out)| self.load_words(*at, out)))
        } else {
            Ok(self.endpoint.read_words(at, out))
        })
    }

    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX], FabricError>> + '_ {
        let far = (!self.is_own(at)).then(|| self.endpoint.read_bucket(at, words));
        if far.is_none() {
            self.charge_read(words * 8);
        }
        async move {
            if let Some(far) = far {
                return far.await;
            }
            self.let_pass().await;
            let mut bucket = [0; BUCKET_WORDS_MAX];
            self.load_words(at, &mut bucket[..words])?;
            Ok(bucket)
        }
    }

    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        let own = self.is_own(at).then(|| {
            self.charge_read(len);
            self.copy(at, len, &mut buf)
        });
        self.answered_read(match own {
            Some(done) => Err((buf, done)),
            None => Ok(self.endpoint.read(at, len, buf)),
        })
    }

    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64, FabricError>)> + '_ {
        let own = (self.is_own(word) && self.is_own(at)).then(|| {
            self.charge_read(len + 8);
            self.copy(at, len, &mut buf).and_then(|()| self.endpoint.load(word))
        });
        self.answered_read(match own {
            Some(done) => Err((buf, done)),
            None => Ok(self.endpoint.read_word_and_bytes(word, at, len, buf)),
        })
    }

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        answered(match self.is_own(at) {
            true => Err(self.exchange(at, |old| if old == expect { new } else { old })),
            false => Ok(self.endpoint.compare_swap(at, expect, new)),
        })
    }

    fn fetch_add(
        &self,
        at: RemoteAddr,
        add: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        answered(match self.is_own(at) {
            true => Err(self.exchange(at, |old| old.wrapping_add(add))),
            false => Ok(self.endpoint.fetch_add(at, add)),
        })
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        if self.is_own(at) {
            return self.store(at, &[bytes]);
        }
        self.charge_reply(at);
        self.endpoint.work(self.costs.doorbell_ns);
        self.endpoint.write_unsignaled(at, bytes)
    }

    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.charge_reply(at);
        answered(if self.is_own(at) {
            let done = self.endpoint.store(at, &[&buf]);
            Err((buf, done))
        } else {
            Ok(self.endpoint.write(at, buf))
        })
    }

    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.charge_reply(at);
        self.endpoint.store(at, parts)
    }

    fn load(&self, at: RemoteAddr) -> Result<u64, FabricError> {
        self.charge(8.0 * self.costs.byte_ns);
        self.endpoint.load(at)
    }

    /// A process that only lets others have a turn polls again after [`Costs::poll_ns`], however
    /// many of its lanes do so.
    async fn pause(&self, us: u64) {
        if us > POLL_US {
            return self.endpoint.pause(us).await;
        }
        let now = self.world.now_ns();
        if self.idled_ns.replace(now) != now {
            self.endpoint.work(self.costs.poll_ns);
        }
        self.endpoint.pause(0).await;
    }
}

impl Messages for Host {
    type Peer = ProcessId;

    loch_fabric::pass_on!(message_bytes_max address peer try_receive => endpoint);

    fn send_all(&self, messages: &[(ProcessId, &[u8])]) -> Result<(), FabricError> {
        self.turn.worked.set(true);
        self.endpoint.work(self.costs.doorbell_ns);
        if self.replies_at.is_some() {
            self.answers(messages.len() as u64);
        }
        self.occupy_card(messages.iter().map(|(_, message)| message.len()));
        self.endpoint.send_all(messages)
    }
}

impl Endpoint for Host {
    fn sim(&self) -> &SimEndpoint {
        &self.endpoint
    }

    fn into_sim(self) -> SimEndpoint {
        self.endpoint
    }
}

impl UnreliableWrites for Host {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.charge_reply(at);
        self.endpoint.work(self.costs.doorbell_ns);
        self.endpoint.write_unreliable(at, bytes)
    }
}
