//! The targets: one row of the table each.

use std::fmt;

/// A target, and how it follows from results.
pub struct Target {
    /// The name of its measurements in a results file.
    pub name: &'static str,
    /// What it is about.
    pub what: &'static str,
    /// Which number of a result counts. Of several results the worst does.
    pub of: Of,
    /// The number that is wanted.
    pub wanted: Wanted,
}

/// A number of a result.
pub enum Of {
    /// The share of the bare loop that prefetches.
    Limit,
    /// The share of the bare loop without prefetching.
    LimitOne,
    /// How many times as fast as these peers the first system is.
    Times(&'static [&'static str]),
    /// How many times as fast as memcached in the same run an engine is.
    Served,
    /// The processor time of an operation at both ends together, in times of memcached's in the
    /// same run.
    Processor,
    /// A number that does not come from a workload.
    Value,
}

/// A bound of a number.
pub enum Wanted {
    /// It is at least this.
    AtLeast(f64),
    /// It is at most this.
    AtMost(f64),
}

impl Wanted {
    pub fn is_met(&self, value: f64) -> bool {
        match self {
            Wanted::AtLeast(least) => value >= *least,
            Wanted::AtMost(most) => value <= *most,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::AtLeast(least) => write!(f, "≥ {least}"),
            Wanted::AtMost(most) => write!(f, "≤ {most}"),
        }
    }
}

const fn at_least(name: &'static str, what: &'static str, of: Of, least: f64) -> Target {
    Target { name, what, of, wanted: Wanted::AtLeast(least) }
}

const fn at_most(name: &'static str, what: &'static str, of: Of, most: f64) -> Target {
    Target { name, what, of, wanted: Wanted::AtMost(most) }
}

const SOCKETS: Of = Of::Times(&["memcached", "redis"]);
const LMDB: Of = Of::Times(&["lmdb"]);

/// The targets of a table, in its order.
pub struct Targets {
    /// The lines of the document around the table.
    pub around: [&'static str; 2],
    /// The targets. Values have 64 bytes where nothing else is said.
    pub all: &'static [Target],
}

/// The targets to which measurements of this name belong.
pub fn targets_of(name: &str) -> Targets {
    match name.starts_with("tcp-") {
        true => Targets { around: TCP_TABLE, all: &TCP },
        false => Targets { around: SHM_TABLE, all: &SHM },
    }
}

const SHM_TABLE: [&str; 2] =
    ["<!-- The table of scripts/targets.sh -->", "<!-- The end of the table -->"];
const TCP_TABLE: [&str; 2] =
    ["<!-- The table of scripts/targets.sh --tcp -->", "<!-- The end of the table over TCP -->"];

/// On shared memory.
const SHM: [Target; 17] = [
    at_least("get-batches", "GETs in batches of 32, of the bare loop", Of::Limit, 0.6),
    at_least("get-lanes", "GETs in 16 lanes, of the bare loop", Of::Limit, 0.42),
    at_least("get-one", "one GET at a time, of the loop without prefetching", Of::LimitOne, 0.75),
    at_least("put-batches", "PUTs in batches of 32, of the bare loop", Of::Limit, 0.3),
    at_least("maps", "batches of 32, × papaya", Of::Times(&["papaya"]), 2.0),
    at_least("maps", "batches of 32, × hashbrown", Of::Times(&["hashbrown"]), 1.0),
    at_least("sockets-one", "one at a time, × memcached and Redis", SOCKETS, 40.0),
    at_least("sockets", "32 deep, × memcached and Redis", SOCKETS, 20.0),
    at_least("sockets-pinned", "32 deep, 16 KiB and 1 MiB in place, the same", SOCKETS, 5.0),
    at_least("lmdb-64", "from 50 % reads on, × LMDB", LMDB, 10.0),
    at_least("lmdb-copied", "16 KiB to 1 MiB copied, from 50 % reads on, × LMDB", LMDB, 1.5),
    at_least("lmdb-pinned", "16 KiB to 1 MiB in place, from 50 % reads on, × LMDB", LMDB, 2.0),
    at_least("short-cores", "short cores: each engine that is asked, × memcached", Of::Served, 1.5),
    at_most("memory", "memory at 16 B keys and 64 B values, × their bytes", Of::Value, 1.6),
    at_most("start", "start of a node, seconds a GiB and core", Of::Value, 0.3),
    at_most("rest", "processors of a node at rest, nessie", Of::Value, 0.0),
    at_most("rest-served", "processors of a node at rest, engines with workers", Of::Value, 0.0),
];

/// Over TCP, by clients that are far from all memory.
const TCP: [Target; 8] = [
    at_least("tcp-deep", "32 deep: each engine that is asked, × memcached", Of::Served, 2.0),
    at_most("tcp-deep", "the same: processor time, × memcached's", Of::Processor, 1.0),
    at_least("tcp-deep-nessie", "32 deep: nessie, × memcached", Of::Served, 1.0),
    at_most("tcp-deep-nessie", "the same: processor time, × memcached's", Of::Processor, 1.7),
    at_least("tcp-one", "one at a time: each engine that is asked, × memcached", Of::Served, 1.3),
    at_least("tcp-one-nessie", "one at a time: nessie, × memcached", Of::Served, 1.0),
    at_least("tcp-long", "GETs of 1 MiB: nessie, of the bare loop", Of::Limit, 0.8),
    at_least("tcp-long", "GETs of 1 MiB: nessie, × memcached", Of::Served, 1.5),
];
