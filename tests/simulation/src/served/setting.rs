//! Everything that a seed decides of a cluster with workers before the first step.

use loch_engines::region::{SESSION_BYTES, SESSIONS_OFFSET, TABLE_ALIGN_BYTES};
use loch_engines::requests::{Service, Timing};
use loch_fabric::sim::{Faults, Profile};
use loch_fabric::{RegionId, RemoteAddr};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Session slots of a node.
pub const SESSIONS: u32 = 16;
/// The longest value that is written if memory is not scarce.
pub const VALUE_BYTES_MAX: usize = 300;
const VALUE_BYTES: &[usize] = &[8, 16, 32, 108, VALUE_BYTES_MAX];
/// The longest key.
pub const KEY_BYTES_MAX: usize = 16;

/// The setting of the cluster that a seed draws; engines lay out their tables by it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The kind of hardware.
    pub profile: Profile,
    /// Nodes.
    pub nodes: u16,
    /// The service of requests; engines change it as they need.
    pub service: Service,
    /// The first byte of the table on every node.
    pub offset: u64,
    /// A number for the engine to draw its own options from.
    pub draw: u64,
    /// A client's patience.
    pub timing: Timing,
    /// The faults of messages and memory.
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
    /// Chunks of each node's data table, if memory is scarce.
    pub chunks: Option<u64>,
    /// Mean time between two deaths of clients, and of workers, in microseconds; 0: none.
    pub kill_every_us: u64,
    pub restart_every_us: u64,
    /// Mean time between two cuts of a link, each too short for a connection to break.
    pub cut_every_us: u64,
}

impl Setting {
    /// The setting that a seed draws. `sends`: whether workers get datagrams, which can be lost.
    pub fn draw(random: &mut ChaCha8Rng, sends: bool) -> Self {
        let one_host = random.random_bool(0.3);
        let profile = if one_host { Profile::ONE_HOST } else { Profile::CONNECTX_3_56 };
        let nodes = random.random_range(1..=3);
        let service = Service {
            workers: random.random_range(1..=2),
            window: random.random_range(1..=4),
            replies: random.random_range(1..=6),
            sessions_per_node: SESSIONS,
            request_bytes: Service::request_bytes_for(KEY_BYTES_MAX as u64, 300).unwrap(),
            reply_bytes: Service::reply_bytes_for(300).unwrap(),
            ..Service::default()
        };
        let offset = (SESSIONS_OFFSET + u64::from(SESSIONS) * SESSION_BYTES)
            .next_multiple_of(TABLE_ALIGN_BYTES);
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
            service,
            offset,
            draw: random.random(),
            timing: Timing {
                resend_us: random.random_range(20..400),
                timeout_us: [1_000, 10_000, 100_000][random.random_range(0..3usize)],
            },
            faults,
            clients: random.random_range(2..=4),
            lanes: random.random_range(1..=3),
            ops: 40,
            keys: random.random_range(2..=4),
            numbers_from: 1,
            value_bytes: VALUE_BYTES,
            churns: false,
            chunks: None,
            kill_every_us: sometimes(random, 400),
            restart_every_us: sometimes(random, 600),
            cut_every_us: 0,
        }
    }
}

/// Lengths of values, of one size class or of several, and about how many of them a chunk holds.
const SCARCE: [(&[usize], u64); 4] =
    [(&[7_600], 8), (&[15_000], 4), (&[3_500], 18), (&[3_500, 7_600, 15_000], 5)];

impl Setting {
    /// The same setting with memory that all values together would fill to 70 to 110 %.
    pub fn scarce(mut self, random: &mut ChaCha8Rng) -> Self {
        let (value_bytes, slab_entries) = SCARCE[random.random_range(0..SCARCE.len())];
        self.nodes = random.random_range(1..=2);
        let chunks = random.random_range(2..=4);
        let room = (u64::from(self.nodes) * chunks * slab_entries) as f64;
        self.keys = ((room * random.random_range(0.7..1.1)) as u64).max(2);
        (self.value_bytes, self.numbers_from, self.churns) = (value_bytes, u64::MAX, true);
        self.chunks = Some(chunks);
        self.lanes = random.random_range(1..=6);
        self.ops = 60;
        let longest = value_bytes.iter().max().map_or(0, |len| *len as u64);
        let service = &mut self.service;
        service.request_bytes = Service::request_bytes_for(KEY_BYTES_MAX as u64, longest).unwrap();
        service.reply_bytes = Service::reply_bytes_for(longest).unwrap();
        self
    }
}

/// The address of the table on each node, and the number of that node's session slots.
pub fn places(setting: &Setting) -> Vec<(RemoteAddr, u32)> {
    let at = |node: u16| RemoteAddr::new(RegionId(node as u8), setting.offset);
    (0..setting.nodes).map(|node| (at(node), SESSIONS)).collect()
}
