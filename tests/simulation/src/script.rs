//! The work of a client, and the notes that it makes.

mod batches;
mod pins;
mod rests;
mod scans;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use loch_engines::nessie::AnyClient;
use loch_engines::operation::{PutOptions, Value};
use loch_engines::{EngineError, Kv, nessie};
use loch_fabric::sim::{ProcessId, SimEndpoint, World};
use loch_fabric::{Fabric, lanes};
use loch_history::{Answer, Ask, Operation, Outcome, appended};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Client;
use crate::ask::ask;
use crate::cluster::reconnect;
use crate::workload::Setting;

/// The state that all clients of a run share.
pub struct Notes {
    pub world: World,
    pub operations: RefCell<Vec<Operation>>,
    /// The process of each client.
    pub processes: RefCell<Vec<ProcessId>>,
    /// Answers that no store gives; each ends the run.
    pub absurd: RefCell<Vec<String>>,
    values: RefCell<u64>,
    /// Versions that clients were told, by key: conditional PUTs ask for one of the last.
    versions: RefCell<BTreeMap<u64, Vec<u64>>>,
    /// Operations whose futures were dropped, by process, with the mark up to which the process
    /// had posted verbs by then.
    dropped: RefCell<Vec<(ProcessId, usize, u64)>>,
    /// The clients that have done their work, and rest.
    resting: Cell<usize>,
    /// Keys that are never deleted, and have a value by now.
    stays: RefCell<BTreeSet<u64>>,
    /// The expiries of values, as operations that no client called.
    pub expiries: RefCell<Vec<Operation>>,
    /// When a value expires, by the clock of its writer.
    expires_at_ms: RefCell<BTreeMap<u64, u64>>,
    /// The expiries that TOUCHes gave the value of a key, whichever value that was.
    touched_ms: RefCell<BTreeMap<u64, Vec<Option<u64>>>>,
}

impl Notes {
    pub fn new(world: World) -> Self {
        Self {
            world,
            operations: RefCell::default(),
            processes: RefCell::default(),
            absurd: RefCell::default(),
            values: RefCell::new(1 << 20),
            versions: RefCell::default(),
            dropped: RefCell::default(),
            resting: Cell::default(),
            stays: RefCell::default(),
            expiries: RefCell::default(),
            expires_at_ms: RefCell::default(),
            touched_ms: RefCell::default(),
        }
    }

    /// Notes that a value is about to be written that expires after `ttl_ms` by the clock of its
    /// writer. Another clock may reach that time sooner, by the difference between two clocks.
    fn expires(&self, key: u64, value: u64, now_ms: u64, ttl_ms: u64, skew_ms: u64) -> PutOptions {
        let at = now_ms + ttl_ms;
        let soonest_ms = (self.world.now_ns() / 1_000_000 + ttl_ms).saturating_sub(skew_ms);
        self.expiries.borrow_mut().push(Operation {
            client: u32::MAX,
            key,
            ask: Ask::Expire(value),
            called: self.world.now_ns().max(soonest_ms * 1_000_000),
            returned: u64::MAX,
            outcome: Outcome::Unknown,
        });
        self.expires_at_ms.borrow_mut().insert(value, at);
        PutOptions { expires_at_ms: Some(at) }
    }

    /// Notes that a value is about to be touched.
    fn touches(&self, key: u64, options: PutOptions) {
        self.touched_ms.borrow_mut().entry(key).or_default().push(options.expires_at_ms);
    }

    /// A client begins an operation. Returns the operation's number.
    fn called(
        &self,
        client: &impl Kv<Fabric = SimEndpoint>,
        number: u32,
        key: u64,
        ask: Ask,
    ) -> usize {
        let operation = Operation {
            client: number,
            key,
            ask,
            called: self.world.now_ns(),
            returned: u64::MAX,
            outcome: Outcome::Unknown,
        };
        self.operations.borrow_mut().push(operation);
        self.processes.borrow_mut().push(client.fabric().process());
        self.operations.borrow().len() - 1
    }

    /// The outcome of an operation that failed.
    fn failed(&self, client: u32, key: u64, ask: Ask, error: &EngineError) -> Outcome {
        match error {
            EngineError::Ambiguous(_) => Outcome::Unknown,
            EngineError::IndexFull { .. }
            | EngineError::OutOfMemory { .. }
            | EngineError::Timeout { .. }
            | EngineError::Fabric(_) => Outcome::Known(Answer::NoEffect),
            EngineError::ValueTooLong { .. } if matches!(ask, Ask::Append(_)) => {
                Outcome::Known(Answer::NoEffect)
            }
            error => {
                let told = format!("client {client}: {ask:?} of {key}: {error}");
                self.absurd(told);
                Outcome::Unknown
            }
        }
    }

    /// The tag of a value that was found for a key by an operation which began at `called_ms`.
    fn tag_of(&self, found: &Value, key: u64, called_ms: u64, setting: &Setting) -> u64 {
        let is_number = key < setting.numbers;
        let pieces = pieces_of(found, setting, is_number);
        let tag = pieces.iter().copied().reduce(appended).unwrap_or_else(|| {
            let len = found.len();
            self.absurd(format!("a torn value of {len} bytes for {key}"));
            0
        });
        let expires = found.expires_at_ms();
        let put = pieces.first().unwrap_or(&tag);
        let meant = self.expires_at_ms.borrow().get(put).copied();
        let is_touched =
            self.touched_ms.borrow().get(&key).is_some_and(|touched| touched.contains(&expires));
        let is_meant = expires == meant || is_touched;
        if !is_number && (!is_meant || expires.is_some_and(|at| at <= called_ms)) {
            let told = format!("{tag} of {key} expires at {expires:?}, shown at {called_ms}");
            self.absurd(told);
        }
        tag
    }

    /// An operation came to an end.
    fn returned(&self, at: usize, outcome: Outcome) {
        let operation = &mut self.operations.borrow_mut()[at];
        (operation.returned, operation.outcome) = (self.world.now_ns(), outcome);
    }

    /// An operation of a batch was answered.
    fn answered(&self, is_answered: &mut bool, at: usize, answer: Answer) {
        if std::mem::replace(is_answered, true) {
            self.absurd("a batch answered twice".into());
        }
        self.returned(at, Outcome::Known(answer));
    }

    fn absurd(&self, told: String) {
        self.absurd.borrow_mut().push(told);
    }

    /// The future of an operation that a client had begun was dropped.
    fn dropped(&self, client: &Client, at: usize) {
        self.returned(at, Outcome::Unknown);
        let fabric = client.fabric();
        self.dropped.borrow_mut().push((fabric.process(), at, fabric.posted()));
    }

    /// Notes which operations take no effect from now on, because the verbs have settled that a
    /// client had posted when their futures were dropped.
    fn settle(&self, client: &Client) {
        let (fabric, now) = (client.fabric(), self.world.now_ns());
        self.dropped.borrow_mut().retain(|(process, at, mark)| {
            let is_over = *process == fabric.process() && fabric.is_settled(*mark);
            if is_over {
                self.operations.borrow_mut()[*at].outcome = Outcome::UnknownUntil(now);
            }
            !is_over
        });
    }

    /// A process is fenced: none of its operations takes effect from now on.
    pub fn settled(&self, process: ProcessId) {
        let now = self.world.now_ns();
        let mut operations = self.operations.borrow_mut();
        for (operation, of) in operations.iter_mut().zip(&*self.processes.borrow()) {
            if *of == process && operation.outcome == Outcome::Unknown {
                operation.outcome = Outcome::UnknownUntil(now);
            }
        }
    }

    fn next_value(&self) -> u64 {
        *self.values.borrow_mut() += 1;
        *self.values.borrow()
    }

    fn told(&self, key: u64, version: u64) {
        let mut versions = self.versions.borrow_mut();
        let known = versions.entry(key).or_default();
        known.push(version);
        if known.len() > 4 {
            known.remove(0);
        }
    }
}

/// The name of a checked key.
pub fn key_name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// The name of a key that is only in the way.
pub fn crowd_name(key: u64) -> Vec<u8> {
    format!("crowd-{key}").into_bytes()
}

/// The bytes of a value: its tag, and then bytes that follow from the tag. The tag also decides the
/// length.
pub fn value_of(tag: u64, setting: &Setting, is_number: bool) -> Vec<u8> {
    let len =
        if is_number { 8 } else { setting.value_bytes[tag as usize % setting.value_bytes.len()] };
    let mut value = tag.to_le_bytes().to_vec();
    let mut word = tag;
    while value.len() < len {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.truncate(len);
    value
}

/// The tag of a value, if it is whole.
pub fn tag_of(value: &[u8], setting: &Setting, is_number: bool) -> Option<u64> {
    pieces_of(value, setting, is_number).into_iter().reduce(appended)
}

/// The tags of a value's parts: the first part was put and the others appended. Empty if the value
/// is not whole.
fn pieces_of(mut value: &[u8], setting: &Setting, is_number: bool) -> Vec<u64> {
    let mut pieces = Vec::new();
    while let Some(tag) = value.first_chunk().copied().map(u64::from_le_bytes) {
        let Some(rest) = value.strip_prefix(&value_of(tag, setting, is_number)[..]) else { break };
        pieces.push(tag);
        value = rest;
    }
    let is_whole = value.is_empty() && !(is_number && pieces.len() > 1);
    if is_whole { pieces } else { Vec::new() }
}

/// A client's program: a number of operations, some at a time.
pub async fn work(
    client: Rc<Client>,
    number: u32,
    ops: usize,
    setting: Rc<Setting>,
    notes: Rc<Notes>,
    seed: u64,
) {
    client.base().set_quarantine(setting.quarantine);
    let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
    // The first client is the one that makes the other keys come and go.
    let in_the_way = number == 0 && setting.crowd > 0;
    // At first they are all inserted.
    let first = if in_the_way && ops == setting.ops { setting.crowd } else { 0 };
    let stays = if number == 0 { setting.stays } else { 0 };
    let operations = (0..first + stays + ops as u64).map(|op| {
        let (client, setting, notes, random) = (&client, &setting, &notes, &random);
        async move {
            notes.settle(client);
            if op < first {
                fill(client, setting, op).await;
            } else if op < first + stays {
                scans::put_stay(client, op - first, setting, notes).await;
            } else if setting.scans > 0.0 && random.borrow_mut().random_bool(setting.scans) {
                scans::operate(client, number, setting, notes, random).await;
            } else if in_the_way && random.borrow_mut().random_bool(0.8) {
                crowd(client, setting, random).await;
            } else if setting.moves > 0.0 && random.borrow_mut().random_bool(setting.moves) {
                wander(client, setting, random).await;
            } else if setting.batches > 0.0 && random.borrow_mut().random_bool(setting.batches) {
                batches::operate(client, number, setting, notes, random).await;
            } else if setting.pins > 0.0 && random.borrow_mut().random_bool(setting.pins) {
                pins::operate(client, number, setting, notes, random).await;
            } else {
                operate(client, number, setting, notes, random).await;
            }
        }
    });
    lanes::run(setting.lanes, operations, |()| ()).await;
    if setting.rests {
        rests::rest(&client, &setting, &notes).await;
    }
    // If the client cannot detach in order, its node treats the rest as a dead client's.
    if client.detach().await.is_ok() && setting.rests {
        rests::has_left(&client, &notes);
    }
}

/// Moves a checked key, or one that is never deleted.
async fn wander(client: &Client, setting: &Setting, random: &RefCell<ChaCha8Rng>) {
    let key = random.borrow_mut().random_range(0..setting.keys + setting.stays);
    let name = match key.checked_sub(setting.keys) {
        None => key_name(key),
        Some(stay) => scans::stay_name(stay),
    };
    #[cfg(feature = "planted")]
    if client.wander(&name).await.is_err() {
        reconnect(client.fabric()).await;
    }
    #[cfg(not(feature = "planted"))]
    let _ = (client, name);
}

/// A client of Loch's own protocol, which alone has batches and pins.
fn own(client: &Client) -> &nessie::Client<SimEndpoint> {
    let AnyClient::Loch(own) = client else { unreachable!("the published protocol has neither") };
    own
}

/// For how long a client waits for an operation before it drops the future.
#[derive(Clone, Copy)]
enum Patience {
    Us(u64),
    Polls(u32),
}

/// The result of a future, unless the client loses patience, drops it and is left.
async fn unless_dropped<T>(
    client: &Client,
    patience: Option<Patience>,
    (setting, notes): (&Setting, &Notes),
    work: impl Future<Output = T>,
) -> Option<T> {
    let (us, mut polls) = match patience {
        None => return Some(work.await),
        Some(Patience::Us(us)) => (us, u32::MAX),
        Some(Patience::Polls(polls)) => (u64::from(u32::MAX), polls),
    };
    let result = {
        let (mut work, mut over) = (pin!(work), pin!(client.fabric().pause(us)));
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => {
                if setting.rests {
                    rests::look_at_work(client, notes);
                }
                polls -= 1;
                if polls == 0 { Poll::Ready(None) } else { over.as_mut().poll(cx).map(|()| None) }
            }
        })
        .await
    };
    if setting.rests && result.is_none() {
        client.leave();
    }
    result
}

async fn fill(client: &Client, setting: &Setting, key: u64) {
    let value = value_of(key, setting, false);
    if client.put(&crowd_name(key), &value, PutOptions::default()).await.is_err() {
        reconnect(client.fabric()).await;
    }
}

/// Puts or deletes a key that is not checked.
async fn crowd(client: &Client, setting: &Setting, random: &RefCell<ChaCha8Rng>) {
    let (key, puts, tag) = {
        let mut random = random.borrow_mut();
        (random.random_range(0..setting.crowd), random.random_bool(0.6), random.random::<u64>())
    };
    let name = crowd_name(key);
    let done = if puts {
        let value = value_of(tag, setting, false);
        client.put(&name, &value, PutOptions::default()).await.map(|_| ())
    } else {
        client.delete(&name).await.map(|_| ())
    };
    if done.is_err() {
        reconnect(client.fabric()).await;
    }
}

async fn operate(
    client: &Client,
    number: u32,
    setting: &Setting,
    notes: &Notes,
    random: &RefCell<ChaCha8Rng>,
) {
    let key = random.borrow_mut().random_range(0..setting.keys);
    let is_number = key < setting.numbers;
    let reads = number as usize >= setting.writers;
    if reads {
        let think_us = random.borrow_mut().random_range(0..=setting.think_us);
        client.fabric().pause(think_us).await;
    }
    let ask = match reads {
        true => Ask::Get,
        false => pick(key, is_number, setting, notes, &mut random.borrow_mut()),
    };
    let at = notes.called(client, number, key, ask);
    let patience = patience(setting, random);
    let options = match ask {
        Ask::Put(value)
        | Ask::PutIfAbsent(value)
        | Ask::PutIfVersion { value, .. }
        | Ask::Touch(value)
            if !is_number && setting.expires > 0.0 =>
        {
            let mut random = random.borrow_mut();
            let (now_ms, skew_ms) = (client.fabric().wall_ms(), setting.faults.wall_skew_ms);
            match random.random_bool(setting.expires) {
                true => notes.expires(key, value, now_ms, random.random_range(0..4), skew_ms),
                false => PutOptions::default(),
            }
        }
        _ => PutOptions::default(),
    };
    if matches!(ask, Ask::Touch(_)) {
        notes.touches(key, options);
    }
    let answered = answer(client, key, ask, options, setting, notes);
    match unless_dropped(client, patience, (setting, notes), answered).await {
        None => notes.dropped(client, at),
        Some(Ok(answer)) => notes.returned(at, Outcome::Known(answer)),
        Some(Err(error)) => notes.returned(at, notes.failed(number, key, ask, &error)),
    }
    reconnect(client.fabric()).await;
}

/// How long a client waits for an operation, if it does not wait for its end.
fn patience(setting: &Setting, random: &RefCell<ChaCha8Rng>) -> Option<Patience> {
    let mut random = random.borrow_mut();
    let cancels = setting.cancels > 0.0 && random.random_bool(setting.cancels);
    cancels.then(|| match setting.rests && random.random() {
        true => {
            // Most operations wait a few times, and those that make room for a value very often.
            let most = [8, 40, 300][random.random_range(0..3usize)];
            Patience::Polls(random.random_range(1..=most))
        }
        false => Patience::Us(random.random_range(1..12)),
    })
}

fn pick(
    key: u64,
    is_number: bool,
    setting: &Setting,
    notes: &Notes,
    random: &mut ChaCha8Rng,
) -> Ask {
    let value = notes.next_value();
    match random.random_range(0..16) {
        picked if picked < setting.deletes => Ask::Delete,
        picked if picked >= 16 - setting.puts => Ask::Put(value),
        5 | 6 => Ask::Put(value),
        7 | 8 => Ask::PutIfAbsent(value),
        9 => match notes.versions.borrow().get(&key) {
            Some(known) => {
                let version = known[random.random_range(0..known.len())];
                match setting.touches && value.is_multiple_of(4) {
                    true => Ask::DeleteIfVersion(version),
                    false => Ask::PutIfVersion { version, value },
                }
            }
            None => Ask::Get,
        },
        10 if is_number => Ask::Add(1 + value % 7),
        10 if setting.appends => Ask::Append(value),
        10 => Ask::Put(value),
        11 if setting.touches => Ask::Touch(value),
        _ => Ask::Get,
    }
}

async fn answer(
    client: &Client,
    key: u64,
    asked: Ask,
    options: PutOptions,
    setting: &Setting,
    notes: &Notes,
) -> Result<Answer, EngineError> {
    let is_number = key < setting.numbers;
    let bytes_of = |tag: u64| value_of(tag, setting, is_number);
    // A TOUCH shows the value with its new expiry, which may be over by then.
    let is_touch = matches!(asked, Ask::Touch(_));
    let called_ms = if is_touch { 0 } else { client.fabric().wall_ms() };
    let tag_of = |found: &Value| notes.tag_of(found, key, called_ms, setting);
    let answer = ask(client, &key_name(key), asked, options, bytes_of, tag_of).await?;
    match (asked, answer) {
        // The version of an absorbed PUT is one that no client ever sees, like any other unseen
        // version.
        (Ask::Get | Ask::Touch(_), Answer::Found(Some((_, version))))
        | (Ask::Put(_) | Ask::Append(_) | Ask::Touch(_), Answer::Stored(version)) => {
            notes.told(key, version)
        }
        _ => (),
    }
    Ok(answer)
}
