//! Nessie's served versions.

use std::rc::Rc;

use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::nessie::{self, CacheLimits, release_dead};
use loch_engines::nessie_hybrid;
use loch_engines::nessie_server::{self, Served, Worker};
use loch_engines::requests::{RequestMap, Turns, WorkerId};
use loch_fabric::Fabric;
use loch_fabric::sim::{ProcessId, SimEndpoint, World};
use rand_chacha::ChaCha8Rng;

use super::cluster::{Engine, Seat};
use super::setting::{Setting, VALUE_BYTES_MAX, places};
use crate::watch::Watch;

/// The number of requests that a worker serves at a time.
const LANES: usize = 4;
/// The number of looks whether a session left anything behind.
const LOOKS_MAX: u32 = 3;
/// How long a worker's nessie client goes on with an operation.
const TIMEOUT_US: u64 = 20_000;

fn table(setting: &Setting) -> Served {
    let bit = |n: u32| setting.draw >> n & 1 == 1;
    let options = Options {
        filter_bits: bit(0),
        multi_read: bit(1),
        cache: [None, Some(true), Some(false)][setting.draw as usize / 4 % 3],
        batched_reads: None,
        checksums: true,
    };
    let value_bytes_max = if setting.chunks.is_some() { 32 << 10 } else { VALUE_BYTES_MAX as u64 };
    let planned = Geometry::plan(setting.nodes, 8 << 20, 64, 3, 2, value_bytes_max, options);
    let mut geometry = planned.unwrap().coupled();
    // There are so few slots that inserts move other keys, and so few chunks that memory is used
    // again.
    let buckets = if setting.chunks.is_some() { 64 } else { 4 };
    (geometry.shards_per_node, geometry.buckets_per_shard) = (1, buckets);
    geometry.chunks = 40;
    let mut shape = geometry.validate().unwrap();
    // Fewer chunks than a user's table can have.
    shape.geometry.chunks = setting.chunks.unwrap_or(40);
    Served::new(shape, setting.service, &places(setting)).unwrap()
}

fn bytes(map: &Served) -> u64 {
    Served::bytes(&map.table.shape, map.requests.area())
}

fn nessie_client(map: &Served, seat: Seat) -> nessie::Client<SimEndpoint> {
    let cache = CacheLimits { lines: 16, entry_bytes_max: 512 };
    nessie::Client::new(seat.endpoint, map.table.clone(), seat.session, cache, TIMEOUT_US)
}

/// Cleans up the chunks of a node that sessions left. Workers lease chunks of their own node.
async fn release(map: &Served, seat: &Seat, node: usize, dead: Vec<u64>) {
    for owner in dead {
        let released = release_dead(&seat.endpoint, &map.table, node as u8, owner as u32).await;
        released.expect("nothing is cut");
    }
}

/// Acts as the node that starts a worker, and then runs the worker.
async fn serve(map: Served, seat: Seat, id: WorkerId, dead: Vec<u64>) {
    release(&map, &seat, id.node.into(), dead).await;
    let sessions = seat.sessions();
    let client = nessie_client(&map, seat);
    let worker = Worker::open(client, map, id, sessions).unwrap();
    let mut turns = worker.serve(LANES);
    loop {
        turns.turn().expect("its own memory is there");
        worker.client().fabric().yield_now().await;
    }
}

/// Checks that the memory is in order, and that what dead workers left is found.
async fn audit(map: &Served, seat: Seat, dead: Vec<Vec<u64>>) -> Result<(), String> {
    for (node, dead) in dead.into_iter().enumerate() {
        release(map, &seat, node, dead).await;
    }
    let client = nessie_client(map, seat);
    let mut left = None;
    for _ in 0..LOOKS_MAX {
        for dti in 0..map.table.data_tables() as u8 {
            client.scrub(dti, 10_000).await.map_err(|error| format!("scrub: {error}"))?;
        }
        let report = client.check().await.map_err(|error| format!("check: {error}"))?;
        if !report.broken.is_empty() {
            return Err(format!("the memory is not in order: {:?}", report.broken));
        }
        if report.unshown + report.tentative + report.moving == 0 {
            return Ok(());
        }
        left = Some(report);
        // Workers may still be executing requests that no client waits for any more.
        client.fabric().pause(TIMEOUT_US).await;
    }
    Err(format!("left behind at the end: {left:?}"))
}

/// A table whose clients make a request for every operation; with scarce memory or not.
pub struct ServerDriven<const SCARCE: bool>(Served);

fn draw(random: &mut ChaCha8Rng, is_scarce: bool) -> Setting {
    let setting = Setting::draw(random, false);
    if is_scarce { setting.scarce(random) } else { setting }
}

impl<const SCARCE: bool> Engine for ServerDriven<SCARCE> {
    type Client = nessie_server::Client<SimEndpoint>;
    const SENDS: bool = false;
    const DISHONEST: bool = true;

    fn draw(random: &mut ChaCha8Rng) -> Setting {
        draw(random, SCARCE)
    }

    fn watch(&self, world: &World) -> Option<Rc<Watch>> {
        Some(Watch::over(world, self.0.table.clone()))
    }

    fn requests(&self) -> &RequestMap {
        &self.0.requests
    }

    fn new(setting: &Setting) -> Self {
        Self(table(setting))
    }

    fn bytes(&self) -> u64 {
        bytes(&self.0)
    }

    fn client(&self, seat: Seat, setting: &Setting, _: &[ProcessId]) -> Self::Client {
        nessie_server::Client::new(seat.endpoint, self.0.clone(), &seat.session, setting.timing)
    }

    async fn serve(self: Rc<Self>, seat: Seat, id: WorkerId, dead: Vec<u64>) {
        serve(self.0.clone(), seat, id, dead).await
    }

    async fn audit(&self, seat: Seat, dead: Vec<Vec<u64>>) -> Result<(), String> {
        audit(&self.0, seat, dead).await
    }
}

/// A table whose clients do GETs by themselves and make requests for the rest; with scarce memory
/// or not.
pub struct Hybrid<const SCARCE: bool>(Served);

impl<const SCARCE: bool> Engine for Hybrid<SCARCE> {
    type Client = nessie_hybrid::Client<SimEndpoint>;
    const SENDS: bool = false;
    const DISHONEST: bool = true;

    fn draw(random: &mut ChaCha8Rng) -> Setting {
        draw(random, SCARCE)
    }

    fn watch(&self, world: &World) -> Option<Rc<Watch>> {
        Some(Watch::over(world, self.0.table.clone()))
    }

    fn requests(&self) -> &RequestMap {
        &self.0.requests
    }

    fn new(setting: &Setting) -> Self {
        Self(table(setting))
    }

    fn bytes(&self) -> u64 {
        bytes(&self.0)
    }

    fn client(&self, seat: Seat, setting: &Setting, _: &[ProcessId]) -> Self::Client {
        let cache = CacheLimits { lines: 16, entry_bytes_max: 512 };
        let Seat { endpoint, session, .. } = seat;
        nessie_hybrid::Client::new(endpoint, self.0.clone(), session, cache, setting.timing)
    }

    async fn serve(self: Rc<Self>, seat: Seat, id: WorkerId, dead: Vec<u64>) {
        serve(self.0.clone(), seat, id, dead).await
    }

    async fn audit(&self, seat: Seat, dead: Vec<Vec<u64>>) -> Result<(), String> {
        audit(&self.0, seat, dead).await
    }
}
