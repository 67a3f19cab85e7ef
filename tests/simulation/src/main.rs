//! `loch-simulation`: runs seeds, many or one, with bugs planted or without.

#![forbid(unsafe_code)]

mod ask;
mod cluster;
mod plants;
mod report;
mod run;
mod script;
mod served;
mod subject;
mod watch;
mod workload;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use loch_engines::nessie::AnyClient;
use loch_fabric::sim::SimEndpoint;

use report::Report;
use run::{Sabotage, run};
use subject::{Name, Subject};
use watch::Slabs;
use workload::Protocol;

/// A client of a table of nessie's layout: of the protocol that the table's shape says.
type Client = AnyClient<SimEndpoint>;

/// Loch's engines in virtual time, under faults, every history checked for linearizability.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed and report what happened
    One {
        /// A workload of nessie (hot, full, reuse, long, moves, scarce, wraps, held-up, expiry,
        /// coarse, batches, pins, hosts, dropped), or of an engine with workers (server, hybrid,
        /// server-scarce, hybrid-scarce, herd-store, herd-cache, pilaf, kv-direct, example)
        workload: Name,
        seed: u64,
        /// The protocol of nessie's clients
        #[arg(long, default_value = "loch")]
        protocol: Protocol,
        /// A bug to plant, by its name in `plants`
        #[arg(long)]
        plant: Option<String>,
    },
    /// Run seeds, and end at the first failure
    Seeds {
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// The number of seeds of each workload
        #[arg(long, default_value_t = 2000)]
        count: u64,
        /// Run this workload or engine alone
        #[arg(long)]
        workload: Option<Name>,
        /// Run this protocol alone
        #[arg(long)]
        protocol: Option<Protocol>,
    },
    /// Run new seeds of every workload for this many seconds
    Soak {
        seconds: u64,
        /// The first seed
        #[arg(long, default_value_t = 1_000_000)]
        from: u64,
    },
    /// Plant each known bug in turn and count the seeds until it is found
    Plants {
        /// Seeds after which a bug counts as missed
        #[arg(long, default_value_t = 20_000)]
        most: u64,
        /// Plant this bug alone
        #[arg(long)]
        bug: Option<String>,
        /// Begin with a seed that is known to find it, for the bugs that take longest to find
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    // The message of a panic is part of the run's failure, which is printed below.
    std::panic::set_hook(Box::new(|_| ()));
    let ended = match Arguments::parse().command {
        Command::One { workload, seed, protocol, plant } => {
            one(workload.subject(protocol), seed, plant.as_deref())
        }
        Command::Seeds { from, count, workload, protocol } => {
            seeds(from, count, workload, protocol)
        }
        Command::Soak { seconds, from } => soak(seconds, from),
        Command::Plants { most, bug, quick } => plants::hunt_all(most, bug.as_deref(), quick),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn one(subject: Subject, seed: u64, plant: Option<&str>) -> Result<(), String> {
    let ran = match plant {
        None => run(subject, seed, Sabotage::default()),
        Some(name) => plants::by_name(name)?.run(subject, seed),
    };
    println!("{}", told(&ran.map_err(|failure| failed(subject, seed, &failure))?));
    Ok(())
}

fn failed(subject: Subject, seed: u64, failure: &str) -> String {
    format!(
        "{} seed {seed}: {failure}\nagain: cargo run --release -p loch-simulation --all-features -- one {} {seed}",
        subject.name(),
        subject.name()
    )
}

/// Among this many seeds of an engine every kind of fault happens at least once.
const SEEDS_WITH_EVERYTHING: u64 = 200;

/// Runs `count` seeds of each workload, on as many threads as there are processors.
fn seeds(
    from: u64,
    count: u64,
    workload: Option<Name>,
    protocol: Option<Protocol>,
) -> Result<(), String> {
    let wanted = |subject: &Subject| {
        workload.is_none_or(|only| subject.is_called(only))
            && protocol.is_none_or(|only| subject.is_by(only))
    };
    for subject in Subject::all().into_iter().filter(wanted) {
        let began = Instant::now();
        let total = side_by_side(from, |next| {
            (next < from + count).then(|| run(subject, next, Sabotage::default()))
        })
        .map_err(|(seed, failure)| failed(subject, seed, &failure))?;
        let seconds = began.elapsed().as_secs_f64();
        println!("{}: {count} seeds in {seconds:.1} s: {}", subject.name(), told(&total));
        if let Subject::Served(engine) = subject
            && count >= SEEDS_WITH_EVERYTHING
        {
            engine.check_strikes(&total)?;
        }
    }
    Ok(())
}

fn soak(seconds: u64, from: u64) -> Result<(), String> {
    let (began, limit) = (Instant::now(), Duration::from_secs(seconds));
    let subjects = Subject::all();
    let subject = |next: u64| subjects[(next % subjects.len() as u64) as usize];
    let total = side_by_side(from, |next| {
        (began.elapsed() < limit).then(|| run(subject(next), next, Sabotage::default()))
    })
    .map_err(|(seed, failure)| failed(subject(seed), seed, &failure))?;
    println!("{:.0} s from seed {from}: {}", began.elapsed().as_secs_f64(), told(&total));
    Ok(())
}

/// Calls `run` with one number after the other, until it has no more or one fails.
pub fn side_by_side(
    from: u64,
    run: impl Fn(u64) -> Option<Result<Report, String>> + Sync,
) -> Result<Report, (u64, String)> {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let total = Mutex::new((Report::default(), None::<(u64, String)>));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    let Some(ran) = run(seed) else { return };
                    let mut total = total.lock().expect("no run panics here");
                    match ran {
                        Ok(report) => total.0.add(&report),
                        Err(failure) => {
                            total.1.get_or_insert((seed, failure));
                            stop.store(true, Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (report, failure) = total.into_inner().expect("no run panics here");
    failure.map_or(Ok(report), Err)
}

fn told(report: &Report) -> String {
    let Report { operations, events, retries, moves, helped, deaths, crashes, cuts, .. } = report;
    let Report { unknown, refused, freed, virtual_ns, restarts, snapshots, lossy, .. } = report;
    let Report { attached, forwarded, evicted, expired, .. } = report;
    let Slabs { cut, cut_anew, abandoned, adopted, seized, taken_over, taken_apart, rested } =
        report.slabs;
    format!(
        "{operations} operations ({unknown} of unknown outcome, {refused} without effect), {retries} \
         retries, {moves} moves, {helped} helped, {evicted} evicted, {expired} removed by nodes, {deaths} clients died, {restarts} nodes' workers ended, \
         {attached} attached memory anew, {crashes} nodes failed, {cuts} links cut, {freed} leaks freed, {snapshots} snapshots, \
         {forwarded} forwarded, {lossy} caches lost values; slabs: {cut} cut, {cut_anew} of them anew, \
         {abandoned} abandoned, {adopted} adopted, {seized} seized, {taken_over} of them used, \
         {taken_apart} taken apart, {rested} entries rested; {events} events in {:.1} virtual ms",
        *virtual_ns as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LOCH_SEEDS=n` runs more of each; `make mutants` does.
    #[test]
    fn a_few_seeds_of_everything_are_clean() {
        let count = std::env::var("LOCH_SEEDS").ok();
        let count = count.map_or(4, |count| count.parse().expect("LOCH_SEEDS is a number"));
        seeds(0, count, None, None).unwrap();
    }
}
