//! `loch demo`: a small cluster on this host, compared with well-known stores.
//!
//! The demo is `loch bench` with fixed options: three nodes and two clients, YCSB's workload B (95
//! % reads, keys by Zipf's law) on `nessie`, the peers that are installed, and every other
//! engine of this build. Even on a slow host it ends in time, and shows the results so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use loch_bench::args::BenchArgs;
use loch_bench::error::BenchError;
use loch_bench::report::Object;
use loch_bench::target::loch::engine_names;

use crate::output;

/// Show Loch at work: three nodes and two clients on this host, compared with memcached and Redis
///
/// Loads 300,000 records, runs YCSB's workload B on nessie, on memcached and Redis if they are
/// installed, on the gateway that speaks their protocols, on LMDB, and on every other engine of
/// this build. Takes about fifty seconds and leaves nothing behind.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Records loaded before each measurement
    #[arg(long, hide = true, default_value_t = 300_000)]
    records: u64,
    /// Length of each measurement
    #[arg(long, hide = true, default_value_t = 2.0)]
    seconds: f64,
    /// After this many seconds the remaining measurements are left out
    #[arg(long, hide = true, default_value_t = 50.0)]
    within: f64,
}

/// Runs `loch demo`.
pub fn run(args: DemoArgs) -> Result<(), BenchError> {
    let options = options(&args);
    let interrupted = loch_bench::watch_signals()?;
    let late = ring_after(args.within, &interrupted);
    let spec = bench_args(&options)?.spec()?;
    let mut objects = Vec::new();
    let systems = loch_bench::systems_of(&spec);
    let (engines, peers) = systems.split_at(spec.engines.len());
    // The peers come early: on a slow host there is no time for the last systems.
    let systems = [&engines[..1], peers, &engines[1..]].concat();
    let measured = loch_bench::measure_all(&spec, &systems, 1, &interrupted, &mut objects);
    let is_late = late.load(Ordering::Relaxed);
    let last = objects.last().map(Object::engine);
    let left = systems.iter().map(|system| system.name()).rev();
    let mut left: Vec<&str> = left.take_while(|name| Some(*name) != last).collect();
    left.reverse();
    let result = excuse(measured, is_late && !objects.is_empty(), &left);
    if !objects.is_empty() {
        loch_bench::print_table(&spec, &objects)?;
    }
    result?;
    output::line(&closing_words(&options)).map_err(|error| BenchError::Os {
        action: "write the result",
        source: std::io::Error::other(error),
    })
}

/// The same as options of `loch bench`.
fn options(args: &DemoArgs) -> String {
    format!(
        "--engine {} --nodes 3 --clients 2 --lanes 32 --records {} --reads 0.95 --dist zipf:0.99 \
         --seconds {} --peer memcached,redis,gateway-memcached,gateway-resp,lmdb",
        engine_names().replace(", ", ","),
        args.records,
        args.seconds
    )
}

fn bench_args(options: &str) -> Result<BenchArgs, BenchError> {
    let command = BenchArgs::augment_args(Command::new("bench").no_binary_name(true));
    command
        .try_get_matches_from(options.split_whitespace())
        .and_then(|matches| BenchArgs::from_arg_matches(&matches))
        .map_err(|error| BenchError::usage(error.to_string()))
}

/// Interrupts the run when its time is up, and notes that this was why.
fn ring_after(seconds: f64, interrupted: &Arc<AtomicBool>) -> Arc<AtomicBool> {
    let late = Arc::new(AtomicBool::new(false));
    let (noted, interrupted) = (Arc::clone(&late), Arc::clone(interrupted));
    let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    // Nothing waits for this thread: it ends with the process at the latest.
    thread::spawn(move || {
        thread::sleep(length);
        noted.store(true, Ordering::Relaxed);
        interrupted.store(true, Ordering::Relaxed);
    });
    late
}

/// A run that its alarm ended is a success if it has measured something.
fn excuse(
    measured: Result<(), BenchError>,
    is_excused: bool,
    left: &[&str],
) -> Result<(), BenchError> {
    match measured {
        Err(BenchError::Interrupted) if is_excused => {
            loch_bench::progress::note(&format!(
                "the time is up, so these were not measured: {}; the first command below does it",
                left.join(", ")
            ));
            Ok(())
        }
        result => result,
    }
}

fn closing_words(options: &str) -> String {
    format!(
        "\nEvery client is a process that keeps 32 operations under way. Those of nessie read and \
         write the\nmemory of three nodes by themselves, whose processes sleep meanwhile; for hybrid \
         and pilaf the\nnodes' workers do the PUTs, for server, herd and kv-direct everything, on the \
         same processors.\nmemcached and Redis are asked over a unix socket, pipelined as deep; \
         gateway-memcached and\ngateway-resp are `loch gateway`, which answers the same requests from \
         a table of nessie. LMDB is\nembedded in each client, with its file in memory. A trip is a \
         round trip.\n\n\
         Try next:\n  \
         loch bench {options}\n  \
         loch bench --help          other workloads, and JSON\n  \
         loch serve &               a node of your own; then: loch put colour green; loch get colour"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_options_are_options_of_the_bench() {
        let args = DemoArgs { records: 10, seconds: 0.5, within: 1.0 };
        let options = options(&args);
        assert!(bench_args(&options).unwrap().spec().is_ok());
        assert!(closing_words(&options).contains(&format!("loch bench {options}")));
    }

    #[test]
    fn only_the_alarm_is_an_excuse_and_only_with_something_to_show() {
        let interrupted = || Err(BenchError::Interrupted);
        assert!(excuse(interrupted(), true, &["lmdb"]).is_ok());
        assert!(excuse(interrupted(), false, &["lmdb"]).is_err());
        assert!(excuse(Err(BenchError::NothingMeasured), true, &[]).is_err());
        assert!(excuse(Ok(()), false, &[]).is_ok());
    }

    #[test]
    fn the_alarm_says_that_it_was_it() {
        let interrupted = Arc::new(AtomicBool::new(false));
        let late = ring_after(0.0, &interrupted);
        while !interrupted.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert!(late.load(Ordering::Relaxed));
    }
}
