//! Runs one system through its phases and merges the measurements of its clients.
//!
//! Owns the order of phases: connect, load, prepare (trace and warm-up), tune,
//! probe, measure, count, bare loop. The background hogs run from "prepare" to
//! "measure"; only the CPU time of "measure" is counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{BenchError, TargetError};
use crate::fleet::{Fleet, Phase, Step};
use crate::hogs::Hogs;
use crate::measured::{ClientReport, Measured, merge};
use crate::progress::Progress;
use crate::rate::Rate;
use crate::spec::{Spec, Stop};
use crate::system::Fabric;
use crate::tally::Traffic;
use crate::target::{Endpoint, Service, System};
use crate::tuning::{Cores, Tuning};
use crate::wire::{FromClient, Open, ToClient};
use crate::workload::part;

/// How much longer than its length a timed phase may take: it waits for operations in flight, and
/// clients may share few cores with many others.
const GRACE: Duration = Duration::from_secs(60);
/// How long clients may take to connect.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// How often each way to share cores is tried, in turns; the median counts, so that a burst of
/// other load does not decide.
const TRIALS: usize = 3;

/// Starts `system`, loads it, measures it, and ends everything it started.
pub fn measure(
    system: &dyn System,
    spec: &Spec,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Measured, BenchError> {
    if spec.fabric == Fabric::Sim {
        let simulated = system.simulate(spec, progress, interrupted);
        return simulated.map_err(|error| interrupted_or(error, interrupted));
    }
    progress.phase("starting", None);
    let service =
        system.start(spec, interrupted).map_err(|error| interrupted_or(error, interrupted))?;
    let mut fleet = Fleet::start(system.name(), spec.clients, interrupted)?;
    open(&mut fleet, system, spec, &service.endpoint())?;
    if spec.attach.as_ref().is_none_or(|attach| attach.loads) {
        load(&mut fleet, spec, progress)?;
    }
    let hogs = Hogs::start(spec.background_hogs)?;
    prepare(&mut fleet, spec, progress)?;
    let tuning = tune(&mut fleet, service.as_ref(), spec, progress)?;

    let offered = offered(&mut fleet, spec, progress)?;

    let server_cpu_before = service.cpu_seconds();
    let reports = run(&mut fleet, spec, offered, progress)?;
    let server_cpu_after = service.cpu_seconds();
    drop(hogs);

    let traffic = count(&mut fleet, spec, progress)?;
    let limit_ops_per_s = limit(&mut fleet, progress)?;
    fleet.finish();
    let mut measured = merge(&reports);
    measured.traffic = traffic;
    measured.server_cpu_s = server_cpu_after.zip(server_cpu_before).map(|(end, begin)| end - begin);
    measured.limit_ops_per_s = limit_ops_per_s;
    measured.tuning = tuning;
    measured.offered_ops_per_s = offered;
    Ok(measured)
}

/// If a server did not start after an interruption, the interruption is the reason.
fn interrupted_or(error: TargetError, interrupted: &AtomicBool) -> BenchError {
    if interrupted.load(Ordering::Relaxed) { BenchError::Interrupted } else { error.into() }
}

fn open(
    fleet: &mut Fleet<'_>,
    system: &dyn System,
    spec: &Spec,
    endpoint: &Endpoint,
) -> Result<(), BenchError> {
    for client in 0..spec.clients {
        let open = Open {
            system: system.name().into(),
            spec: spec.clone(),
            endpoint: endpoint.clone(),
            client,
        };
        fleet.tell(client as usize, &ToClient::Open(Box::new(open)))?;
    }
    fleet.gather(&Phase { limit: Some(OPEN_LIMIT), ..phase("connecting", spec) }, |_, answer| {
        finished_if(matches!(answer, FromClient::Opened))
    })
}

/// Every client stores an equal part of the records.
fn load(fleet: &mut Fleet<'_>, spec: &Spec, progress: &Progress) -> Result<(), BenchError> {
    progress.phase("loading", Some(spec.records));
    for client in 0..spec.clients {
        let begin = |client| part(spec.records, client, spec.clients);
        fleet.tell(client as usize, &ToClient::Load(begin(client)..begin(client + 1)))?;
    }
    let mut stored = vec![0; spec.clients as usize];
    fleet.gather(&phase("loading", spec), |client, answer| match answer {
        FromClient::Loading(records) => {
            stored[client] = records;
            progress.at(stored.iter().sum());
            Step::More
        }
        FromClient::Loaded => Step::Finished,
        _ => Step::Unexpected,
    })
}

fn prepare(fleet: &mut Fleet<'_>, spec: &Spec, progress: &Progress) -> Result<(), BenchError> {
    progress.phase("warming up", None);
    fleet.tell_all(&ToClient::Prepare)?;
    fleet.gather(&phase("warming up", spec), |_, answer| {
        finished_if(matches!(answer, FromClient::Ready))
    })
}

/// Tries the ways to share cores, and leaves all processes in the best one.
fn tune(
    fleet: &mut Fleet<'_>,
    service: &dyn Service,
    spec: &Spec,
    progress: &Progress,
) -> Result<Option<Tuning>, BenchError> {
    if service.tunings().is_empty() {
        return Ok(None);
    }
    progress.phase("tuning", None);
    let cores = Cores::of_this_thread().map_err(BenchError::os("find the cores"))?;
    let mut best = (0.0, Tuning::Free);
    let mut tried = vec![[0.0; TRIALS]; service.tunings().len()];
    for trial in 0..TRIALS {
        for (tuning, ops_per_s) in service.tunings().iter().zip(&mut tried) {
            ops_per_s[trial] = try_out(fleet, service, &cores, spec, *tuning)?;
        }
    }
    for (tuning, ops_per_s) in service.tunings().iter().zip(&mut tried) {
        ops_per_s.sort_by(f64::total_cmp);
        let median = ops_per_s[TRIALS / 2];
        if median > best.0 {
            best = (median, *tuning);
        }
    }
    try_out(fleet, service, &cores, spec, best.1)?;
    Ok(Some(best.1))
}

/// Operations a second of all clients together.
fn try_out(
    fleet: &mut Fleet<'_>,
    service: &dyn Service,
    cores: &Cores,
    spec: &Spec,
    tuning: Tuning,
) -> Result<f64, BenchError> {
    service.place(cores, tuning).map_err(BenchError::os("place the server"))?;
    speed(fleet, &ToClient::Try(tuning), "tuning", spec)
}

/// Operations a second that should begin, in an open loop.
fn offered(
    fleet: &mut Fleet<'_>,
    spec: &Spec,
    progress: &Progress,
) -> Result<Option<f64>, BenchError> {
    match spec.rate {
        None => Ok(None),
        Some(Rate::PerSecond(per_s)) => Ok(Some(per_s)),
        Some(Rate::Percent(percent)) => {
            progress.phase("probing", None);
            let full = speed(fleet, &ToClient::Probe, "probing", spec)?;
            Ok(Some(full * percent / 100.0))
        }
    }
}

/// Operations a second of all clients together, in a run of this kind.
fn speed(
    fleet: &mut Fleet<'_>,
    kind: &ToClient,
    name: &'static str,
    spec: &Spec,
) -> Result<f64, BenchError> {
    fleet.tell_all(kind)?;
    let mut sum = 0.0;
    fleet.gather(&phase(name, spec), |_, answer| match answer {
        FromClient::Tried(ops_per_s) => {
            sum += ops_per_s;
            Step::Finished
        }
        _ => Step::Unexpected,
    })?;
    Ok(sum)
}

fn run(
    fleet: &mut Fleet<'_>,
    spec: &Spec,
    offered: Option<f64>,
    progress: &Progress,
) -> Result<Vec<ClientReport>, BenchError> {
    let length = match spec.stop {
        Stop::Seconds(seconds) => Some(Duration::from_secs_f64(seconds)),
        Stop::Ops(_) => None,
    };
    progress.phase("measuring", length.map(|length| length.as_millis() as u64));
    let tick = |elapsed: Duration| {
        if length.is_some() {
            progress.at(elapsed.as_millis() as u64);
        }
    };
    let measuring = Phase {
        limit: length.map(|length| length + GRACE),
        tick: &tick,
        ..phase("measuring", spec)
    };
    let of_each = offered.map(|per_s| per_s / f64::from(spec.clients));
    fleet.tell_all(&ToClient::Go(of_each))?;
    let mut reports = Vec::new();
    fleet.gather(&measuring, |_, answer| match answer {
        FromClient::Done(report) => {
            reports.push(*report);
            Step::Finished
        }
        _ => Step::Unexpected,
    })?;
    Ok(reports)
}

/// The traffic of all clients' operations, if there is a fabric.
fn count(
    fleet: &mut Fleet<'_>,
    spec: &Spec,
    progress: &Progress,
) -> Result<Option<Traffic>, BenchError> {
    progress.phase("counting", None);
    fleet.tell_all(&ToClient::Count)?;
    let mut sum: Option<Traffic> = None;
    fleet.gather(&phase("counting", spec), |_, answer| match answer {
        FromClient::Counted(None) => Step::Finished,
        FromClient::Counted(Some(traffic)) => {
            sum.get_or_insert_default().add(traffic);
            Step::Finished
        }
        _ => Step::Unexpected,
    })?;
    Ok(sum)
}

/// The first client's result stands for all: the loop is single-threaded.
fn limit(fleet: &mut Fleet<'_>, progress: &Progress) -> Result<Option<f64>, BenchError> {
    progress.phase("measuring the bare loop", None);
    fleet.tell(0, &ToClient::Limit)?;
    let mut limit = None;
    let alone = Phase { name: "measuring the bare loop", clients: 1, limit: None, tick: &|_| () };
    fleet.gather(&alone, |_, answer| match answer {
        FromClient::Limit(ops_per_s) => {
            limit = ops_per_s;
            Step::Finished
        }
        _ => Step::Unexpected,
    })?;
    Ok(limit)
}

fn phase(name: &'static str, spec: &Spec) -> Phase<'static> {
    Phase { name, clients: spec.clients as usize, limit: None, tick: &|_| () }
}

fn finished_if(expected: bool) -> Step {
    if expected { Step::Finished } else { Step::Unexpected }
}
