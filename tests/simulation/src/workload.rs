//! The clients' work, the table, and the faults of a run: all drawn from a seed.
//!
//! Each seed switches some faults on and others off, and picks rates, the table's options and the
//! profile anew ("swarm testing"): a mixture that always contains everything hides failures that
//! only a part of it would show.

mod batches;
mod faults;
mod variants;

use clap::ValueEnum;
use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::geometry::{self, Options};
use loch_fabric::sim::{Faults, Profile};
use rand::{Rng, RngExt};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Few keys that everybody wants, all operations.
    Hot,
    /// An index that is as good as full: whoever inserts has to move others.
    Full,
    /// Data tables so small that entries, slabs and classes are reused all the time.
    Reuse,
    /// Values of up to 20 KiB, read while they are replaced.
    Long,
    /// Few keys that are moved all the time, and come and go.
    Moves,
    /// Memory that is just enough or not quite, beside sessions of many lanes that come and go:
    /// slabs are seized, left behind, adopted, taken apart and cut anew all the time.
    Scarce,
    /// The same for few popular keys in tables whose generations have one to four bits, so that
    /// they start over all the time.
    Wraps,
    /// Scarce memory, and lanes that are held up now and then for as long as a slab takes to be
    /// seized, used and left behind: so that one leases what another lane of its session had leased
    /// and lost.
    HeldUp,
    /// Values that expire during the run, by clocks that differ.
    Expiry,
    /// The work of other workloads in a table whose entries have coarse addresses, as those of a
    /// table of many TiB have.
    Coarse,
    /// Batches of GETs and PUTs, on one host, beside the work of the other workloads. Loch's
    /// protocol alone has batches.
    Batches,
    /// Batches of GETs, PUTs and DELETEs over a network, beside the work of the other workloads.
    FarBatches,
    /// Values that are read in place, on one host, while their keys are changed, deleted and moved,
    /// beside the work of the other workloads. Loch's protocol alone has pins.
    Pins,
    /// The work of other workloads by clients that share their host's connections, which break for
    /// all of them when a client dies while it posts, or uses a key that a node refuses.
    Hosts,
    /// The work of other workloads in a table that evicts.
    Cache,
    /// Scans of the table, beside keys that are moved and never deleted, and the work of other
    /// workloads. Loch's protocol alone has scans.
    Scans,
    /// Futures that are dropped wherever they wait, in sessions that live on, beside the work of
    /// other workloads. Nobody dies, so nobody but the sessions themselves puts right what they
    /// leave.
    Dropped,
}

/// By which rules the clients go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Loch's own.
    Loch,
    /// The published one, repaired.
    Published,
}

/// The subject of a run: a kind of work under a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub protocol: Protocol,
    pub workload: Workload,
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub nodes: u16,
    /// Chunks of each node's data table.
    pub chunks: u64,
    pub buckets_per_node: u32,
    pub ways: u8,
    pub bucket_slots: u8,
    pub value_bytes_max: u64,
    pub options: Options,
    pub protocol: geometry::Protocol,
    /// Bits of a generation in index words, if they are fewer than the shape leaves.
    pub gen_bits: Option<u32>,
    /// Entries have addresses as if the data tables had so many bytes.
    pub addresses_of: Option<u64>,
}

/// Everything a seed decides before the first step.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub profile: Profile,
    pub table: Table,
    pub faults: Faults,
    pub clients: usize,
    pub lanes: usize,
    /// Operations of each client.
    pub ops: usize,
    /// How the operations are divided into sessions. If they are not, a client has one session
    /// unless it dies.
    pub lives: Option<Lives>,
    /// Clients from this number on only read, now and then.
    pub writers: usize,
    /// The longest time that those clients wait between two operations.
    pub think_us: u64,
    /// The share of values that expire.
    pub expires: f64,
    /// Whether the nodes' agents walk their memory for what has expired.
    pub walks: bool,
    /// Longest entry that a client's cache keeps whole.
    pub cached_bytes_max: usize,
    /// Pause of a node's agent between two looks for something to do.
    pub agent_pause_us: u64,
    /// Of the 16 kinds of operations that are picked, this many more than usual are PUTs.
    pub puts: u32,
    /// Of the 16 kinds of operations that are picked, this many are DELETEs.
    pub deletes: u32,
    /// Whether some of the PUTs are APPENDs.
    pub appends: bool,
    /// Whether some of the GETs are TOUCHes.
    pub touches: bool,
    /// The share of steps in which a client moves a key instead.
    pub moves: f64,
    /// The share of operations that are batches, of GETs or of PUTs.
    pub batches: f64,
    /// The share of operations that pin a value, and look at it for a while.
    pub pins: f64,
    /// The share of operations that scan the table, or change a key that is never deleted.
    pub scans: f64,
    /// Keys that are never deleted.
    pub stays: u64,
    /// The share of operations that are dropped before they are over.
    pub cancels: f64,
    /// Whether clients rest after their work, when it is looked at what they have left.
    pub rests: bool,
    /// Keys whose histories are checked.
    pub keys: u64,
    /// Other keys, which come and go to be in the way.
    pub crowd: u64,
    /// This many of the checked keys, the first ones, hold numbers.
    pub numbers: u64,
    pub timeout_us: u64,
    pub quarantine: usize,
    pub value_bytes: &'static [usize],
    /// Mean time between two of these faults, in microseconds; 0: never.
    pub cut_every_us: u64,
    pub crash_every_us: u64,
    pub kill_every_us: u64,
    /// If the clients of a host share its connections: mean time between two wrong keys on them.
    pub shared_misuse_every_us: Option<u64>,
}

/// The lengths of clients' sessions.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// This many clients have one session as long as they live.
    pub long: usize,
    /// The other clients have sessions of one to this many operations.
    pub ops_max: usize,
}

const SHORT: &[usize] = &[8, 24, 60, 200];
const MIXED: &[usize] = &[8, 40, 300, 900, 1800, 3000];
const LONG: &[usize] = &[100, 1500, 5000, 9000, 20_000];
/// Lengths of one size class or of several, and about how many values of them a chunk holds.
pub const SCARCE: [(&[usize], u64); 5] = [
    (&[of_a_chunk(8)], 8),
    (&[of_a_chunk(4)], 4),
    (&[of_a_chunk(18)], 18),
    (&[of_a_chunk(18), of_a_chunk(8), of_a_chunk(4)], 5),
    (&[of_a_chunk(40), of_a_chunk(4), of_a_chunk(2)], 3),
];

/// Lengths of values of which a chunk holds few.
const FEW: [&[usize]; 2] = [&[of_a_chunk(4)], &[of_a_chunk(2)]];

/// The length of values of which a chunk holds about so many, with all that lies beside them.
const fn of_a_chunk(values: u64) -> usize {
    (CHUNK_BYTES / values * 9 / 10) as usize
}

impl Setting {
    /// The settings that matter to the reader of a failure.
    pub fn told(&self) -> String {
        let Setting { table, faults, clients, lanes, timeout_us, .. } = self;
        format!(
            "{} of {} nodes, {clients} clients of {lanes} lanes, {timeout_us} us each; {table:?}; \
             {faults:?}",
            self.profile.name, table.nodes
        )
    }
}

impl Kind {
    /// All kinds of a protocol.
    pub fn all(protocol: Protocol) -> Vec<Kind> {
        let is_of = |workload: &Workload| {
            let is_own = matches!(
                workload,
                Workload::Batches
                    | Workload::FarBatches
                    | Workload::Pins
                    | Workload::Hosts
                    | Workload::Cache
                    | Workload::Scans
                    | Workload::Dropped
            );
            protocol == Protocol::Loch || !is_own
        };
        let workloads = Workload::ALL.into_iter().filter(is_of);
        workloads.map(|workload| Kind { protocol, workload }).collect()
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        let workload = self.workload.name();
        match self.protocol {
            Protocol::Loch => workload.to_string(),
            Protocol::Published => format!("{workload} --protocol published"),
        }
    }

    /// The setting that a seed draws.
    pub fn setting(self, random: &mut impl Rng) -> Setting {
        let mut setting = self.workload.setting(random);
        if self.protocol == Protocol::Published {
            let previous_versions = random.random_bool(0.7);
            setting.table.protocol = geometry::Protocol::Published { previous_versions };
            // Most aborted operations belong to clients that are slow, not dead.
            if random.random_bool(SWITCHED_ON) {
                setting.faults.pauses = random.random_range(0.0..0.06);
                setting.faults.pause_ns = [700_000, 2_000_000][random.random_range(0..2usize)];
            }
        }
        setting
    }
}

/// The fewest buckets that a shard can have.
const BUCKETS_MIN: u32 = 4;

/// The share of the settings that have a given fault.
const SWITCHED_ON: f64 = 0.45;

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 17] = [
        Self::Hot,
        Self::Full,
        Self::Reuse,
        Self::Long,
        Self::Moves,
        Self::Scarce,
        Self::Wraps,
        Self::HeldUp,
        Self::Expiry,
        Self::Coarse,
        Self::Batches,
        Self::Pins,
        Self::Hosts,
        Self::FarBatches,
        Self::Cache,
        Self::Scans,
        Self::Dropped,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Hot => "hot",
            Workload::Full => "full",
            Workload::Reuse => "reuse",
            Workload::Long => "long",
            Workload::Moves => "moves",
            Workload::Scarce => "scarce",
            Workload::Wraps => "wraps",
            Workload::HeldUp => "held-up",
            Workload::Expiry => "expiry",
            Workload::Coarse => "coarse",
            Workload::Batches => "batches",
            Workload::FarBatches => "far-batches",
            Workload::Pins => "pins",
            Workload::Hosts => "hosts",
            Workload::Cache => "cache",
            Workload::Scans => "scans",
            Workload::Dropped => "dropped",
        }
    }

    /// The setting that a seed draws.
    fn setting(self, random: &mut impl Rng) -> Setting {
        match self {
            Self::Scarce => scarce(Self::Hot.usual(random), random),
            Self::Wraps => wraps(Self::Hot.usual(random), random),
            Self::HeldUp => held_up(Self::Hot.usual(random), random),
            Self::Expiry => variants::expiry(Self::Hot.usual(random), random),
            Self::Coarse => variants::coarse(random),
            Self::Batches => batches::near(random),
            Self::FarBatches => batches::far(random),
            Self::Pins => variants::pins(random),
            Self::Hosts => variants::hosts(random),
            Self::Cache => variants::cache(random),
            Self::Scans => variants::scans(random),
            Self::Dropped => variants::dropped(random),
            _ => self.usual(random),
        }
    }

    fn usual(self, random: &mut impl Rng) -> Setting {
        let one_host = random.random_bool(0.35);
        let profile = if one_host { Profile::ONE_HOST } else { Profile::CONNECTX_3_56 };
        // Connections are given up soon: virtual time is cheap, but not free.
        let profile = Profile { retry_ns: 3_000_000, ..profile };
        let (full, moves) = (self == Workload::Full, self == Workload::Moves);
        let nodes = random.random_range(1..=if full { 2 } else { 3 });
        let (ways, bucket_slots) = [(3, 1), (4, 1), (2, 2), (3, 2), (3, 4), (2, 4)]
            [random.random_range(0..if full || moves { 4 } else { 6usize })];
        let slots_of_buckets = u64::from(nodes) * u64::from(bucket_slots);
        let (keys, crowd, buckets) = self.keys(slots_of_buckets, random);
        let value_bytes = match self {
            Workload::Reuse => MIXED,
            Workload::Long => LONG,
            _ => SHORT,
        };
        // Every client leases chunks for each size: with so few, memory is short.
        let chunks = match self {
            Workload::Reuse => 16,
            Workload::Long => random.random_range(16..=32),
            _ => 20,
        };
        let options = options(one_host, random);
        let (faults, clients) = (faults::any(random), random.random_range(3..=5));
        let lanes = if random.random_bool(0.7) { 1 } else { random.random_range(2..=3) };
        Setting {
            profile,
            table: Table {
                nodes,
                chunks,
                buckets_per_node: buckets,
                ways,
                bucket_slots,
                value_bytes_max: 32 << 10,
                options,
                protocol: geometry::Protocol::Loch,
                gen_bits: None,
                addresses_of: None,
            },
            faults,
            clients,
            lanes,
            ops: if full { 100 } else { 50 },
            lives: None,
            writers: usize::MAX,
            think_us: 0,
            expires: 0.0,
            walks: false,
            cached_bytes_max: 512,
            agent_pause_us: 200,
            puts: 0,
            // Deleted keys are inserted again, and only inserts move other keys.
            deletes: if full || moves { 5 } else { 2 },
            appends: false,
            touches: false,
            moves: if moves { random.random_range(0.2..0.8) } else { 0.0 },
            batches: 0.0,
            pins: 0.0,
            scans: 0.0,
            stays: 0,
            rests: false,
            cancels: if random.random_bool(0.3) { 0.1 } else { 0.0 },
            // The search for an explanation is exponential in the concurrent operations on a key.
            keys: if lanes > 1 { keys.max(2) } else { keys },
            crowd,
            numbers: 1,
            timeout_us: [500, 3_000, 30_000][random.random_range(0..3usize)],
            quarantine: if random.random() { 0 } else { random.random_range(0..32) },
            value_bytes,
            cut_every_us: sometimes(random, 0.3, 1_000),
            crash_every_us: sometimes(random, 0.15, 4_000),
            kill_every_us: sometimes(random, 0.3, 400),
            shared_misuse_every_us: None,
        }
    }

    /// The number of keys, the number of other keys in their way, and the number of a node's
    /// buckets. `slots_of_buckets`: the slots of one bucket of each node.
    fn keys(self, slots_of_buckets: u64, random: &mut impl Rng) -> (u64, u64, u32) {
        match self {
            Workload::Hot
            | Workload::Scarce
            | Workload::Wraps
            | Workload::HeldUp
            | Workload::Expiry
            | Workload::Coarse
            | Workload::Batches
            | Workload::FarBatches
            | Workload::Pins
            | Workload::Hosts
            | Workload::Cache
            | Workload::Scans
            | Workload::Dropped => (2, 4, 16),
            Workload::Full => {
                let buckets = BUCKETS_MIN + random.random_range(0..=2u32);
                let slots = u64::from(buckets) * slots_of_buckets;
                (5, slots - 3, buckets)
            }
            Workload::Reuse => (3, 12, 32),
            Workload::Long => (3, 3, 16),
            Workload::Moves => {
                let buckets = random.random_range(BUCKETS_MIN..=6);
                let slots = u64::from(buckets) * slots_of_buckets;
                (random.random_range(1..=2), random.random_range(2..=slots / 2), buckets)
            }
        }
    }
}

/// Memory that is just enough for all keys, or not quite.
fn scarce(usual: Setting, random: &mut impl Rng) -> Setting {
    let nodes = random.random_range(1..=2);
    let (value_bytes, slab_entries) = SCARCE[random.random_range(0..SCARCE.len())];
    let chunks = random.random_range(2..=4);
    let room = (u64::from(nodes) * chunks * slab_entries) as f64;
    let clients = random.random_range(3..=6);
    let mut setting = Setting {
        clients,
        lanes: [1, 2, 2, 3, 4, 8, 16][random.random_range(0..7usize)],
        ops: 60,
        lives: Some(Lives {
            long: random.random_range(1..clients),
            ops_max: [4, 10, 30][random.random_range(0..3usize)],
        }),
        expires: if random.random_bool(0.2) { 0.3 } else { 0.0 },
        agent_pause_us: [200, 1_000, 10_000][random.random_range(0..3usize)],
        puts: random.random_range(3..=7),
        deletes: random.random_range(1..=4),
        keys: ((room * random.random_range(0.7..1.3)) as u64).max(2),
        crowd: 0,
        timeout_us: [1_000, 3_000, 10_000][random.random_range(0..3usize)],
        quarantine: if random.random() { 0 } else { random.random_range(0..4) },
        value_bytes,
        ..usual
    };
    (setting.table.nodes, setting.table.chunks) = (nodes, chunks);
    setting.table.buckets_per_node = 64;
    let faults = &mut setting.faults;
    faults.deaths /= 4.0;
    faults.stops = [0.0, 0.001, 0.004, 0.015][random.random_range(0..4usize)];
    faults.stop_ns = [200_000, 800_000, 3_000_000][random.random_range(0..3usize)];
    if random.random() {
        faults.pauses = random.random_range(0.0..0.03);
        faults.pause_ns = [400_000, 2_000_000][random.random_range(0..2usize)];
    }
    // A lane that is held up for long may lease a slab that another lane has leased and lost
    // meanwhile.
    if random.random_bool(0.4) {
        setting.lanes = 16;
        faults.delays = random.random_range(0.3..0.8);
        faults.delay_ns = [5_000, 20_000][random.random_range(0..2usize)];
    }
    setting
}

/// Sessions, or some of their lanes, are held up for as long as a slab takes to change hands and
/// come back.
fn held_up(usual: Setting, random: &mut impl Rng) -> Setting {
    let setting = scarce(usual, random);
    if random.random() { held_up_lanes(setting, random) } else { stopped(setting, random) }
}

/// A session of several lanes beside other sessions that come and go.
fn held_up_lanes(mut setting: Setting, random: &mut impl Rng) -> Setting {
    let (value_bytes, slab_entries) = SCARCE[random.random_range(0..2usize)];
    let chunks = random.random_range(1..=4);
    (setting.table.nodes, setting.table.chunks) = (1, chunks);
    setting.value_bytes = value_bytes;
    setting.keys = chunks * slab_entries * random.random_range(5..=13) / 10;
    setting.clients = random.random_range(2..=4);
    setting.lives = Some(Lives { long: 1, ops_max: [2, 4, 10][random.random_range(0..3usize)] });
    (setting.lanes, setting.ops) = (random.random_range(2..=6), 30);
    (setting.quarantine, setting.timeout_us, setting.agent_pause_us) = (0, 30_000, 200);
    let faults = &mut setting.faults;
    faults.delays = random.random_range(0.02..0.1);
    faults.delay_ns = [300_000, 1_000_000, 3_000_000][random.random_range(0..3usize)];
    setting
}

/// Long sessions that are stopped now and then, with few values, whose generations start over.
fn stopped(mut setting: Setting, random: &mut impl Rng) -> Setting {
    (setting.table.nodes, setting.table.chunks) =
        (random.random_range(1..=2), random.random_range(3..=5));
    setting.table.gen_bits = Some(random.random_range(1..=2));
    setting.keys = random.random_range(2..=8);
    setting.clients = random.random_range(3..=5);
    setting.lives = Some(Lives { long: setting.clients, ops_max: 10 });
    setting.lanes = [1, 1, 1, 3][random.random_range(0..4usize)];
    (setting.quarantine, setting.timeout_us) = (0, 1_000);
    let faults = &mut setting.faults;
    (faults.stops, faults.stop_ns) = (0.015, 3_000_000);
    (faults.deaths, faults.pauses) = (0.0, 0.0);
    setting
}

/// Generations that start over all the time, under few keys that all clients remember.
fn wraps(usual: Setting, random: &mut impl Rng) -> Setting {
    let mut setting = scarce(usual, random);
    setting.table.gen_bits = Some(random.random_range(1..=4));
    if random.random_bool(0.7) {
        setting.table.options.cache = Some(true);
    }
    if random.random_bool(0.3) {
        setting.value_bytes = SHORT;
    }
    setting.cached_bytes_max = 64 << 10;
    setting.clients = random.random_range(2..=4);
    setting.lives = Some(Lives { long: random.random_range(1..=2), ops_max: 20 });
    setting.keys = random.random_range(2..=6);
    if random.random() {
        // Some clients write few keys, and the others come back to the words that they remember.
        setting.writers = random.random_range(1..setting.clients);
        setting.numbers = 0;
        setting.think_us = [20, 300, 3_000][random.random_range(0..3usize)];
        setting.keys = random.random_range(1..=3);
        setting.lives = Some(Lives { long: setting.clients, ops_max: 20 });
        setting.lanes = 1;
    }
    setting.lanes = setting.lanes.min(4);
    setting.agent_pause_us = [1_000, 10_000][random.random_range(0..2usize)];
    if random.random_bool(0.25) { few_entries(setting, random) } else { setting }
}

/// One writer has only a few entries, which rest all the time. The lanes of the other clients come
/// back to words that they remember, while answers to some of them are held up: so they begin in
/// one epoch and get their answers in another.
fn few_entries(mut setting: Setting, random: &mut impl Rng) -> Setting {
    (setting.table.nodes, setting.table.chunks) = (1, random.random_range(1..=2));
    setting.table.gen_bits = Some(1);
    setting.table.options.cache = Some(true);
    setting.value_bytes = FEW[random.random_range(0..FEW.len())];
    (setting.clients, setting.writers, setting.numbers) = (random.random_range(2..=3), 1, 0);
    setting.lives = Some(Lives { long: setting.clients, ops_max: 20 });
    (setting.lanes, setting.think_us) = (random.random_range(2..=4), 100);
    setting.keys = random.random_range(1..=2);
    setting.kill_every_us = 0;
    setting.agent_pause_us = 10_000;
    let faults = &mut setting.faults;
    (faults.delays, faults.delay_ns) = (random.random_range(0.2..0.8), 5_000);
    (faults.deaths, faults.pauses, faults.stops) = (0.0, 0.0, 0.0);
    setting
}

fn options(one_host: bool, random: &mut impl Rng) -> Options {
    Options {
        filter_bits: random.random_bool(0.8),
        cache: pick(random, one_host),
        multi_read: random.random(),
        batched_reads: pick(random, one_host),
        checksums: !one_host,
        evicts: false,
    }
}

/// One of the three ways to leave or set a switch.
fn pick(random: &mut impl Rng, one_host: bool) -> Option<bool> {
    match random.random_range(0..4) {
        0 | 1 => None,
        2 => Some(true),
        // If the fabric wants all buckets read together, that cannot be switched off.
        _ => Some(!one_host),
    }
}

fn sometimes(random: &mut impl Rng, share: f64, every_us: u64) -> u64 {
    if random.random_bool(share) { every_us / 2 + random.random_range(0..every_us) } else { 0 }
}
