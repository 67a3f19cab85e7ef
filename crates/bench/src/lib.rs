//! Measures Loch's engines and the stores they are compared with, under one workload.
//!
//! From outside to inside: [`args`] reads the command line; [`harness`] takes
//! one system after the other through its phases; [`fleet`] owns its client
//! processes, each of which is a [`worker`] that speaks [`wire`] with the
//! bench; a worker draws a [`trace`] of operations on the keys and values of
//! a [`workload`], or takes it from a user's file ([`replay`]), executes it
//! against a [`target`], in an open loop at a given [`rate`], and
//! [`measure`]s it into a [`tally`]; [`report`] prints the results.
//!
//! Two programs use it: `loch bench` measures Loch's engines and their peers ([`run`]), and
//! `loch-papers bench` the papers' baselines ([`run_systems`]). The bench starts its processes from
//! the program's own binary, so each program accepts the subcommands of [`Subprocess`].
//!
//! The bench leaves nothing behind: processes end with their owner or at the
//! latest with the bench's own process ([`process`]), files live in private
//! temporary directories.
#![forbid(unsafe_code)]

pub mod args;
mod check;
mod echo;
pub mod error;
mod fleet;
mod harness;
mod hogs;
pub mod measure;
pub mod measured;
pub mod memory;
mod mix;
mod options;
pub mod process;
pub mod progress;
mod rate;
mod replay;
pub mod report;
pub mod spec;
pub mod subprocess;
pub mod system;
pub mod tally;
pub mod target;
mod trace;
mod tuning;
mod wire;
mod worker;
pub mod workload;
pub mod zipf;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::ValueEnum;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::args::BenchArgs;
use self::error::BenchError;
use self::harness::Running;
use self::hogs::Hogs;
use self::measured::Measured;
use self::progress::{Progress, note};
use self::report::Object;
use self::spec::Spec;
use self::subprocess::Subprocess;
use self::system::{Engine, Fabric, Peer};
use self::target::System;

/// Runs `loch bench`.
///
/// # Errors
/// Why the run ended early; the results so far were printed.
pub fn run(args: BenchArgs) -> Result<(), BenchError> {
    let spec = replay::resolve(target::loch::resolve(args.spec()?)?)?;
    if spec.attach.is_none() {
        memory::check_data(&spec)?;
        spec.engines.iter().try_for_each(|engine| target::loch::check_run(*engine, &spec))?;
    }
    run_systems(&spec, &systems_of(&spec))
}

/// Runs a part of `loch bench` that is a process of its own.
///
/// # Errors
/// The errors of [`Subprocess::run`].
pub fn run_subprocess(subprocess: Subprocess) -> Result<(), BenchError> {
    let engines: Vec<_> = Engine::all().collect();
    let engines = engines.iter().map(|engine| engine as &dyn System);
    let peers = Peer::value_variants().iter().map(|peer| peer as &dyn System);
    subprocess.run(&engines.chain(peers).collect::<Vec<_>>())
}

/// The engines of a run, and then its peers.
pub fn systems_of(spec: &Spec) -> Vec<&dyn System> {
    let engines = spec.engines.iter().map(|engine| engine as &dyn System);
    engines.chain(spec.peers.iter().map(|peer| peer as &dyn System)).collect()
}

/// Measures `systems` and prints the results, as a table or as JSON.
///
/// # Errors
/// Why the run ended early; the results so far were printed.
pub fn run_systems(spec: &Spec, systems: &[&dyn System]) -> Result<(), BenchError> {
    let interrupted = watch_signals()?;
    let mut objects = Vec::new();
    let at_once = if memory::fits(spec, systems.len()) { systems.len() } else { 1 };
    let result = measure_all(spec, systems, at_once, &interrupted, &mut objects);
    if !spec.json && !objects.is_empty() {
        // The results so far are shown, even if an error ended the rest.
        print_table(spec, &objects)?;
    }
    result?;
    if objects.is_empty() {
        return Err(BenchError::NothingMeasured);
    }
    Ok(())
}

/// Writes a table of the results.
///
/// # Errors
/// [`BenchError::Os`].
pub fn print_table(spec: &Spec, objects: &[Object]) -> Result<(), BenchError> {
    report::print_table(spec, objects).map_err(BenchError::os("write the table"))
}

/// Measures every system. So many of them, at least one, take turns `at_once`, so that other load
/// on the host changes all of them alike. If an error ends this, `objects` has the results so far.
///
/// # Errors
/// The error that ended it.
pub fn measure_all(
    spec: &Spec,
    systems: &[&dyn System],
    at_once: usize,
    interrupted: &AtomicBool,
    objects: &mut Vec<Object>,
) -> Result<(), BenchError> {
    let (progress, mut begun) = (Progress::on_stderr(), 0);
    for systems_at_once in systems.chunks(at_once.max(1)) {
        let place = |system: &dyn System, number| {
            progress.of(format!("{}/{} {}", begun + number + 1, systems.len(), system.name()))
        };
        let places = systems_at_once.iter().enumerate();
        let places = places.map(|(number, system)| (*system, place(*system, number))).collect();
        let (measured, failure) = match spec.fabric {
            Fabric::Sim => simulate(spec, places, interrupted),
            _ => take_turns(spec, places, interrupted),
        };
        begun += systems_at_once.len();
        let first = measured.first().map(|(_, measured)| measured);
        for (system, measured) in &measured {
            if let Some(refusal) = &measured.refusal {
                let (name, errors) = (system.name(), measured.tally.errors);
                note(&format!("{name} refused {errors} operations, one because: {refusal}"));
            }
            let object = Object::new(spec, *system, measured, first);
            if spec.json {
                report::print_json(&object).map_err(BenchError::os("write the result"))?;
            }
            objects.push(object);
        }
        failure.map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// What was measured, and the error that ended a measurement early.
type Results<'a> = (Vec<(&'a dyn System, Measured)>, Option<BenchError>);

/// Measures systems in virtual time, one after the other.
fn simulate<'a>(
    spec: &Spec,
    systems: Vec<(&'a dyn System, Progress)>,
    interrupted: &AtomicBool,
) -> Results<'a> {
    let (mut results, mut failure) = (Vec::new(), None);
    for (system, progress) in systems {
        let measured = harness::simulate(system, spec, &progress, interrupted);
        results.extend(unless_failed(measured, &mut failure).map(|measured| (system, measured)));
    }
    (results, failure)
}

/// Measures systems by turns. One that fails does not end the others.
fn take_turns<'a>(
    spec: &'a Spec,
    systems: Vec<(&'a dyn System, Progress)>,
    interrupted: &'a AtomicBool,
) -> Results<'a> {
    let mut failure = None;
    let mut running: Vec<_> = systems
        .into_iter()
        .filter_map(|(system, progress)| {
            let started = Running::start(system, spec, progress, interrupted);
            unless_failed(started, &mut failure)
        })
        .collect();
    let hogs = unless_failed(Hogs::start(spec.background_hogs), &mut failure);
    running.retain_mut(|running| unless_failed(running.warm_up(), &mut failure).is_some());
    for turn in 0..spec.turns() {
        if matches!(failure, Some(BenchError::Interrupted)) {
            break;
        }
        running.retain_mut(|running| unless_failed(running.turn(turn), &mut failure).is_some());
    }
    drop(hogs);
    if matches!(failure, Some(BenchError::Interrupted)) {
        return (running.into_iter().filter_map(Running::stop).collect(), failure);
    }
    let ends = running.into_iter().map(Running::end);
    let results = ends.filter_map(|ended| unless_failed(ended, &mut failure)).collect();
    (results, failure)
}

/// The result. An error that skips a system is noted, and the first other error kept.
fn unless_failed<T>(result: Result<T, BenchError>, failure: &mut Option<BenchError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(BenchError::Target(error)) if error.is_skip() => {
            note(&format!("{error}; skipped"));
            None
        }
        Err(error) => {
            // Everything after an interruption fails because of it.
            if failure.is_none() || matches!(error, BenchError::Interrupted) {
                *failure = Some(error);
            }
            None
        }
    }
}

/// The first signal asks the run to end in good order; a second one ends it at once.
///
/// # Errors
/// [`BenchError::Os`].
pub fn watch_signals() -> Result<Arc<AtomicBool>, BenchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .map_err(BenchError::os("watch for signals"))?;
    }
    Ok(interrupted)
}
