//! `loch serve`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use loch::{ByteSize, Error, FabricKind, Node, NodeConfig, NodeWatch, Pages, TableConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::outcome::{Answer, FAILED, Usage};
use crate::output;
use crate::size::rounded;

const EXAMPLES: &str = "\
Examples:
  loch serve                                  one node, 256MiB, at the default socket
  loch serve --name a --memory 4GiB --table sessions --table objects
  loch serve --config /etc/loch/a.toml        the options of a file; flags override it
  loch serve --eviction sieve                 a cache that is never full
  loch serve --engine herd --workers 2        two threads serve a cache from their own memory
  loch serve --engine kv-direct               a thread executes all operations, computations too
  loch serve --name a --socket /run/loch/a --cluster /run/loch/a,/run/loch/b
                                              one of two nodes; start the other with its own
                                              --name and --socket and the same --cluster

  loch serve --fabric verbs --listen 10.0.0.1:7400 --cluster 10.0.0.1:7400,10.0.0.2:7400 \\
      --secret /etc/loch/secret               one of two machines; the other has its own --listen

The memory outlives the process: started again with the same configuration, a node has all its data.
It stops with SIGTERM, SIGINT or SIGHUP (exit code 0); a second signal ends it at once (exit code 3).
It logs to standard error; RUST_LOG=debug logs more.

A configuration file has the same names:
  name = \"a\"
  memory = \"4GiB\"
  [[table]]
  name = \"sessions\"
  memory = \"1GiB\"
  value_max = \"64KiB\"
  [[table]]
  name = \"objects\"                            # gets the rest
  engine = \"pilaf\"
  log = \"/var/lib/loch/objects\"
  [workers]
  cores = [2, 3]";

/// Run a node: lend memory to clients, until a signal ends it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Configuration file, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Names the node in logs and its region file [default: node]
    #[arg(long)]
    name: Option<String>,
    /// Socket at which clients attach [default: $LOCH_SOCKET, else loch.sock in $XDG_RUNTIME_DIR,
    /// else /tmp/loch-<UID>/loch.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory to lend: 64MiB, 4GiB [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// The fabric that carries the verbs: shared memory, TCP or RDMA [default: auto, which is shm
    /// without --listen, else verbs where there is a device, else tcp]
    #[arg(long)]
    fabric: Option<Fabric>,
    /// Engine of the tables: nessie, nessie-server, nessie-hybrid, nessie-hybrid+, herd, pilaf,
    /// kv-direct [default: nessie]
    #[arg(long)]
    engine: Option<String>,
    /// Make the tables caches: they evict values that are used little, and are never full. For
    /// engine nessie and its kin; herd has the option mode for it [default: none]
    #[arg(long, value_name = "POLICY", value_parser = ["none", "sieve"])]
    eviction: Option<String>,
    /// Workers of each node for each table, in engines that have workers [default: 1]
    #[arg(long, value_name = "COUNT")]
    workers: Option<u16>,
    /// Workers poll and never sleep: each takes a processor
    #[arg(long)]
    dedicated: bool,
    /// Sockets of all nodes, including this one, in the same order on every node; on a network the
    /// addresses at which they listen [default: this node alone]
    #[arg(long, value_name = "PATH,PATH…", value_delimiter = ',')]
    cluster: Option<Vec<PathBuf>>,
    /// On a network: address and port at which the other nodes reach this one: 10.0.0.1:7400
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// On a network: file with a secret that all nodes share; it is for this user alone, or root's
    /// with mode 0440 and a group of this process; several nodes need a secret, or certificates
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// With tcp: encrypt the connections on which clients reach this node's memory
    #[arg(long)]
    encrypt: bool,
    /// With tcp: threads that execute the verbs of other hosts' clients, up to 64 [default: 1]
    #[arg(long, value_name = "COUNT")]
    agent_threads: Option<u16>,
    /// With verbs: the RDMA device [default: the first that can be used]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// A table; may be given more than once [default: one, named "default"]
    #[arg(long = "table", value_name = "NAME")]
    tables: Vec<String>,
    /// Longest value of the tables: 64KiB, 1GiB [default: 64MiB, or what memory allows]
    #[arg(long, value_name = "SIZE")]
    value_max: Option<ByteSize>,
    /// Index slots of each table on this node [default: one for every 112 bytes of its memory]
    #[arg(long, value_name = "COUNT")]
    index_slots: Option<u64>,
    /// How many tables clients can have open for writing at a time [default: 1024]
    #[arg(long, value_name = "COUNT")]
    sessions: Option<u32>,
    /// Region file, for this user alone [default: /dev/shm/loch-<UID>/<NAME>.region]
    #[arg(long, value_name = "PATH")]
    region: Option<PathBuf>,
    /// Remove the region file, and all data, at an orderly stop
    #[arg(long)]
    ephemeral: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fabric {
    Auto,
    Shm,
    Tcp,
    Verbs,
}

/// Runs `loch serve`.
pub fn run(args: ServeArgs) -> Result<Answer> {
    let config = args.config()?;
    // This comes before the node starts: a signal ends the start too.
    let (mut stop, stopped) = stop_signals().context("cannot watch for signals")?;
    allow_many_connections();
    let node = match Node::start_unless(config.clone(), stopped) {
        Err(Error::StartStopped) => {
            tracing::info!("stopping before the memory is ready");
            return Ok(Answer::Done);
        }
        started => started.context("cannot start the node")?,
    };
    output::line(&ready_line(&config, &node))?;
    let watch = node.watch();
    stop_when_it_fails(watch.clone())?;
    let signal = stop.forever().next();
    tracing::info!(signal = signal.and_then(signal_hook::low_level::signal_name), "stopping");
    node.stop();
    match watch.failure() {
        Some(error) => Err(error).context("the node has failed"),
        None => Ok(Answer::Done),
    }
}

/// Each connection takes a descriptor: the process may have as many as the system allows it at all,
/// and not only as many as is usual for programs.
pub(super) fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "there are no more descriptors than is usual: see ulimit -n");
    }
}

/// A node whose worker has failed is stopped like any other.
fn stop_when_it_fails(watch: NodeWatch) -> Result<()> {
    let wait = move || {
        // The signal is handled: it does not end the process by itself.
        if watch.wait().is_some() && signal_hook::low_level::raise(SIGTERM).is_err() {
            std::process::exit(FAILED.into());
        }
    };
    let thread = std::thread::Builder::new().name("loch-watch".into()).spawn(wait);
    thread.map(drop).context("cannot start a thread")
}

impl ServeArgs {
    /// The configuration of the file, overridden by the flags.
    fn config(self) -> Result<NodeConfig> {
        let mut config = match &self.config {
            None => NodeConfig::default(),
            // Any error in the file is an error of the call, which named the file.
            Some(path) => NodeConfig::load(path).map_err(|error| Usage(error.to_string()))?,
        };
        set(&mut config.name, self.name);
        set(&mut config.socket, self.socket);
        set(&mut config.memory, self.memory);
        set(&mut config.fabric, self.fabric.map(FabricKind::from));
        set(&mut config.cluster, self.cluster);
        set(&mut config.sessions, self.sessions);
        config.region = self.region.or(config.region);
        config.listen = self.listen.or(config.listen);
        config.secret = self.secret.or(config.secret);
        config.agent_threads = self.agent_threads.or(config.agent_threads);
        config.device = self.device.or(config.device);
        config.encrypt |= self.encrypt;
        config.ephemeral |= self.ephemeral;
        config.workers.dedicated |= self.dedicated;
        config.tables = chosen_tables(config.tables, self.tables);
        for table in &mut config.tables {
            if let Some(engine) = &self.engine {
                table.set("engine", engine.as_str())?;
            }
            if let Some(eviction) = &self.eviction {
                table.set("eviction", eviction.as_str())?;
            }
            if let Some(slots) = self.index_slots {
                table.set("index_slots", i64::try_from(slots).unwrap_or(i64::MAX))?;
            }
            table.value_max = self.value_max.or(table.value_max);
            table.workers = self.workers.or(table.workers);
        }
        Ok(config)
    }
}

fn set<T>(field: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *field = value;
    }
}

/// The tables with these names, as the file declares them if it does; without names all tables of
/// the file, or the default table.
fn chosen_tables(declared: Vec<TableConfig>, names: Vec<String>) -> Vec<TableConfig> {
    let table = |name: String| {
        let of_file = declared.iter().find(|table| table.name == name);
        of_file.cloned().unwrap_or_else(|| TableConfig { name, ..TableConfig::default() })
    };
    match (names.is_empty(), declared.is_empty()) {
        (false, _) => names.into_iter().map(table).collect(),
        (true, false) => declared,
        (true, true) => vec![TableConfig::default()],
    }
}

/// The signals that stop what runs, and whether one has come. A second one ends the process at
/// once.
pub(super) fn stop_signals() -> std::io::Result<(Signals, Arc<AtomicBool>)> {
    let signals = [SIGTERM, SIGINT, SIGHUP];
    let again = Arc::new(AtomicBool::new(false));
    for signal in signals {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            FAILED.into(),
            Arc::clone(&again),
        )?;
        signal_hook::flag::register(signal, Arc::clone(&again))?;
    }
    Ok((Signals::new(signals)?, again))
}

/// The line that a ready node prints.
fn ready_line(config: &NodeConfig, node: &Node) -> String {
    let tables: Vec<&str> = config.tables.iter().map(|table| table.name.as_str()).collect();
    format!(
        "node {:?} is ready at {}: {}, {} of it in {} pages, {} {}, tables {}",
        config.name,
        node.socket().display(),
        config.memory,
        rounded(node.region_bytes()),
        match node.pages() {
            Pages::Huge => "huge",
            Pages::Base => "base",
        },
        if node.is_warm() { "taken over from" } else { "new in" },
        config.region_path().display(),
        tables.join(", ")
    )
}

impl From<Fabric> for FabricKind {
    fn from(fabric: Fabric) -> Self {
        match fabric {
            Fabric::Auto => FabricKind::Auto,
            Fabric::Shm => FabricKind::Shm,
            Fabric::Tcp => FabricKind::Tcp,
            Fabric::Verbs => FabricKind::Verbs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn config(line: &str) -> Result<NodeConfig> {
        let words = ["serve"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)?.args.config()
    }

    #[test]
    fn flags_override_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        let text = "name = \"a\"\nmemory = \"1GiB\"\nsessions = 7\n\
                    [[table]]\nname = \"t\"\nways = 2\n[[table]]\nname = \"u\"\n";
        std::fs::write(&file, text).unwrap();
        let line =
            format!("--config {} --memory 2GiB --encrypt --table t --table v", file.display());
        let config = config(&line).unwrap();
        assert!(config.encrypt);
        assert_eq!(config.name, "a");
        assert_eq!(config.memory, ByteSize::new(2 << 30));
        assert_eq!(config.sessions, 7);
        let declared = |text| TableConfig::from_toml(text).unwrap();
        assert_eq!(config.tables, [declared("name = 't'\nways = 2"), declared("name = 'v'")]);
    }

    #[test]
    fn flags_about_tables_hold_for_all_of_them() {
        let read = config("--value-max 64KiB --index-slots 4096 --engine pilaf").unwrap();
        let [table] = &read.tables[..] else {
            panic!("{:?}", read.tables);
        };
        let text = "engine = 'pilaf'\nvalue_max = '64KiB'\nindex_slots = 4096";
        assert_eq!(*table, TableConfig::from_toml(text).unwrap());
        let read = config("--eviction sieve --table a --table b").unwrap();
        let of = |name| TableConfig::from_toml(&format!("name = '{name}'\neviction = 'sieve'"));
        assert_eq!(read.tables, [of("a").unwrap(), of("b").unwrap()]);
        let error = config("--engine kv-direct --index-slots 4096").unwrap_err().to_string();
        assert!(error.contains("index_slots is for nessie"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_the_callers_mistake_and_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = dir.path().join("a.toml");
        std::fs::write(&wrong, "memry = 1\n").unwrap();
        for file in [wrong, "/nowhere/a.toml".into()] {
            let error = config(&format!("--config {}", file.display())).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some(), "{error:#}");
            let text = format!("{error:#}");
            assert_eq!(text.matches("a.toml").count(), 1, "{text}");
        }
    }
}
