//! A client's process: the hidden subcommand `bench-worker`.
//!
//! It is single-threaded, and does what the bench says until the pipe closes.

use std::io::{self, BufRead, Write};
use std::num::NonZeroU64;

use quanta::Clock;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::measure::{Budget, Run};
use crate::measured::ClientReport;
use crate::rate::Arrivals;
use crate::replay;
use crate::spec::Spec;
use crate::tally::{Traffic, pack};
use crate::target::{System, Target};
use crate::trace::Trace;
use crate::tuning::{Cores, Tuning};
use crate::wire::{FromClient, Open, ToClient, say};
use crate::workload::Workload;

/// How long a way to share cores is tried.
const TRIAL_NS: u64 = 100_000_000;
/// The longest run of a closed loop to compute a share of its rate.
const PROBE_NS_MAX: u64 = 500_000_000;
/// How late the kernel may wake a client that sleeps until an operation is due, besides the time of
/// waking: the least possible value.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;
/// How many operations are counted, which is enough for two digits if a twentieth of them are PUTs;
/// and how long that may take.
const COUNT_OPS_MAX: u64 = 200_000;
const COUNT_NS_MAX: u64 = 500_000_000;

/// Serves the bench on stdin and stdout, as a client of one of `systems`.
pub fn serve(systems: &[&dyn System]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let mut client = None;
    for line in io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(|error| format!("not a message of this version: {error}").into())
            .and_then(|message| answer(&mut client, systems, message, &mut output));
        match answer {
            Ok(answer) => say(&mut output, &answer)?,
            Err(reason) => return say(&mut output, &FromClient::Failed(reason.to_string())),
        }
    }
    Ok(())
}

/// Why a client gives up.
type Failure = Box<dyn std::error::Error>;

/// A connected client.
struct Client {
    spec: Spec,
    number: u32,
    workload: Workload,
    target: Box<dyn Target>,
    clock: Clock,
    trace: Trace,
    /// Where the next turn begins in the trace.
    position: usize,
    cores: Cores,
}

fn answer(
    client: &mut Option<Client>,
    systems: &[&dyn System],
    message: ToClient,
    output: &mut impl Write,
) -> Result<FromClient, Failure> {
    let client = match message {
        ToClient::Open(open) => {
            let opened = client.insert(Client::open(*open, systems)?);
            return Ok(FromClient::Opened { batches: opened.target.batches() });
        }
        _ => client.as_mut().ok_or("the first message has to open")?,
    };
    match message {
        ToClient::Open(_) => unreachable!("the client was opened above"),
        ToClient::Load(records) => {
            let mut progress = |done| {
                // If the bench is gone, reading the next line shows it.
                let _ = say(output, &FromClient::Loading(done));
            };
            client.target.load(&client.workload, records, &mut progress)?;
            Ok(FromClient::Loaded)
        }
        ToClient::Prepare => {
            client.prepare()?;
            Ok(FromClient::Ready)
        }
        ToClient::Try(tuning) => client.try_out(tuning).map(FromClient::Tried),
        ToClient::Probe => client.probe().map(FromClient::Tried),
        ToClient::Go(turn, per_s) => {
            let budget = client.budget().turn(turn, client.spec.turns());
            let (report, position) = client.run(budget, per_s, client.position)?;
            client.position = position;
            Ok(FromClient::Done(report.into()))
        }
        ToClient::Use => Ok(FromClient::Used(client.target.usage()?)),
        ToClient::Count => client.count().map(FromClient::Counted),
        ToClient::Limit => {
            let limits = client.target.limits(&client.workload, &client.trace)?;
            Ok(FromClient::Limit(limits))
        }
    }
}

impl Client {
    fn open(open: Open, systems: &[&dyn System]) -> Result<Self, Failure> {
        let system = systems.iter().find(|system| system.name() == open.system);
        let system = system.ok_or_else(|| format!("no system {}", open.system))?;
        let target = system.connect(&open.spec, &open.endpoint, open.client)?;
        Ok(Client {
            workload: Workload::new(&open.spec),
            number: open.client,
            spec: open.spec,
            target,
            clock: Clock::new(),
            trace: Trace::Narrow(Vec::new()),
            position: 0,
            cores: Cores::of_this_thread()?,
        })
    }

    /// Makes the trace, and warms up; but a file is replayed from its beginning, on an empty cache.
    fn prepare(&mut self) -> Result<(), Failure> {
        let Spec { replay, clients, .. } = &self.spec;
        if let Some(replay) = replay {
            self.trace = replay::trace(replay, self.number, *clients)?;
            return Ok(());
        }
        self.trace = Trace::generate(&self.spec, self.number);
        self.run(self.budget().warm_up(), None, 0)?;
        self.position = 0;
        Ok(())
    }

    /// This client's part of the measured phase.
    fn budget(&self) -> Budget {
        Budget::of(&self.spec, self.number)
    }

    /// Runs for a moment with one way to share cores, and stays in it.
    fn try_out(&mut self, tuning: Tuning) -> Result<f64, Failure> {
        self.cores.place_this_thread(tuning)?;
        self.target.set_spinning(tuning == Tuning::Spinning);
        self.ops_per_s(TRIAL_NS)
    }

    /// The rate of a closed loop, as in a measured phase of the same length.
    fn probe(&mut self) -> Result<f64, Failure> {
        self.ops_per_s(self.budget().ns.min(PROBE_NS_MAX))
    }

    fn ops_per_s(&mut self, ns: u64) -> Result<f64, Failure> {
        let (report, _) = self.run(Budget { ops: u64::MAX, ns }, None, 0)?;
        Ok((report.tally.gets + report.tally.puts) as f64 / report.seconds)
    }

    fn count(&mut self) -> Result<Option<Traffic>, Failure> {
        let budget = Budget { ops: self.budget().ops.min(COUNT_OPS_MAX), ns: COUNT_NS_MAX };
        let run = Run::begin(
            &self.workload,
            &self.trace,
            &self.clock,
            self.number,
            budget,
            COUNT_OPS_MAX as u32,
        );
        Ok(self.target.traffic(&run)?)
    }

    /// Runs in a closed loop, or in an open loop of `per_s` operations a second, from a position
    /// of the trace on. Returns the position after it too.
    fn run(
        &mut self,
        budget: Budget,
        per_s: Option<f64>,
        position: usize,
    ) -> Result<(ClientReport, usize), Failure> {
        let arrivals = per_s.map(|per_s| Arrivals::new(self.spec.seed, self.number, per_s));
        if arrivals.is_some() {
            set_current_timer_slack(Some(TIMER_SLACK))?;
        }
        let cpu_s = cpu_seconds();
        let every = self.target.time_every();
        let run = Run::begin(&self.workload, &self.trace, &self.clock, self.number, budget, every);
        let run = run.arriving(arrivals).beginning_at(position);
        self.target.run(&run)?;
        let position = run.position();
        let (seconds, tally, gets, puts) = run.end();
        if tally.wrong_values > 0 {
            return Err(format!(
                "{} of {} values read are not what was written for their keys",
                tally.wrong_values, tally.get_hits
            )
            .into());
        }
        let report = ClientReport {
            seconds,
            cpu_s: cpu_seconds() - cpu_s,
            tally,
            get_ns: pack(&gets),
            put_ns: pack(&puts),
            refusal: self.target.refusal(),
        };
        Ok((report, position))
    }
}

/// CPU seconds that this process has used.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
