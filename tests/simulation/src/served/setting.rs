//! Everything that a seed decides of a cluster with workers before the first step.

use loch::{ByteSize, CacheLimits, FabricKind, NodeConfig, TableConfig};
use loch_engines::registry::Options;
use loch_engines::requests::Timing;
use loch_fabric::sim::{Faults, Profile};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Session slots of a node that are its clients'.
const SESSIONS: u32 = 8;
/// The memory that a node is declared with. The tables are made smaller than that.
const NODE_BYTES: u64 = 256 << 20;
/// The longest value that is written if memory is not scarce.
const VALUE_BYTES_MAX: usize = 300;
const VALUE_BYTES: &[usize] = &[8, 16, 32, 108, VALUE_BYTES_MAX];

/// The setting of the cluster that a seed draws.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The kind of hardware.
    pub profile: Profile,
    pub nodes: u16,
    /// The declaration of the table. Its `workers` and `window` are declared.
    pub table: TableConfig,
    /// Reply slots of each client: fewer than the table is declared with.
    pub replies: u16,
    /// Whether a process is hostile, if the engine has such processes.
    pub is_hostile: bool,
    /// A client's patience.
    pub timing: Timing,
    /// The most that a client caches, and packs into one request.
    pub cache: CacheLimits,
    pub batch: usize,
    /// Bytes of the longest datagram of a client.
    pub message_bytes_max: usize,
    /// The faults of messages, memory and clients.
    pub faults: Faults,
    /// The number of clients, the operations that each has under way, and the operations that each
    /// does in all.
    pub clients: usize,
    pub lanes: usize,
    pub ops: usize,
    /// The number of keys. All of their histories are checked.
    pub keys: u64,
    /// The keys from this one on hold numbers that are added to.
    pub numbers_from: u64,
    /// Lengths of the other keys' values.
    pub value_bytes: &'static [usize],
    /// Whether most keys come and go: fewer conditional PUTs and additions, more DELETEs and PUTs.
    pub churns: bool,
    /// Whether values disappear by themselves.
    pub evicts: bool,
    /// The share of operations that are dropped before they are over.
    pub cancels: f64,
    /// Turns of the table's housekeeper for each turn of a worker; 0: it has none.
    pub housekeeping: f64,
    /// One in this many idle turns of a worker is followed by a report.
    pub turns_a_report: u32,
    /// Mean time between two deaths of clients, and of workers, in microseconds; 0: none.
    pub kill_every_us: u64,
    pub restart_every_us: u64,
    /// The longest time until a worker is there again.
    pub down_us_max: u64,
    /// Mean time between two cuts of a link, each too short for a connection to break.
    pub cut_every_us: u64,
    /// Mean time between two times at which nodes have come back with other memory.
    pub attach_every_us: u64,
}

impl Setting {
    /// The setting that a seed draws. `sends`: whether workers get datagrams, which can be lost.
    pub fn draw(random: &mut ChaCha8Rng, sends: bool) -> Self {
        let one_host = random.random_bool(0.3);
        let profile = if one_host { Profile::ONE_HOST } else { Profile::CONNECTX_3_56 };
        let nodes = random.random_range(1..=3);
        let mut table = TableConfig {
            workers: Some(random.random_range(1..=2)),
            window: Some(random.random_range(1..=4)),
            value_max: Some(ByteSize::new(VALUE_BYTES_MAX as u64)),
            ..TableConfig::default()
        };
        table.name = "table".into();
        let replies = random.random_range(1..=6);
        let mut rate = |most: f64| {
            if random.random_bool(0.5) { random.random_range(0.0..most) } else { 0.0 }
        };
        let loss = if sends { 0.1 } else { 0.0 };
        let faults = Faults {
            torn: rate(1.0),
            tear_ns: 4_000,
            delays: rate(0.4),
            delay_ns: 5_000,
            slow_stores: rate(0.7),
            store_ns: 2_000,
            atomic_window_ns: 300,
            lost_messages: if loss > 0.0 { rate(loss) } else { 0.0 },
            doubled_messages: if loss > 0.0 { rate(loss) } else { 0.0 },
            ..Faults::default()
        };
        let sometimes = |random: &mut ChaCha8Rng, us: u64| match random.random_bool(0.6) {
            true => random.random_range(us / 4..us),
            false => 0,
        };
        Self {
            profile: Profile { retry_ns: 3_000_000, ..profile },
            nodes,
            table,
            replies,
            is_hostile: random.random_bool(0.25),
            timing: Timing {
                resend_us: random.random_range(20..400),
                timeout_us: [1_000, 10_000, 100_000][random.random_range(0..3usize)],
            },
            cache: CacheLimits { lines: 16, entry_bytes_max: 512 },
            batch: [1, 2, 8, 64][random.random_range(0..4usize)],
            message_bytes_max: usize::MAX,
            faults,
            clients: random.random_range(2..=4),
            lanes: random.random_range(1..=5),
            ops: 40,
            keys: random.random_range(2..=4),
            numbers_from: 1,
            value_bytes: VALUE_BYTES,
            churns: false,
            evicts: false,
            cancels: if random.random_bool(0.3) { 0.1 } else { 0.0 },
            housekeeping: 0.0,
            turns_a_report: 50,
            kill_every_us: sometimes(random, 400),
            restart_every_us: sometimes(random, 600),
            down_us_max: 1_500,
            cut_every_us: 0,
            attach_every_us: sometimes(random, 1_000),
        }
    }

    /// The same setting with a table of this engine.
    pub fn of(mut self, engine: impl Into<Options>) -> Self {
        self.table.engine = engine.into();
        self
    }

    /// The configuration of every node.
    pub fn config(&self) -> NodeConfig {
        NodeConfig {
            memory: ByteSize::new(NODE_BYTES),
            sessions: SESSIONS,
            fabric: FabricKind::Verbs,
            cluster: (0..self.nodes).map(|node| node.to_string().into()).collect(),
            tables: vec![self.table.clone()],
            ..NodeConfig::default()
        }
    }

    /// Workers of each node.
    pub fn workers(&self) -> u16 {
        self.table.workers.expect("it was drawn")
    }
}
