//! The `loch` binary: parses the command line and calls the module of the command.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod commands;
mod demo;
mod diagnosis;
mod duration;
mod outcome;
mod output;
mod size;
mod usage;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use loch_bench::args::BenchArgs;
use loch_bench::subprocess::Subprocess;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use commands::{
    check, completions, delete, doctor, filter, gateway, get, put, reduce, scan, serve, stats,
    touch, update,
};
use outcome::Answer;

const EXAMPLES: &str = "\
Examples:
  loch serve &                       a node: lends memory to clients
  loch put colour green
  loch get colour                    green
  loch scan                          the keys of a table
  loch stats                         nodes, tables, and the use of memory
  loch gateway &                     clients of Redis and memcached use a table
  loch doctor                        what this machine can do, and what is missing for RDMA
  loch demo                          three nodes and two clients, with measurements

Exit codes: 0 done, 1 the answer is no, 2 usage, 3 the cluster failed, 130 `bench` or `demo` was
interrupted. `loch COMMAND --help` shows examples of most commands.";

#[derive(Debug, Parser)]
#[command(
    name = "loch",
    version,
    about = "An RDMA-native in-memory key-value store",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Put(put::PutArgs),
    Get(get::GetArgs),
    Delete(delete::DeleteArgs),
    Scan(scan::ScanArgs),
    Touch(touch::TouchArgs),
    Update(update::UpdateArgs),
    Reduce(reduce::ReduceArgs),
    Filter(filter::FilterArgs),
    Stats(stats::StatsArgs),
    Check(check::CheckArgs),
    Gateway(gateway::GatewayArgs),
    Doctor(doctor::DoctorArgs),
    Demo(demo::DemoArgs),
    /// Measure engines, and other stores beside them, under one workload
    Bench(BenchArgs),
    Completions(completions::CompletionsArgs),
    #[command(flatten)]
    BenchSubprocess(Subprocess),
}

fn main() -> ExitCode {
    outcome::end_on_panic();
    let parsed = Cli::command().try_get_matches();
    let matches = parsed.unwrap_or_else(|error| usage::with_way_out(error).exit());
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    log_to_stderr(&command);
    command.run().map_or_else(
        |error| {
            // The bench's own subprocesses, such as `bench-worker`, are `bench` for the user.
            let name = matches.subcommand_name().and_then(|name| name.split('-').next());
            outcome::tell(name.unwrap_or_default(), &outcome::one_line(&error));
            ExitCode::from(outcome::exit_code(&error))
        },
        ExitCode::from,
    )
}

impl Command {
    fn run(self) -> Result<Answer> {
        match self {
            Command::Serve(args) => serve::run(args),
            Command::Put(args) => put::run(args),
            Command::Get(args) => get::run(&args),
            Command::Delete(args) => delete::run(&args),
            Command::Scan(args) => scan::run(&args),
            Command::Touch(args) => touch::run(&args),
            Command::Update(args) => update::run(&args),
            Command::Reduce(args) => reduce::run(&args),
            Command::Filter(args) => filter::run(&args),
            Command::Stats(args) => stats::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Gateway(args) => gateway::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Demo(args) => done(demo::run(args)),
            Command::Bench(args) => done(loch_bench::run(args)),
            Command::BenchSubprocess(subprocess) => done(loch_bench::run_subprocess(subprocess)),
            Command::Completions(args) => completions::run(&args, &Cli::command()),
        }
    }
}

fn done<E: Into<anyhow::Error>>(result: Result<(), E>) -> Result<Answer> {
    result.map(|()| Answer::Done).map_err(Into::into)
}

/// A node and a gateway log what happens; the other commands log only what is wrong. `RUST_LOG`
/// overrides both.
fn log_to_stderr(command: &Command) {
    let level = match command {
        Command::Serve(_) | Command::Gateway(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // If standard error is closed, an error message there would be a panic.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            if command.is_hide_set() || ["bench", "demo"].contains(&name) {
                continue;
            }
            let help = command.get_after_help().map(ToString::to_string);
            assert!(help.is_some_and(|h| h.contains("  loch ")), "{name}");
            assert!(command.get_about().is_some(), "{name}");
        }
    }
}
