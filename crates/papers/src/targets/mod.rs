//! `loch-papers targets`: what "fast" means for Loch, beside what was measured.
//!
//! `scripts/targets.sh` measures, and writes a results file: results of `loch bench --json` and
//! single numbers, each with the name of the measurement that it belongs to. The same file, as it
//! was committed, is what the document says: its table is made from it, and a later measurement is
//! compared with it.

pub mod memory;
mod target;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use loch_bench::error::BenchError;
use loch_bench::report::put_out;
use serde::Deserialize;

use self::target::{Of, Target, Targets, Wanted, targets_of};

/// A measured ratio has to be this share of what the document says: what a machine that is shared
/// moves a ratio by.
const KEPT: f64 = 0.9;
/// An upper bound is kept within this, however small what the document says is.
const SLACK: f64 = 0.02;

/// Show the targets beside what was measured
#[derive(Debug, Args)]
pub struct TargetsArgs {
    /// The results of scripts/targets.sh
    results: PathBuf,
    /// Compare with these results: exit code 1 if a ratio falls below nine tenths of theirs
    #[arg(long, value_name = "RESULTS")]
    documented: Option<PathBuf>,
    /// Put the table into this document
    #[arg(long, value_name = "DOCUMENT", conflicts_with = "documented")]
    into: Option<PathBuf>,
}

/// A line of a results file that belongs to a measurement.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    /// The measurement.
    target: String,
    engine: String,
    records: u64,
    value_size: u64,
    dist: String,
    reads: f64,
    ops: f64,
    ops_per_s: f64,
    server_cpu_s: Option<f64>,
    client_cpu_s: Option<f64>,
    limit_share: Option<f64>,
    limit_one_share: Option<f64>,
    /// How many times as fast as the first system of the run.
    times_the_first: Option<f64>,
    /// A number that does not come from a workload.
    value: Option<f64>,
}

impl Row {
    /// Processor seconds of an operation, at both ends.
    fn processor(&self) -> Option<f64> {
        Some((self.server_cpu_s? + self.client_cpu_s?) / self.ops)
    }

    /// What tells the runs of a measurement apart.
    fn run(&self) -> String {
        match (&*self.engine, self.records) {
            ("", _) => String::new(),
            (engine, 0) => engine.to_owned(),
            (engine, records) => format!(
                "{engine}, {records} records of {} bytes, {}, {} reads",
                self.value_size, self.dist, self.reads
            ),
        }
    }
}

/// Shows the targets. The exit code is 1 if one falls below what is documented.
///
/// # Errors
/// If a file cannot be read or written, or is not what it should be.
pub fn run(args: &TargetsArgs) -> Result<ExitCode, BenchError> {
    let measured = rows(&args.results)?;
    if let Some(document) = &args.into {
        let text = fs::read_to_string(document).map_err(BenchError::os("read the document"))?;
        let [begin, end] = targets(&measured).around;
        let text = with_table(&text, &measured).ok_or_else(|| {
            BenchError::usage(format!("{} has no lines {begin} and {end}", document.display()))
        })?;
        fs::write(document, text).map_err(BenchError::os("write the document"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let documented = args.documented.as_deref().map(documented).transpose()?;
    let (table, falls) = table(&measured, documented.as_deref());
    put_out(table.as_bytes()).map_err(BenchError::os("write the table"))?;
    for what in &falls {
        eprintln!("loch-papers: worse than nine tenths of the document: {what}");
    }
    Ok(ExitCode::from(u8::from(!falls.is_empty())))
}

/// What the document says, which has to be something.
fn documented(file: &Path) -> Result<Vec<Row>, BenchError> {
    let rows = rows(file)?;
    if rows.is_empty() {
        let file = file.display();
        return Err(BenchError::usage(format!(
            "{file} has no results to compare with: `scripts/targets.sh set` measures them"
        )));
    }
    Ok(rows)
}

fn rows(file: &Path) -> Result<Vec<Row>, BenchError> {
    let text = fs::read_to_string(file).map_err(BenchError::os("read the results"))?;
    parse(&text).map_err(|error| BenchError::usage(format!("{}: {error}", file.display())))
}

/// The lines that belong to a measurement: headers do not.
fn parse(text: &str) -> Result<Vec<Row>, serde_json::Error> {
    let rows = text.lines().map(serde_json::from_str::<Row>);
    Ok(rows
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .filter(|row| !row.target.is_empty())
        .collect())
}

/// The targets of these measurements.
fn targets(measured: &[Row]) -> Targets {
    targets_of(measured.first().map_or("", |row| &row.target))
}

/// The table, and which runs fall below the documented results.
fn table(measured: &[Row], documented: Option<&[Row]>) -> (String, Vec<String>) {
    let (mut out, mut falls) = (String::new(), Vec::new());
    let head = if documented.is_some() { " documented |" } else { "" };
    let rule = if documented.is_some() { " ---: |" } else { "" };
    let _ = writeln!(out, "| | wanted | worst run | best run |{head}");
    let _ = writeln!(out, "| --- | ---: | ---: | ---: |{rule}");
    for target in targets(measured).all {
        let seen = runs(target, measured);
        let _ = write!(out, "| {} | {} |", target.what, target.wanted);
        match worst_and_best(target, &seen) {
            Some((worst, best)) if target.wanted.is_met(worst) => {
                let _ = write!(out, " {worst:.2} | {best:.2} |");
            }
            Some((worst, best)) => {
                let _ = write!(out, " **{worst:.2}** | {best:.2} |");
            }
            None => out.push_str(" – | – |"),
        }
        if let Some(documented) = documented {
            let before = runs(target, documented);
            match worst_and_best(target, &before) {
                Some((worst, _)) => {
                    let _ = write!(out, " {worst:.2} |");
                }
                None => out.push_str(" – |"),
            }
            falls.extend(falls_below(target, &seen, &before));
        }
        out.push('\n');
    }
    (out, falls)
}

/// The runs that are worse than nine tenths of what they were, or that are missing.
fn falls_below(target: &Target, seen: &[Run], before: &[Run]) -> Vec<String> {
    let what = |run: &str| match run {
        "" => target.what.to_owned(),
        run => format!("{} ({run})", target.what),
    };
    let mut falls = Vec::new();
    for (run, before) in before {
        let is_kept = |now: f64| match target.wanted {
            Wanted::AtLeast(_) => now >= KEPT * before,
            Wanted::AtMost(_) => now <= before / KEPT + SLACK,
        };
        match seen.iter().find(|seen| seen.0 == *run) {
            Some((_, now)) if is_kept(*now) => (),
            Some((_, now)) => falls.push(format!("{}: {now:.2}, was {before:.2}", what(run))),
            None => falls.push(format!("{}: not measured, was {before:.2}", what(run))),
        }
    }
    falls
}

/// A run of a target, and its number.
type Run = (String, f64);

/// The runs of a target.
fn runs(target: &Target, rows: &[Row]) -> Vec<Run> {
    let of_target: Vec<_> = rows.iter().filter(|row| row.target == target.name).collect();
    let memcached = of_target.iter().find(|row| row.engine == "memcached");
    let value = |row: &Row| match target.of {
        Of::Limit => row.limit_share,
        Of::LimitOne => row.limit_one_share,
        Of::Times(peers) if !peers.contains(&&*row.engine) => None,
        Of::Times(_) => row.times_the_first.map(|times| 1.0 / times),
        Of::Served if row.engine == "memcached" => None,
        Of::Processor if row.engine == "memcached" => None,
        Of::Served => memcached.map(|peer| row.ops_per_s / peer.ops_per_s),
        Of::Processor => {
            let of_peer = memcached.and_then(|peer| peer.processor());
            row.processor().zip(of_peer).map(|(time, peer)| time / peer)
        }
        Of::Value => row.value,
    };
    of_target.iter().filter_map(|row| Some((row.run(), value(row)?))).collect()
}

fn worst_and_best(target: &Target, runs: &[Run]) -> Option<(f64, f64)> {
    let numbers = || runs.iter().map(|run| run.1);
    let (lowest, highest) = (numbers().reduce(f64::min)?, numbers().reduce(f64::max)?);
    Some(match target.wanted {
        Wanted::AtLeast(_) => (lowest, highest),
        Wanted::AtMost(_) => (highest, lowest),
    })
}

/// The document with the table of these measurements between its two lines.
fn with_table(document: &str, measured: &[Row]) -> Option<String> {
    let [begin, end] = targets(measured).around;
    let (before, rest) = document.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    let (table, _) = table(measured, None);
    Some(format!("{before}{begin}\n\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests;
