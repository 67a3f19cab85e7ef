//! Options that only some runs have: the switches of the table that Loch's engines are measured on,
//! the workers that serve it, and the running cluster to measure instead of one of the bench's own.
//!
//! Each switch is one of the optimisations of nessie §4.3.2, so that its gain can be measured
//! (Figure 13 there), or part of the index's shape. The defaults are those of an untuned table.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loch::limits::BATCH_DEFAULT;
use loch::{ByteSize, CacheLimits};
use loch_engines::limits::{WINDOW_MAX, WORKERS_MAX};
use serde::{Deserialize, Serialize};

/// The table's switches. Peers have none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "The table (Loch only)")]
pub struct TableOptions {
    /// Index entries carry seven bits of the key's hash, so that other keys' entries are not read
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub filter_bits: Switch,
    /// Clients remember index words and remote entries; auto: on if a round trip is expensive,
    /// which it is not over shm
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub cache: AutoSwitch,
    /// Lines of a client's cache
    #[arg(long, value_name = "N", default_value_t = CacheLimits::default().lines as u64)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_lines: u64,
    /// Entries up to this length are cached whole; of longer entries only their place is cached
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize::new(CacheLimits::default().entry_bytes_max as u64))]
    #[arg(hide_short_help = true)]
    pub cache_entry_max: ByteSize,
    /// For entries above 4 KiB, read header and key first
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub multi_read: Switch,
    /// A GET that meets an undecided PUT takes the previous version instead of waiting: a switch of
    /// --engine nessie-published; Loch's own PUTs are never undecided
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub previous_versions: Switch,
    /// A GET reads all of a key's slots in its first doorbell; auto: if a round trip is expensive.
    /// With --fabric sim or verbs it always does
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub batched_reads: AutoSwitch,
    /// Entries carry checksums. They are needed if a second look at an entry is expensive:
    /// with --fabric sim entries always carry them
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "off")]
    #[arg(hide_short_help = true)]
    pub checksums: Switch,
    /// Hash functions of the index, 2 to 4
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(2..=4))]
    pub ways: u8,
    /// Slots that each hash function gives a key: 1 (the paper's index), 2 or 4; with --eviction 1
    /// or 3 [default: 4; with --eviction 3]
    #[arg(long, value_name = "N")]
    #[arg(hide_short_help = true, value_parser = bucket_slots)]
    pub bucket_slots: Option<u8>,
    /// What happens when the table is full. With sieve it is a cache, and so is the workload: a GET
    /// that finds nothing is followed by a PUT of the record. memcached, Redis and the gateway's
    /// table are caches then, too. Without --memory there is room for all records, and nothing is
    /// evicted
    #[arg(long, value_enum, value_name = "POLICY", default_value = "none")]
    #[arg(hide_short_help = true)]
    pub eviction: Eviction,
    /// Memory of the table on each node, its index included, instead of as much as the records
    /// need. With --eviction sieve it is the limit of memcached, Redis and the gateway's table,
    /// too: whole MiB
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub memory: Option<ByteSize>,
    /// Slots of the table's index on each node, with --memory [default: one for every 112 bytes of
    /// it]
    #[arg(long, value_name = "N", requires = "memory", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub index_slots: Option<u64>,
    /// Share of the index's slots that the records fill, without --memory
    #[arg(long, value_name = "PERCENT", default_value_t = 75, conflicts_with = "memory")]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=95))]
    pub index_fill: u8,
}

/// What a full table does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Eviction {
    /// It refuses PUTs.
    None,
    /// It evicts values that are used little.
    Sieve,
}

/// The table that is measured, in clusters of the bench's own.
pub const TABLE: &str = "bench";

/// The prefix of the bench's keys in a table that others use too.
pub const KEY_PREFIX: &[u8; 8] = b"~bench~:";

/// A file of requests that is replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// The file.
    pub file: PathBuf,
    /// Its requests.
    pub requests: u64,
    /// Its different keys.
    pub keys: u64,
    /// Bytes of the values of all of its keys: of each key the first one.
    pub value_bytes: u64,
    /// The line or record of the longest value.
    pub longest: String,
}

/// A running cluster. The bench does not choose its nodes and the switches of its table.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "A cluster that runs already")]
pub struct AttachOptions {
    /// Measure the cluster of the node at this socket, with clients on this host: no node is
    /// started or stopped. Also give the cluster's --fabric
    #[arg(long, value_name = "SOCKET")]
    #[arg(conflicts_with_all = [
        "nodes", "peer", "profile", "filter_bits", "cache", "multi_read", "previous_versions",
        "batched_reads", "checksums", "ways", "bucket_slots", "memory", "index_slots",
        "index_fill",
    ])]
    pub attach: Option<PathBuf>,
    /// Table of that cluster [default: default]
    #[arg(long = "table", value_name = "NAME", requires = "attach")]
    pub attached_table: Option<String>,
    /// Whether the records are stored first, under keys that begin with "~bench~:". They stay
    /// there, so another run of the same records need not store them [default: yes]
    #[arg(long, value_enum, value_name = "YES|NO", requires = "attach")]
    pub load: Option<Load>,
}

/// Whether records are stored first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// The records are stored first.
    Yes,
    /// The records are there from an earlier run.
    No,
}

/// A cluster that is measured as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Socket of the node that clients attach to.
    pub socket: PathBuf,
    /// The table.
    pub table: String,
    /// Whether the records are stored first.
    pub loads: bool,
}

impl TableOptions {
    /// How much a client may cache, if it caches at all.
    pub fn cache_limits(&self) -> CacheLimits {
        CacheLimits {
            lines: self.cache_lines as usize,
            entry_bytes_max: self.cache_entry_max.bytes() as usize,
        }
    }
}

impl AttachOptions {
    /// The chosen cluster, if one was chosen.
    pub fn chosen(self) -> Option<Attach> {
        let table = self.attached_table.unwrap_or_else(|| "default".into());
        let loads = self.load != Some(Load::No);
        self.attach.map(|socket| Attach { socket, table, loads })
    }
}

/// The workers of engines whose servers take part in operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Engines whose servers take part")]
pub struct ServerOptions {
    /// Workers of each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(WORKERS_MAX)))]
    pub workers: u16,
    /// Requests that a client has under way at one worker [default: as many as --lanes, but 8 to
    /// 32, or 8 if values have more than 4 KiB; with --fabric sim at most 16]
    #[arg(long, value_name = "W")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(WINDOW_MAX)))]
    pub window: Option<u16>,
    /// Workers without work never sleep, as in the papers
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub dedicated: bool,
    /// The most operations that a client of kv-direct packs into one packet; 1: no packing
    #[arg(long, value_name = "N", default_value_t = BATCH_DEFAULT)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub batch: usize,
    /// Workers of kv-direct execute operations on different keys out of order; off: an operation
    /// that waits for an earlier one on its key makes all later ones wait
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub out_of_order: Switch,
    /// Hosts without a node that run all clients; only with --fabric sim and engines whose clients
    /// need no memory at a node, such as herd; 0: clients run on the nodes' hosts
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(hide_short_help = true)]
    pub client_hosts: u32,
}

/// The owner of the connections to the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// Each client has its own.
    Client,
    /// The clients of a host share one to each node.
    Host,
}

/// How values are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadMode {
    /// Into a buffer of the client.
    Copy,
    /// In place: a byte of each cache line is loaded.
    Pin,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// In use.
    On,
    /// Not in use.
    Off,
}

/// On, off, or the engine's choice for this fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AutoSwitch {
    /// In use.
    On,
    /// Not in use.
    Off,
    /// The engine decides.
    Auto,
}

impl From<Switch> for bool {
    fn from(switch: Switch) -> bool {
        switch == Switch::On
    }
}

impl From<AutoSwitch> for Option<bool> {
    fn from(switch: AutoSwitch) -> Option<bool> {
        match switch {
            AutoSwitch::On => Some(true),
            AutoSwitch::Off => Some(false),
            AutoSwitch::Auto => None,
        }
    }
}

fn bucket_slots(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(slots @ 1..=4) => Ok(slots),
        _ => Err("a bucket has 1, 2 or 4 slots, or 3 in a table that evicts".into()),
    }
}
