//! The baselines: systems with which the papers compare theirs. None of them is an engine of Loch.
//!
//! | name | what it is | file |
//! | --- | --- | --- |
//! | `pilaf-vo` | Pilaf whose clients send requests for all operations (pilaf §5.1) | [`verbs_only`] |
//! | `farm-em`, `farm-em-var` | FaRM as HERD's authors emulate it, values in the table or out of it (herd §5.1.2) | [`farm`] |
//! | `echo-send-send`, `echo-write-write`, `echo-write-send` | request and reply, and no store behind them (herd §3.3, Figure 5) | [`echo`] |
//!
//! They are built from the parts of Loch's engines: the requests of [`loch_engines::requests`], and
//! for `pilaf-vo` the engine `pilaf`. So only the design differs in a comparison. Each is one
//! [`Baseline`](baseline::Baseline), which does not depend on the fabric. On shared memory a
//! [`process`] of its own serves it, and it is [`simulated`] like the engines.

mod baseline;
mod echo;
mod farm;
mod name;
mod process;
mod server;
mod simulated;
mod system;
mod table;
mod verbs_only;

use clap::{Args, ValueEnum};
use loch_bench::args::WorkloadArgs;
use loch_bench::error::BenchError;
use loch_bench::memory::check_data;
use loch_bench::target::System;

use self::name::BaselineName;

pub use self::process::serve;

/// Run a workload on the baselines of the papers, and print the results.
///
/// The options and the output are those of `loch bench`, which measures Loch's engines.
#[derive(Debug, Args)]
pub struct BaselineArgs {
    /// Baselines to measure
    #[arg(long, value_enum, value_name = "B", value_delimiter = ',', required = true)]
    baseline: Vec<BaselineName>,
    /// The workload
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// Measures baselines.
pub fn run(args: BaselineArgs) -> Result<(), BenchError> {
    let capabilities: Vec<_> = args.baseline.iter().map(|name| name.capabilities()).collect();
    let spec = args.workload.spec(&capabilities)?;
    check_data(&spec)?;
    let systems: Vec<_> = args.baseline.iter().map(|name| name as &dyn System).collect();
    loch_bench::run_systems(&spec, &systems)
}

/// All of them.
pub fn all() -> Vec<&'static dyn System> {
    BaselineName::value_variants().iter().map(|name| name as &dyn System).collect()
}
