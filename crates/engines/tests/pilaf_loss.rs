//! Which changes of a pilaf table a crash loses, and which not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::log::{DiskFaults, MemoryStorage, Policy};
use loch_engines::operation::PutOptions;
use loch_engines::pilaf::{Access, Client, Logging, Shape, Worker};
use loch_engines::requests::{Area, BySend, Holder, RequestMap, Service, Timing};
use loch_engines::{EngineError, Kv};
use loch_fabric::sim::{Faults, ProcessId, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};

const NODE: RegionId = RegionId(0);
const VALUE_BYTES_MAX: u64 = 20_000;
const KEYS: u64 = 7;

struct Rig {
    world: World,
    map: Arc<RequestMap>,
    shape: Shape,
    disk: MemoryStorage,
    policy: Policy,
    /// The process of every server is this one: what is sent to it is found by the next.
    server: ProcessId,
    sessions: Cell<u32>,
    /// The program of the server is dropped when this changes.
    life: Rc<Cell<u32>>,
    /// The server's error when it gave up.
    gave_up: Rc<RefCell<Option<String>>>,
    leased: Rc<Cell<u64>>,
}

impl Rig {
    fn new(seed: u64, policy: Policy) -> Self {
        let world = World::new(seed, Profile::CONNECTX_3_56, Faults::default());
        let service = Service {
            workers: 1,
            window: 2,
            replies: 8,
            sessions_per_node: 64,
            request_bytes: Service::request_bytes_for(VALUE_BYTES_MAX + 100, 0).unwrap(),
            ..Service::default()
        };
        let area = Area::new(service, 1).unwrap();
        let root = RemoteAddr::new(NODE, area.bytes().next_multiple_of(64));
        let shape = Shape {
            root,
            arena_bytes: 4 << 20,
            index_slots: 8,
            value_bytes_max: VALUE_BYTES_MAX,
            seed: 1,
            node: 0,
        };
        world.add_node(root.offset() + shape.bytes());
        let map = Arc::new(RequestMap::new(area, vec![RemoteAddr::new(NODE, 0)]));
        let server = world.add_process(NODE);
        let rig = Self {
            world,
            map,
            shape,
            disk: MemoryStorage::default(),
            policy,
            server,
            sessions: Cell::new(0),
            life: Rc::default(),
            gave_up: Rc::default(),
            leased: Rc::default(),
        };
        rig.serve();
        rig
    }

    /// The server's process: one server after the other.
    fn serve(&self) {
        let (world, map, shape) = (self.world.clone(), self.map.clone(), self.shape);
        let (disk, policy, process) = (self.disk.clone(), self.policy, self.server);
        let (life, gave_up, leased) =
            (self.life.clone(), self.gave_up.clone(), self.leased.clone());
        self.world.start(process, async move {
            let pauses = world.endpoint(process);
            loop {
                let own = life.get();
                let logging =
                    Logging { storage: disk.clone(), table: 9, policy, compact_bytes: 20_000 };
                let fabric = world.endpoint(process);
                let sessions = Box::new(|_, slot| Some(Holder::new(u64::from(slot) + 1, None)));
                let mut server =
                    Worker::open(fabric, &map, 0, shape, Some(logging), sessions).unwrap();
                leased.set(server.recovered().leased);
                while life.get() == own {
                    if let Err(error) = server.turn() {
                        *gave_up.borrow_mut() = Some(error.to_string());
                        break;
                    }
                    server.fabric().yield_now().await;
                }
                while life.get() == own {
                    pauses.pause(5).await;
                }
            }
        });
    }

    fn client(&self) -> (ProcessId, Client<SimEndpoint>) {
        let process = self.world.add_process(NODE);
        let slot = self.sessions.get();
        self.sessions.set(slot + 1);
        let session = Session::new(NODE, slot, u64::from(slot) + 1);
        let access = Access {
            roots: vec![self.shape.root],
            map: self.map.clone(),
            servers: BySend::new(&[self.server], 1),
            seed: 1,
            value_bytes_max: VALUE_BYTES_MAX,
            send_bytes_max: usize::MAX,
            batch: 16,
        };
        let timing = Timing { resend_us: 100, timeout_us: 3_000 };
        (process, Client::new(self.world.endpoint(process), access, &session, timing))
    }

    /// Lets a client's program run until it ends or `until_ns`.
    fn run(&self, process: ProcessId, program: impl Future<Output = ()> + 'static, until_ns: u64) {
        self.world.start(process, program);
        while !self.world.has_ended(process) && self.world.now_ns() < until_ns {
            assert!(self.world.step(), "something happens");
        }
    }

    /// The host loses its power, and is back.
    fn lose_power(&self, seed: u64) {
        let mut word = seed;
        self.disk.lose_power(|| {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            word >> 20
        });
        self.disk.set_faults(DiskFaults::default());
        self.life.set(self.life.get() + 1);
        self.gave_up.take();
    }

    /// The value of each key.
    fn contents(&self) -> BTreeMap<u64, u64> {
        let (process, client) = self.client();
        let found = Rc::new(RefCell::new(BTreeMap::new()));
        let into = found.clone();
        self.run(
            process,
            async move {
                for key in 0..KEYS {
                    let value = client.get(&key.to_le_bytes(), Buf::new()).await.unwrap();
                    if let Some(value) = value {
                        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
                        assert_eq!(value[..], value_of(number));
                        into.borrow_mut().insert(key, number);
                    }
                }
            },
            u64::MAX,
        );
        found.take()
    }
}

/// Value `number`; now and then one that no datagram holds.
fn value_of(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(if number.is_multiple_of(11) { 9_000 } else { 8 + number as usize % 50 }, 7);
    value
}

/// The state after the first `count` operations of [`write`].
fn state(count: u64) -> BTreeMap<u64, u64> {
    let mut state = BTreeMap::new();
    for number in 0..count {
        match number % 5 {
            4 => state.remove(&(number % KEYS)),
            _ => state.insert(number % KEYS, number),
        };
    }
    state
}

/// PUTs and DELETEs, one after the other, until one fails; `acknowledged` counts.
async fn write(client: Client<SimEndpoint>, acknowledged: Rc<Cell<u64>>) {
    loop {
        let number = acknowledged.get();
        let key = (number % KEYS).to_le_bytes();
        let done = match number % 5 {
            4 => client.delete(&key).await.map(|_| ()),
            _ => client.put(&key, &value_of(number), PutOptions::default()).await.map(|_| ()),
        };
        if done.is_err() {
            assert!(matches!(done, Err(EngineError::Ambiguous(_))), "{done:?}");
            return;
        }
        acknowledged.set(number + 1);
    }
}

#[test]
fn with_sync_nothing_that_was_acknowledged_is_lost() {
    for seed in 0..60 {
        let rig = Rig::new(seed, Policy { sync: true, segment_bytes: 8_000, ..Policy::default() });
        let sync_looks = seed as u32 % 5;
        rig.disk.set_faults(DiskFaults { sync_looks, ..DiskFaults::default() });
        let acknowledged = Rc::new(Cell::new(0));
        let (process, client) = rig.client();
        rig.run(process, write(client, acknowledged.clone()), 100_000 + seed * 37_000);
        rig.world.kill(process);
        rig.world.fence(process);
        rig.lose_power(seed);
        let (found, at) = (rig.contents(), acknowledged.get());
        assert!(found == state(at) || found == state(at + 1), "seed {seed}, {at} acknowledged");
        assert!(seed < 5 || at > 5, "seed {seed}: {at}");
        rig.world.end();
    }
}

#[test]
fn without_it_a_bounded_suffix_is() {
    let mut lost_most = 0;
    for seed in 0..60 {
        let policy = Policy {
            write_us: 20,
            sync_us: 100,
            loss_records_max: 12,
            loss_us_max: 1_000,
            segment_bytes: 8_000,
            ..Policy::default()
        };
        let rig = Rig::new(seed, policy);
        rig.disk.set_faults(DiskFaults { sync_looks: 60, ..DiskFaults::default() });
        let acknowledged = Rc::new(Cell::new(0));
        let (process, client) = rig.client();
        rig.run(process, write(client, acknowledged.clone()), 100_000 + seed * 37_000);
        rig.world.kill(process);
        rig.world.fence(process);
        rig.lose_power(seed);
        let (found, at) = (rig.contents(), acknowledged.get());
        // The number of records includes those of the log itself.
        let lost = (0..=12u64.min(at)).find(|lost| found == state(at - lost));
        let done = found == state(at + 1);
        assert!(lost.is_some() || done, "seed {seed}: {at} acknowledged, found {found:?}");
        lost_most = lost_most.max(lost.unwrap_or(0));
        rig.world.end();
    }
    assert!(lost_most > 3, "the disk lost something: {lost_most}");
}

#[test]
fn a_failed_sync_stops_the_server_and_nothing_is_acknowledged_any_more() {
    for syncs_left in 0..4 {
        let rig = Rig::new(syncs_left, Policy { sync: true, ..Policy::default() });
        rig.world.run_until(rig.world.now_ns() + 50_000);
        rig.disk.set_faults(DiskFaults { syncs_left: Some(syncs_left), ..DiskFaults::default() });
        let acknowledged = Rc::new(Cell::new(0));
        let (process, client) = rig.client();
        rig.run(process, write(client, acknowledged.clone()), 10_000_000);
        assert!(rig.world.has_ended(process), "its operation is of unknown outcome");
        assert_eq!(acknowledged.get(), syncs_left);
        let said = rig.gave_up.borrow().clone().expect("the server stopped");
        assert!(said.contains("syncing log segment"), "{said}");
        // Clients go on reading what was acknowledged.
        assert_eq!(rig.contents(), state(syncs_left));
        rig.lose_power(9);
        let found = rig.contents();
        assert!(found == state(syncs_left) || found == state(syncs_left + 1));
        rig.world.end();
    }
}

#[test]
fn versions_are_leased_anew_after_every_start() {
    let rig = Rig::new(3, Policy::default());
    let mut last = 0;
    for _ in 0..4 {
        rig.world.run_until(rig.world.now_ns() + 100_000);
        rig.lose_power(1);
        rig.world.run_until(rig.world.now_ns() + 100_000);
        assert!(rig.leased.get() > last);
        last = rig.leased.get();
    }
    rig.world.end();
}
