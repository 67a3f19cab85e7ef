//! `loch bench`: measures Loch's engines and the stores they are compared
//! with, under one workload.
//!
//! From outside to inside: [`spec`] reads the command line; [`harness`] takes
//! one system after the other through its phases; [`fleet`] owns its client
//! processes, each of which is a [`worker`] that speaks [`wire`] with the
//! bench; a worker draws a [`trace`] of operations on the keys and values of
//! a [`workload`], executes it against a [`target`], in an open loop at a given
//! [`rate`], and [`measure`]s it into a [`tally`]; [`report`] prints what came out.
//!
//! The bench leaves nothing behind: processes end with their owner or at the
//! latest with the bench's own process ([`process`]), files live in private
//! temporary directories.

mod criterion;
mod error;
mod fleet;
mod harness;
mod hogs;
mod kv_direct;
mod measure;
mod options;
mod process;
mod progress;
mod rate;
mod report;
mod size;
mod spec;
mod system;
mod tables;
mod tally;
mod target;
mod trace;
mod tuning;
mod wire;
mod worker;
mod workload;
mod zipf;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use error::BenchError;
pub use process::{Helper, run_helper};
use progress::Progress;
pub use progress::note;
pub use report::Object;
pub use spec::{BenchArgs, Spec};
use system::System;
pub use tally::{Latencies, latencies};
pub use target::loch::engine_names;

/// Runs `loch bench`.
pub fn run(args: BenchArgs) -> Result<(), BenchError> {
    let spec = target::loch::resolve(args.spec()?)?;
    if spec.attach.is_none() {
        check_memory(&spec)?;
    }
    let interrupted = watch_signals()?;
    let mut objects = Vec::new();
    let result = measure_all(&spec, &interrupted, &mut objects);
    if !spec.json && !objects.is_empty() {
        // What was measured is shown, whatever happened to the rest.
        print_table(&spec, &objects)?;
    }
    result?;
    if objects.is_empty() {
        return Err(BenchError::NothingMeasured);
    }
    Ok(())
}

/// Writes a table of what was measured.
pub fn print_table(spec: &Spec, objects: &[Object]) -> Result<(), BenchError> {
    report::print_table(spec, objects).map_err(BenchError::os("write the table"))
}

/// Measures every system of `spec`, one after the other; what is measured when
/// an error ends it is in `objects`.
pub fn measure_all(
    spec: &Spec,
    interrupted: &AtomicBool,
    objects: &mut Vec<Object>,
) -> Result<(), BenchError> {
    let engines = spec.engines.iter().copied().map(System::Engine);
    let systems: Vec<System> =
        engines.chain(spec.peers.iter().copied().map(System::Peer)).collect();
    for (number, system) in systems.iter().enumerate() {
        let place = format!("{}/{} {}", number + 1, systems.len(), system.name());
        let measured = match harness::measure(*system, spec, &Progress::new(place), interrupted) {
            Err(BenchError::Target(error)) if error.is_skip() => {
                note(&format!("{error}; skipped"));
                continue;
            }
            result => result?,
        };
        if let Some(refusal) = &measured.refusal {
            let (name, errors) = (system.name(), measured.tally.errors);
            note(&format!("{name} refused {errors} operations, one of them because: {refusal}"));
        }
        let object = Object::new(spec, &measured);
        if spec.json {
            report::print_json(&object).map_err(BenchError::os("write the result"))?;
        }
        objects.push(object);
    }
    Ok(())
}

/// The first signal asks the run to end in good order; a second one ends it at once.
pub fn watch_signals() -> Result<Arc<AtomicBool>, BenchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .map_err(BenchError::os("watch for signals"))?;
    }
    Ok(interrupted)
}

/// Better refused now than ended by the kernel in the middle.
fn check_memory(spec: &Spec) -> Result<(), BenchError> {
    let Some(available) = available_memory_bytes() else {
        return Ok(());
    };
    let needed = spec.data_bytes();
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

/// Memory that processes could get; `None` where the host does not say.
fn available_memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
