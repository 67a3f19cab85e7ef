//! Runs a command on one of two hosts that a slow or lossy wire joins.
//!
//! ```sh
//! loch-wire --delay-us 50 -- sh -c "loch serve --listen 10.9.0.1:7400 & ip netns exec loch-2 loch stats"
//! ```

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use loch_wire::{Hosts, Weather};

/// Runs a command on host 1 (the network namespace loch-1, 10.9.0.1) of two hosts; the other is
/// loch-2, 10.9.0.2. Needs root.
#[derive(Debug, Parser)]
struct Args {
    /// How long a frame is under way, each way
    #[arg(long, value_name = "US", default_value_t = 0)]
    delay_us: u64,
    /// How much longer, at most
    #[arg(long, value_name = "US", default_value_t = 0)]
    jitter_us: u64,
    /// The share of frames that are lost, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loss: f64,
    /// The command, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!((0.0..=1.0).contains(&args.loss), "--loss {}: it is a share, 0 to 1", args.loss);
    let weather = Weather {
        delay: Duration::from_micros(args.delay_us),
        jitter: Duration::from_micros(args.jitter_us),
        loss: args.loss,
    };
    let hosts = Hosts::make("loch", weather).map_err(anyhow::Error::msg)?;
    let (program, words) = args.command.split_first().context("clap asks for a command")?;
    let ended = hosts.command(1, program).args(words).status().context("run ip")?;
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, Into::into))
}
