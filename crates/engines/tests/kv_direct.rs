//! kv-direct, clients and processors on a simulated cluster: what comes back, in which packets, and
//! what a client is told that asks for too much or does not ask by the rules. Under faults, with
//! many clients, it is run by the simulation program (`tests/simulation`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::dispatch::{Dispatcher, LocalDram};
use loch_engines::kv_direct::slab::SlabDaemon;
use loch_engines::kv_direct::storage::{Options, Plan, Storage};
use loch_engines::kv_direct::{Access, Client, Counts, Settings, Worker, service};
use loch_engines::lines::{HostMemory, Line, Near};
use loch_engines::operation::{Batch, Conditional, Expect, Outcome, PutOptions, ValueRef, Version};
use loch_engines::requests::{Area, Holder, RequestMap, Timing, Turns, WorkerId};
use loch_engines::{EngineError, Kv};
use loch_fabric::lanes;
use loch_fabric::sim::{Faults, ProcessId, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 77;
const VALUE_MAX: u64 = 100_000;
const PUT: PutOptions = PutOptions { expires_at_ms: None };

/// Two nodes with two processors each, and what the processors counted.
struct Rig {
    world: World,
    map: Arc<RequestMap>,
    settings: Settings,
    /// Whether memory is behind a card, where a line takes an access by DMA.
    is_behind_card: bool,
    counts: Rc<RefCell<BTreeMap<(u16, u16), Counts>>>,
    sessions: Cell<u32>,
}

impl Rig {
    fn new(settings: Settings, bytes: u64) -> Self {
        Self::with(settings, bytes, false)
    }

    fn with(settings: Settings, bytes: u64, is_behind_card: bool) -> Self {
        let service = service(2, 4, 16, 2048, VALUE_MAX + 100).unwrap();
        let area = Area::new(service, 2).unwrap();
        let world = World::new(SEED, Profile::CONNECTX_3_56, Faults::default());
        (0..2).for_each(|_| {
            world.add_node((1 << 16) + area.bytes());
        });
        let bases = (0..2).map(|node| RemoteAddr::new(RegionId(node), 1 << 16)).collect();
        let map = Arc::new(RequestMap::new(area, bases));
        let (counts, sessions) = (Rc::default(), Cell::new(0));
        let rig = Self { world, map, settings, is_behind_card, counts, sessions };
        for (node, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            rig.start(WorkerId { node, worker }, bytes);
        }
        rig
    }

    fn start(&self, id: WorkerId, bytes: u64) {
        let process = self.world.add_process(RegionId(id.node as u8));
        let endpoint = self.world.endpoint(process);
        let (map, settings, counts) = (self.map.clone(), self.settings, self.counts.clone());
        let is_behind_card = self.is_behind_card;
        let serving = async move {
            let options = Options {
                bytes,
                index_ratio: 0.3,
                inline_bytes_max: 25,
                versions: settings.versions,
                value_bytes_max: VALUE_MAX,
                key_bytes: None,
            };
            let plan = Plan::new(&options).unwrap();
            let near = Near::new(vec![Line::ZERO; plan.lines() as usize]);
            let counted = move |now| {
                counts.borrow_mut().insert((id.node, id.worker), now);
            };
            if is_behind_card {
                let card = Dispatcher::new(near, LocalDram::new(vec![Line::ZERO; 64]), 0.5);
                serve(endpoint, map, id, settings, &plan, card, counted).await;
            } else {
                serve(endpoint, map, id, settings, &plan, near, counted).await;
            }
        };
        self.world.start(process, serving);
    }

    fn client(&self, node: u16, batch: usize) -> (ProcessId, Client<SimEndpoint>) {
        self.client_with(node, batch, Timing::default())
    }

    fn client_with(
        &self,
        node: u16,
        batch: usize,
        timing: Timing,
    ) -> (ProcessId, Client<SimEndpoint>) {
        let process = self.world.add_process(RegionId(node as u8));
        let slot = self.sessions.get() + 1;
        self.sessions.set(slot);
        let session = Session::new(RegionId(node as u8), slot, u64::from(slot));
        let map = self.map.clone();
        let access = Access { map, seed: SEED, value_bytes_max: VALUE_MAX, key_bytes: None, batch };
        let client = Client::new(self.world.endpoint(process), access, &session, node, timing);
        (process, client)
    }

    /// Runs until these have ended.
    fn finish(&self, processes: &[ProcessId]) {
        while !processes.iter().all(|process| self.world.has_ended(*process)) {
            assert!(self.world.step() && self.world.now_ns() < 20_000_000_000, "it ends");
        }
    }

    fn counted(&self) -> Counts {
        let all = self.counts.borrow();
        all.values().fold(Counts::default(), |sum, one| Counts {
            executed: sum.executed + one.executed,
            forwarded: sum.forwarded + one.forwarded,
            written_back: sum.written_back + one.written_back,
        })
    }
}

async fn serve<H: HostMemory>(
    endpoint: SimEndpoint,
    map: Arc<RequestMap>,
    id: WorkerId,
    settings: Settings,
    plan: &Plan,
    memory: H,
    counted: impl Fn(Counts),
) {
    let pools = plan.pools();
    let mut daemon = SlabDaemon::new(pools.clone());
    let storage = Storage::new(memory, plan, pools);
    let sessions = Box::new(|_, slot| Some(Holder::new(u64::from(slot), None)));
    let opened = Worker::open(endpoint, &map, id, storage, (), SEED, settings, sessions);
    let worker = opened.unwrap();
    let mut turns = worker.serve();
    loop {
        turns.turn().expect("its own memory is there");
        daemon.turn();
        counted(worker.counts());
        worker.fabric().yield_now().await;
    }
}

fn add(element: Element, operand: u64) -> Lambda {
    Lambda { function: Function::Builtin(Builtin::Add), element, operand, second: 0 }
}

/// Every operation of the store, drawn at random, against a map.
#[test]
fn what_comes_back_is_what_was_put() {
    for versions in [true, false] {
        let rig = Rig::new(Settings { versions, ..Settings::default() }, 1 << 20);
        let (process, client) = rig.client(0, 16);
        rig.world.start(process, async move {
            let mut random = ChaCha8Rng::seed_from_u64(5);
            let mut model = BTreeMap::<u16, (Vec<u8>, u64)>::new();
            for _ in 0..4000 {
                let key: u16 = random.random_range(0..60);
                let name = key.to_be_bytes();
                let long = random.random_range(0..40) == 0;
                let len = random.random_range(0..if long { 20_000 } else { 80 });
                let value = vec![random.random::<u8>(); len];
                match random.random_range(0..6) {
                    0 | 1 => {
                        let version = client.put(&name, &value, PUT).await.unwrap();
                        model.insert(key, (value, version.as_u64()));
                    }
                    2 => {
                        let was = model.remove(&key).is_some();
                        assert_eq!(client.delete(&name).await, Ok(was));
                    }
                    3 => {
                        let there = model.get(&key).map(|(_, version)| *version);
                        let stored =
                            client.put_if(&name, &value, Expect::Absent, PUT).await.unwrap();
                        match stored {
                            Conditional::Done(version) => {
                                assert_eq!(there, None);
                                model.insert(key, (value, version.as_u64()));
                            }
                            Conditional::Refused(version) => {
                                assert_eq!(version, there.map(Version::from_u64))
                            }
                        }
                    }
                    4 => assert_eq!(client.contains(&name).await, Ok(model.contains_key(&key))),
                    _ => {
                        let found = client.get(&name, Buf::new()).await.unwrap();
                        let found = found.map(|it| (it.to_vec(), it.version().as_u64()));
                        assert_eq!(found, model.get(&key).cloned());
                    }
                }
            }
        });
        rig.finish(&[process]);
        rig.world.end();
    }
}

/// Hundreds of lanes of several clients count one key up: every number is told once, in few
/// packets, and behind a card most of them without a look at memory.
#[test]
fn a_key_that_everybody_wants_is_counted_once_for_each() {
    const LANES: u64 = 64;
    const ADDS: u64 = 2_000;
    for (out_of_order, is_behind_card) in
        [(true, true), (false, true), (true, false), (false, false)]
    {
        let settings = Settings { out_of_order, ..Settings::default() };
        let rig = Rig::with(settings, 1 << 20, is_behind_card);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut packets = Vec::new();
        let clients: Vec<_> = [0, 1, 1].map(|node| rig.client(node, 64)).into();
        let processes: Vec<_> = clients.iter().map(|(process, _)| *process).collect();
        for (process, client) in clients {
            let (seen, sent) = (seen.clone(), Rc::new(Cell::new(0)));
            packets.push(sent.clone());
            rig.world.start(process, async move {
                let adds = (0..ADDS).map(|_| client.fetch_add(b"hot", 1));
                let done = |before| seen.borrow_mut().push(before);
                lanes::run(LANES as usize, adds, done).await;
                sent.set(client.counted().verbs);
            });
        }
        rig.finish(&processes);
        let mut seen: Vec<_> = seen.take().into_iter().map(Result::unwrap).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..3 * ADDS).collect::<Vec<_>>());
        let counts = rig.counted();
        assert_eq!(counts.executed, 3 * ADDS);
        let mostly = match out_of_order && is_behind_card {
            true => counts.forwarded > 2 * ADDS,
            false => counts.forwarded == 0,
        };
        assert!(mostly, "{counts:?}");
        let verbs: u64 = packets.iter().map(|sent| sent.get()).sum();
        assert!(verbs < ADDS, "{verbs} verbs for {} operations", 3 * ADDS);
        rig.world.end();
    }
}

async fn get_many<K: AsRef<[u8]>>(
    client: &Client<SimEndpoint>,
    keys: &[K],
    mut found: impl FnMut(usize, Option<ValueRef<'_>>),
) -> Result<(), EngineError> {
    let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
    let mut done = |key: usize, outcome: Outcome<'_>| {
        assert!(matches!(outcome, Outcome::Found { .. } | Outcome::Absent), "{outcome:?}");
        found(key, outcome.found());
    };
    client.execute_many(Batch::Get(&keys), &mut done).await
}

async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    client: &Client<SimEndpoint>,
    pairs: &[(K, V)],
    mut stored: impl FnMut(usize, u64),
) -> Result<(), EngineError> {
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
    let mut done = |pair: usize, outcome: Outcome<'_>| {
        stored(pair, outcome.stored().expect("it is a PUT").as_u64())
    };
    client.execute_many(Batch::Put(&pairs), &mut done).await
}

/// Requests to another node's workers, and the replies to them.
fn messages(client: &Client<SimEndpoint>) -> u64 {
    client.counted().verbs
}

/// A batch of short items takes one packet for each of its processors; what does not fit is asked
/// for in more of them.
#[test]
fn a_batch_travels_in_as_few_packets_as_it_fills() {
    let rig = Rig::new(Settings { versions: false, ..Settings::default() }, 4 << 20);
    let (process, client) = rig.client(0, 64);
    rig.world.start(process, async move {
        let at = |node: u16| {
            (0u32..).map(u32::to_be_bytes).filter({
                let client = &client;
                move |key| client.owner(key).node == node
            })
        };
        let keys: Vec<[u8; 4]> = at(1).take(40).collect();
        // The client comes to know the workers.
        for key in &keys {
            client.put(key, b"first", PUT).await.unwrap();
        }
        let workers: std::collections::BTreeSet<_> =
            keys.iter().map(|key| client.owner(key).worker).collect();
        let least = 2 * workers.len() as u64;
        let pairs: Vec<_> = keys.iter().map(|key| (key, key)).collect();
        let (before, mut stored) = (messages(&client), 0);
        put_many(&client, &pairs, |_, _| stored += 1).await.unwrap();
        assert_eq!((stored, messages(&client) - before), (40, least));

        let missing: Vec<[u8; 4]> = at(1).skip(1_000).take(20).collect();
        let both = [&keys[..], &missing[..]].concat();
        let (before, mut found) = (messages(&client), vec![None; both.len()]);
        let take = |number: usize, value: Option<ValueRef<'_>>| {
            let value = value.map(|it| it.to_vec());
            assert_eq!(found[number].replace(value), None, "one answer for each key");
        };
        get_many(&client, &both, take).await.unwrap();
        assert_eq!(messages(&client) - before, least);
        for (key, found) in both.iter().zip(found) {
            let expected = keys.contains(key).then(|| key.to_vec());
            assert_eq!(found, Some(expected));
        }

        // More keys than a packet takes, of all nodes, with values that no reply has room for.
        let many: Vec<[u8; 4]> = (0u32..300).map(u32::to_be_bytes).collect();
        let value = |key: &[u8; 4]| vec![key[3]; 20_000];
        for key in many.iter().step_by(10) {
            client.put(key, &value(key), PUT).await.unwrap();
        }
        let mut found = vec![None; many.len()];
        let take = |number: usize, value: Option<ValueRef<'_>>| {
            found[number] = Some(value.map(|it| it.to_vec()));
        };
        get_many(&client, &many, take).await.unwrap();
        for (number, (key, found)) in many.iter().zip(found).enumerate() {
            let short = keys.contains(key).then(|| key.to_vec());
            let expected = if number % 10 == 0 { Some(value(key)) } else { short };
            assert_eq!(found, Some(expected), "key {number}");
        }
        get_many::<&[u8]>(&client, &[], |_, _| panic!("no key")).await.unwrap();
    });
    rig.finish(&[process]);
    rig.world.end();
}

/// The operations before one that the table does not take are done, and its error is told.
#[test]
fn a_batch_ends_at_an_operation_that_is_refused() {
    let rig = Rig::new(Settings::default(), 1 << 18);
    let (process, client) = rig.client(0, 64);
    rig.world.start(process, async move {
        let (long, mut stored) = (vec![7; VALUE_MAX as usize + 1], Vec::new());
        let pairs = [(&b"a"[..], &b"1"[..]), (b"b", &long), (b"c", b"3")];
        let refused = put_many(&client, &pairs, |pair, _| stored.push(pair)).await;
        let expected = EngineError::ValueTooLong { len: VALUE_MAX + 1, max: VALUE_MAX };
        assert_eq!((refused, stored), (Err(expected), vec![0]));
        let mut found = Vec::new();
        let keys = [&b"a"[..], b"c", b"", b"a"];
        let refused =
            get_many(&client, &keys, |key, value| found.push((key, value.is_some()))).await;
        assert_eq!(refused, Err(EngineError::KeyEmpty));
        assert_eq!(found, [(0, true), (1, false)]);
        // Memory runs out in the middle of a packet.
        let keys: Vec<[u8; 2]> = (0..1_000u16).map(u16::to_le_bytes).collect();
        let pairs: Vec<_> = keys.iter().map(|key| (key, [1; 2_000])).collect();
        let mut stored = 0;
        let full = put_many(&client, &pairs, |_, _| stored += 1).await;
        assert!(matches!(full, Err(EngineError::OutOfMemory { .. })), "{full:?}");
        let mut there = 0;
        get_many(&client, &keys, |_, value| there += usize::from(value.is_some())).await.unwrap();
        assert_eq!(there, stored, "what was told is there, and nothing else");
    });
    rig.finish(&[process]);
    rig.world.end();
}

#[test]
fn vectors_are_updated_reduced_and_filtered_where_they_are() {
    let rig = Rig::new(Settings::default(), 4 << 20);
    let (process, client) = rig.client(1, 8);
    rig.world.start(process, async move {
        let bytes =
            |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        let numbers: Vec<u32> = (0..20_000).collect();
        client.put(b"v", &bytes(&numbers), PUT).await.unwrap();
        assert_eq!(client.update_all(b"v", add(Element::U32, 5)).await, Ok(Some(20_000)));
        let lambda = add(Element::U32, 0);
        let before = client.update_each_returning(b"v", lambda, &bytes(&numbers), Buf::new()).await;
        let expected: Vec<u32> = numbers.iter().map(|n| n + 5).collect();
        assert_eq!(before.unwrap().unwrap()[..], bytes(&expected));
        let sum: u32 = numbers.iter().map(|n| 2 * n + 5).sum();
        assert_eq!(client.reduce(b"v", lambda).await, Ok(Some(u64::from(sum))));
        let less = Lambda { function: Function::Builtin(Builtin::Less), operand: 11, ..lambda };
        let kept = client.filter(b"v", less, Buf::new()).await.unwrap().unwrap();
        assert_eq!(kept[..], bytes(&[5, 7, 9]));

        assert_eq!(client.reduce(b"none", lambda).await, Ok(None));
        assert_eq!(client.update_all(b"none", lambda).await, Ok(None));
        client.put(b"odd", b"12345", PUT).await.unwrap();
        let odd = client.reduce(b"odd", lambda).await;
        assert_eq!(odd, Err(EngineError::NotAVector { len: 5, wanted: 4 }));
        assert_eq!(client.fetch_add(b"odd", 1).await, Err(EngineError::NotACounter { len: 5 }));
        let unknown = Lambda { function: Function::User(9), ..lambda };
        let refused = client.update_all(b"v", unknown).await;
        assert_eq!(refused, Err(EngineError::NoFunction { number: 9 }));
        assert_eq!(client.reduce(b"v", lambda).await, Ok(Some(u64::from(sum))));
    });
    rig.finish(&[process]);
    rig.world.end();
}

/// Results that do not fit one reply are asked for again, alone.
#[test]
fn many_long_values_in_one_packet_all_arrive() {
    let rig = Rig::new(Settings::default(), 8 << 20);
    let (process, client) = rig.client(0, 64);
    rig.world.start(process, async move {
        let value = |key: u32| vec![key as u8; 30_000 + key as usize];
        for key in 0..40u32 {
            client.put(&key.to_le_bytes(), &value(key), PUT).await.unwrap();
        }
        let client = &client;
        let gets = (0..40u32).map(|key| async move {
            let found = client.get(&key.to_le_bytes(), Buf::new()).await.unwrap().unwrap();
            assert_eq!(found[..], value(key));
        });
        lanes::run(40, gets, |()| ()).await;
    });
    rig.finish(&[process]);
    rig.world.end();
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let rig = Rig::new(Settings { versions: false, ..Settings::default() }, 1 << 18);
    let (process, client) = rig.client(0, 8);
    rig.world.start(process, async move {
        assert_eq!(client.get(b"", Buf::new()).await.err(), Some(EngineError::KeyEmpty));
        let long = vec![7; VALUE_MAX as usize + 1];
        let refused = client.put(b"k", &long, PUT).await;
        let expected = EngineError::ValueTooLong { len: VALUE_MAX + 1, max: VALUE_MAX };
        assert_eq!(refused, Err(expected));
        let refused = client.put_if(b"k", b"v", Expect::Version(Version::from_u64(1)), PUT).await;
        assert_eq!(refused, Err(EngineError::NoVersions));
        let mut kept = Vec::new();
        let full = loop {
            let key = (kept.len() as u32).to_le_bytes();
            match client.put(&key, &[kept.len() as u8; 5000], PUT).await {
                Ok(_) => kept.push(key),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, EngineError::OutOfMemory { .. }), "{full}");
        assert!(kept.len() > 50, "{} values fit", kept.len());
        for (n, key) in kept.iter().enumerate() {
            let found = client.get(key, Buf::new()).await.unwrap().unwrap();
            assert_eq!(found[..], [n as u8; 5000]);
        }
    });
    rig.finish(&[process]);
    rig.world.end();
}

/// Many read at once what has expired, and its memory is freed once.
/// Memory that is free in small pieces is merged for whoever needs a large one, and who needs it
/// waits.
#[test]
fn a_long_value_finds_room_where_short_ones_were() {
    let rig = Rig::new(Settings::default(), 1 << 18);
    let (process, client) = rig.client(0, 16);
    rig.world.start(process, async move {
        for round in 0..3 {
            let key = |number: u32| (1000 * round + number).to_be_bytes();
            let mut full = 0;
            let short = loop {
                match client.put(&key(full), &[7; 40], PUT).await {
                    Ok(_) => full += 1,
                    Err(EngineError::OutOfMemory { .. }) => break full,
                    Err(error) => panic!("{error}"),
                }
            };
            assert!(short > 1_000, "only {short} fit");
            for number in 0..short {
                assert!(client.delete(&key(number)).await.unwrap());
            }
            for number in 0..4 {
                client.put(&key(number), &[8; 60_000], PUT).await.unwrap();
                client.delete(&key(number)).await.unwrap();
            }
        }
    });
    rig.finish(&[process]);
}

#[test]
fn what_has_expired_is_removed_once_however_many_read_it() {
    for out_of_order in [true, false] {
        let rig = Rig::new(Settings { out_of_order, ..Settings::default() }, 1 << 18);
        let (process, client) = rig.client(0, 32);
        rig.world.start(process, async move {
            let client = &client;
            let long_ago = PutOptions { expires_at_ms: Some(1) };
            client.put(b"gone", &[1; 100], long_ago).await.unwrap();
            let gets = (0..32).map(|_| client.get(b"gone", Buf::new()));
            lanes::run(32, gets, |found| assert!(matches!(found, Ok(None)))).await;
            assert_eq!(client.delete(b"gone").await, Ok(false));
            // All of them are at its processor: were its slab free more than once, two would share
            // it.
            let at_its = |key: &u32| client.owner(&key.to_le_bytes()) == client.owner(b"gone");
            let keys: Vec<u32> = (0..).filter(at_its).take(40).collect();
            for key in &keys {
                client.put(&key.to_le_bytes(), &[*key as u8; 100], PUT).await.unwrap();
            }
            for key in &keys {
                let found = client.get(&key.to_le_bytes(), Buf::new()).await.unwrap().unwrap();
                assert_eq!(found[..], [*key as u8; 100]);
            }
        });
        rig.finish(&[process]);
        rig.world.end();
    }
}

/// A client that asks again while the results are on their way gets them all the same.
#[test]
fn results_that_are_asked_for_again_before_they_arrive_are_the_same() {
    let rig = Rig::new(Settings::default(), 1 << 18);
    rig.world.set_faults(Faults { delays: 0.5, delay_ns: 20_000, ..Faults::default() });
    let timing = Timing { resend_us: 2, timeout_us: 1_000_000 };
    let (process, client) = rig.client_with(1, 4, timing);
    rig.world.start(process, async move {
        let adds = (0..400).map(|_| client.fetch_add(b"hot", 1));
        let mut seen = Vec::new();
        lanes::run(8, adds, |before| seen.push(before.unwrap())).await;
        seen.sort_unstable();
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
        assert!(client.counts().resent.get() > 10, "{:?}", client.counts());
    });
    rig.finish(&[process]);
    rig.world.end();
}
