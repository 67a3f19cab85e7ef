//! A simulated cluster whose nodes have workers: its table, its sessions and its clients.
//!
//! The table is laid out from its declaration, and clients are opened, by the code that does this
//! in a cluster of Loch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use loch::simulated::{Connector, Layout, Table};
use loch_engines::epoch::Session;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::release_dead;
use loch_engines::nessie::slab::Chunk;
use loch_engines::net::Access;
use loch_engines::registry::Map;
use loch_engines::requests::{Timing, WorkerId};
use loch_fabric::Fabric;
use loch_fabric::sim::{Faults, ProcessId, SimEndpoint, World};

use super::design::Design;
use super::recorder::Recorder;
use super::script::{Client, Load};
use super::sessions::Sessions;
use super::setting::Setting;
use crate::watch::Watch;

/// The number of looks whether a session left anything behind.
const SCRUBS_MAX: u32 = 3;
/// How long a worker may go on with a request that no client waits for any more.
const LEFT_US: u64 = 20_000;

/// The nodes with the table, and the sessions.
pub struct Cluster {
    pub design: Rc<dyn Design>,
    pub world: World,
    pub table: Table,
    pub sessions: Rc<Sessions>,
    pub recorder: Rc<Recorder>,
    /// Goes up when nodes have come back with other memory. The simulated memory is in fact the
    /// same, but no worker can know that.
    pub generation: Cell<u64>,
    /// The workers' counts, by name.
    counts: RefCell<BTreeMap<&'static str, u64>>,
    pub watch: Option<Rc<Watch>>,
    /// The names of all keys.
    pub names: Rc<[Vec<u8>]>,
}

impl Cluster {
    pub fn new(design: Rc<dyn Design>, seed: u64) -> Result<Self, String> {
        let setting = design.setting();
        let layout = Layout::changed(&setting.config(), |_, params| design.shrink(params));
        let mut layout = layout.map_err(|error| error.to_string())?;
        let table = layout.tables.remove(0);
        let world = World::new(seed, setting.profile, Faults::default());
        for _ in 0..setting.nodes {
            world.add_node(layout.region_bytes);
        }
        world.set_faults(setting.faults);
        let watch = table.map.nessie().map(|map| Watch::over(&world, map.clone()));
        let slots = layout.client_slots;
        let sessions = Sessions::new(world.clone(), setting.nodes, slots, watch.clone());
        Ok(Self {
            names: (0..setting.keys).map(|key| design.key_name(key)).collect(),
            sessions: Rc::new(sessions),
            recorder: Rc::new(Recorder::new(world.clone())),
            generation: Cell::new(0),
            counts: RefCell::default(),
            watch,
            table,
            world,
            design,
        })
    }

    pub fn setting(&self) -> &Setting {
        self.design.setting()
    }

    /// Takes note that a worker has counted so much more.
    pub fn count(&self, name: &'static str, more: u64) {
        *self.counts.borrow_mut().entry(name).or_default() += more;
    }

    /// The number that workers have counted.
    pub fn counted(&self, name: &str) -> u64 {
        self.counts.borrow().get(name).copied().unwrap_or_default()
    }

    /// A client of the table, or of one that lies in the same memory.
    pub fn client(
        &self,
        endpoint: SimEndpoint,
        map: &Map,
        session: Session,
        timing: Timing,
    ) -> Client {
        let Setting { cache, batch, .. } = *self.setting();
        let node = session.home().0.into();
        let access = Access { session, node, timing, cache, batch };
        let Ok(client) = Client::open(map, access, Connector(endpoint));
        client
    }

    pub fn load(&self, lanes: usize, ops: usize, timing: Timing) -> Load {
        let Setting { numbers_from, value_bytes, churns, cancels, .. } = *self.setting();
        let (names, timeout_us) = (self.names.clone(), timing.timeout_us);
        Load { lanes, ops, names, numbers_from, value_bytes, churns, cancels, timeout_us }
    }

    /// Whether a worker SENDs its replies. Its process then has to stay alive.
    pub fn sends(&self) -> bool {
        !self.table.map.engine().needs().sessions
    }

    /// Makes the node forget a worker that is gone, as a node does that starts anew. The values in
    /// the worker's own memory are lost.
    pub fn dies(&self, id: WorkerId) {
        let requests = self.table.map.requests().expect("workers serve it");
        self.world.store(requests.incarnation_addr(id), 0);
        if !self.table.map.engine().needs().private_memory {
            return;
        }
        let per_node = u32::from(self.setting().workers());
        let all = u32::from(self.setting().nodes) * per_node;
        let number = u32::from(id.node) * per_node + u32::from(id.worker);
        for (key, name) in (0..).zip(&*self.names) {
            let owner = self.design.owner(self.table.params.seed, name, all);
            if owner.is_none_or(|owner| owner == number) {
                self.recorder.lost(key);
            }
        }
    }

    /// Looks whether a worker is there.
    pub fn look_at(&self, id: WorkerId) {
        let requests = self.table.map.requests().expect("workers serve it");
        self.recorder.look_at(requests.incarnation_addr(id));
    }

    /// Checks that a session that ends in order leases no memory. It may own slabs that it has
    /// seized: nobody may use them yet, so its node waits in its place.
    pub fn holds_nothing(&self, incarnation: u64) {
        let Some(map) = self.table.map.nessie() else { return };
        for dti in 0..map.data_tables() as u8 {
            for chunk in 0..map.shape.geometry.chunks {
                let used = Chunk::from_word(self.world.load(map.chunk_addr(dti, chunk)));
                if let Some(
                    Chunk::Leased { owner, .. }
                    | Chunk::Forming { owner, .. }
                    | Chunk::Closing { owner, .. },
                ) = used
                    && owner == incarnation as u32
                {
                    let wrong =
                        format!("a session that ended in order left chunk {chunk} of {dti}");
                    self.recorder.wrong(format!("{wrong}: {used:?}"));
                }
            }
        }
    }

    /// Checks a table of nessie's layout: its memory has to be in order, and what dead sessions
    /// left has to be found. If all sessions have left in order there is nothing to be found: no
    /// scrubber runs.
    pub async fn audit(&self, process: ProcessId, map: &Arc<TableMap>) -> Result<(), String> {
        let endpoint = self.world.endpoint(process);
        for (node, dead) in self.sessions.take_ended().into_iter().enumerate() {
            for owner in dead {
                let released = release_dead(&endpoint, map, node as u8, owner as u32).await;
                released.expect("nothing is cut");
            }
        }
        let timing = Timing { timeout_us: LEFT_US, ..self.setting().timing };
        let session = self.sessions.admit(process, 0);
        let client_end = self.world.endpoint(process);
        let client = self.client(client_end, &Map::Nessie(map.clone()), session, timing);
        let client = client.nessie().expect("it is nessie's");
        let mut left = None;
        for _ in 0..SCRUBS_MAX {
            for dti in (0..map.data_tables() as u8).filter(|_| self.sessions.any_died()) {
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
            endpoint.pause(LEFT_US).await;
        }
        Err(format!("left behind at the end: {left:?}"))
    }
}
