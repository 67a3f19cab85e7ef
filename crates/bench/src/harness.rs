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
    let fleet = Fleet::start(system.name(), spec.clients, interrupted)?;
    let mut harness = Harness { fleet, spec, progress };
    harness.open(system, &service.endpoint())?;
    if spec.attach.as_ref().is_none_or(|attach| attach.loads) {
        harness.load()?;
    }
    let hogs = Hogs::start(spec.background_hogs)?;
    harness.prepare()?;
    let tuning = harness.tune(service.as_ref())?;

    let offered = harness.offered()?;

    let server_cpu_before = service.cpu_seconds();
    let reports = harness.run(offered)?;
    let server_cpu_after = service.cpu_seconds();
    drop(hogs);

    let traffic = harness.count()?;
    let limit_ops_per_s = harness.limit()?;
    harness.fleet.finish();
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

/// A system's clients, and the phases through which they go.
struct Harness<'a> {
    fleet: Fleet<'a>,
    spec: &'a Spec,
    progress: &'a Progress,
}

impl Harness<'_> {
    fn open(&mut self, system: &dyn System, endpoint: &Endpoint) -> Result<(), BenchError> {
        for client in 0..self.spec.clients {
            let open = Open {
                system: system.name().into(),
                spec: self.spec.clone(),
                endpoint: endpoint.clone(),
                client,
            };
            self.fleet.tell(client as usize, &ToClient::Open(Box::new(open)))?;
        }
        let opening = Phase { limit: Some(OPEN_LIMIT), ..self.phase("connecting") };
        self.answers(&opening, |answer| matches!(answer, FromClient::Opened).then_some(()))?;
        Ok(())
    }

    /// Every client stores an equal part of the records.
    fn load(&mut self) -> Result<(), BenchError> {
        let Spec { records, clients, .. } = *self.spec;
        self.progress.phase("loading", Some(records));
        for client in 0..clients {
            let begin = |client| part(records, client, clients);
            let load = ToClient::Load(begin(client)..begin(client + 1));
            self.fleet.tell(client as usize, &load)?;
        }
        let mut stored = vec![0; clients as usize];
        let loading = self.phase("loading");
        self.fleet.gather(&loading, |client, answer| match answer {
            FromClient::Loading(records) => {
                stored[client] = records;
                self.progress.at(stored.iter().sum());
                Step::More
            }
            FromClient::Loaded => Step::Finished,
            _ => Step::Unexpected,
        })
    }

    fn prepare(&mut self) -> Result<(), BenchError> {
        self.progress.phase("warming up", None);
        self.fleet.tell_all(&ToClient::Prepare)?;
        let warming_up = self.phase("warming up");
        self.answers(&warming_up, |answer| matches!(answer, FromClient::Ready).then_some(()))?;
        Ok(())
    }

    /// Tries the ways to share cores, and leaves all processes in the best one.
    fn tune(&mut self, service: &dyn Service) -> Result<Option<Tuning>, BenchError> {
        if service.tunings().is_empty() {
            return Ok(None);
        }
        self.progress.phase("tuning", None);
        let cores = Cores::of_this_thread().map_err(BenchError::os("find the cores"))?;
        // Operations a second of all clients together.
        let mut try_out = |tuning| {
            service.place(&cores, tuning).map_err(BenchError::os("place the server"))?;
            self.speed(&ToClient::Try(tuning), "tuning")
        };
        let mut best = (0.0, Tuning::Free);
        let mut tried = vec![[0.0; TRIALS]; service.tunings().len()];
        for trial in 0..TRIALS {
            for (tuning, ops_per_s) in service.tunings().iter().zip(&mut tried) {
                ops_per_s[trial] = try_out(*tuning)?;
            }
        }
        for (tuning, ops_per_s) in service.tunings().iter().zip(&mut tried) {
            ops_per_s.sort_by(f64::total_cmp);
            let median = ops_per_s[TRIALS / 2];
            if median > best.0 {
                best = (median, *tuning);
            }
        }
        try_out(best.1)?;
        Ok(Some(best.1))
    }

    /// Operations a second that should begin, in an open loop.
    fn offered(&mut self) -> Result<Option<f64>, BenchError> {
        match self.spec.rate {
            None => Ok(None),
            Some(Rate::PerSecond(per_s)) => Ok(Some(per_s)),
            Some(Rate::Percent(percent)) => {
                self.progress.phase("probing", None);
                let full = self.speed(&ToClient::Probe, "probing")?;
                Ok(Some(full * percent / 100.0))
            }
        }
    }

    /// Operations a second of all clients together, in a run of this kind.
    fn speed(&mut self, kind: &ToClient, name: &'static str) -> Result<f64, BenchError> {
        self.fleet.tell_all(kind)?;
        let speeds = self.answers(&self.phase(name), |answer| match answer {
            FromClient::Tried(ops_per_s) => Some(ops_per_s),
            _ => None,
        })?;
        Ok(speeds.iter().sum())
    }

    fn run(&mut self, offered: Option<f64>) -> Result<Vec<ClientReport>, BenchError> {
        let length = match self.spec.stop {
            Stop::Seconds(seconds) => Some(Duration::from_secs_f64(seconds)),
            Stop::Ops(_) => None,
        };
        let progress = self.progress;
        progress.phase("measuring", length.map(|length| length.as_millis() as u64));
        let tick = |elapsed: Duration| {
            if length.is_some() {
                progress.at(elapsed.as_millis() as u64);
            }
        };
        let limit = length.map(|length| length + GRACE);
        let measuring = Phase { limit, tick: &tick, ..self.phase("measuring") };
        let of_each = offered.map(|per_s| per_s / f64::from(self.spec.clients));
        self.fleet.tell_all(&ToClient::Go(of_each))?;
        self.answers(&measuring, |answer| match answer {
            FromClient::Done(report) => Some(*report),
            _ => None,
        })
    }

    /// The traffic of all clients' operations, if there is a fabric.
    fn count(&mut self) -> Result<Option<Traffic>, BenchError> {
        self.progress.phase("counting", None);
        self.fleet.tell_all(&ToClient::Count)?;
        let counted = self.answers(&self.phase("counting"), |answer| match answer {
            FromClient::Counted(traffic) => Some(traffic),
            _ => None,
        })?;
        let mut sum: Option<Traffic> = None;
        counted.into_iter().flatten().for_each(|one| sum.get_or_insert_default().add(one));
        Ok(sum)
    }

    /// The first client's result stands for all: the loop is single-threaded.
    fn limit(&mut self) -> Result<Option<f64>, BenchError> {
        self.progress.phase("measuring the bare loop", None);
        self.fleet.tell(0, &ToClient::Limit)?;
        let alone = Phase { clients: 1, ..self.phase("measuring the bare loop") };
        let limits = self.answers(&alone, |answer| match answer {
            FromClient::Limit(ops_per_s) => Some(ops_per_s),
            _ => None,
        })?;
        Ok(limits[0])
    }

    /// The one answer of each client, which `pick` knows.
    fn answers<T>(
        &mut self,
        phase: &Phase<'_>,
        pick: impl Fn(FromClient) -> Option<T>,
    ) -> Result<Vec<T>, BenchError> {
        let mut picked = Vec::new();
        self.fleet.gather(phase, |_, answer| match pick(answer) {
            Some(answer) => {
                picked.push(answer);
                Step::Finished
            }
            None => Step::Unexpected,
        })?;
        Ok(picked)
    }

    fn phase(&self, name: &'static str) -> Phase<'static> {
        Phase { name, clients: self.spec.clients as usize, limit: None, tick: &|_| () }
    }
}
