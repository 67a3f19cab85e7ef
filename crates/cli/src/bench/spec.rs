//! The command line of `loch bench` and the validated workload it becomes.
//!
//! Owns every option's name, default, limits and error text, on which scripts
//! rely. A [`Spec`] can only be made by [`BenchArgs::spec`], so code that holds
//! one need not check it again.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::error::BenchError;
use super::options::{Attach, AttachOptions, KEY_PREFIX, ServerOptions, TableOptions};
use super::rate::Rate;
use super::size::parse_size;
use super::system::{Engine, EngineChoice, Fabric, Hardware, Peer};

/// Keys carry a unique 8-byte identity, so they cannot be shorter.
pub const KEY_SIZE_MIN: usize = 8;
/// Keys longer than this are no workload anybody has; the peers stop far below.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Largest value: four times the default limit of a Loch table.
pub const VALUE_SIZE_MAX: usize = 256 << 20;
/// More records than any host holds; keeps key identities within 48 bits.
pub const RECORDS_MAX: u64 = 1 << 40;
/// Outstanding operations of one client.
pub const LANES_MAX: usize = 4096;
/// Length of the measurement unless told otherwise, in seconds: on the simulator of virtual time,
/// which takes about a second of real time for ten clients.
const SECONDS_DEFAULT: f64 = 5.0;
const SECONDS_DEFAULT_SIMULATED: f64 = 0.01;
/// Processes started by one run, of a kind.
pub const PROCESSES_MAX: u32 = 1024;

/// How keys are picked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
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

/// Run a workload and print what it measured.
///
/// Every client is a process of its own that keeps --lanes operations
/// outstanding (a closed loop), or begins them at random moments, --rate a second,
/// whatever became of those before (an open loop). Sizes are written 64, 16KiB, 1GiB.
///
/// With --fabric sim, nodes, clients and network are simulated: all times are
/// virtual, and the same options give the same result to the last digit. With
/// --fabric verbs the nodes lend their memory by this host's RDMA device. With
/// --attach a cluster that runs already is measured, of one host or several.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Engines to measure: nessie, nessie-published, nessie-hybrid, nessie-server, pilaf, herd,
    /// kv-direct, or none; and the papers' baselines pilaf-vo, farm-em, farm-em-var,
    /// echo-send-send, echo-write-write, echo-write-send
    #[arg(long, value_name = "E", value_delimiter = ',', default_value = "nessie")]
    pub engine: Vec<EngineChoice>,
    /// What carries the verbs
    #[arg(long, value_enum, value_name = "FABRIC", default_value = "shm")]
    pub fabric: Fabric,
    /// Hardware that --fabric sim simulates [default: connectx3-56g]
    #[arg(long, value_enum, value_name = "HARDWARE")]
    pub profile: Option<Hardware>,
    /// Node processes that hold the data [default: 1]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,
    /// Client processes
    #[arg(long, value_name = "C", default_value_t = 1)]
    pub clients: u32,
    /// Operations every client keeps outstanding
    #[arg(long, value_name = "L", default_value_t = 16)]
    pub lanes: usize,
    /// Records loaded before the measurement
    #[arg(long, value_name = "R", default_value_t = 1_000_000)]
    pub records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    pub value_size: u64,
    /// Bytes of a key
    #[arg(long, value_name = "SIZE", default_value = "16", value_parser = parse_size)]
    pub key_size: u64,
    /// Share of operations that are GETs, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    pub reads: f64,
    /// How keys are picked: uniform or zipf:THETA
    #[arg(long, value_name = "DIST", default_value = "zipf:0.99")]
    pub dist: Dist,
    /// Length of the measurement [default: 5; with --fabric sim 0.01, of virtual time]
    #[arg(long, value_name = "T", conflicts_with = "ops")]
    pub seconds: Option<f64>,
    /// Operations to measure, of all clients together, instead of --seconds
    #[arg(long, value_name = "M")]
    pub ops: Option<u64>,
    /// Begin so many operations a second, all clients together, at random moments, and time them
    /// from the moment at which they should have begun: 200000, or 40%, a share of what a closed
    /// loop does just before; 0 measures the servers at rest
    #[arg(long, value_name = "R|P%")]
    pub rate: Option<Rate>,
    /// Seed of the key traces
    #[arg(long, value_name = "X", default_value_t = 1)]
    pub seed: u64,
    /// Busy-looping processes beside the measurement; with --fabric sim on every node's host,
    /// whose 12 cores they share with its clients and workers (without hogs each has its own)
    #[arg(long, value_name = "H", default_value_t = 0)]
    pub background_hogs: u32,
    /// Stores to measure beside Loch: memcached, redis, lmdb
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',')]
    pub peer: Vec<Peer>,
    /// Print one JSON object a line per engine, and nothing else, on stdout
    #[arg(long)]
    pub json: bool,
    /// Compare the bytes of every value read with what was written
    #[arg(long, hide = true)]
    pub verify: bool,
    #[command(flatten)]
    pub attach: AttachOptions,
    #[command(flatten)]
    pub table: TableOptions,
    #[command(flatten)]
    pub servers: ServerOptions,
}

/// A validated run of `loch bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Loch engines, in the order given.
    pub engines: Vec<Engine>,
    /// Peers, in the order given.
    pub peers: Vec<Peer>,
    /// What carries the verbs.
    pub fabric: Fabric,
    /// What is simulated; used with [`Fabric::Sim`] alone.
    pub hardware: Hardware,
    /// Node processes; of a cluster that is attached, what it has.
    pub nodes: u32,
    /// Client processes.
    pub clients: u32,
    /// Outstanding operations of a client.
    pub lanes: usize,
    /// Records loaded.
    pub records: u64,
    /// Bytes of a value.
    pub value_size: usize,
    /// Bytes of a key.
    pub key_size: usize,
    /// Share of GETs.
    pub reads: f64,
    /// Key distribution.
    pub dist: Dist,
    /// End of the measured phase.
    pub stop: Stop,
    /// The rate of an open loop; a closed loop without.
    pub rate: Option<Rate>,
    /// Seed of all traces.
    pub seed: u64,
    /// Busy-looping processes.
    pub background_hogs: u32,
    /// JSON instead of the table.
    pub json: bool,
    /// Check the contents of every value read.
    pub verify: bool,
    /// The RDMA devices of this host are software: times say nothing of a card's.
    pub soft_roce: bool,
    /// The cluster that is measured as it is, instead of one of the bench's own.
    pub attach: Option<Attach>,
    /// Switches of Loch's table.
    pub table: TableOptions,
    /// Workers of Loch's nodes.
    pub servers: ServerOptions,
}

impl BenchArgs {
    /// Checks every option; the error names the option and the way out.
    pub fn spec(self) -> Result<Spec, BenchError> {
        let spec = Spec {
            engines: engines(&self.engine)?,
            peers: self.peer,
            fabric: self.fabric,
            hardware: self.profile.unwrap_or(Hardware::ConnectX3At56),
            nodes: self.nodes.unwrap_or(1),
            clients: self.clients,
            lanes: self.lanes,
            records: self.records,
            value_size: within("--value-size", self.value_size, 1, VALUE_SIZE_MAX as u64)? as usize,
            key_size: within("--key-size", self.key_size, KEY_SIZE_MIN as u64, KEY_SIZE_MAX as u64)?
                as usize,
            reads: self.reads,
            dist: self.dist,
            stop: stop(self.seconds, self.ops, self.fabric)?,
            rate: self.rate,
            seed: self.seed,
            background_hogs: self.background_hogs,
            json: self.json,
            verify: self.verify || cfg!(debug_assertions),
            soft_roce: false,
            attach: self.attach.chosen(),
            table: self.table,
            servers: self.servers,
        };
        within("--nodes", spec.nodes.into(), 1, PROCESSES_MAX.into())?;
        within("--clients", spec.clients.into(), 1, PROCESSES_MAX.into())?;
        within("--lanes", spec.lanes as u64, 1, LANES_MAX as u64)?;
        within("--records", spec.records, 1, RECORDS_MAX)?;
        within("--background-hogs", spec.background_hogs.into(), 0, PROCESSES_MAX.into())?;
        if !(0.0..=1.0).contains(&spec.reads) {
            return Err(BenchError::usage(format!(
                "--reads {} is not a share: give a number from 0 (only PUTs) to 1 (only GETs)",
                spec.reads
            )));
        }
        if self.profile.is_some() && spec.fabric != Fabric::Sim {
            return Err(BenchError::usage(
                "--profile names hardware to simulate: add --fabric sim, or drop it",
            ));
        }
        if !spec.peers.is_empty() && spec.fabric == Fabric::Sim {
            return Err(BenchError::usage(
                "--peer is measured in real time and --fabric sim in virtual time, which cannot be \
                 compared: measure them in two runs",
            ));
        }
        if let Some(rate) = spec.rate {
            check_rate(rate, &spec)?;
        }
        spec.servers.check(&spec)?;
        spec.table.check(&spec)?;
        if spec.attach.is_some() {
            check_attached(&spec)?;
        }
        if spec.engines.is_empty() && spec.peers.is_empty() {
            return Err(BenchError::usage(
                "--engine none leaves nothing to measure: add --peer memcached,redis,lmdb",
            ));
        }
        Ok(spec)
    }
}

impl Spec {
    /// Bytes of keys and values, without any store's overhead.
    pub fn data_bytes(&self) -> u64 {
        self.records.saturating_mul((self.key_size + self.value_size) as u64)
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

impl From<Dist> for String {
    fn from(dist: Dist) -> String {
        dist.to_string()
    }
}

impl TryFrom<String> for Dist {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn engines(choices: &[EngineChoice]) -> Result<Vec<Engine>, BenchError> {
    let engines: Vec<Engine> = choices
        .iter()
        .filter_map(|choice| match choice {
            EngineChoice::None => None,
            EngineChoice::Engine(engine) => Some(*engine),
        })
        .collect();
    if !engines.is_empty() && engines.len() < choices.len() {
        return Err(BenchError::usage("--engine none cannot stand beside engines: drop one"));
    }
    Ok(engines)
}

fn stop(seconds: Option<f64>, ops: Option<u64>, fabric: Fabric) -> Result<Stop, BenchError> {
    match (seconds, ops) {
        (_, Some(0)) => Err(BenchError::usage("--ops 0 measures nothing: give 1 or more")),
        (_, Some(ops)) => Ok(Stop::Ops(ops)),
        (Some(s), None) if !(s > 0.0 && s <= 86_400.0) => Err(BenchError::usage(format!(
            "--seconds {s} is no length of time: give a number above 0, at most 86400"
        ))),
        (Some(seconds), None) => Ok(Stop::Seconds(seconds)),
        (None, None) if fabric == Fabric::Sim => Ok(Stop::Seconds(SECONDS_DEFAULT_SIMULATED)),
        (None, None) => Ok(Stop::Seconds(SECONDS_DEFAULT)),
    }
}

/// Where an open loop is possible.
fn check_rate(rate: Rate, spec: &Spec) -> Result<(), BenchError> {
    let problem = if spec.fabric == Fabric::Sim {
        "what simulated clients and servers do while nothing is asked is not simulated: drop it, or \
         --fabric sim"
    } else if !spec.peers.is_empty() {
        "peers are measured in a closed loop alone: drop it, or --peer"
    } else if rate.is_rest() && matches!(spec.stop, Stop::Ops(_)) {
        "at rest there are no operations to count: give --seconds in the place of --ops"
    } else {
        return Ok(());
    };
    Err(BenchError::usage(format!("--rate {rate}: {problem}")))
}

/// What a cluster that runs already cannot be asked for.
fn check_attached(spec: &Spec) -> Result<(), BenchError> {
    let key_size_min = KEY_PREFIX.len() + KEY_SIZE_MIN;
    if spec.fabric == Fabric::Sim {
        return Err(BenchError::usage(
            "--attach measures nodes that run, and --fabric sim simulates them: drop one",
        ));
    }
    if spec.engines.len() != 1 {
        return Err(BenchError::usage(
            "--attach measures one engine, that of the table: give one with --engine, or none at \
             all for nessie",
        ));
    }
    let option = "--key-size (with --attach, where keys begin with \"~bench~:\")";
    within(option, spec.key_size as u64, key_size_min as u64, KEY_SIZE_MAX as u64)?;
    Ok(())
}

fn within(option: &str, value: u64, min: u64, max: u64) -> Result<u64, BenchError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(BenchError::usage(format!("{option} {value} is out of range: give {min} to {max}")))
    }
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    /// The spec of a command line, also for the tests of other modules.
    pub fn spec(line: &str) -> Result<Spec, String> {
        let line = Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()))
            .map_err(|error| error.to_string())?;
        line.bench.spec().map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_a_short_skewed_run_of_nessie() {
        let spec = spec("").unwrap();
        assert_eq!(spec.engines, [Engine::Nessie]);
        assert_eq!((spec.fabric, spec.nodes, spec.clients, spec.lanes), (Fabric::Shm, 1, 1, 16));
        assert_eq!((spec.records, spec.value_size, spec.key_size), (1_000_000, 64, 16));
        assert_eq!((spec.reads, spec.dist), (0.95, Dist::Zipf(0.99)));
        assert_eq!((spec.stop, spec.seed, spec.background_hogs), (Stop::Seconds(5.0), 1, 0));
    }

    #[test]
    fn a_simulated_run_has_defaults_of_its_own() {
        let spec = spec("--fabric sim").unwrap();
        assert_eq!((spec.hardware, spec.stop), (Hardware::ConnectX3At56, Stop::Seconds(0.01)));
    }

    #[test]
    fn lists_are_comma_separated_or_repeated() {
        let spec = spec("--engine pilaf,herd --peer redis --peer lmdb,memcached").unwrap();
        assert_eq!(spec.engines, [Engine::Pilaf, Engine::Herd]);
        assert_eq!(spec.peers, [Peer::Redis, Peer::Lmdb, Peer::Memcached]);
    }

    #[test]
    fn errors_name_the_option_and_the_way_out() {
        for (line, option, way_out) in [
            ("--key-size 7", "--key-size", "8 to"),
            ("--value-size 0", "--value-size", "1 to"),
            ("--value-size 16kb", "--value-size", "16KiB"),
            ("--reads 1.5", "--reads", "from 0"),
            ("--reads NaN", "--reads", "from 0"),
            ("--lanes 0", "--lanes", "1 to"),
            ("--clients 0", "--clients", "1 to"),
            ("--records 0", "--records", "1 to"),
            ("--ops 0", "--ops", "1 or more"),
            ("--seconds 0", "--seconds", "above 0"),
            ("--seconds NaN", "--seconds", "above 0"),
            ("--dist zipf", "--dist", "zipf:THETA"),
            ("--dist zipf:1.2", "--dist", "between 0 and 1"),
            ("--engine none", "--engine", "--peer"),
            ("--profile connectx3-10g", "--profile", "--fabric sim"),
            ("--fabric sim --profile connectx7", "--profile", "connectx6-200g"),
            ("--fabric sim --peer redis", "--peer", "two runs"),
            ("--engine none,nessie --peer lmdb", "--engine", "drop one"),
            ("--engine nessy", "--engine", "nessie-hybrid"),
            ("--seconds 1 --ops 2", "--seconds", "cannot be used with"),
            ("--rate=-1", "--rate", "200000"),
            ("--rate 101%", "--rate", "40%"),
            ("--rate 10 --fabric sim", "--rate", "drop it"),
            ("--rate 10 --peer redis", "--rate", "--peer"),
            ("--rate 0 --ops 10", "--rate", "--seconds"),
        ] {
            let error = spec(line).expect_err(line);
            assert!(error.contains(option) && error.contains(way_out), "{line}: {error}");
        }
    }

    #[test]
    fn a_spec_survives_its_way_to_a_worker() {
        let spec = spec("--dist zipf:0.7 --ops 12 --rate 12.5%").unwrap();
        let line = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&line).unwrap(), spec);
    }
}
