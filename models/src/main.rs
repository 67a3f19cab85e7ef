//! `model`: checks Loch's protocol in every interleaving of small configurations.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use loch_models::configurations::{self, Configuration, Subject};
use loch_models::explore::Verdict;
use loch_models::report::{self, Row};

/// Checks models of Loch's protocol, state by state
#[derive(Parser)]
#[command(name = "model")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Search configurations; fails if one does not have its required result
    Check {
        /// Names, or the beginnings of names; all if there are none
        names: Vec<String>,
        /// The large ones too: minutes and gigabytes
        #[arg(long)]
        large: bool,
        /// Configurations searched at a time
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// List all configurations, and why they exist
    List,
    /// Print a shortest counterexample in full
    Trace {
        /// Name of the configuration
        name: String,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Check { names, large, threads } => check(&names, large, threads),
        Command::List => list(),
        Command::Trace { name } => trace(&name),
    }
}

fn check(names: &[String], large: bool, threads: usize) -> ExitCode {
    let all = configurations::all();
    let is_called = |c: &Configuration, name: &str| c.name.starts_with(name);
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|c| is_called(c, name))) {
        eprintln!("no configuration is called {unknown}; see `model list`");
        return ExitCode::FAILURE;
    }
    let wanted = |c: &Configuration| match names {
        [] => large || !c.large,
        names => names.iter().any(|name| is_called(c, name)),
    };
    let chosen: Vec<_> = all.into_iter().filter(wanted).collect();
    let began = Instant::now();
    let rows = report::run_all(&chosen, threads.max(1), |row| {
        eprintln!("{:>7.1} s  {}: {}", row.took.as_secs_f64(), row.name, row.verdict());
    });
    println!("{}", table(&rows));
    summarise(&chosen, &rows, began.elapsed().as_secs_f64());
    if rows.iter().all(|row| row.as_expected) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["configuration", "states", "transitions", "depth", "verdict", "seconds"]);
    for row in rows {
        let depth = row.control.as_ref().unwrap_or(&row.outcome).depth;
        table.add_row([
            row.name.clone(),
            row.states().to_string(),
            row.transitions().to_string(),
            depth.to_string(),
            row.verdict(),
            format!("{:.1}", row.took.as_secs_f64()),
        ]);
    }
    for column in [1, 2, 3, 5] {
        let column = table.column_mut(column).expect("the table has six columns");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn summarise(chosen: &[Configuration], rows: &[Row], seconds: f64) {
    let states: u64 = rows.iter().map(Row::states).sum();
    let transitions: u64 = rows.iter().map(Row::transitions).sum();
    println!("{states} states, {transitions} transitions, {seconds:.0} s");
    let tell = |claim: &str, is_of_kind: fn(&Subject) -> bool| {
        let of_kind = || chosen.iter().zip(rows).filter(|(c, _)| is_of_kind(&c.subject));
        let (all, right) = (of_kind().count(), of_kind().filter(|(_, r)| r.as_expected).count());
        if all > 0 {
            println!("{claim} in {right} of {all} configurations");
        }
    };
    tell("the protocol holds", |subject| matches!(subject, Subject::Protocol(_)));
    tell("without a rule it fails", |subject| matches!(subject, Subject::Mutant(_)));
    tell("the published protocol fails", |subject| matches!(subject, Subject::Flaw(_)));
}

fn list() -> ExitCode {
    for configuration in configurations::all() {
        let large = if configuration.large { " (large)" } else { "" };
        let Configuration { name, why, text, .. } = &configuration;
        println!("{name}{large}\n    {why}\n    {text}");
    }
    ExitCode::SUCCESS
}

fn trace(name: &str) -> ExitCode {
    let Some(configuration) = configurations::all().into_iter().find(|c| c.name == name) else {
        eprintln!("no configuration is called {name}; see `model list`");
        return ExitCode::FAILURE;
    };
    let row = report::run(&configuration);
    println!("{}\n{}\n", configuration.name, configuration.why);
    match &row.outcome.verdict {
        Verdict::Violated(way) => print!("{}", report::tell(way)),
        verdict => println!("nothing to show: {verdict:?} in {} states", row.outcome.states),
    }
    if row.as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
