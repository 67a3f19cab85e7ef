//! Pilaf, with a log whose disk loses bytes that were not synced, fails, and refuses to write
//! appended bytes when no process is left to learn of it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::log::{DiskFaults, LogError, MemoryStorage, Policy};
use loch_engines::pilaf::{Access, Client, Logging, Shape, Worker, WorkerError};
use loch_engines::requests::{Area, BySend, RequestMap, Service, WorkerId};
use loch_fabric::sim::{ProcessId, SimEndpoint};
use loch_fabric::{Fabric, RegionId, RemoteAddr};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::cluster::{Engine, Seat};
use super::setting::Setting;

const SEED: u64 = 5;
const VALUE_BYTES_MAX: u64 = 300;
const ARENA_BYTES: u64 = 64 << 10;
/// There are so few slots that inserts move other keys.
const INDEX_SLOTS: u64 = 4;

/// A table of pilaf, with a log on each node.
pub struct Pilaf {
    /// The number of snapshots that were made in the longest life of a server.
    snapshots: Cell<u64>,
    map: Arc<RequestMap>,
    shapes: Vec<Shape>,
    disks: Vec<MemoryStorage>,
    policy: Policy,
    draw: u64,
}

/// The most syncs that succeed in a server's life, if the disk fails.
const SYNCS_MAX: u64 = 100;

impl Pilaf {
    /// The faults of a node's disk, and of the host, between two lives of its server.
    fn strike(&self, disk: &MemoryStorage, random: impl Fn() -> u64) {
        disk.kill();
        let loses_power = self.draw >> 20 & 1 == 1;
        if !self.disks_fail() {
            if loses_power {
                disk.lose_power(random);
            }
            return;
        }
        match random() % 3 {
            0 if loses_power => disk.lose_power(&random),
            1 => disk.refuse_writes(),
            _ => (),
        }
        let (sync_looks, syncs) = (random() as u32 % 4, random() % SYNCS_MAX);
        disk.set_faults(DiskFaults {
            sync_looks,
            syncs_left: Some(syncs),
            ..DiskFaults::default()
        });
    }

    fn disks_fail(&self) -> bool {
        self.draw >> 22 & 1 == 1
    }

    fn client_that_sends(
        &self,
        send_bytes_max: usize,
        seat: Seat,
        setting: &Setting,
        workers: &[ProcessId],
    ) -> Client<SimEndpoint> {
        let servers: Vec<_> =
            workers.iter().step_by(setting.service.workers.into()).copied().collect();
        let access = Access {
            roots: self.shapes.iter().map(|shape| shape.root).collect(),
            map: self.map.clone(),
            // Some clients have to find out where servers receive.
            servers: match self.draw >> 21 & 1 {
                0 => BySend::new(&servers, 1),
                _ => BySend::seeking(&self.map),
            },
            seed: SEED,
            value_bytes_max: VALUE_BYTES_MAX,
            send_bytes_max,
        };
        Client::new(seat.endpoint, access, &seat.session, setting.timing)
    }
}

impl Engine for Pilaf {
    type Client = Client<SimEndpoint>;
    const SENDS: bool = true;
    const DISHONEST: bool = true;

    /// A few keys more: exactly as many as the first index has slots, so that inserts move other
    /// keys; or more than that, so that the index grows in every life of a server and its old
    /// memory is used for values.
    fn draw(random: &mut ChaCha8Rng) -> Setting {
        let mut setting = Setting::draw(random, Self::SENDS);
        let kind = random.random_range(0..3);
        if kind > 0 {
            setting.nodes = 1;
            setting.keys = if kind == 1 { INDEX_SLOTS } else { random.random_range(5..=9) };
            setting.churns = true;
            setting.ops = 60;
        }
        setting
    }

    fn requests(&self) -> &RequestMap {
        &self.map
    }

    fn new(setting: &Setting) -> Self {
        let service = Service { workers: 1, reply_bytes: 0, ..setting.service };
        let area = Area::new(service, setting.nodes).unwrap();
        let at = |node: u16| RemoteAddr::new(RegionId(node as u8), setting.offset);
        let map = RequestMap::new(area, (0..setting.nodes).map(at).collect());
        let root = |node: u16| at(node).add(area.bytes().next_multiple_of(64));
        let shape = |node: u16| Shape {
            root: root(node),
            arena_bytes: ARENA_BYTES,
            index_slots: INDEX_SLOTS,
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
            snapshots: Cell::new(0),
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
        // Some requests are too long to be SENT, or all, or none.
        self.client_that_sends([0, 120, 4096][self.draw as usize % 3], seat, setting, workers)
    }

    fn sender(&self, seat: Seat, setting: &Setting, workers: &[ProcessId]) -> Option<Self::Client> {
        Some(self.client_that_sends(4096, seat, setting, workers))
    }

    async fn serve(self: Rc<Self>, seat: Seat, id: WorkerId, _: Vec<u64>) {
        if id.worker > 0 {
            return std::future::pending().await;
        }
        let node = usize::from(id.node);
        let disk = &self.disks[node];
        self.strike(disk, || seat.endpoint.random());
        let logging =
            Logging { storage: disk.clone(), table: 1, policy: self.policy, compact_bytes: 3_000 };
        let (map, shape) = (self.map.clone(), self.shapes[node]);
        let (sessions, logging) = (seat.sessions(), Some(logging));
        let opened = Worker::open(seat.endpoint, &map, id.node, shape, logging, sessions);
        let mut server = match opened {
            Err(WorkerError::Log(LogError::Storage(_))) if self.disks_fail() => return,
            opened => opened.unwrap(),
        };
        for turn in 0u32.. {
            match server.turn() {
                // The server stops, and is started anew.
                Err(WorkerError::Log(LogError::Storage(_))) if self.disks_fail() => return,
                turned => drop(turned.expect("its memory and its disk are there")),
            }
            if turn.is_multiple_of(32) {
                let report = server.store().check(server.fabric()).unwrap();
                assert_eq!(report.broken, Vec::<String>::new());
                self.snapshots.set(self.snapshots.get().max(server.counts().snapshots));
            }
            server.fabric().yield_now().await;
        }
    }

    /// The table's servers check it while they live.
    async fn audit(&self, _: Seat, _: Vec<Vec<u64>>) -> Result<(), String> {
        Ok(())
    }

    fn snapshots(&self) -> u64 {
        self.snapshots.get()
    }
}
