//! The command line of the bench and the validated workload it becomes.
//!
//! Owns every option's name, default, limits and error text, on which scripts rely.
//! [`WorkloadArgs`] are the options of every measurement, [`BenchArgs`] the options of
//! `loch bench`, which measures Loch's engines and peers.

use std::path::PathBuf;

use clap::Args;
use loch::limits::PINS_MAX;
use loch::{ByteSize, SHARED_OVER_TCP, SHARED_OVER_VERBS};

use crate::check::{check_cache, check_servers, check_table};
use crate::error::BenchError;
use crate::options::{
    AttachOptions, Connections, KEY_PREFIX, ReadMode, Replay, ServerOptions, Switch, TableOptions,
};
use crate::rate::Rate;
use crate::spec::{
    Dist, KEY_SIZE_MAX, KEY_SIZE_MIN, LANES_MAX, PEER_THREADS_MAX, PROCESSES_MAX, RECORDS_MAX,
    Spec, Stop, VALUE_SIZE_MAX,
};
use crate::system::{Capabilities, Engine, Fabric, Hardware, Peer, PeerTransport, engine_choice};

/// Default number of operations that a client keeps outstanding.
const LANES_DEFAULT: usize = 16;
/// Default length of the measurement, in seconds: on the simulator of virtual time, which takes
/// about a second of real time for ten clients.
const SECONDS_DEFAULT: f64 = 5.0;
const SECONDS_DEFAULT_SIMULATED: f64 = 0.01;

/// Run a workload and print the results.
///
/// Every client is a process of its own. It keeps --lanes operations outstanding (a closed loop),
/// or begins operations at random moments, --rate a second, even if earlier ones are not done (an
/// open loop). Sizes are written 64, 16KiB, 1GiB.
///
/// With --fabric sim, nodes, clients and network are simulated: all times are virtual, and the same
/// options give the same result to the last digit. With --fabric verbs the nodes lend their memory
/// through this host's RDMA device. With --attach the bench measures a running cluster of one host
/// or several.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Engines to measure.
    #[arg(long, value_name = "E", value_delimiter = ',', default_value = "nessie")]
    #[arg(value_parser = engine_choice)]
    #[arg(help = format!("Engines to measure: {}, or none", Engine::names()))]
    pub engine: Vec<Option<Engine>>,
    /// Stores to measure beside Loch: memcached, redis, lmdb; Loch's gateway, asked as memcached
    /// and as Redis are: gateway-memcached, gateway-resp; maps inside one process: papaya,
    /// hashbrown. As a cache (--eviction sieve) redis evicts by allkeys-lru, redis-lfu by
    /// allkeys-lfu
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',')]
    pub peer: Vec<Peer>,
    /// How clients reach memcached, Redis and the gateway: over a unix socket, or over TCP
    /// [default: unix, and tcp with --fabric tcp]
    #[arg(long, value_enum, value_name = "TRANSPORT", hide_short_help = true)]
    pub peer_transport: Option<PeerTransport>,
    /// Threads of memcached and of the gateway; Redis has one [default: as many as cores]
    #[arg(long, value_name = "N", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(PEER_THREADS_MAX)))]
    pub peer_threads: Option<u16>,
    /// Replay a file in the place of a workload of the bench's own, once, on a cache that is empty
    /// at first: GET each key in the file's order, and PUT a value of the file's size after a miss.
    /// A line `key,size` for each request, or libCacheSim's oracleGeneral. Also give --eviction
    /// sieve and --memory. Of C clients each replays every C-th request
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "records", "value_size", "reads", "dist", "seconds", "rate", "seed", "attach",
        "attached_table", "load",
    ])]
    pub trace: Option<PathBuf>,
    /// The workload
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// The running cluster to measure
    #[command(flatten)]
    pub attach: AttachOptions,
}

/// The workload, and the fabric that carries it.
#[derive(Debug, Clone, Args)]
pub struct WorkloadArgs {
    /// The fabric that carries the verbs
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
    /// Operations every client keeps outstanding [default: 16; with --trace 1, which keeps the
    /// order]
    #[arg(long, value_name = "L")]
    pub lanes: Option<usize>,
    /// The owner of the connections to the nodes: each client has its own, or the clients of a host
    /// share one to each node, which --fabric sim alone can do
    #[arg(long, value_enum, value_name = "OWNER", default_value = "client")]
    #[arg(hide_short_help = true)]
    pub connections: Connections,
    /// Whether nodes encrypt the connections on which clients reach them, which --fabric tcp alone
    /// can do
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "off")]
    #[arg(hide_short_help = true)]
    pub encrypt: Switch,
    /// Clients reach the memory of their own node over the network, too, as clients of a large
    /// cluster reach almost all memory: with --fabric tcp alone
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "off")]
    #[arg(hide_short_help = true)]
    pub far: Switch,
    /// Hand the operations that a client keeps outstanding to the table as batches of that many, by
    /// get_each and put_many, where the engine does batches together; off, and always with
    /// --fabric sim: as that many lanes
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    pub batch_api: Switch,
    /// How values are read: copied into a buffer of the client, or in place, where a byte of each
    /// of their cache lines is loaded. Of the engines nessie reads in place, with --fabric shm, and
    /// of the peers lmdb; all others copy
    #[arg(long, value_enum, value_name = "MODE", default_value = "copy")]
    pub read_mode: ReadMode,
    /// Records loaded before the measurement
    #[arg(long, value_name = "R", default_value_t = 1_000_000)]
    pub records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "64")]
    pub value_size: ByteSize,
    /// Bytes of a key
    #[arg(long, value_name = "SIZE", default_value = "16")]
    pub key_size: ByteSize,
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
    /// Begin this many operations a second, all clients together, at random moments, and time them
    /// from the moment at which they should have begun: 200000, or 40% of the rate that a closed
    /// loop reaches just before; 0 measures the servers at rest
    #[arg(long, value_name = "R|P%")]
    pub rate: Option<Rate>,
    /// Seed of the key traces
    #[arg(long, value_name = "X", default_value_t = 1)]
    pub seed: u64,
    /// Busy-looping processes beside the measurement. With --fabric sim they are on every node's
    /// host, and share its 12 cores with its clients and workers (without hogs each has its own
    /// core)
    #[arg(long, value_name = "H", default_value_t = 0)]
    pub background_hogs: u32,
    /// Print one JSON object a line per engine, and nothing else, on stdout
    #[arg(long)]
    pub json: bool,
    /// Compare the bytes of every value read with the bytes written
    #[arg(long, hide_short_help = true)]
    pub verify: bool,
    /// Switches of the table
    #[command(flatten)]
    pub table: TableOptions,
    /// Workers
    #[command(flatten)]
    pub servers: ServerOptions,
}

impl BenchArgs {
    /// Checks every option; the error names the option and the way out.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn spec(self) -> Result<Spec, BenchError> {
        let engines = engines(&self.engine)?;
        let capabilities: Vec<_> = engines.iter().map(|engine| engine.capabilities()).collect();
        let replay = self.trace.map(|file| Replay { file, ..Replay::default() });
        let mut workload = self.workload;
        if replay.is_some() {
            workload.lanes.get_or_insert(1);
        }
        let workload = workload.spec(&capabilities)?;
        let usual = match workload.fabric {
            Fabric::Tcp => PeerTransport::Tcp,
            _ => PeerTransport::Unix,
        };
        let peer_transport = self.peer_transport.unwrap_or(usual);
        let attach = self.attach.chosen();
        let (peers, peer_threads) = (self.peer, self.peer_threads);
        let spec =
            Spec { engines, peers, peer_transport, peer_threads, attach, replay, ..workload };
        check_cache(&spec)?;
        if !spec.peers.is_empty() && spec.fabric == Fabric::Sim {
            return Err(BenchError::usage(
                "--peer is measured in real time and --fabric sim in virtual time, which cannot be \
                 compared: measure them in two runs",
            ));
        }
        if let Some(rate) = spec.rate.filter(|_| !spec.peers.is_empty()) {
            return Err(BenchError::usage(format!(
                "--rate {rate}: peers are measured in a closed loop alone: drop it, or --peer"
            )));
        }
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

impl WorkloadArgs {
    /// Checks every option for systems with these capabilities; the error names the option and the
    /// way out.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn spec(self, systems: &[Capabilities]) -> Result<Spec, BenchError> {
        let size = |option, size: ByteSize, min: usize, max: usize| {
            within(option, size.bytes(), min as u64, max as u64)
        };
        let spec = Spec {
            engines: Vec::new(),
            peers: Vec::new(),
            peer_transport: PeerTransport::Unix,
            peer_threads: None,
            fabric: self.fabric,
            hardware: self.profile.unwrap_or(Hardware::ConnectX3At56),
            nodes: self.nodes.unwrap_or(1),
            clients: self.clients,
            lanes: self.lanes.unwrap_or(LANES_DEFAULT),
            connections: self.connections,
            encrypt: self.encrypt.into(),
            far: self.far.into(),
            batch_api: self.batch_api.into(),
            read_mode: self.read_mode,
            records: self.records,
            value_size: size("--value-size", self.value_size, 1, VALUE_SIZE_MAX)? as usize,
            key_size: size("--key-size", self.key_size, KEY_SIZE_MIN, KEY_SIZE_MAX)? as usize,
            reads: self.reads,
            dist: self.dist,
            stop: stop(self.seconds, self.ops, self.fabric)?,
            rate: self.rate,
            replay: None,
            seed: self.seed,
            background_hogs: self.background_hogs,
            json: self.json,
            verify: self.verify || cfg!(debug_assertions),
            soft_roce: false,
            attach: None,
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
        if spec.read_mode == ReadMode::Pin && spec.lanes > PINS_MAX {
            return Err(BenchError::usage(format!(
                "--lanes {}: with --read-mode pin each lane holds a value, and a client can hold \
                 {PINS_MAX}: give --lanes {PINS_MAX} or less, or --read-mode copy",
                spec.lanes
            )));
        }
        if self.profile.is_some() && spec.fabric != Fabric::Sim {
            return Err(BenchError::usage(
                "--profile names hardware to simulate: add --fabric sim, or drop it",
            ));
        }
        if let Some(rate) = spec.rate {
            check_rate(rate, &spec)?;
        }
        check_connections(&spec)?;
        check_encryption(&spec)?;
        check_far(&spec)?;
        check_servers(&spec, systems)?;
        check_table(&spec, systems)?;
        Ok(spec)
    }
}

fn engines(choices: &[Option<Engine>]) -> Result<Vec<Engine>, BenchError> {
    let engines: Vec<Engine> = choices.iter().flatten().copied().collect();
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

/// Checks that an open loop is possible.
fn check_rate(rate: Rate, spec: &Spec) -> Result<(), BenchError> {
    let problem = if spec.fabric == Fabric::Sim {
        "it needs real time, which --fabric sim does not have: drop it, or --fabric sim"
    } else if rate.is_rest() && matches!(spec.stop, Stop::Ops(_)) {
        "at rest there are no operations to count: give --seconds in the place of --ops"
    } else {
        return Ok(());
    };
    Err(BenchError::usage(format!("--rate {rate}: {problem}")))
}

/// Checks that the fabric has connections that can be shared.
fn check_connections(spec: &Spec) -> Result<(), BenchError> {
    let problem = match (spec.connections, spec.fabric) {
        (Connections::Client, _) | (_, Fabric::Sim) => return Ok(()),
        (_, Fabric::Shm) => "clients reach shared memory without connections",
        (_, Fabric::Tcp) => SHARED_OVER_TCP,
        (_, Fabric::Verbs) => SHARED_OVER_VERBS,
    };
    Err(BenchError::usage(format!("--connections host: {problem}: add --fabric sim, or drop it")))
}

/// Checks that the fabric can encrypt.
fn check_encryption(spec: &Spec) -> Result<(), BenchError> {
    match spec.encrypt && spec.fabric != Fabric::Tcp {
        true => Err(BenchError::usage(format!(
            "--encrypt on: over {} nothing is encrypted: add --fabric tcp, or drop it",
            spec.fabric.name()
        ))),
        false => Ok(()),
    }
}

/// Checks that the fabric has a far way to a client's own node.
fn check_far(spec: &Spec) -> Result<(), BenchError> {
    if !spec.far || spec.fabric == Fabric::Tcp {
        return Ok(());
    }
    Err(BenchError::usage(
        "--far on: only TCP reaches a client's own node: add --fabric tcp, or drop it",
    ))
}

/// Refuses options that do not fit a running cluster.
fn check_attached(spec: &Spec) -> Result<(), BenchError> {
    let key_size_min = KEY_PREFIX.len() + KEY_SIZE_MIN;
    if spec.fabric == Fabric::Sim {
        return Err(BenchError::usage(
            "--attach measures nodes that run, and --fabric sim simulates them: drop one",
        ));
    }
    let of_nodes = [("--encrypt", spec.encrypt), ("--eviction", spec.is_cache())];
    if let Some((option, _)) = of_nodes.into_iter().find(|(_, is_given)| *is_given) {
        return Err(BenchError::usage(format!(
            "{option}: with --attach, the configurations of the running nodes say that: drop it"
        )));
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
pub(crate) mod tests;
