//! Runs one system through its phases and merges the measurements of its clients.
//!
//! Owns the order of phases: connect, load, prepare (trace and warm-up), tune, probe, then measure
//! and the bare loops by turns, and count. Only the CPU time of "measure" is counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{BenchError, TargetError};
use crate::fleet::{Fleet, Phase, Step};
use crate::measured::{ClientReport, Limits, Measured};
use crate::progress::Progress;
use crate::rate::Rate;
use crate::spec::{Spec, Stop};
use crate::system::Fabric;
use crate::tally::{Traffic, Usage};
use crate::target::{Service, System};
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

/// A system's measurement while it runs: its servers and clients, and what was measured so far.
/// Dropping it ends everything that it started.
pub struct Running<'a> {
    system: &'a dyn System,
    // The clients end before the servers.
    fleet: Fleet<'a>,
    service: Box<dyn Service>,
    spec: &'a Spec,
    progress: Progress,
    measured: Measured,
}

/// A result of the measurement's phases.
type Result<T, E = BenchError> = std::result::Result<T, E>;

/// If a server did not start after an interruption, the interruption is the reason.
fn interrupted_or(error: TargetError, interrupted: &AtomicBool) -> BenchError {
    if interrupted.load(Ordering::Relaxed) { BenchError::Interrupted } else { error.into() }
}

/// Measures a system in virtual time.
pub fn simulate(
    system: &dyn System,
    spec: &Spec,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Measured> {
    let simulated = system.simulate(spec, progress, interrupted);
    simulated.map_err(|error| interrupted_or(error, interrupted))
}

impl<'a> Running<'a> {
    /// Starts `system` and loads it.
    pub fn start(
        system: &'a dyn System,
        spec: &'a Spec,
        progress: Progress,
        interrupted: &'a AtomicBool,
    ) -> Result<Self> {
        progress.phase("starting", None);
        let service =
            system.start(spec, interrupted).map_err(|error| interrupted_or(error, interrupted))?;
        let fleet = Fleet::start(system.name(), spec.clients, interrupted)?;
        let measured = Measured::default();
        let mut running = Self { system, fleet, service, spec, progress, measured };
        running.open()?;
        let loads = spec.attach.as_ref().is_none_or(|attach| attach.loads);
        if loads && spec.replay.is_none() {
            running.load()?;
        }
        Ok(running)
    }

    /// Prepares the turns: warms up, and finds the best way to share cores and the rate.
    pub fn warm_up(&mut self) -> Result<()> {
        self.prepare()?;
        self.measured.tuning = self.tune()?;
        self.measured.offered_ops_per_s = self.find_rate()?;
        self.measured.usage = self.usage()?;
        Ok(())
    }

    /// Runs a part of the workload, and then the bare loops.
    pub fn turn(&mut self, turn: u32) -> Result<()> {
        let before = self.service.cpu_seconds();
        let reports = self.run(turn)?;
        let used = self.service.cpu_seconds().zip(before).map(|(end, begin)| end - begin);
        let limits = self.limits()?;
        self.measured.add_turn(&reports, limits);
        if let Some(used) = used {
            *self.measured.server_cpu_s.get_or_insert_default() += used;
        }
        Ok(())
    }

    /// Counts the traffic, and ends everything.
    pub fn end(mut self) -> Result<(&'a dyn System, Measured)> {
        let before = self.measured.usage.unwrap_or_default();
        self.measured.usage = self
            .usage()?
            .map(|usage| Usage { evicted: usage.evicted.saturating_sub(before.evicted), ..usage });
        self.measured.traffic = self.count()?;
        self.fleet.finish();
        Ok((self.system, self.measured))
    }

    /// Ends everything at once. Returns what was measured so far, if a turn was.
    pub fn stop(self) -> Option<(&'a dyn System, Measured)> {
        let is_measured = !self.measured.turns.is_empty();
        is_measured.then_some((self.system, self.measured))
    }

    fn open(&mut self) -> Result<()> {
        let endpoint = self.service.endpoint();
        for client in 0..self.spec.clients {
            let open = Open {
                system: self.system.name().into(),
                spec: self.spec.clone(),
                endpoint: endpoint.clone(),
                client,
            };
            self.fleet.tell(client as usize, &ToClient::Open(Box::new(open)))?;
        }
        let opening = Phase { limit: Some(OPEN_LIMIT), ..self.phase("connecting") };
        let batches = self.answers(&opening, |answer| match answer {
            FromClient::Opened { batches } => Some(batches),
            _ => None,
        })?;
        self.measured.batches = batches.contains(&true);
        Ok(())
    }

    /// Every client stores an equal part of the records.
    fn load(&mut self) -> Result<()> {
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

    fn prepare(&mut self) -> Result<()> {
        self.progress.phase("warming up", None);
        self.fleet.tell_all(&ToClient::Prepare)?;
        let warming_up = self.phase("warming up");
        self.answers(&warming_up, |answer| matches!(answer, FromClient::Ready).then_some(()))?;
        Ok(())
    }

    /// Tries the ways to share cores, and leaves all processes in the best one.
    fn tune(&mut self) -> Result<Option<Tuning>> {
        let tunings = self.service.tunings();
        // Operations that are tried out would change a cache that has to be empty.
        if tunings.is_empty() || self.spec.replay.is_some() {
            return Ok(None);
        }
        self.progress.phase("tuning", None);
        let cores = Cores::of_this_thread().map_err(BenchError::os("find the cores"))?;
        // Operations a second of all clients together.
        let mut try_out = |tuning| {
            self.service.place(&cores, tuning).map_err(BenchError::os("place the server"))?;
            self.speed(&ToClient::Try(tuning), "tuning")
        };
        let mut best = (0.0, Tuning::Free);
        let mut tried = vec![[0.0; TRIALS]; tunings.len()];
        for trial in 0..TRIALS {
            for (tuning, ops_per_s) in tunings.iter().zip(&mut tried) {
                ops_per_s[trial] = try_out(*tuning)?;
            }
        }
        for (tuning, ops_per_s) in tunings.iter().zip(&mut tried) {
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
    fn find_rate(&mut self) -> Result<Option<f64>> {
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
    fn speed(&mut self, kind: &ToClient, name: &'static str) -> Result<f64> {
        self.fleet.tell_all(kind)?;
        let speeds = self.answers(&self.phase(name), |answer| match answer {
            FromClient::Tried(ops_per_s) => Some(ops_per_s),
            _ => None,
        })?;
        Ok(speeds.iter().sum())
    }

    fn run(&mut self, turn: u32) -> Result<Vec<ClientReport>> {
        let turns = self.spec.turns();
        let length = match self.spec.stop {
            Stop::Seconds(seconds) => Some(Duration::from_secs_f64(seconds)),
            Stop::Ops(_) => None,
        };
        let per_turn = length.map(|length| length / turns);
        self.progress.phase("measuring", length.map(|length| length.as_millis() as u64));
        let done = per_turn.unwrap_or_default() * turn;
        let progress = &self.progress;
        let tick = |elapsed: Duration| {
            if length.is_some() {
                progress.at((done + elapsed).as_millis() as u64);
            }
        };
        let limit = per_turn.map(|length| length + GRACE);
        let measuring = Phase { limit, tick: &tick, ..self.phase("measuring") };
        let offered = self.measured.offered_ops_per_s;
        let of_each = offered.map(|per_s| per_s / f64::from(self.spec.clients));
        self.fleet.tell_all(&ToClient::Go(turn, of_each))?;
        answers(&mut self.fleet, &measuring, |answer| match answer {
            FromClient::Done(report) => Some(*report),
            _ => None,
        })
    }

    /// What a cache holds and has evicted.
    fn usage(&mut self) -> Result<Option<Usage>> {
        if !self.spec.is_cache() {
            return Ok(None);
        }
        let usage = self.of_first(ToClient::Use, "counting values", |answer| match answer {
            FromClient::Used(usage) => Some(usage),
            _ => None,
        })?;
        Ok(usage.flatten())
    }

    /// The traffic of all clients' operations, if there is a fabric. It is not counted in a replay,
    /// which has ended: the same operations would find other values.
    fn count(&mut self) -> Result<Option<Traffic>> {
        if self.spec.replay.is_some() {
            return Ok(None);
        }
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

    /// Over TCP the sum of all clients, which exchange messages at the same time. Elsewhere the
    /// first client's result stands for all: the loops are single-threaded.
    fn limits(&mut self) -> Result<Option<Limits>> {
        if self.spec.replay.is_some() {
            return Ok(None);
        }
        self.progress.phase("measuring the bare loops", None);
        let clients = if self.spec.fabric == Fabric::Tcp { self.spec.clients } else { 1 };
        for client in 0..clients {
            self.fleet.tell(client as usize, &ToClient::Limit)?;
        }
        let clients = clients as usize;
        let measuring = Phase { clients, ..self.phase("measuring the bare loops") };
        let limits = self.answers(&measuring, |answer| match answer {
            FromClient::Limit(limits) => Some(limits),
            _ => None,
        })?;
        let of_all: Option<Vec<_>> = limits.into_iter().collect();
        Ok(of_all.and_then(|of_all| of_all.into_iter().reduce(Limits::plus)))
    }

    /// The answer of the first client alone, which `pick` knows.
    fn of_first<T>(
        &mut self,
        message: ToClient,
        name: &'static str,
        pick: impl Fn(FromClient) -> Option<T>,
    ) -> Result<Option<T>> {
        self.fleet.tell(0, &message)?;
        let phase = Phase { clients: 1, ..self.phase(name) };
        Ok(self.answers(&phase, pick)?.into_iter().next())
    }

    fn answers<T>(
        &mut self,
        phase: &Phase<'_>,
        pick: impl Fn(FromClient) -> Option<T>,
    ) -> Result<Vec<T>> {
        answers(&mut self.fleet, phase, pick)
    }

    fn phase(&self, name: &'static str) -> Phase<'static> {
        Phase { name, clients: self.spec.clients as usize, limit: None, tick: &|_| () }
    }
}

/// The one answer of each client, which `pick` knows.
fn answers<T>(
    fleet: &mut Fleet<'_>,
    phase: &Phase<'_>,
    pick: impl Fn(FromClient) -> Option<T>,
) -> Result<Vec<T>> {
    let mut picked = Vec::new();
    fleet.gather(phase, |_, answer| match pick(answer) {
        Some(answer) => {
            picked.push(answer);
            Step::Finished
        }
        None => Step::Unexpected,
    })?;
    Ok(picked)
}
