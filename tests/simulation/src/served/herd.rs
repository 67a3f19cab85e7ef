//! The herd engine, as a store and as a cache, with requests by WRITE and by SEND.
//!
//! # The freedom of a cache
//! In a cache a value can disappear by itself. That is a DELETE that no client called. A history is
//! therefore checked with **phantoms**: for each operation that found no value of its key, or may
//! have found none, a DELETE of unknown outcome, which may have taken effect at any moment, or
//! never.
//!
//! That is sound: an order in which some phantoms took effect is one in which the key's value
//! disappeared at these moments, and all answers fit. And it is complete: in any order with
//! disappearances, each disappearance can be delayed until just before the first operation that
//! depends on it. If that operation finds no value, its own phantom is the disappearance. If it
//! replaces the value, the disappearance is not needed. And no operation that finds a value comes
//! in between. So one phantom for each operation that can find no value is enough. A hit of a value
//! that was overwritten or deleted is still a violation: phantoms bring no value back.
//!
//! When a worker dies its partition dies with it, in a store as well. In a store only one phantom
//! for each key and death is allowed, no earlier than the death.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::herd::key::KeyHash;
use loch_engines::herd::storage::{Mode, Partition, Plan};
use loch_engines::herd::{Client, Settings, Worker, service};
use loch_engines::operation::{Conditional, Expect, PutOptions};
use loch_engines::region::{SESSION_BYTES, SESSIONS_OFFSET, TABLE_ALIGN_BYTES};
use loch_engines::requests::{
    Area, BySend, ByUnreliableWrite, Holder, RequestMap, RequestPath, Secret, Timing, WorkerId,
};
use loch_engines::{EngineError, Kv};
use loch_fabric::lanes;
use loch_fabric::sim::{Faults, ProcessId, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};
use loch_history::{Answer, Ask, History, Operation, Outcome, appended, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::report::{Report, SEARCH_BUDGET, judge};

const NODES: u16 = 2;
const WORKERS: u16 = 2;
const SESSIONS: u32 = 4;
const CLIENTS: u32 = 4;
const SEED: u64 = 7;
const EVENTS_MAX: u64 = 5_000_000;

/// The conditions of a run; the seed decides the rest.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mode: Mode,
    /// Whether there is so little memory that values are evicted all the time.
    tiny: bool,
    by_send: bool,
    /// Whether clients and workers die.
    deaths: bool,
    keys: u64,
    operations: usize,
}

impl Setting {
    fn draw(mode: Mode, random: &mut ChaCha8Rng) -> Self {
        let tiny = mode == Mode::Cache && random.random_bool(0.7);
        Self {
            mode,
            tiny,
            by_send: random.random_bool(0.4),
            deaths: random.random_bool(0.6),
            keys: if tiny { 24 } else { 6 },
            operations: 40,
        }
    }
}

/// The clients' answers, and the times when workers died.
#[derive(Default)]
struct Notes {
    operations: RefCell<Vec<Operation>>,
    deaths: RefCell<Vec<(u64, u64)>>,
    clients_died: Cell<u64>,
}

struct Run {
    world: World,
    setting: Setting,
    map: Arc<RequestMap>,
    workers: Vec<ProcessId>,
    /// Set for a worker that has to die.
    strikes: Vec<Rc<Cell<bool>>>,
    notes: Rc<Notes>,
    random: ChaCha8Rng,
    incarnations: u64,
    slots: Slots,
}

/// The holder of each session slot of each node.
type Slots = Rc<RefCell<HashMap<(u16, u32), Holder>>>;

fn faults(random: &mut ChaCha8Rng, setting: &Setting) -> Faults {
    let mut rate =
        |most: f64| if random.random_bool(0.5) { random.random_range(0.0..most) } else { 0.0 };
    Faults {
        torn: rate(0.5),
        tear_ns: 3_000,
        delays: rate(0.2),
        delay_ns: 20_000,
        slow_stores: rate(0.3),
        store_ns: 2_000,
        deaths: if setting.deaths { rate(0.01) } else { 0.0 },
        pauses: rate(0.01),
        pause_ns: 200_000,
        lost_messages: rate(0.3),
        doubled_messages: rate(0.3),
        wall_skew_ms: 10,
        ..Faults::default()
    }
}

impl Run {
    fn new(setting: Setting, mut random: ChaCha8Rng) -> Self {
        let window = random.random_range(1..5);
        let service = service(WORKERS, window, SESSIONS, setting.by_send);
        let area = Area::new(service, NODES).unwrap();
        let offset = (SESSIONS_OFFSET + u64::from(SESSIONS) * SESSION_BYTES)
            .next_multiple_of(TABLE_ALIGN_BYTES);
        let one_host = random.random_bool(0.3);
        let profile = if one_host { Profile::ONE_HOST } else { Profile::CONNECTX_3_56 };
        let world = World::new(random.random(), profile, faults(&mut random, &setting));
        let nodes = (0..NODES).map(|_| world.add_node(offset + area.bytes()));
        let bases = nodes.map(|node| RemoteAddr::new(node, offset)).collect();
        let map = Arc::new(RequestMap::new(area, bases));
        let mut run = Self {
            world,
            setting,
            map,
            workers: Vec::new(),
            strikes: Vec::new(),
            notes: Rc::default(),
            random,
            incarnations: 0,
            slots: Rc::default(),
        };
        for node in 0..NODES {
            (0..WORKERS).for_each(|worker| run.start_worker(WorkerId { node, worker }));
        }
        run
    }

    fn start_worker(&mut self, id: WorkerId) {
        let process = self.world.add_process(RegionId(id.node as u8));
        let strike = Rc::new(Cell::new(false));
        let depth = [0, 1, 4][self.random.random_range(0..3)];
        let program = serve(
            self.world.clone(),
            process,
            self.map.clone(),
            id,
            (self.setting, depth),
            (strike.clone(), self.slots.clone()),
            self.notes.clone(),
        );
        self.world.start(process, program);
        self.workers.push(process);
        self.strikes.push(strike);
    }

    /// Starts a client in session slot `slot` of a node, in place of the client that died there.
    fn start_client(&mut self, number: u32, operations: usize) -> ProcessId {
        let home = RegionId((number % u32::from(NODES)) as u8);
        let process = self.world.add_process(home);
        self.incarnations += 1;
        let (node, slot) = (u16::from(home.0), number / u32::from(NODES));
        let secret = Some(Secret::new([self.incarnations, !self.incarnations]));
        let session = Session::new(home, slot, self.incarnations).with_secret(secret);
        let holder = Holder::new(self.incarnations, secret);
        self.slots.borrow_mut().insert((node, slot), holder);
        // Every other client has to find out where workers receive.
        let replies = match self.incarnations % 2 {
            0 => BySend::new(&self.workers, WORKERS),
            _ => BySend::seeking(&self.map),
        };
        if self.setting.by_send {
            self.start_with(process, number, operations, &session, replies.clone(), replies);
        } else {
            let requests = ByUnreliableWrite { home };
            self.start_with(process, number, operations, &session, requests, replies);
        }
        if self.setting.deaths {
            self.world.make_mortal(process);
        }
        process
    }

    fn start_with<P: RequestPath<SimEndpoint> + 'static>(
        &mut self,
        process: ProcessId,
        number: u32,
        operations: usize,
        session: &Session,
        requests: P,
        workers: BySend<ProcessId>,
    ) {
        let timing = Timing { resend_us: 30, timeout_us: 20_000 };
        let (map, node) = (self.map.clone(), u16::from(session.home().0));
        let endpoint = self.world.endpoint(process);
        let client = Client::new(endpoint, map, session, node, requests, workers, timing, SEED);
        let seed = self.random.random();
        let program = ask(
            client,
            self.world.clone(),
            number,
            operations,
            self.setting,
            seed,
            self.notes.clone(),
        );
        self.world.start(process, program);
    }

    /// Lets all clients finish. Returns the history, with the phantoms that a cache may have.
    fn finish(mut self) -> Result<(World, Rc<Notes>), String> {
        let mut clients: Vec<(ProcessId, usize)> = (0..CLIENTS)
            .map(|number| {
                (self.start_client(number, self.setting.operations), self.setting.operations)
            })
            .collect();
        let mut next_strike = 300_000;
        loop {
            if !self.world.step() || self.world.events() >= EVENTS_MAX {
                return Err(format!("the run is stuck: {:?}", self.setting));
            }
            if self.setting.deaths && self.world.now_ns() > next_strike {
                next_strike = self.world.now_ns() + self.random.random_range(100_000..3_000_000);
                let which = self.random.random_range(0..self.strikes.len());
                self.strikes[which].set(true);
            }
            for (number, (process, left)) in (0..).zip(&mut clients) {
                if !self.world.is_alive(*process) {
                    self.world.fence(*process);
                    self.notes.clients_died.set(self.notes.clients_died.get() + 1);
                    *left /= 2;
                    *process = self.start_client(number, *left);
                }
            }
            if clients.iter().all(|(process, _)| self.world.has_ended(*process)) {
                return Ok((self.world, self.notes));
            }
        }
    }
}

/// A worker's process. When the worker dies, its successor has its address, and nothing else of it.
async fn serve(
    world: World,
    process: ProcessId,
    map: Arc<RequestMap>,
    id: WorkerId,
    (setting, depth): (Setting, usize),
    (strike, holders): (Rc<Cell<bool>>, Slots),
    notes: Rc<Notes>,
) {
    let (bytes, slots) = if setting.tiny { (5_000, 8) } else { (256 << 10, 1 << 10) };
    let plan = Plan::new(setting.mode, bytes, slots).unwrap();
    loop {
        let partition = Partition::new(vec![0; plan.words()], &plan);
        let settings = Settings { seed: SEED, depth };
        let holders = holders.clone();
        let sessions = Box::new(move |node, slot| holders.borrow().get(&(node, slot)).copied());
        let endpoint = world.endpoint(process);
        let mut worker = Worker::open(endpoint, &map, id, partition, settings, sessions).unwrap();
        while !strike.take() {
            worker.turn().await.unwrap();
            worker.fabric().pause(1).await;
        }
        assert_eq!(worker.partition().check(SEED).broken, Vec::<String>::new());
        let died = world.now_ns();
        worker.fabric().pause(50).await;
        notes.deaths.borrow_mut().push((died, world.now_ns()));
    }
}

/// A client's process: a number of operations on random keys, a few at a time.
async fn ask<P: RequestPath<SimEndpoint>>(
    client: Client<SimEndpoint, P>,
    world: World,
    number: u32,
    operations: usize,
    setting: Setting,
    seed: u64,
    notes: Rc<Notes>,
) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let width = random.random_range(1..=3);
    let (client, world, notes) = (&client, &world, &notes);
    let work: Vec<_> = (0..operations)
        .map(|_| (random.random_range(0..setting.keys), random.random(), random.random()))
        .collect();
    let asked = work.into_iter().map(|(key, kind, value)| async move {
        let ask = draw(key, kind, value, notes);
        let place = notes.operations.borrow().len();
        let called = world.now_ns();
        let outcome = Outcome::Unknown;
        let operation = Operation { client: number, key, ask, called, returned: u64::MAX, outcome };
        notes.operations.borrow_mut().push(operation);
        let outcome = perform(client, key, ask).await;
        let operation = &mut notes.operations.borrow_mut()[place];
        (operation.outcome, operation.returned) = (outcome, world.now_ns());
    });
    lanes::run(width, asked, |()| ()).await;
}

fn draw(key: u64, kind: u8, value: u64, notes: &Notes) -> Ask {
    // Counters have keys of their own, and values are never zero.
    let value = value | 1;
    if key.is_multiple_of(4) {
        return if kind < 128 { Ask::Add(value % 1000 + 1) } else { Ask::Get };
    }
    match kind {
        0..90 => Ask::Get,
        90..170 => Ask::Put(value),
        170..190 => Ask::PutIfAbsent(value),
        190..220 => Ask::PutIfVersion { version: a_version(key, notes), value },
        220..230 => Ask::Append(value),
        _ => Ask::Delete,
    }
}

/// The last version that any client was told.
fn a_version(key: u64, notes: &Notes) -> u64 {
    let version = |operation: &Operation| match operation.outcome {
        Outcome::Known(
            Answer::Found(Some((_, version)))
            | Answer::Stored(version)
            | Answer::Refused(Some(version)),
        ) if operation.key == key => Some(version),
        _ => None,
    };
    notes.operations.borrow().iter().rev().find_map(version).unwrap_or(1)
}

fn key_of(key: u64) -> Vec<u8> {
    match key {
        1 | 2 => TWINS.with(|twins| twins[key as usize - 1].clone()),
        _ => format!("key number {key}").into_bytes(),
    }
}

thread_local! {
    /// Two keys of one partition with the same tag. Where an index has one bucket, only comparing
    /// the keys tells them apart; in larger indexes they are in different buckets.
    static TWINS: [Vec<u8>; 2] = twins();
}

fn twins() -> [Vec<u8>; 2] {
    let mut seen = HashMap::new();
    for number in 0u32.. {
        let key = format!("twin {number}").into_bytes();
        // The same computation as in `herd/key.rs`.
        let low = xxh3_128_with_seed(&key, SEED) as u64;
        let partition = KeyHash::of(SEED, &key).partition(u32::from(NODES * WORKERS));
        let (sister, other) = seen.entry((partition, low as u16)).or_insert((key.clone(), low));
        if *other >> 60 != low >> 60 {
            return [sister.clone(), key];
        }
    }
    unreachable!("tags have 16 bits")
}

/// A value that contains its tag, and is long enough to be torn and to fill a log.
fn value_of(tag: u64) -> Vec<u8> {
    let mut bytes = tag.to_le_bytes().to_vec();
    bytes.resize(8 + tag as usize % 60 * 8, tag as u8);
    bytes
}

/// A number, or the combined tag of a value that was put and of those that were appended.
fn tag_of(bytes: &[u8]) -> u64 {
    let (mut left, mut whole) = (bytes, None);
    while let Some(tag) = left.first_chunk().copied().map(u64::from_le_bytes) {
        let piece = if bytes.len() == 8 { bytes.to_vec() } else { value_of(tag) };
        let Some(rest) = left.strip_prefix(&piece[..]) else { break };
        (left, whole) = (rest, Some(whole.map_or(tag, |whole| appended(whole, tag))));
    }
    assert!(left.is_empty(), "a value of {} bytes is torn", bytes.len());
    whole.expect("values are not empty")
}

async fn perform<P: RequestPath<SimEndpoint>>(
    client: &Client<SimEndpoint, P>,
    key: u64,
    ask: Ask,
) -> Outcome {
    let key = &key_of(key)[..];
    let options = PutOptions::default();
    let conditional = |done| match done {
        Conditional::Done(version) => Answer::Stored(version),
        Conditional::Refused(version) => Answer::Refused(version),
    };
    let answer = match ask {
        Ask::Get => client
            .get(key, Buf::new())
            .await
            .map(|found| Answer::Found(found.map(|value| (tag_of(&value), value.version())))),
        Ask::Put(value) => client.put(key, &value_of(value), options).await.map(Answer::Stored),
        Ask::PutIfAbsent(value) => {
            client.put_if(key, &value_of(value), Expect::Absent, options).await.map(conditional)
        }
        Ask::PutIfVersion { version, value } => {
            let expect = Expect::Version(version);
            client.put_if(key, &value_of(value), expect, options).await.map(conditional)
        }
        Ask::Append(piece) => client.append(key, &value_of(piece)).await.map(Answer::Stored),
        Ask::Delete => client.delete(key).await.map(Answer::Deleted),
        Ask::Add(add) => client.fetch_add(key, add).await.map(Answer::Before),
        Ask::Update(_) | Ask::Expire(_) => unreachable!("none is drawn"),
    };
    match answer {
        Ok(answer) => Outcome::Known(answer),
        Err(EngineError::Ambiguous(_)) => Outcome::Unknown,
        Err(EngineError::Timeout { .. }) => Outcome::Known(Answer::NoEffect),
        Err(EngineError::ValueTooLong { .. }) if matches!(ask, Ask::Append(_)) => {
            Outcome::Known(Answer::NoEffect)
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether the operation found no value, or may have found none.
fn may_have_missed(operation: &Operation) -> bool {
    match operation.outcome {
        Outcome::Known(
            Answer::Found(None)
            | Answer::Deleted(false)
            | Answer::Refused(None)
            | Answer::Before(0),
        ) => true,
        Outcome::Known(Answer::Stored(_)) => {
            matches!(operation.ask, Ask::PutIfAbsent(_) | Ask::Append(_))
        }
        Outcome::Known(_) => false,
        _ => matches!(operation.ask, Ask::PutIfAbsent(_) | Ask::Add(_) | Ask::Append(_)),
    }
}

fn phantom(key: u64, called: u64, outcome: Outcome) -> Operation {
    Operation { client: u32::MAX, key, ask: Ask::Delete, called, returned: u64::MAX, outcome }
}

/// Runs one seed.
///
/// # Errors
/// The violation, with the history that shows it.
pub fn run(mode: Mode, seed: u64) -> Result<Report, String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let setting = Setting::draw(mode, &mut random);
    let (world, notes) = Run::new(setting, random).finish()?;
    let mut report = Report {
        events: world.events(),
        virtual_ns: world.now_ns(),
        deaths: notes.clients_died.get(),
        ..Report::default()
    };
    let operations = notes.operations.take();
    let deaths = notes.deaths.take();
    world.end();
    report.restarts = deaths.len() as u64;
    report.count(&operations);
    let mut all = operations.clone();
    for key in 0..setting.keys {
        let lost = |(died, back): &(u64, u64)| phantom(key, *died, Outcome::UnknownUntil(*back));
        all.extend(deaths.iter().map(lost));
    }
    if setting.mode == Mode::Cache {
        let strictly = check(&History::from(all.clone()), SEARCH_BUDGET);
        report.lossy = u64::from(!strictly.is_linearizable());
        if !setting.tiny && report.lossy > 0 {
            return Err("a cache with room for everything lost something".into());
        }
        let misses = operations.iter().filter(|operation| may_have_missed(operation));
        all.extend(misses.map(|miss| phantom(miss.key, 0, Outcome::Unknown)));
    }
    judge(all, SEARCH_BUDGET).map_err(|wrong| format!("{wrong}\n{setting:?}"))?;
    Ok(report)
}
