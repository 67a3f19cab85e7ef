//! The part of the workers' configuration that is not in a table's directory entry.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use loch_engines::engine::LogConfig;

use super::{NotBound, bind};
use crate::limits::WORKER_SLEEP_MAX_US;
use crate::node::registered::TableFunctions;
use crate::{Error, Result, TableConfig, WorkersConfig};

/// The configuration of a node's workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerPlan {
    pub waiting: WorkersConfig,
    /// The log of each table that has one.
    pub logs: Vec<(String, LogConfig)>,
    /// The functions of each table that has some.
    pub functions: Vec<(String, TableFunctions)>,
}

impl WorkerPlan {
    /// Checks the configuration of workers.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(waiting: &WorkersConfig, tables: &[TableConfig]) -> Result<Self> {
        let WorkersConfig { cores, sleep_max_us, .. } = waiting;
        if !(1..=WORKER_SLEEP_MAX_US).contains(sleep_max_us) {
            let problem = format!("it is {sleep_max_us}, it may be 1 to {WORKER_SLEEP_MAX_US}");
            return Err(Error::config("workers: sleep_max_us", problem));
        }
        if let Some(core) = cores.iter().find(|core| usize::from(**core) >= CORES_MAX) {
            let problem = format!("there is no processor {core}: a host has up to {CORES_MAX}");
            return Err(Error::config("workers: cores", problem));
        }
        if let Some(problem) = cores.iter().find_map(|core| cannot_be_bound(*core)) {
            return Err(Error::config("workers: cores", problem));
        }
        let log = |table: &TableConfig| {
            let LogConfig { folder, sync } = table.engine.log()?;
            let absolute = std::path::absolute(&folder).map_err(Error::os("resolve", &folder));
            Some(absolute.map(|folder| (table.name.clone(), LogConfig { folder, sync })))
        };
        let logs: Vec<_> = tables.iter().filter_map(log).collect::<Result<_, _>>()?;
        check_logs(&logs)?;
        let functions = tables.iter().filter(|table| !table.engine.functions().is_empty());
        let functions = functions.map(|it| Ok((it.name.clone(), TableFunctions::of(it)?)));
        let functions = functions.collect::<Result<_>>()?;
        Ok(Self { waiting: waiting.clone(), logs, functions })
    }
}

/// Tries a processor with a thread that ends at once: the node's own thread stays where it is.
fn cannot_be_bound(core: u16) -> Option<String> {
    let tried = std::thread::spawn(move || bind(core)).join().expect("a system call returns");
    tried.err().map(|NotBound { core, cause }| {
        format!(
            "a worker cannot run on processor {core} ({cause}): name processors that are here and \
             that this process may use"
        )
    })
}

/// Checks that each log has a folder of its own. A lock keeps other nodes away.
fn check_logs(logs: &[(String, LogConfig)]) -> Result<()> {
    let mut tables = HashMap::new();
    for (table, LogConfig { folder, .. }) in logs {
        if let Some(first) = tables.insert(resolved(folder), table) {
            let problem = format!(
                "its log folder {} is also that of table {first:?}: give it a folder of its own (log)",
                folder.display()
            );
            return Err(Error::config(format!("table {table:?}"), problem));
        }
    }
    Ok(())
}

/// Resolves the links in the part of a path that exists.
fn resolved(path: &Path) -> PathBuf {
    let real = |there: &Path| Some(there.canonicalize().ok()?.join(path.strip_prefix(there).ok()?));
    path.ancestors().find_map(real).unwrap_or_else(|| path.into())
}

/// Processors that a thread can be bound to.
const CORES_MAX: usize = rustix::thread::CpuSet::MAX_CPU;
