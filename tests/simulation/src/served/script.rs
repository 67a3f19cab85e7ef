//! The work of a client: operations drawn from a seed, in lanes, each recorded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use loch::simulated::SimNet;
use loch_engines::operation::{PutOptions, Value};
use loch_engines::{EngineError, Kv, registry};
use loch_fabric::sim::SimEndpoint;
use loch_fabric::{Buf, lanes};
use loch_history::{Answer, Ask, appended};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::recorder::Recorder;
use crate::ask::ask;

/// A client of any engine.
pub type Client = registry::Client<SimNet<SimEndpoint>>;

/// A client's operations, or another part of its work.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The amount and the kind of a client's work.
pub struct Load {
    pub lanes: usize,
    pub ops: usize,
    /// The names of all keys.
    pub names: Rc<[Vec<u8>]>,
    /// The keys from this one on hold numbers that are added to.
    pub numbers_from: u64,
    /// Lengths of the other keys' values.
    pub value_bytes: &'static [usize],
    /// Whether most keys come and go.
    pub churns: bool,
    /// The share of operations that are dropped before they are over.
    pub cancels: f64,
    /// A client's patience.
    pub timeout_us: u64,
}

/// The work of a client's process.
pub trait Program {
    /// Works until the load is done. Returns whether the client has left in order.
    fn work(
        self: Box<Self>,
        number: u32,
        load: Load,
        recorder: Rc<Recorder>,
        seed: u64,
    ) -> Doing<'static, bool>;

    /// Reads every key at the end.
    fn read_all<'a>(
        &'a self,
        names: &'a [Vec<u8>],
        recorder: &'a Recorder,
    ) -> Doing<'a, Result<(), String>>;
}

/// A value: its tag, with the number of following bytes in the low half, and bytes that follow from
/// the tag.
pub fn value_of(tag: u64, len: usize) -> Vec<u8> {
    let filler = (0..len).map(|i| (tag >> 32) as u8 ^ i as u8);
    (tag | len as u64).to_le_bytes().into_iter().chain(filler).collect()
}

/// The tag of a value, if it is whole: a number, or a value that was put with the values that were
/// appended.
pub fn tag_of(value: &[u8]) -> Option<u64> {
    if let Ok(number) = value.try_into() {
        return Some(u64::from_le_bytes(number));
    }
    let (mut left, mut whole) = (value, None);
    while !left.is_empty() {
        let head = u64::from_le_bytes(*left.first_chunk()?);
        let (tag, len) = (head & !LEN, (head & LEN) as usize);
        // A torn value may claim any length, but its length here is the real one.
        left = left.strip_prefix(&value_of(tag, len.min(left.len()))[..])?;
        whole = Some(whole.map_or(tag, |whole| appended(whole, tag)));
    }
    whole
}

/// A time at which no run is still going on.
const FAR_OFF_MS: u64 = 1 << 60;

/// The half of a value's first word that holds its length: tags are zero there.
const LEN: u64 = 0xffff_ffff;

/// A client that has only the operations of all engines.
pub struct Plain(pub Client);

impl Program for Plain {
    fn work(
        self: Box<Self>,
        number: u32,
        load: Load,
        recorder: Rc<Recorder>,
        seed: u64,
    ) -> Doing<'static, bool> {
        Box::pin(async move {
            let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
            let (client, versions) = (&self.0, &RefCell::default());
            let lane = Lane { client, number, recorder: &recorder, load: &load, versions };
            let work = (0..load.ops).map(|_| lane.operation(&random));
            lanes::run(load.lanes, work, |()| ()).await;
            // If the client cannot detach, its node cleans up.
            client.detach().await.is_ok()
        })
    }

    fn read_all<'a>(
        &'a self,
        names: &'a [Vec<u8>],
        recorder: &'a Recorder,
    ) -> Doing<'a, Result<(), String>> {
        Box::pin(async move {
            for (key, name) in (0..).zip(names) {
                let call = recorder.call(u32::MAX, key, Ask::Get);
                let found = self.0.get(name, Buf::new()).await;
                let found = found.map_err(|error| format!("at the end: {error}"))?;
                let tag = |value: &[u8]| tag_of(value).ok_or("a torn value at the end");
                let found = match found {
                    Some(value) => Some((tag(&value)?, value.version().as_u64())),
                    None => None,
                };
                recorder.answer(call, Answer::Found(found));
            }
            Ok(())
        })
    }
}

struct Lane<'a> {
    client: &'a Client,
    number: u32,
    recorder: &'a Recorder,
    load: &'a Load,
    /// The versions that were seen last, by key.
    versions: &'a RefCell<HashMap<u64, u64>>,
}

impl Lane<'_> {
    async fn operation(&self, random: &RefCell<ChaCha8Rng>) {
        let (key, kind, len, polls) = {
            let random = &mut *random.borrow_mut();
            let lengths = self.load.value_bytes;
            let len = lengths[random.random_range(0..lengths.len())] - 8;
            let key = random.random_range(0..self.load.names.len() as u64);
            let kind = random.random_range(0..16);
            let drops = self.load.cancels > 0.0 && random.random_bool(self.load.cancels);
            (key, kind, len, drops.then(|| random.random_range(1..60)))
        };
        let (name, is_number) = (&self.load.names[key as usize][..], self.is_number(key));
        let Some(asked) = self.draw(key, kind) else {
            // The answer must be the same as a GET's, except for the value.
            let is = self.client.contains(name).await;
            assert!(is.is_ok() || matches!(is, Err(EngineError::Timeout { .. })), "{is:?}");
            return;
        };
        let call = self.recorder.call(self.number, key, asked);
        // Numbers have eight bytes.
        let bytes_of = |tag| value_of(tag, if is_number { 0 } else { len });
        let tag_of = |value: &Value| tag_of(value).expect("no torn value is ever shown");
        let options = match asked {
            Ask::Touch(tag) if tag >> 33 & 1 == 1 => PutOptions { expires_at_ms: Some(FAR_OFF_MS) },
            _ => PutOptions::default(),
        };
        let asks = ask(self.client, name, asked, options, bytes_of, tag_of);
        // The outcome of a dropped operation stays unknown.
        let Some(answered) = within(polls, asks).await else { return };
        if let Ok(Answer::Found(Some((_, version))) | Answer::Stored(version)) = answered {
            self.versions.borrow_mut().insert(key, version);
        }
        self.recorder.settle(call, answered, self.load.timeout_us);
    }

    fn is_number(&self, key: u64) -> bool {
        key >= self.load.numbers_from
    }

    /// The operation of this kind; `None`: whether the key has a value, which histories do not
    /// record.
    fn draw(&self, key: u64, kind: u32) -> Option<Ask> {
        let (tag, churns, is_number) = (self.recorder.tag(), self.load.churns, self.is_number(key));
        let version = self.versions.borrow().get(&key).copied().filter(|_| !churns);
        Some(match (kind, version) {
            (0..=5, _) => Ask::Get,
            (6..=8, _) => Ask::Put(tag),
            (10, _) if churns => Ask::Put(tag),
            (9, _) => Ask::PutIfAbsent(tag),
            (10, Some(version)) if (tag ^ tag >> 32) & 3 == 0 => Ask::DeleteIfVersion(version),
            (10 | 11, Some(version)) => Ask::PutIfVersion { version, value: tag },
            (12, _) if !is_number && !churns => Ask::Append(tag),
            (13, _) if !is_number && !churns => Ask::Touch(tag),
            (12 | 13, _) if is_number => Ask::Add(3),
            (14, _) => return None,
            _ => Ask::Delete,
        })
    }
}

/// The output of a future, unless it is dropped after so many polls.
async fn within<T>(polls: Option<u32>, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut polled) = (pin!(future), 0);
    poll_fn(|cx| {
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == Some(polled) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
