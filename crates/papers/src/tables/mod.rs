//! `loch-papers table`: a results file as Markdown tables.
//!
//! A results file has one JSON object a line: results as `loch bench --json` prints them, and
//! before them headers, which say where and how they were measured (`scripts/figures.sh` writes
//! both). Results that differ only in keys and reads share a table, in which each system has a
//! column. If a result has a `variant`, the table compares something else: then each result has a
//! row, or, if the header has `show`, each variant ([`matrix`]). Numbers that do not come from a
//! workload are points of series, which have tables of their own.

mod matrix;
mod row;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use loch_bench::error::BenchError;
use loch_bench::report::{grouped, put_out};
use serde::Deserialize;

use self::matrix::Show;
use self::row::{Row, missing, rounded};
use crate::criterion::Point;

/// A line of a results file.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Header(Header),
    Result(Box<Row>),
    Point(Point),
}

/// Where and how the results that follow were measured.
#[derive(Debug, Deserialize)]
struct Header {
    /// The title of the results below it.
    title: String,
    commit: String,
    date: String,
    host: String,
    command: String,
    /// What their tables show; if empty, all there is.
    #[serde(default)]
    show: Vec<Show>,
}

/// Prints the tables of a results file.
pub fn print(file: &Path) -> Result<(), BenchError> {
    let text = std::fs::read_to_string(file).map_err(BenchError::os("read the results"))?;
    let markdown = markdown(&text)
        .map_err(|reason| BenchError::usage(format!("{}: {reason}", file.display())))?;
    put_out(markdown.as_bytes()).map_err(BenchError::os("write the tables"))
}

fn markdown(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut section = Section::default();
    let mut origins = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(line)
            .map_err(|error| format!("line {}: neither header nor result: {error}", number + 1))?;
        match line {
            Line::Result(row) => section.rows.push(*row),
            Line::Point(point) => section.points.push(point),
            Line::Header(header) => {
                section.print(&mut out);
                let Header { title, commit, date, host, command, show } = header;
                section = Section { show, ..Section::default() };
                if origins.insert((commit.clone(), host.clone())) {
                    let _ = writeln!(out, "Commit {commit}, {date}, on {host}.\n");
                }
                let _ = writeln!(out, "### {title}\n\n`{command}`\n");
            }
        }
    }
    section.print(&mut out);
    Ok(out)
}

/// The records below a header.
#[derive(Default)]
struct Section {
    show: Vec<Show>,
    rows: Vec<Row>,
    points: Vec<Point>,
}

impl Section {
    fn print(&self, out: &mut String) {
        if self.show.is_empty() {
            tables(out, &self.rows);
        } else if !self.rows.is_empty() {
            let rows: Vec<&Row> = self.rows.iter().collect();
            let _ = writeln!(out, "{}:\n", heading(&rows));
            matrix::results(out, &self.rows, &self.show);
        }
        matrix::points(out, &self.points);
    }
}

/// Tables for each kind of records and clients, in the order of the file.
fn tables(out: &mut String, rows: &[Row]) {
    let mut rest: Vec<&Row> = rows.iter().collect();
    while let Some(first) = rest.first().copied() {
        let (of_table, others): (Vec<_>, _) =
            rest.into_iter().partition(|row| row.setting() == first.setting());
        let _ = writeln!(out, "{}:\n", heading(&of_table));
        if first.variant.is_some() {
            variants(out, &of_table);
        } else {
            let results = Results::of(&of_table);
            if let [first, _, ..] = results.engines[..] {
                let _ = writeln!(out, "In brackets: how many times as much {first} does.\n");
            }
            results.table(out, "operations/s", Results::speed);
            results.table(out, "GET µs, median / 99 %", |_, row| row.latency());
        }
        rest = others;
    }
}

/// Results of one kind: a row for each workload, a column for each system.
struct Results<'a> {
    rows: &'a [&'a Row],
    engines: Vec<&'a str>,
    workloads: Vec<(&'a str, f64)>,
}

impl<'a> Results<'a> {
    fn of(rows: &'a [&'a Row]) -> Self {
        let (mut engines, mut workloads) = (Vec::new(), Vec::new());
        for row in rows {
            if !engines.contains(&&*row.engine) {
                engines.push(&*row.engine);
            }
            if !workloads.contains(&row.workload()) {
                workloads.push(row.workload());
            }
        }
        Results { rows, engines, workloads }
    }

    /// The last result counts, because a run may have been repeated.
    fn at(&self, engine: &str, workload: (&str, f64)) -> Option<&Row> {
        let is_it = |row: &&&Row| row.engine == engine && row.workload() == workload;
        self.rows.iter().rev().find(is_it).copied()
    }

    fn table(&self, out: &mut String, what: &str, cell: impl Fn(&Self, &Row) -> String) {
        let _ = writeln!(out, "| {what} | GETs | {} |", self.engines.join(" | "));
        let _ = writeln!(out, "| --- | ---: |{}", " ---: |".repeat(self.engines.len()));
        for workload in &self.workloads {
            let _ = write!(out, "| {} | {} % |", workload.0, rounded(workload.1 * 100.0));
            for engine in &self.engines {
                let row = self.at(engine, *workload);
                let _ = write!(out, " {} |", row.map_or_else(missing, |row| cell(self, row)));
            }
            out.push('\n');
        }
        out.push('\n');
    }

    /// For Loch with its share of the bare loop, for a peer with how many times as much the first
    /// system does.
    fn speed(&self, row: &Row) -> String {
        let speed = row.speed();
        if let Some(share) = row.share() {
            return format!("**{speed}** ({share} of the bare loop)");
        }
        match self.at(self.engines[0], row.workload()) {
            Some(first) if first.engine != row.engine => {
                format!("{speed} ({} ×)", rounded(first.ops_per_s / row.ops_per_s))
            }
            _ => speed,
        }
    }
}

/// One workload in several variants: a row for each, with the costs of operations.
fn variants(out: &mut String, rows: &[&Row]) {
    out.push_str(
        "| | | operations/s | of the bare loop | GET µs, median / 99 % | verbs/GET | \
         round trips/GET | bytes/GET | verbs/PUT | round trips/PUT | bytes/PUT | server CPU s |\n",
    );
    let _ = writeln!(out, "| --- | --- |{}", " ---: |".repeat(10));
    for row in rows {
        let costs = [
            row.verbs_per_get,
            row.round_trips_per_get,
            row.bytes_per_get,
            row.verbs_per_put,
            row.round_trips_per_put,
            row.bytes_per_put,
            row.server_cpu_s,
        ];
        let _ = write!(
            out,
            "| {} | {} | {} | {} | {} |",
            row.variant.as_deref().unwrap_or_default(),
            row.engine,
            row.speed(),
            row.share().unwrap_or_else(missing),
            row.latency()
        );
        for cost in costs {
            let _ = write!(out, " {} |", cost.map_or_else(missing, |cost| format!("{cost:.2}")));
        }
        out.push('\n');
    }
    out.push('\n');
}

fn heading(rows: &[&Row]) -> String {
    let first = rows[0];
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let records = if rows.iter().all(|row| row.records == first.records) {
        format!("{} records of ", grouped(first.records as f64))
    } else {
        String::new()
    };
    let is_alike = |of: fn(&Row) -> u64| rows.iter().all(|row| of(row) == of(first));
    let values = match is_alike(|row| row.value_size) {
        true => format!("{} values, ", size(first.value_size)),
        false => String::new(),
    };
    let clients = match is_alike(|row| row.clients.into()) {
        true => format!("{} client{}", first.clients, plural(first.clients as usize)),
        false => "clients".into(),
    };
    let lanes = match is_alike(|row| row.lanes as u64) {
        true => format!(" of {} lane{}", first.lanes, plural(first.lanes)),
        false => String::new(),
    };
    format!("{values}{records}{} B keys, {clients}{lanes}", first.key_size)
}

fn size(bytes: u64) -> String {
    let units = [(20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests;
