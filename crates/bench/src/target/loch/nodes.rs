//! The nodes of a run: `loch serve` of this very binary, one process each.
//!
//! Everything they have lies in one private directory in shared memory:
//! configurations, sockets, logs and the regions themselves. It is removed
//! when they have ended. If the bench is killed, its nodes end too, and remove their regions
//! themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use loch::{FabricKind, NodeConfig};
use tempfile::TempDir;

use super::{network, plan};
use crate::echo::Echo;
use crate::error::TargetError;
use crate::memory::{check_nodes, memory_dir};
use crate::process::{Owned, cpu_seconds, own_command};
use crate::spec::Spec;
use crate::system::{Engine, Fabric};
use crate::target::starting::{Starting, start_limit};
use crate::target::{Endpoint, Result, Service};
use crate::tuning::{Cores, Tuning};

/// How long nodes may take to end in good order.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks whether they have.
const STOP_POLL: Duration = Duration::from_millis(2);

/// Running nodes. Fields are dropped in order: the processes before their files.
#[derive(Debug)]
pub struct Nodes {
    processes: Vec<Owned>,
    sockets: Vec<PathBuf>,
    /// One for each node, if clients reach nodes over TCP. They sleep while nothing is exchanged.
    echoes: Vec<Echo>,
    /// Whether nodes do nothing while clients are at work.
    clients_work_alone: bool,
    _dir: TempDir,
}

impl Nodes {
    /// Starts the nodes of `spec` and waits until all of them answer.
    pub fn start(engine: Engine, spec: &Spec, interrupted: &AtomicBool) -> Result<Self> {
        let failed = |error: io::Error| TargetError::NotStarted {
            server: "loch serve",
            reason: error.to_string(),
        };
        let dir = memory_dir().map_err(failed)?;
        let mut configs = plan::node_configs(engine, spec, dir.path())?;
        let fabric = plan::fabric_kind(spec.fabric);
        if fabric != FabricKind::Shm {
            network::join(&mut configs, fabric, dir.path()).map_err(failed)?;
            configs.iter_mut().for_each(|config| config.encrypt = spec.encrypt);
        }
        let bytes: u64 = configs.iter().map(|config| config.memory.bytes()).sum();
        check_nodes(spec, bytes)?;
        let sockets = configs.iter().map(|config| config.socket.clone()).collect();
        let of_each = if spec.fabric == Fabric::Tcp { configs.len() } else { 0 };
        let echoes = (0..of_each).map(|_| Echo::start()).collect::<io::Result<_>>();
        let echoes = echoes.map_err(failed)?;
        let clients_work_alone = spec.fabric == Fabric::Shm && !engine.serves();
        let processes = Vec::new();
        let mut nodes = Nodes { processes, sockets, echoes, clients_work_alone, _dir: dir };
        for config in &configs {
            nodes.processes.push(start(config).map_err(failed)?);
        }
        for (process, config) in nodes.processes.iter_mut().zip(&configs) {
            let log = log_of(&config.socket);
            let starting = Starting {
                server: "loch serve",
                answers: &|| is_ready(&log),
                log: &log,
                limit: start_limit(bytes),
            };
            starting.wait(process, interrupted)?;
        }
        Ok(nodes)
    }
}

impl Service for Nodes {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            paths: self.sockets.clone(),
            echoes: self.echoes.iter().map(|echo| echo.address).collect(),
        }
    }

    fn cpu_seconds(&self) -> Option<f64> {
        let of_each = self.processes.iter().map(|process| cpu_seconds(process.pid()));
        of_each.sum()
    }

    fn tunings(&self) -> &'static [Tuning] {
        if self.clients_work_alone { &[] } else { Tuning::OF_LOCH }
    }

    fn place(&self, cores: &Cores, tuning: Tuning) -> io::Result<()> {
        self.processes.iter().try_for_each(|process| cores.place_process(process.pid(), tuning))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(Owned::ask_to_end);
        let deadline = Instant::now() + STOP_LIMIT;
        let runs = |process: &mut Owned| process.ended().is_none();
        while self.processes.iter_mut().any(runs) && Instant::now() < deadline {
            thread::sleep(STOP_POLL);
        }
    }
}

fn start(config: &NodeConfig) -> io::Result<Owned> {
    let file = config.socket.with_extension("toml");
    fs::write(&file, toml::to_string(config).map_err(io::Error::other)?)?;
    let log = fs::File::create(log_of(&config.socket))?;
    let child = own_command("serve")?
        .arg("--config")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(Owned::new(child))
}

/// A node takes its socket before it makes its memory, and says when it has both.
fn is_ready(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|log| log.contains(" is ready at "))
}

fn log_of(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}
