//! A simulated cluster with one table: nodes, the places of their clients, and an agent on each
//! node that acts as the node's own process when a client has died.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use loch::simulated::{Connector, Layout, SimNet, Table};
use loch::{ByteSize, FabricKind, NodeConfig, TableConfig, TableProtocol};
use loch_engines::Kv;
use loch_engines::epoch::Session;
use loch_engines::limits::PINS_MAX;
use loch_engines::nessie::geometry::{Bits, Geometry, Protocol};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::options::{Eviction, LayoutOptions, Options};
use loch_engines::nessie::{CacheLimits, ExpiryWalk, release_dead};
use loch_engines::net::Access;
use loch_engines::region::{EPOCH_OFFSET, pins_offset, session_addr};
use loch_engines::registry::{self, Map};
use loch_engines::requests::Timing;
use loch_fabric::sim::{Faults, ProcessId, SimEndpoint, World};
use loch_fabric::{Fabric, RegionId, RemoteAddr};

use crate::Client;
use crate::watch::Watch;
use crate::workload::{self, Setting};

/// Session slots of a node that are its clients'.
const SESSIONS: u32 = 63;
/// The session slot of a node's agent, as of its scrubber.
const AGENT_SLOT: u32 = 0;
/// The memory that a node is declared with. The tables are made smaller than that.
const NODE_BYTES: u64 = 64 << 20;
/// How long a scrub waits for clients in the middle of an operation.
const SCRUB_WAIT_US: u64 = 3_000;

/// A cluster.
pub struct Cluster {
    pub world: World,
    table: Map,
    map: Arc<TableMap>,
    pub nodes: u16,
    incarnations: Cell<u64>,
    agents: Vec<Rc<Agent>>,
    /// The places where clients are attached.
    seats: RefCell<Vec<Option<Seat>>>,
    timeout_us: u64,
    agent_pause_us: u64,
    /// Whether agents walk their memory for what has expired.
    agents_walk: bool,
    cache: CacheLimits,
    /// Whether agents can be stopped at the same points as clients.
    agents_stop: bool,
    pub watch: Rc<Watch>,
}

/// A node's own process.
#[derive(Default)]
struct Agent {
    /// Sessions that ended without abandoning their slabs.
    dead: RefCell<VecDeque<u32>>,
    ends: Cell<bool>,
    ended: Cell<bool>,
    freed: Cell<u64>,
    /// The values that had expired, and that the agent removed.
    expired: Cell<u64>,
}

/// A client's place: its endpoint and its session.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    pub process: ProcessId,
    pub home: RegionId,
    slot: u32,
    incarnation: u64,
}

impl Cluster {
    /// Makes the nodes, with all memory zero.
    pub fn new(seed: u64, setting: &Setting) -> Self {
        let Setting { profile, table, timeout_us, agent_pause_us, .. } = setting;
        let layout = Layout::changed(&config(table), |_, params| {
            let (shards_per_node, chunks) = (1, table.chunks);
            let buckets_per_shard = table.buckets_per_node;
            let geometry = Geometry::of(params);
            let geometry = Geometry { shards_per_node, buckets_per_shard, chunks, ..geometry };
            *params = geometry.params(params.service);
        });
        let mut layout = layout.expect("the workloads' tables can be laid out");
        let world = World::new(seed, *profile, Faults::default());
        for _ in 0..table.nodes {
            world.add_node(layout.region_bytes);
        }
        let map = map(&layout.tables.remove(0), table);
        let agents = (0..table.nodes).map(|_| Rc::default()).collect();
        let incarnations = Cell::new(1);
        let seats = RefCell::new(vec![None; table.nodes as usize]);
        let nodes = table.nodes;
        let watch = Watch::over(&world, map.clone());
        Self {
            world,
            table: Map::Nessie(map.clone()),
            map,
            nodes,
            incarnations,
            agents,
            seats,
            timeout_us: *timeout_us,
            agent_pause_us: *agent_pause_us,
            agents_walk: setting.walks,
            cache: CacheLimits { lines: 64, entry_bytes_max: setting.cached_bytes_max },
            agents_stop: setting.lives.is_some(),
            watch,
        }
    }

    /// A new client on a node's host, which may share the connections of its host's clients.
    pub fn attach(&self, home: RegionId, shares: bool) -> (Seat, Client) {
        let is_free = |slot: &u32| self.world.load(session_addr(home, *slot)) == 0;
        let slot = (AGENT_SLOT + 1..=SESSIONS).find(is_free);
        self.attach_at(home, slot.expect("a node has more slots than clients"), shares)
    }

    fn attach_at(&self, home: RegionId, slot: u32, shares: bool) -> (Seat, Client) {
        let incarnation = self.incarnations.get();
        self.incarnations.set(incarnation + 1);
        let at = session_addr(home, slot);
        self.world.store(at, incarnation);
        self.world.store(at.add(8), 0);
        let process = self.world.add_process(home);
        if shares {
            self.world.share_connections(process);
        }
        self.watch.joins(process, incarnation);
        let access = Access {
            session: Session::new(home, slot, incarnation),
            node: home.0.into(),
            timing: Timing { timeout_us: self.timeout_us, ..Timing::default() },
            cache: self.cache,
            batch: 1,
        };
        let connector = Connector(self.world.endpoint(process));
        let opened = registry::Client::<SimNet<SimEndpoint>>::open(&self.table, access, connector);
        let Ok(registry::Client::Nessie(client)) = opened else { unreachable!("it is nessie's") };
        (Seat { process, home, slot, incarnation }, client)
    }

    /// All session slots of a node.
    fn sessions(&self) -> u32 {
        self.map.sessions()[0].1
    }

    /// Acts as a node that sees that a client is gone: cuts it off, frees its slot, and lets the
    /// agent clean up what it left. `fences` says which of these steps a planted bug leaves out.
    pub fn bury(&self, seat: Seat, fences: bool) {
        if fences {
            self.world.fence(seat.process);
        }
        let at = session_addr(seat.home, seat.slot);
        if self.world.load(at) == seat.incarnation {
            let pins = RemoteAddr::new(seat.home, pins_offset(self.sessions(), seat.slot));
            (0..PINS_MAX as u64).for_each(|pin| self.world.store(pins.add(pin * 8), 0));
            self.world.store(at, 0);
            self.world.store(at.add(8), 0);
        }
        self.watch.leaves(seat.incarnation, at);
        let agent = &self.agents[seat.home.0 as usize];
        agent.dead.borrow_mut().push_back(seat.incarnation as u32);
    }

    /// The sessions that are taken, and their announcements, for the reader of a failure.
    pub fn sessions_told(&self) -> String {
        let mut told = String::new();
        for node in 0..self.nodes {
            let home = RegionId(node as u8);
            let epoch = self.world.load(RemoteAddr::new(home, EPOCH_OFFSET));
            told += &format!("node {node} in epoch {epoch}:");
            for slot in 0..=SESSIONS {
                let [who, what] =
                    [0, 8].map(|at| self.world.load(session_addr(home, slot).add(at)));
                if who != 0 {
                    told +=
                        &format!(" {who} {}{}", what >> 1, if what & 1 == 1 { "*" } else { "" });
                }
            }
            told += "; ";
        }
        told
    }

    /// Starts a node's agent, which scrubs its own data table and all others in turn. The agent
    /// before it, if there was one, died with its host.
    pub fn start_agent(&self, home: RegionId) {
        let last = self.seats.borrow_mut()[home.0 as usize].take();
        if let Some(last) = last {
            self.bury(last, true);
        }
        let (seat, client) = self.attach_at(home, AGENT_SLOT, false);
        self.seats.borrow_mut()[home.0 as usize] = Some(seat);
        let agent = self.agents[home.0 as usize].clone();
        agent.ended.set(false);
        if self.agents_stop {
            self.world.make_restless(seat.process);
        }
        let (walks, pause_us) = (self.agents_walk.then_some(home.0), self.agent_pause_us);
        self.world.start(seat.process, work(client, agent, self.map.clone(), walks, pause_us));
    }

    /// Lets the agents finish their work and end.
    pub fn end_agents(&self) {
        self.agents.iter().for_each(|agent| agent.ends.set(true));
    }

    /// Whether the agents have ended.
    pub fn agents_ended(&self) -> bool {
        self.agents.iter().all(|agent| agent.ended.get())
    }

    /// Values that had expired, and that the agents removed.
    pub fn expired(&self) -> u64 {
        self.agents.iter().map(|agent| agent.expired.get()).sum()
    }

    /// Entries that the agents freed.
    pub fn freed(&self) -> u64 {
        self.agents.iter().map(|agent| agent.freed.get()).sum()
    }
}

/// The configuration of every node.
fn config(table: &workload::Table) -> NodeConfig {
    let workload::Table { nodes, ways, bucket_slots, value_bytes_max, options, .. } = *table;
    let layout = LayoutOptions {
        index_slots: None,
        ways,
        bucket_slots: Some(bucket_slots),
        filter_bits: options.filter_bits,
        multi_read: options.multi_read,
        batched_reads: options.batched_reads,
        checksums: options.checksums,
        eviction: if options.evicts { Eviction::Sieve } else { Eviction::None },
    };
    let (protocol, previous_versions) = match table.protocol {
        Protocol::Loch => (TableProtocol::Loch, None),
        Protocol::Published { previous_versions } => {
            (TableProtocol::Published, Some(previous_versions))
        }
    };
    let options = Options { layout, cache: options.cache, protocol, previous_versions };
    // Tables of the published protocol are for shared memory only.
    let is_remote = options.layout.checksums && options.protocol == TableProtocol::Loch;
    let value_max = Some(ByteSize::new(value_bytes_max));
    NodeConfig {
        memory: ByteSize::new(NODE_BYTES),
        sessions: SESSIONS,
        fabric: if is_remote { FabricKind::Verbs } else { FabricKind::Shm },
        cluster: (0..nodes).map(|node| node.to_string().into()).collect(),
        tables: vec![TableConfig { value_max, ..TableConfig::new("table", options) }],
        ..NodeConfig::default()
    }
}

/// The map of a laid out table: with its generations' bits and its addresses, which no parameter
/// says.
fn map(laid_out: &Table, table: &workload::Table) -> Arc<TableMap> {
    let map = laid_out.map.nessie().expect("it is nessie's");
    let mut shape = map.shape;
    if let Some(bytes) = table.addresses_of {
        shape.bits = Bits::new(shape.bits.candidates, table.nodes, bytes);
    }
    if let Some(gen_bits) = table.gen_bits {
        shape.bits.gen_bits = gen_bits;
    }
    Arc::new(TableMap::new(shape, &laid_out.places))
}

async fn work(
    client: Client,
    agent: Rc<Agent>,
    map: Arc<TableMap>,
    walks: Option<u8>,
    agent_pause_us: u64,
) {
    let nodes = map.data_tables() as u64;
    let (mut turn, mut walk) = (0, ExpiryWalk::default());
    // The agent was told to end: it scrubs all data tables once more, since the last client is
    // gone.
    let mut left = nodes;
    while left > 0 {
        reconnect(client.fabric()).await;
        let dead = agent.dead.borrow().front().copied();
        if let Some(owner) = dead {
            let mut done = true;
            for dti in 0..map.data_tables() as u8 {
                done &= release_dead(client.fabric(), &map, dti, owner).await.is_ok();
            }
            if done {
                agent.dead.borrow_mut().pop_front();
            } else {
                // An unreachable node may refuse verbs at once: time has to go on all the same.
                client.fabric().pause(100).await;
            }
            continue;
        }
        let ends = agent.ends.get();
        if walks.is_some_and(|dti| may_expire(&client, dti)) {
            // A piece that fails now is left to a later walk.
            let piece = client.expire_some(&mut walk).await.unwrap_or_default();
            agent.expired.set(agent.expired.get() + piece.removed);
        }
        let dti = (turn % nodes) as u8;
        turn += 1;
        // A scrub that fails now is tried again later.
        let scrubbed = client.scrub(dti, SCRUB_WAIT_US).await;
        agent.freed.set(agent.freed.get() + scrubbed.as_ref().map_or(0, |done| done.freed));
        if ends {
            left = if scrubbed.is_ok() { left - 1 } else { nodes };
        }
        client.fabric().pause(agent_pause_us).await;
    }
    let _ = client.detach().await;
    agent.ended.set(true);
}

/// Whether an entry of a data table ever had an expiry.
fn may_expire(client: &Client, dti: u8) -> bool {
    let expiring = client.map().ledger(dti).expiring();
    client.fabric().load(expiring).is_ok_and(|word| word != 0)
}

/// Restores broken connections, as far as that is possible now.
pub async fn reconnect(fabric: &SimEndpoint) {
    for node in fabric.broken() {
        if fabric.reconnect(node).await.is_err() {
            fabric.pause(100).await;
        }
    }
}
