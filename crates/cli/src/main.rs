//! The `loch` binary: parses the command line and hands over to one module per
//! command.
#![forbid(unsafe_code)]

mod bench;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "loch",
    version,
    about = "An RDMA-native in-memory key-value store"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure engines, and the stores they are compared with, under one workload
    Bench(bench::BenchArgs),
    #[command(flatten)]
    BenchHelper(bench::Helper),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(args),
        Command::BenchHelper(helper) => bench::run_helper(helper),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; there is nobody left to tell then.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("loch bench: {error}\n"),
            );
            ExitCode::from(error.exit_code())
        }
    }
}
