//! The workload of a run, checked.
//!
//! A [`Spec`] comes from [`WorkloadArgs`](crate::args::WorkloadArgs), or a client gets it from the
//! bench, so code that holds a spec need not check it again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::options::{
    Attach, Connections, Eviction, ReadMode, Replay, ServerOptions, TableOptions,
};
use crate::rate::Rate;
use crate::system::{Engine, Fabric, Hardware, Peer, PeerTransport};

/// Keys carry a unique 8-byte identity, so they cannot be shorter.
pub const KEY_SIZE_MIN: usize = 8;
/// No real workload has longer keys; the limits of the peers are far below.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Largest value: four times the default limit of a Loch table.
pub const VALUE_SIZE_MAX: usize = 256 << 20;
/// More records than any host holds; keeps key identities within 48 bits.
pub const RECORDS_MAX: u64 = 1 << 40;
/// Outstanding operations of one client.
pub const LANES_MAX: usize = 4096;
/// Parts of the measured phase: the median of so many ratios holds although other load comes and
/// goes.
const TURNS: u32 = 7;
/// Threads of a peer's server: as many as a gateway can have.
pub const PEER_THREADS_MAX: u16 = 256;
/// Processes of one kind that one run starts.
pub const PROCESSES_MAX: u32 = 1024;

/// How keys are picked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dist {
    /// Every record equally often.
    Uniform,
    /// Rank `i` with probability proportional to `1 / i^theta`.
    Zipf(f64),
}

/// When the measured phase ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// After this many seconds.
    Seconds(f64),
    /// After this many operations of all clients together.
    Ops(u64),
}

/// A validated run of the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Loch engines, in the order given.
    pub engines: Vec<Engine>,
    /// Peers, in the order given.
    pub peers: Vec<Peer>,
    /// How clients reach those peers that are servers.
    pub peer_transport: PeerTransport,
    /// Threads of those servers that can have several; `None` for as many as there are cores.
    pub peer_threads: Option<u16>,
    /// The fabric that carries the verbs.
    pub fabric: Fabric,
    /// The simulated hardware; used with [`Fabric::Sim`] alone.
    pub hardware: Hardware,
    /// Node processes; for an attached cluster, the number of its nodes.
    pub nodes: u32,
    /// Client processes.
    pub clients: u32,
    /// Outstanding operations of a client.
    pub lanes: usize,
    /// The owner of the connections to the nodes.
    pub connections: Connections,
    /// Whether nodes encrypt the connections of clients.
    pub encrypt: bool,
    /// Whether clients reach the memory of their own node over the network, too.
    pub far: bool,
    /// Whether outstanding operations are handed over as batches.
    pub batch_api: bool,
    /// How values are read.
    pub read_mode: ReadMode,
    /// Records loaded, or keys of the file that is replayed.
    pub records: u64,
    /// Bytes of a value; in a replay of the longest one.
    pub value_size: usize,
    /// Bytes of a key.
    pub key_size: usize,
    /// Share of GETs.
    pub reads: f64,
    /// Key distribution.
    pub dist: Dist,
    /// End of the measured phase.
    pub stop: Stop,
    /// The rate of an open loop; `None` for a closed loop.
    pub rate: Option<Rate>,
    /// The file that is replayed in the place of a workload of the bench's own.
    pub replay: Option<Replay>,
    /// Seed of all traces.
    pub seed: u64,
    /// Busy-looping processes.
    pub background_hogs: u32,
    /// JSON instead of the table.
    pub json: bool,
    /// Check the contents of every value read.
    pub verify: bool,
    /// The RDMA devices of this host are software: times say nothing about a card.
    pub soft_roce: bool,
    /// The cluster that is measured as it is, instead of one of the bench's own.
    pub attach: Option<Attach>,
    /// Switches of Loch's table.
    pub table: TableOptions,
    /// Workers of Loch's nodes.
    pub servers: ServerOptions,
}

impl Spec {
    /// Parts of the measured phase. The bare loops, and the other systems of the run, take turns
    /// with them. An open loop is about latencies, and has one; a replay is about what
    /// is found, and has one, too.
    pub fn turns(&self) -> u32 {
        let has_one = self.rate.is_some() || self.replay.is_some() || self.fabric == Fabric::Sim;
        if has_one { 1 } else { TURNS }
    }

    /// Whether a client's outstanding operations form batches: one at a time is none, in an open
    /// loop each begins at a moment of its own, batches copy values, and simulated clients have
    /// lanes.
    pub fn batches(&self) -> bool {
        let copies = self.read_mode == ReadMode::Copy;
        let is_real = self.fabric != Fabric::Sim;
        self.batch_api && copies && is_real && self.lanes > 1 && self.rate.is_none()
    }

    /// Bytes of keys and values, without any store's overhead.
    pub fn data_bytes(&self) -> u64 {
        match &self.replay {
            Some(replay) => replay.keys * self.key_size as u64 + replay.value_bytes,
            None => self.records.saturating_mul((self.key_size + self.value_size) as u64),
        }
    }

    /// Whether the workload is a cache's: a GET that finds nothing is followed by a PUT.
    pub fn is_cache(&self) -> bool {
        self.table.eviction == Eviction::Sieve
    }

    /// The memory that a cache may have in all, if that is limited.
    pub fn cache_bytes(&self) -> Option<u64> {
        let memory = self.table.memory.filter(|_| self.is_cache());
        memory.map(|memory| memory.bytes().saturating_mul(self.nodes.into()))
    }
}

impl FromStr for Dist {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "uniform" {
            return Ok(Dist::Uniform);
        }
        let theta = text
            .strip_prefix("zipf:")
            .and_then(|theta| theta.parse::<f64>().ok())
            .ok_or("write uniform, or zipf:THETA such as zipf:0.99")?;
        // The generator's closed form holds for this range (zipf.rs).
        if theta > 0.0 && theta < 1.0 {
            Ok(Dist::Zipf(theta))
        } else {
            Err("THETA must lie between 0 and 1, both excluded; 0.99 is YCSB's".into())
        }
    }
}

impl fmt::Display for Dist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dist::Uniform => f.write_str("uniform"),
            Dist::Zipf(theta) => write!(f, "zipf:{theta}"),
        }
    }
}
