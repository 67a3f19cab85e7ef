//! A client's operations on keys of three kinds: values of any length, numbers, and vectors whose
//! elements are always equal, so that a half-updated vector shows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::operation::{PutOptions, Value};
use loch_engines::{EngineError, Kv};
use loch_fabric::{Buf, Fabric, lanes};
use loch_history::{Answer, Ask, Update};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Config, VALUE_BYTES_MAX};
use crate::ask::ask;
use crate::served::memory::TRAPS;
use crate::served::recorder::Recorder;
use crate::served::script::{Client, Doing, Load, Program, tag_of, value_of};

/// The kind of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A tag, and bytes that follow from it.
    Bytes,
    /// A number.
    Number,
    /// This many times the same number.
    Vector(usize),
}

impl Kind {
    fn of(key: u64) -> Self {
        match key % 3 {
            0 => Self::Bytes,
            1 => Self::Number,
            // Three lengths: inline, in a slab, and too long to be kept at hand after a store.
            _ => Self::Vector([3, 37, 150][key as usize / 3 % 3]),
        }
    }

    /// The bytes of a value.
    fn write(self, tag: u64, len: usize) -> Vec<u8> {
        match self {
            Self::Bytes => value_of(tag, len),
            Self::Number => tag.to_le_bytes().to_vec(),
            Self::Vector(elements) => tag.to_le_bytes().repeat(elements),
        }
    }

    /// The number that represents a value.
    fn read(self, bytes: &[u8]) -> u64 {
        match self {
            Self::Bytes => tag_of(bytes).expect("no torn value is ever shown"),
            Self::Number => u64::from_le_bytes(bytes.try_into().expect("a number has 8 bytes")),
            Self::Vector(elements) => {
                let (numbers, rest) = bytes.as_chunks::<8>();
                let is_whole = numbers.len() == elements && rest.is_empty();
                let is_even = numbers.iter().all(|number| *number == numbers[0]);
                assert!(is_whole && is_even, "a vector that is half updated: {numbers:?}");
                u64::from_le_bytes(numbers[0])
            }
        }
    }
}

fn lambda(function: Builtin, operand: u64) -> Lambda {
    let function = Function::Builtin(function);
    Lambda { function, element: Element::U64, operand, second: 0 }
}

/// A client, with the versions that it remembers.
pub struct Asker {
    client: Client,
    config: Rc<Config>,
    /// The versions and numbers that were seen last, by key.
    seen: RefCell<HashMap<u64, (u64, u64)>>,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
enum Action {
    Get,
    Contains,
    /// A reduction by this function, whose result is an element.
    Reduce(Builtin),
    /// A filter that lets all elements through.
    Filter,
    /// A PUT of a value that expires at this time, if ever: long ago, or in a far future.
    Put(Option<u64>),
    PutIfAbsent,
    PutIfVersion(u64),
    DeleteIfVersion(u64),
    Append,
    /// A TOUCH with this expiry, if any: long ago, or in a far future.
    Touch(Option<u64>),
    Delete,
    Add(u64),
    Update(Update),
    /// An addition to all elements of a vector: of one operand, or of one for each element. It
    /// returns the elements before, or not.
    AddAll {
        add: u64,
        each: bool,
        returns: bool,
    },
    /// A function that fails after it has changed a half.
    Trap,
}

const LONG_AGO_MS: u64 = 1;
const FAR_OFF_MS: u64 = 1 << 60;

/// The next operation of a lane.
#[derive(Clone, Copy, Debug)]
struct Task {
    key: u64,
    action: Action,
    /// The value's tag, and bytes that follow from it.
    tag: u64,
    len: usize,
    dropped_after_us: Option<u64>,
}

impl Asker {
    pub fn new(client: Client, config: Rc<Config>) -> Self {
        Self { client, config, seen: RefCell::default() }
    }

    fn draw(&self, random: &mut ChaCha8Rng, keys: u64, tag: u64) -> Task {
        let key = random.random_range(0..keys);
        let (version, number) = self.seen.borrow().get(&key).copied().unwrap_or_default();
        let has_versions = self.config.versions && version > 0;
        let action = match (random.random_range(0..16), Kind::of(key)) {
            (0..=2, _) => Action::Get,
            (3, Kind::Vector(_)) => Action::Filter,
            (4, Kind::Vector(_)) => {
                Action::Reduce([Builtin::Max, Builtin::Min][random.random_range(0..2)])
            }
            (3, _) => Action::Contains,
            (4 | 5, _) => Action::Put(None),
            (6, _) => Action::Put(Some(LONG_AGO_MS)),
            (7, _) => Action::Put(Some(FAR_OFF_MS)),
            (8, _) => Action::PutIfAbsent,
            (9, _) if has_versions => Action::PutIfVersion(version),
            (10, _) if has_versions && tag >> 33 & 1 == 1 => Action::DeleteIfVersion(version),
            (10, _) => Action::Delete,
            (11 | 12, Kind::Bytes) => Action::Append,
            (13, Kind::Bytes) => Action::Touch(match tag >> 33 & 3 {
                0 => None,
                1 => Some(LONG_AGO_MS),
                _ => Some(FAR_OFF_MS),
            }),
            (_, Kind::Bytes) => Action::Put(None),
            (11 | 12, Kind::Number) => Action::Add(3),
            (13, Kind::Number) => Action::Update(Update::AddSaturating(
                [5, u64::MAX - 7][usize::from(random.random_bool(0.2))],
            )),
            (14, Kind::Number) => Action::Update(Update::Exchange(tag)),
            (15, Kind::Number) => {
                Action::Update(Update::CompareSwap { expected: number, value: tag })
            }
            (11..=14, Kind::Vector(_)) => {
                Action::AddAll { add: 7, each: random.random(), returns: random.random() }
            }
            _ => Action::Trap,
        };
        let lens = [0, 0, 8, 24, 100, 292, 700, VALUE_BYTES_MAX - 8];
        let len = lens[random.random_range(0..lens.len())];
        let drops = random.random_bool(self.config.cancels);
        let dropped_after_us = drops.then(|| random.random_range(0..100));
        Task { key, action, tag, len, dropped_after_us }
    }

    /// The operation as the history records it; `None` if it can have no effect.
    fn ask_of(&self, task: &Task) -> Option<Ask> {
        Some(match task.action {
            Action::Get | Action::Contains | Action::Reduce(_) | Action::Filter => Ask::Get,
            // The value has expired from its very first moment.
            Action::Put(Some(LONG_AGO_MS)) | Action::Touch(Some(LONG_AGO_MS)) => Ask::Delete,
            Action::Touch(_) => Ask::Touch(task.tag),
            Action::Put(_) => Ask::Put(task.tag),
            Action::PutIfAbsent => Ask::PutIfAbsent(task.tag),
            Action::PutIfVersion(version) => Ask::PutIfVersion { version, value: task.tag },
            Action::Append => Ask::Append(task.tag),
            Action::Delete => Ask::Delete,
            Action::DeleteIfVersion(version) => Ask::DeleteIfVersion(version),
            Action::Add(add) => Ask::Add(add),
            Action::Update(update) => Ask::Update(update),
            Action::AddAll { add, .. } => Ask::Update(Update::AddIfPresent(add)),
            Action::Trap => return None,
        })
    }

    /// The answer as a table tells it whose values may have no versions.
    fn told(&self, task: &Task, answer: Answer) -> Answer {
        let (version, number) = match answer {
            Answer::Found(Some((number, version))) => (version, number),
            Answer::Stored(version) => (version, task.tag),
            Answer::Refused(Some(_)) if !self.config.versions => return Answer::Held,
            answer => return answer,
        };
        self.seen.borrow_mut().insert(task.key, (version, number));
        match answer {
            answer if self.config.versions => answer,
            Answer::Found(_) => Answer::Value(number),
            _ => Answer::Done,
        }
    }

    async fn perform(&self, task: &Task, name: &[u8]) -> Result<Answer, EngineError> {
        let (client, kind) = (&self.client, Kind::of(task.key));
        let bytes_of = |tag| kind.write(tag, task.len);
        let number = |value: Option<u64>| value.map_or(Answer::Found(None), Answer::Value);
        Ok(match task.action {
            Action::Contains => match client.contains(name).await? {
                true => Answer::Present,
                false => Answer::Found(None),
            },
            Action::Reduce(function) => {
                let first = if function == Builtin::Min { u64::MAX } else { 0 };
                number(self.client.reduce(name, lambda(function, first)).await?)
            }
            Action::Filter => {
                let all = lambda(Builtin::NotEqual, u64::MAX);
                let found = self.client.filter(name, all, Buf::new()).await?;
                number(found.map(|value| kind.read(&value)))
            }
            Action::Put(expires_at_ms @ Some(LONG_AGO_MS)) => {
                client.put(name, &bytes_of(task.tag), PutOptions { expires_at_ms }).await?;
                Answer::Done
            }
            Action::Touch(expires_at_ms @ Some(LONG_AGO_MS)) => {
                let touched = client.touch(name, PutOptions { expires_at_ms }).await?;
                Answer::Deleted(touched.is_some())
            }
            Action::Update(update) => {
                Answer::Before(self.client.update(name, scalar(update)).await?)
            }
            Action::AddAll { add, each, returns } => {
                self.add_all(name, kind, add, each, returns).await?
            }
            Action::Trap => self.trap(name, kind).await?,
            Action::Get
            | Action::Put(_)
            | Action::PutIfAbsent
            | Action::PutIfVersion(_)
            | Action::Append
            | Action::Touch(_)
            | Action::Delete
            | Action::DeleteIfVersion(_)
            | Action::Add(_) => {
                let asked = self.ask_of(task).expect("it has effects");
                let expires_at_ms = match task.action {
                    Action::Put(expires_at_ms) | Action::Touch(expires_at_ms) => expires_at_ms,
                    _ => None,
                };
                let (options, tag_of) = (PutOptions { expires_at_ms }, |v: &Value| kind.read(v));
                self.told(task, ask(client, name, asked, options, bytes_of, tag_of).await?)
            }
        })
    }

    async fn add_all(
        &self,
        name: &[u8],
        kind: Kind,
        add: u64,
        each: bool,
        returns: bool,
    ) -> Result<Answer, EngineError> {
        let (client, lambda, operands) =
            (&self.client, lambda(Builtin::Add, add), kind.write(add, 0));
        if !returns {
            let elements = match each {
                true => client.update_each(name, lambda, &operands).await?,
                false => client.update_all(name, lambda).await?,
            };
            let Some(elements) = elements else { return Ok(Answer::Refused(None)) };
            assert_eq!(elements, operands.len() as u64 / 8, "all were updated");
            return Ok(Answer::Done);
        }
        let before = match each {
            true => client.update_each_returning(name, lambda, &operands, Buf::new()).await?,
            false => client.update_all_returning(name, lambda, Buf::new()).await?,
        };
        Ok(before.map_or(Answer::Refused(None), |before| Answer::Before(kind.read(&before))))
    }

    async fn trap(&self, name: &[u8], kind: Kind) -> Result<Answer, EngineError> {
        let trap = Lambda { function: Function::User(TRAPS), ..lambda(Builtin::Add, 1) };
        let trapped = match kind {
            Kind::Number => self.client.update(name, trap).await.map(Some),
            _ => self.client.update_all(name, trap).await,
        };
        match trapped {
            Ok(None) | Err(EngineError::FunctionFailed { .. }) => Ok(Answer::NoEffect),
            Ok(Some(_)) => panic!("a function that fails was executed"),
            Err(error) => Err(error),
        }
    }
}

fn scalar(update: Update) -> Lambda {
    match update {
        Update::AddSaturating(add) => lambda(Builtin::SaturatingAdd, add),
        Update::Exchange(value) => lambda(Builtin::Exchange, value),
        Update::CompareSwap { expected, value } => {
            Lambda { second: expected, ..lambda(Builtin::CompareSwap, value) }
        }
        Update::AddIfPresent(_) => unreachable!("numbers are there, or 0"),
    }
}

/// A client at work.
struct Work<'a> {
    asker: &'a Asker,
    number: u32,
    timeout_us: u64,
    names: &'a [Vec<u8>],
    recorder: &'a Recorder,
}

impl Work<'_> {
    async fn operation(&self, task: Task) {
        let Some(after_us) = task.dropped_after_us else { return self.perform(task).await };
        let fabric = self.asker.client.fabric();
        let until = fabric.now_us() + after_us;
        let mut performs = pin!(self.perform(task));
        poll_fn(|cx| match fabric.now_us() >= until {
            true => Poll::Ready(()),
            false => performs.as_mut().poll(cx),
        })
        .await;
    }

    async fn perform(&self, task: Task) {
        let call =
            self.asker.ask_of(&task).map(|ask| self.recorder.call(self.number, task.key, ask));
        let ended = self.asker.perform(&task, &self.names[task.key as usize]).await;
        match (call, ended) {
            // A client that waits for a dropped lane gets this error, whatever the worker knows.
            (Some(_), Err(EngineError::Ambiguous(_))) if self.asker.config.cancels > 0.0 => (),
            (Some(call), ended) => self.recorder.settle(call, ended, self.timeout_us),
            (None, Ok(_) | Err(EngineError::Ambiguous(_) | EngineError::Timeout { .. })) => (),
            (None, Err(EngineError::OutOfMemory { .. })) => (),
            (None, Err(error)) => panic!("{task:?}: {error}"),
        }
    }
}

impl Program for Asker {
    fn work(
        self: Box<Self>,
        number: u32,
        load: Load,
        recorder: Rc<Recorder>,
        seed: u64,
    ) -> Doing<'static, bool> {
        Box::pin(async move {
            let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
            let (asker, recorder, names) = (&*self, &*recorder, &*load.names);
            let keys = names.len() as u64;
            let work = Work { asker, number, timeout_us: load.timeout_us, names, recorder };
            let (work, random) = (&work, &random);
            let operations = (0..load.ops).map(|_| async move {
                let task = asker.draw(&mut random.borrow_mut(), keys, recorder.tag());
                work.operation(task).await;
            });
            lanes::run(load.lanes, operations, |()| ()).await;
            asker.client.detach().await.is_ok()
        })
    }

    fn read_all<'a>(
        &'a self,
        names: &'a [Vec<u8>],
        recorder: &'a Recorder,
    ) -> Doing<'a, Result<(), String>> {
        Box::pin(async move {
            for (key, name) in (0..).zip(names) {
                let (action, tag, len) = (Action::Get, 0, 0);
                let task = Task { key, action, tag, len, dropped_after_us: None };
                let call = recorder.call(u32::MAX, key, Ask::Get);
                let answer = self.perform(&task, name).await;
                let answer = answer.map_err(|error| format!("at the end: {error}"))?;
                recorder.answer(call, answer);
            }
            Ok(())
        })
    }
}
