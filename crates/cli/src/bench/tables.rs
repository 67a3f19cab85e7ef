//! The hidden subcommand `bench-table`: a file of results as Markdown tables.
//!
//! A results file has one JSON object a line: results as `loch bench --json`
//! prints them, and before them headers, which say where and how they were
//! measured (`scripts/figures.sh` writes both). Results that differ in keys
//! and reads only share a table, in which each system has a column. Where a
//! result has a `variant`, what is compared is something else: then each result
//! has a row, or, if the header says what to `show`, each variant ([`matrix`]).
//! Numbers that no workload gave are points of series, which have tables of
//! their own.

mod matrix;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use self::matrix::Show;
use super::criterion::Point;
use super::error::BenchError;

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
    /// What the results below it show.
    title: String,
    commit: String,
    date: String,
    host: String,
    command: String,
    /// What tables of them show; if nothing, what there is.
    #[serde(default)]
    show: Vec<Show>,
}

/// The fields of a result that the tables show.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    /// What is special about this result, where several have the same workload.
    variant: Option<String>,
    engine: String,
    /// What the engine is called, where it is measured in several ways.
    #[serde(rename = "as")]
    name: Option<String>,
    clients: u32,
    lanes: usize,
    records: u64,
    key_size: u64,
    value_size: u64,
    reads: f64,
    dist: String,
    seconds: Option<f64>,
    ops: Option<f64>,
    ops_per_s: f64,
    offered_ops_per_s: Option<f64>,
    retries: Option<f64>,
    goodput_bytes_per_s: f64,
    get_us: Quantiles,
    verbs_per_get: Option<f64>,
    verbs_per_put: Option<f64>,
    round_trips_per_get: Option<f64>,
    round_trips_per_put: Option<f64>,
    bytes_per_get: Option<f64>,
    bytes_per_put: Option<f64>,
    server_cpu_s: Option<f64>,
    client_cpu_s: Option<f64>,
    limit_ops_per_s: Option<f64>,
    ops_of_workers: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Quantiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

/// From this size on, what counts is how many bytes go through.
const GOODPUT_VALUE_BYTES: u64 = 16 << 10;

/// Prints the tables of a results file.
pub fn print(file: &Path) -> Result<(), BenchError> {
    let text = std::fs::read_to_string(file).map_err(BenchError::os("read the results"))?;
    let markdown = markdown(&text)
        .map_err(|reason| BenchError::usage(format!("{}: {reason}", file.display())))?;
    super::report::put_out(markdown.as_bytes()).map_err(BenchError::os("write the tables"))
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

/// What stands below a header.
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

    /// The last result counts: of a run that was repeated.
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

    /// Of Loch with its share of the bare loop, of a peer with how many times
    /// as much the first system does.
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

/// One workload in several variants: a row for each, with what operations cost.
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

impl Row {
    /// What results of one table have in common.
    fn setting(&self) -> (bool, u64, u64, u64, u32, usize) {
        let is_variant = self.variant.is_some();
        let records = if is_variant { 0 } else { self.records };
        (is_variant, records, self.key_size, self.value_size, self.clients, self.lanes)
    }

    /// What it is the result of.
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.engine)
    }

    fn workload(&self) -> (&str, f64) {
        (&self.dist, self.reads)
    }

    fn speed(&self) -> String {
        let speed = self.per_s(self.ops_per_s);
        if self.value_size < GOODPUT_VALUE_BYTES {
            return speed;
        }
        format!("{speed}, {} GB/s", rounded(self.goodput_bytes_per_s / 1e9))
    }

    /// Operations on values of its size.
    fn per_s(&self, ops: f64) -> String {
        match self.value_size < GOODPUT_VALUE_BYTES {
            true => format!("{} M", rounded(ops / 1e6)),
            false => format!("{} k", rounded(ops / 1e3)),
        }
    }

    /// Of the bare loop.
    fn share(&self) -> Option<String> {
        let share = |limit| format!("{:.0} %", 100.0 * self.ops_per_s / limit);
        self.limit_ops_per_s.map(share)
    }

    fn latency(&self) -> String {
        let of = self.get_us.p50.zip(self.get_us.p99);
        of.map_or_else(missing, |(p50, p99)| format!("{} / {}", rounded(p50), rounded(p99)))
    }
}

fn heading(rows: &[&Row]) -> String {
    let first = rows[0];
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let records = if rows.iter().all(|row| row.records == first.records) {
        format!("{} records of ", super::report::grouped(first.records as f64))
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

fn missing() -> String {
    "–".into()
}

/// Three digits.
fn rounded(value: f64) -> String {
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn size(bytes: u64) -> String {
    let units = [(20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn result(engine: &str, reads: f64, ops_per_s: f64, more: &str) -> String {
        format!(
            r#"{{{more}"engine":"{engine}","clients":1,"lanes":32,"records":1000000,"key_size":16,
            "value_size":64,"reads":{reads},"dist":"uniform","ops_per_s":{ops_per_s},
            "goodput_bytes_per_s":1,"get_us":{{"p50":1.5,"p99":12.34}},"verbs_per_get":null,
            "verbs_per_put":2,"round_trips_per_get":2.126,"round_trips_per_put":null,
            "bytes_per_get":null,"bytes_per_put":null,"server_cpu_s":0,"limit_ops_per_s":LIMIT}}"#
        )
        .replace("LIMIT", if engine == "nessie" { "10e6" } else { "null" })
        .replace('\n', "")
    }

    pub fn header(title: &str) -> String {
        format!(
            r#"{{"title":"{title}","commit":"c0ffee","date":"today","host":"two cores","command":"loch bench"}}"#
        )
    }

    #[test]
    fn systems_are_compared_workload_by_workload() {
        let lines = [
            header("Values"),
            result("nessie", 1.0, 1e6, ""),
            result("nessie", 1.0, 8e6, ""),
            result("redis", 1.0, 0.5e6, ""),
            result("redis", 0.5, 0.25e6, ""),
        ];
        let text = markdown(&lines.join("\n")).unwrap();
        assert!(text.starts_with("Commit c0ffee, today, on two cores."), "{text}");
        for part in [
            "### Values\n\n`loch bench`\n\n64 B values, 1 000 000 records of 16 B keys, 1 client of 32 lanes:",
            "| operations/s | GETs | nessie | redis |\n| --- | ---: | ---: | ---: |",
            "| uniform | 100 % | **8 M** (80 % of the bare loop) | 0.5 M (16 ×) |",
            "| uniform | 50 % | – | 0.25 M |",
            "| uniform | 100 % | 1.5 / 12.3 | 1.5 / 12.3 |",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn variants_show_what_operations_cost() {
        let lines = [
            header("Switches"),
            result("nessie", 1.0, 5e6, r#""variant":"no filter","#),
            header("More"),
        ];
        let text = markdown(&lines.join("\n")).unwrap();
        let row =
            "| no filter | nessie | 5 M | 50 % | 1.5 / 12.3 | – | 2.13 | – | 2.00 | – | – | 0.00 |";
        assert!(text.contains(row), "{text}");
        assert_eq!(text.matches("c0ffee").count(), 1);
    }

    #[test]
    fn what_is_no_result_is_named_by_its_line() {
        let error = markdown(&format!("{}\n{{}}", header("T"))).unwrap_err();
        assert!(error.starts_with("line 2"), "{error}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 0.127, 1.0, 9.996, 12.34, 100.0, 1234.5].map(rounded);
        assert_eq!(shown, ["0", "0.13", "1", "10", "12.3", "100", "1234"]);
        assert_eq!([64, 1024, 1 << 20, 1500].map(size), ["64 B", "1 KiB", "1 MiB", "1500 B"]);
    }
}
