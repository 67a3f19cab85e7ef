//! `loch-papers card`: the production processor of kv-direct on the simulated card of
//! the paper, in virtual time, figure by figure (kv-direct §5, §6.2).
//!
//! [`clients`] generate operations of a [`workload`] as the paper's packet generator does, pack
//! them ([`packet`]) and send them over a link of 40 Gb/s. The processor is the one that nodes run,
//! and admits one operation a cycle ([`run`]). The [`card`] has the times of its accesses.
//! [`totals`] finds the limits, [`figures`] has the figures, [`report`] prints them. [`micro`]
//! measures single parts.

mod card;
mod clients;
mod figures;
mod gathered;
mod micro;
mod packet;
mod ratio;
mod report;
mod run;
mod shape;
mod timing;
mod totals;
mod workload;

use clap::{Args, ValueEnum};
use loch_bench::error::BenchError;
use loch_bench::report::put_out;

/// Figures of the KV-Direct paper, on its card in virtual time
#[derive(Debug, Args)]
pub struct CardArgs {
    /// Which figures or tables of the paper; all if none is named
    #[arg(long, value_delimiter = ',')]
    figure: Vec<Figure>,
    /// Less memory and fewer operations: seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// An object for each row, instead of Markdown
    #[arg(long)]
    json: bool,
    /// The seed, which decides everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A figure or table of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// PCIe DMA
    #[value(name = "3")]
    Dma,
    /// The out-of-order engine
    #[value(name = "13")]
    OutOfOrder,
    /// The load dispatcher
    #[value(name = "14")]
    Dispatch,
    /// Network batching
    #[value(name = "15")]
    Batching,
    /// Throughput
    #[value(name = "16")]
    Throughput,
    /// Latency
    #[value(name = "17")]
    Latency,
    /// CPU-assisted scatter-gather
    #[value(name = "18")]
    Gather,
    /// Several cards
    #[value(name = "20")]
    Cards,
    /// Vector operations
    Table2,
    /// The load dispatch ratio
    Table5,
    /// The gain of load dispatch
    Table6,
}

/// Runs `loch-papers card`.
pub fn run(args: &CardArgs) -> Result<(), BenchError> {
    let scale = figures::scale::Scale::new(args.quick, args.seed);
    let chosen = |figure: &&Figure| args.figure.is_empty() || args.figure.contains(figure);
    for figure in Figure::value_variants().iter().filter(chosen) {
        let tables = match figure {
            Figure::Dma => figures::dma::tables(&scale),
            Figure::OutOfOrder => figures::out_of_order::tables(&scale),
            Figure::Dispatch => figures::dispatch::tables(&scale),
            Figure::Batching => figures::batching::tables(&scale),
            Figure::Throughput => figures::throughput::tables(&scale),
            Figure::Latency => figures::latency::tables(&scale),
            Figure::Gather => figures::gather::tables(&scale),
            Figure::Cards => figures::cards::tables(&scale),
            Figure::Table2 => figures::vectors::tables(&scale),
            Figure::Table5 => figures::ratios::tables(0),
            Figure::Table6 => figures::ratios::tables(1),
        };
        for table in tables {
            let text = if args.json { table.json() } else { table.markdown() };
            put_out(text.as_bytes()).map_err(BenchError::os("write the tables"))?;
        }
    }
    Ok(())
}
