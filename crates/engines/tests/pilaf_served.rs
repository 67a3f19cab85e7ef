//! Pilaf on simulated clusters: servers and clients die, messages are torn, lost and doubled, disks
//! lose what was not synced, and what the clients are told is linearizable.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::log::{DiskFaults, MemoryStorage, Policy};
use loch_engines::pilaf::{Access, Client, Logging, Server, Shape};
use loch_engines::requests::{Area, RequestMap, Service, WorkerId};
use loch_fabric::sim::{ProcessId, SimEndpoint};
use loch_fabric::{Fabric, RegionId, RemoteAddr};

#[allow(dead_code, reason = "other engines need more of it")]
#[macro_use]
mod servers;

use servers::{Engine, Seat, Setting};

const SEED: u64 = 5;
const VALUE_BYTES_MAX: u64 = 300;
const ARENA_BYTES: u64 = 64 << 10;

thread_local! {
    /// Snapshots that were made in the longest life of a server.
    static SNAPSHOTS: Cell<u64> = const { Cell::new(0) };
}

struct Pilaf {
    map: Arc<RequestMap>,
    shapes: Vec<Shape>,
    disks: Vec<MemoryStorage>,
    policy: Policy,
    draw: u64,
}

impl Engine for Pilaf {
    type Client = Client<SimEndpoint>;
    const SENDS: bool = true;

    fn new(setting: &Setting) -> Self {
        let service = Service { workers: 1, reply_bytes: 0, ..setting.service };
        let area = Area::new(service, setting.nodes).unwrap();
        let at = |node: u16| RemoteAddr::new(RegionId(node as u8), setting.offset);
        let map = RequestMap::new(area, (0..setting.nodes).map(at).collect());
        let root = |node: u16| at(node).add(area.bytes().next_multiple_of(64));
        let shape = |node: u16| Shape {
            root: root(node),
            arena_bytes: ARENA_BYTES,
            // So few that inserts move others.
            index_slots: 4,
            value_bytes_max: VALUE_BYTES_MAX,
            seed: SEED,
            node: node as u8,
        };
        let disk = |node: u16| {
            let disk = MemoryStorage::default();
            let sync_looks = (setting.draw >> (8 + node * 2)) as u32 % 4;
            disk.set_faults(DiskFaults { sync_looks, ..DiskFaults::default() });
            disk
        };
        Self {
            map: Arc::new(map),
            shapes: (0..setting.nodes).map(shape).collect(),
            disks: (0..setting.nodes).map(disk).collect(),
            policy: Policy { sync: true, segment_bytes: 2_000, ..Policy::default() },
            draw: setting.draw,
        }
    }

    fn bytes(&self) -> u64 {
        self.map.area().bytes().next_multiple_of(64) + self.shapes[0].bytes()
    }

    fn client(&self, seat: Seat, setting: &Setting, workers: &[ProcessId]) -> Self::Client {
        let access = Access {
            roots: self.shapes.iter().map(|shape| shape.root).collect(),
            map: self.map.clone(),
            servers: workers.iter().step_by(setting.service.workers.into()).copied().collect(),
            seed: SEED,
            value_bytes_max: VALUE_BYTES_MAX,
            // Some requests are too long for that, or all, or none.
            send_bytes_max: [0, 120, 4096][self.draw as usize % 3],
        };
        Client::new(seat.endpoint, access, &seat.session, setting.timing)
    }

    async fn serve(self: Rc<Self>, seat: Seat, id: WorkerId, _: Vec<u64>) {
        if id.worker > 0 {
            return std::future::pending().await;
        }
        let node = usize::from(id.node);
        let disk = &self.disks[node];
        disk.kill();
        if self.draw >> 20 & 1 == 1 {
            disk.lose_power(|| seat.endpoint.random());
        }
        let logging =
            Logging { storage: disk.clone(), table: 1, policy: self.policy, compact_bytes: 3_000 };
        let (map, shape) = (self.map.clone(), self.shapes[node]);
        let mut server = Server::open(seat.endpoint, &map, id.node, shape, Some(logging)).unwrap();
        for turn in 0u32.. {
            server.turn().expect("its memory and its disk are there");
            if turn.is_multiple_of(32) {
                let report = server.store().check(server.fabric()).unwrap();
                assert_eq!(report.broken, Vec::<String>::new());
                SNAPSHOTS.set(SNAPSHOTS.get().max(server.counts().snapshots));
            }
            server.fabric().breathe().await;
        }
    }

    /// Its servers do that while they live.
    async fn audit(&self, _: Seat) -> Result<(), String> {
        Ok(())
    }
}

client!(Client<SimEndpoint>);

#[test]
fn what_clients_are_told_is_linearizable() {
    let seeds = std::env::var("LOCH_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let from = std::env::var("LOCH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut total = servers::Report::default();
    for seed in from..from + seeds.unwrap_or(200u64) {
        let report = servers::run::<Pilaf>(seed);
        total.operations += report.operations;
        total.unknown += report.unknown;
        total.restarts += report.restarts;
        total.kills += report.kills;
    }
    println!("{total:?}");
    assert!(SNAPSHOTS.get() > 0, "logs are compacted meanwhile");
    assert!(seeds.is_some() || (total.restarts > 50 && total.kills > 50), "{total:?}");
}
