//! A cluster that is not the bench's own: the bench measures it as it is, and starts and stops none
//! of its processes.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loch::{Cluster, ClusterInfo, ConnectOptions, FabricKind, TableInfo};
use rustix::net::sockopt::socket_peercred;

use super::available::check;
use super::network;
use crate::error::{BenchError, TargetError};
use crate::options::{Attach, Eviction};
use crate::process::cpu_seconds;
use crate::spec::Spec;
use crate::system::{Engine, Fabric};
use crate::target::{Endpoint, Result, Service};

/// How long the cluster's nodes may take to be up.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A cluster, and those of its nodes whose processes are on this host.
pub struct Attached {
    socket: PathBuf,
    processes: Vec<u32>,
}

/// Fills in the facts of this host and of the attached cluster, if there is one, and checks that
/// the workload fits it.
///
/// # Errors
/// [`BenchError::Usage`] if something does not fit, or the cluster cannot be attached.
pub fn resolve(spec: Spec) -> Result<Spec, BenchError> {
    let soft_roce = spec.fabric == Fabric::Verbs && network::is_soft_roce(network::DEVICES);
    let spec = Spec { soft_roce, ..spec };
    let Some(attach) = &spec.attach else { return Ok(spec) };
    check(spec.engines[0], spec.fabric)?;
    let info = ask(attach)?;
    let table = info.tables.iter().find(|table| table.name == attach.table);
    let Some(table) = table else {
        let names: Vec<_> = info.tables.iter().map(|table| table.name.as_str()).collect();
        return Err(BenchError::usage(format!(
            "--table {}: the cluster has no such table; it has {}",
            attach.table,
            names.join(", ")
        )));
    };
    check_table(&spec, table)?;
    check_fabric(&spec, &info)?;
    let nodes = u32::try_from(info.nodes.len()).expect("a cluster has up to 256");
    let mut spec = Spec { nodes, ..spec };
    if table.evicts && spec.engines[0].capabilities().evicts {
        spec.table.eviction = Eviction::Sieve;
    }
    Ok(spec)
}

fn check_table(spec: &Spec, table: &TableInfo) -> Result<(), BenchError> {
    let engine = spec.engines[0];
    let is_the_tables = |engine: &Engine| {
        (engine.id().name(), engine.table_protocol()) == (&*table.engine, table.protocol)
    };
    if !is_the_tables(&engine) {
        let other = Engine::all().find(is_the_tables);
        let other = other.map_or(&*table.engine, |other| other.name());
        return Err(BenchError::usage(format!(
            "--engine {}: the engine of table {:?} is {other}: give --engine {other}",
            engine.name(),
            table.name
        )));
    }
    if spec.value_size as u64 > table.value_bytes_max {
        return Err(BenchError::usage(format!(
            "--value-size {}: values of table {:?} have up to {} bytes",
            spec.value_size, table.name, table.value_bytes_max
        )));
    }
    Ok(())
}

/// The bench reports the fabric of its options, which has to be that of the cluster.
fn check_fabric(spec: &Spec, info: &ClusterInfo) -> Result<(), BenchError> {
    let found = match info.fabric {
        FabricKind::Auto | FabricKind::Shm => Fabric::Shm,
        FabricKind::Tcp => Fabric::Tcp,
        FabricKind::Verbs => Fabric::Verbs,
    };
    if found == spec.fabric {
        return Ok(());
    }
    Err(BenchError::usage(format!(
        "--fabric {}: the nodes of this cluster are joined by {name}: say --fabric {name}",
        spec.fabric.name(),
        name = found.name()
    )))
}

fn ask(attach: &Attach) -> Result<ClusterInfo> {
    let options = ConnectOptions {
        read_only: true,
        connect_timeout: CONNECT_LIMIT,
        ..ConnectOptions::default()
    };
    let cluster = Cluster::connect_with(&attach.socket, options);
    cluster.map(|cluster| cluster.info()).map_err(TargetError::lost("loch", "attach"))
}

impl Attached {
    /// Finds the cluster's processes.
    pub fn find(attach: &Attach) -> Result<Self> {
        let info = ask(attach)?;
        // A node on another host has an address, and no socket.
        let sockets = info.nodes.iter().map(|node| &node.socket).filter(|it| it.is_absolute());
        let sockets = sockets.chain([&attach.socket]);
        let mut processes: Vec<u32> = sockets.filter_map(|socket| process_at(socket)).collect();
        processes.sort_unstable();
        processes.dedup();
        Ok(Self { socket: attach.socket.clone(), processes })
    }
}

/// The process that listens at a socket.
fn process_at(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = socket_peercred(&stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

impl Service for Attached {
    fn endpoint(&self) -> Endpoint {
        Endpoint::new(vec![self.socket.clone()])
    }

    fn cpu_seconds(&self) -> Option<f64> {
        if self.processes.is_empty() {
            return None;
        }
        self.processes.iter().map(|pid| cpu_seconds(*pid)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_sockets_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        assert_eq!(process_at(&socket), None);
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(process_at(&socket), Some(std::process::id()));
    }
}
