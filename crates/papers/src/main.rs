//! The `loch-papers` binary: measures the claims of the papers behind Loch's engines.
//!
//! | command | what it does | where |
//! | --- | --- | --- |
//! | `bench` | measures the baselines of the papers | [`baselines`] |
//! | `card` | prints the figures of the KV-Direct paper, on its card | [`kv_direct`] |
//! | `memory` | prints what memory small values take | [`targets`] |
//! | `points` | prints the measurements of micro-benchmarks, as results | [`criterion`] |
//! | `table` | prints a results file as tables | [`tables`] |
//! | `targets` | what is wanted on shared memory, and what was measured | [`targets`] |
#![forbid(unsafe_code)]

mod baselines;
mod criterion;
mod kv_direct;
mod tables;
mod targets;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use loch_bench::error::BenchError;
use loch_bench::process::tie_to_parent;
use loch_bench::subprocess::Subprocess;
use rustix::process::Signal;

use self::baselines::BaselineArgs;
use self::kv_direct::CardArgs;
use self::targets::TargetsArgs;

const EXAMPLES: &str = "\
Examples:
  loch-papers bench --baseline farm-em,echo-write-send --fabric sim --clients 48 --client-hosts 16
  loch-papers card --quick --figure 13       the out-of-order engine of the KV-Direct paper
  loch-papers table docs/results/performance.jsonl

`make papers` compares the baselines with Loch's engines. Exit codes: 0 done, 1 a target is missed
that was met before, 2 usage, 3 something failed, 130 `bench` was interrupted.";

#[derive(Debug, Parser)]
#[command(
    name = "loch-papers",
    version,
    about = "What the papers behind Loch's engines compare and claim, measured",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(BaselineArgs),
    Card(CardArgs),
    /// Print the measurements of micro-benchmarks, as lines of a results file
    Points {
        /// Criterion's folder
        folder: PathBuf,
    },
    /// Show a results file as Markdown tables
    Table {
        /// One JSON object a line
        file: PathBuf,
    },
    Targets(TargetsArgs),
    /// Print how many times the bytes of its keys (16 B) and values (64 B) a full node has
    Memory,
    /// The server of a baseline; gets its order on stdin
    #[command(name = "bench-baseline", hide = true)]
    Server {
        /// Its bench's process
        #[arg(long)]
        parent: u32,
    },
    #[command(flatten)]
    Subprocess(Subprocess),
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            // If stderr is closed, the line is lost.
            let _ = writeln!(std::io::stderr(), "loch-papers: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

impl Command {
    fn run(self) -> Result<ExitCode, BenchError> {
        let done = match self {
            Command::Targets(args) => return targets::run(&args),
            Command::Memory => targets::memory::print(),
            Command::Bench(args) => baselines::run(args),
            Command::Card(args) => kv_direct::run(&args),
            Command::Points { folder } => criterion::print(&folder),
            Command::Table { file } => tables::print(&file),
            Command::Server { parent } => {
                tie_to_parent(parent, Signal::KILL)?;
                baselines::serve().map_err(BenchError::from)
            }
            Command::Subprocess(subprocess) => subprocess.run(&baselines::all()),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
