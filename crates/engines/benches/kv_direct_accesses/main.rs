//! Counts the memory accesses of kv-direct's hash index and slabs, and of the hash tables of MemC3
//! and FaRM beside them: Figures 6, 9, 10 and 11 of the paper, as Markdown tables.
//!
//! ```text
//! cargo bench -p loch-engines --bench kv_direct_accesses [-- FIGURE…] [--quick]
//! ```
//!
//! FIGURE is `figure6`, `figure9`, `figure10`, `figure11` or `slabs`; without one all are made.
//! With `--quick` the memory is small, and the last digits say little. Everything follows from one
//! seed: every run prints the same.

mod designs;
mod figures;
mod run;

use std::process::ExitCode;

use figures::{FIGURES, Scale};

fn main() -> ExitCode {
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    let known: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
    let is_option = |option: &&String| !matches!(option.as_str(), "--quick" | "--bench");
    let is_figure = |name: &&String| !known.contains(&name.as_str());
    if let Some(wrong) = options.iter().find(is_option).or(names.iter().find(is_figure)) {
        eprintln!("`{wrong}` is not `--quick` and no figure; figures are {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    // Cargo says `--bench` when it measures, and nothing when it only sees whether benches run.
    let has = |name: &str| options.iter().any(|option| option == name);
    let is_quick = has("--quick") || !has("--bench");
    let scale = if is_quick { Scale::QUICK } else { Scale::FULL };
    println!("Memory: {} KiB. Operations a number: {}.", scale.lines / 16, scale.rounds);
    for (name, figure) in FIGURES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            figure(&scale);
        }
    }
    ExitCode::SUCCESS
}
