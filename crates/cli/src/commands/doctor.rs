//! `loch doctor`.

use anyhow::Result;
use clap::Args;

use crate::diagnosis::{Choice, Wanted, examine, in_words};
use crate::outcome::{Answer, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch doctor                        can this machine run a cluster of its own processes?
  loch doctor --fabric verbs         and be part of a cluster of machines, over RDMA?
  loch doctor --fabric verbs --device mlx5_1 --port 2 --gid-index 3
                                     with this device instead of the default one
  loch doctor --json | jq '.self_test[] | {fabric, verb, bytes, p50_us, p99_us}'

Each line has a mark: \"ok\", \"note\" (good to know) or \"PROBLEM\" (the fabric will not work), and
under it what to do. The self-test takes half a second a verb at most, over memory of its own: it
needs no node, and disturbs none. Latencies from one host to itself say whether a card works, and
little about a network. Exit code 1: there is a problem.";

/// Find out what this machine can do: shared memory, RDMA, and what is missing for them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// The fabric that has to work: shared memory, or RDMA too
    #[arg(long, default_value = "shm")]
    fabric: Wanted,
    /// The RDMA device [default: the first that can be used]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's port, from 1 [default: the first that can be used]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,
    /// The index of the port's address [default: the best one it has]
    #[arg(long, value_name = "INDEX")]
    gid_index: Option<u8>,
    /// Only look, without trying any verb
    #[arg(long)]
    no_self_test: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `loch doctor`.
pub fn run(args: DoctorArgs) -> Result<Answer> {
    let DoctorArgs { device, port, gid_index, .. } = args;
    let report = examine(args.fabric, Choice { device, port, gid_index }, !args.no_self_test);
    if args.json {
        output::json(&report)?;
    } else {
        output::line(&in_words(&report.findings))?;
    }
    if report.ok {
        return Ok(Answer::Done);
    }
    let problems = report.problems();
    let plural = if problems == 1 { "problem" } else { "problems" };
    tell("doctor", &format!("{problems} {plural}: each is marked, with what to do"));
    Ok(Answer::No)
}
