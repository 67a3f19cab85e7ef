//! The memory of this host: whether there is enough of it, and a directory in it.

use std::io;

use tempfile::TempDir;

use crate::error::{BenchError, TargetError};
use crate::spec::Spec;

/// The folder of regions, in memory.
const MEMORY_DIR: &str = "/dev/shm";
/// No system needs more than this many times the bytes of its keys and values.
const OVERHEAD: u64 = 4;

/// Refuses data that do not fit, which is better than to be killed by the kernel in the middle.
pub fn check_data(spec: &Spec) -> Result<(), BenchError> {
    let Some(available) = available_memory_bytes() else {
        return Ok(());
    };
    let needed = needed(spec);
    if needed > available {
        return Err(BenchError::usage(format!(
            "--records {} of {} B keys and {} B values are {} MiB, but only {} MiB of memory are \
             available: lower --records or --value-size",
            spec.records,
            spec.key_size,
            spec.value_size,
            needed >> 20,
            available >> 20
        )));
    }
    Ok(())
}

/// Bytes of keys and values that a system holds at a time.
fn needed(spec: &Spec) -> u64 {
    let of_cache = spec.cache_bytes().filter(|_| spec.replay.is_some());
    spec.data_bytes().min(of_cache.unwrap_or(u64::MAX))
}

/// Whether the data of so many systems surely fit beside one another.
pub fn fits(spec: &Spec, systems: usize) -> bool {
    let needed = needed(spec).saturating_mul(OVERHEAD).saturating_mul(systems as u64);
    available_memory_bytes().is_none_or(|available| needed <= available)
}

/// Memory that processes could get; `None` if the host does not say.
fn available_memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Refuses regions that do not fit, because they are allocated at once.
pub fn check_nodes(spec: &Spec, needed: u64) -> Result<(), TargetError> {
    let Some(available) = available_memory_bytes().filter(|available| needed > *available) else {
        return Ok(());
    };
    let nodes = spec.nodes;
    let (what, way_out) = match spec.table.memory {
        Some(memory) => (format!("{nodes} node(s) with --memory {memory}"), "--memory"),
        None => (format!("{nodes} node(s) with these records"), "--records or --value-size"),
    };
    Err(TargetError::Impossible(format!(
        "{what} take {} MiB of memory, of which {} MiB are available: lower {way_out}",
        needed >> 20,
        available >> 20
    )))
}

/// A private directory whose files are in memory.
pub fn memory_dir() -> io::Result<TempDir> {
    let prefix = format!("loch-bench-{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(MEMORY_DIR)
}
