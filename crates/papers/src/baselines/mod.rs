//! What the papers compare their systems with: nothing here is an engine of Loch.
//!
//! | name | what it is | file |
//! | --- | --- | --- |
//! | `pilaf-vo` | Pilaf whose clients ask the server for everything (pilaf §5.1) | [`verbs_only`] |
//! | `farm-em`, `farm-em-var` | FaRM as HERD's authors emulate it, values in the table or out of it (herd §5.1.2) | [`farm`] |
//! | `echo-send-send`, `echo-write-write`, `echo-write-send` | request and reply, and no store behind them (herd §3.3, Figure 5) | [`echo`] |
//!
//! They are built of what Loch's engines are built of: the requests of
//! [`loch_engines::requests`] and, of pilaf, the engine. So what differs in a comparison is the
//! design. Each is one [`Baseline`](baseline::Baseline), which knows nothing of the fabric that
//! carries it; on shared memory a [`process`] of its own serves it, and it is [`simulated`] as the
//! engines are.

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

/// Run a workload on what the papers compare their systems with, and print what it measured.
///
/// The options and what is printed are those of `loch bench`, which measures Loch's engines.
#[derive(Debug, Args)]
pub struct BaselineArgs {
    /// Baselines to measure
    #[arg(long, value_enum, value_name = "B", value_delimiter = ',', required = true)]
    baseline: Vec<BaselineName>,
    /// What is done with them
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
