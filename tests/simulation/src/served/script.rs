//! The work of a client: operations drawn from a seed, in lanes, each recorded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;

use loch::simulated::SimNet;
use loch_engines::operation::{Conditional, Expect, PutOptions};
use loch_engines::{EngineError, Kv, registry};
use loch_fabric::sim::SimEndpoint;
use loch_fabric::{Buf, FabricError, lanes};
use loch_history::{Answer, Ask, appended};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::recorder::Recorder;

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
    /// A client's patience.
    pub timeout_us: u64,
}

/// The work of a client's process.
pub trait Program {
    /// Works until the load is done.
    fn work(
        self: Box<Self>,
        number: u32,
        load: Load,
        recorder: Rc<Recorder>,
        seed: u64,
    ) -> Doing<'static, ()>;

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
    ) -> Doing<'static, ()> {
        Box::pin(async move {
            let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
            let (client, versions) = (&self.0, &RefCell::default());
            let lane = Lane { client, number, recorder: &recorder, load: &load, versions };
            let work = (0..load.ops).map(|_| lane.operation(&random));
            lanes::run(load.lanes, work, |()| ()).await;
            // If the client cannot detach in order, its node cleans up.
            let _ = client.detach().await;
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
                    Some(value) => Some((tag(&value)?, value.version())),
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
        let (key, kind, len) = {
            let random = &mut *random.borrow_mut();
            let lengths = self.load.value_bytes;
            let len = lengths[random.random_range(0..lengths.len())] - 8;
            (random.random_range(0..self.load.names.len() as u64), random.random_range(0..16), len)
        };
        let tag = self.recorder.tag();
        let numbers = key >= self.load.numbers_from;
        // Numbers have eight bytes.
        let value = value_of(tag, if numbers { 0 } else { len });
        let name = &self.load.names[key as usize][..];
        let (version, plain) = (self.versions.borrow().get(&key).copied(), PutOptions::default());
        match kind {
            0..=5 => self.get(key, name).await,
            6..=8 | 10 if kind < 10 || self.load.churns => {
                let put = || self.client.put(name, &value, plain);
                self.mutate(key, Ask::Put(tag), put, Answer::Stored).await;
            }
            9 => {
                let put = || self.client.put_if(name, &value, Expect::Absent, plain);
                self.mutate(key, Ask::PutIfAbsent(tag), put, conditional).await;
            }
            10 | 11 if version.is_some() && !self.load.churns => {
                let version = version.expect("it was looked at");
                let put = || self.client.put_if(name, &value, Expect::Version(version), plain);
                let ask = Ask::PutIfVersion { version, value: tag };
                self.mutate(key, ask, put, conditional).await;
            }
            12 if !numbers && !self.load.churns => {
                let append = || self.client.append(name, &value);
                self.mutate(key, Ask::Append(tag), append, Answer::Stored).await;
            }
            12 | 13 if numbers => {
                let add = || self.client.fetch_add(name, 3);
                self.mutate(key, Ask::Add(3), add, Answer::Before).await;
            }
            14 => {
                // The answer must be the same as a GET's, except for the value.
                let is = self.client.contains(name).await;
                assert!(is.is_ok() || matches!(is, Err(EngineError::Timeout { .. })), "{is:?}");
            }
            _ => {
                let delete = || self.client.delete(name);
                self.mutate(key, Ask::Delete, delete, Answer::Deleted).await;
            }
        }
    }

    async fn get(&self, key: u64, name: &[u8]) {
        let call = self.recorder.call(self.number, key, Ask::Get);
        match self.client.get(name, Buf::new()).await {
            Ok(found) => {
                let found = found.map(|value| {
                    self.versions.borrow_mut().insert(key, value.version());
                    (tag_of(&value).expect("no torn value is ever shown"), value.version())
                });
                self.recorder.answer(call, Answer::Found(found));
            }
            // A GET without an answer says nothing, and stays unknown.
            Err(EngineError::Timeout { .. }) => (),
            Err(error) => panic!("GET: {error}"),
        }
    }

    async fn mutate<T>(
        &self,
        key: u64,
        ask: Ask,
        operation: impl AsyncFnOnce() -> Result<T, EngineError>,
        answer: impl FnOnce(T) -> Answer,
    ) {
        let call = self.recorder.call(self.number, key, ask);
        match operation().await {
            Ok(told) => {
                let answer = answer(told);
                if let Answer::Stored(version) = answer {
                    self.versions.borrow_mut().insert(key, version);
                }
                self.recorder.answer(call, answer);
            }
            Err(EngineError::Ambiguous(FabricError::OutcomeUnknown { at })) => {
                self.recorder.unknown(call, self.load.timeout_us, at);
            }
            Err(EngineError::Ambiguous(_)) => (),
            Err(EngineError::Timeout { .. } | EngineError::OutOfMemory { .. }) => {
                self.recorder.answer(call, Answer::NoEffect);
            }
            Err(EngineError::ValueTooLong { .. }) if matches!(ask, Ask::Append(_)) => {
                self.recorder.answer(call, Answer::NoEffect);
            }
            Err(error) => panic!("{ask:?}: {error}"),
        }
    }
}

fn conditional(told: Conditional) -> Answer {
    match told {
        Conditional::Done(version) => Answer::Stored(version),
        Conditional::Refused(version) => Answer::Refused(version),
    }
}
