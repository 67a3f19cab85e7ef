//! `loch-papers points`: the measurements of the micro-benchmarks, as lines of a results file.
//!
//! Criterion leaves two files for each benchmark in its folder, `benchmark.json` and
//! `estimates.json`; this module reads the few fields that it needs. A benchmark without a
//! throughput is left out.

use std::fs;
use std::path::Path;

use loch_bench::error::BenchError;
use loch_bench::report::put_out;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One number of a series, as a line of a results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The group of series to which it belongs.
    pub group: String,
    /// The name of the series.
    pub series: String,
    /// The value of the varied parameter.
    pub parameter: String,
    /// The unit of the number; `%` for shares, empty for counts.
    pub unit: String,
    /// The number.
    pub value: f64,
}

#[derive(Deserialize)]
struct Benchmark {
    group_id: String,
    function_id: Option<String>,
    value_str: Option<String>,
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
enum Throughput {
    Elements(u64),
    #[serde(untagged)]
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    /// Nanoseconds of an iteration.
    point_estimate: f64,
}

/// Prints a line for each benchmark that was run last in a folder of criterion's.
pub fn print(folder: &Path) -> Result<(), BenchError> {
    let failed = |error| BenchError::os("read what criterion measured")(error);
    let mut points = Vec::new();
    collect(folder, &mut points).map_err(failed)?;
    if points.is_empty() {
        return Err(BenchError::usage(format!(
            "{}: criterion has left no measurement there: set CRITERION_HOME to it for a run",
            folder.display()
        )));
    }
    points.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut lines = String::new();
    for point in &points {
        lines += &serde_json::to_string(point).map_err(|error| failed(error.into()))?;
        lines.push('\n');
    }
    put_out(lines.as_bytes()).map_err(BenchError::os("write the results"))
}

/// Numbers by their size, not by their digits.
fn order(point: &Point) -> (&str, &str, u64, &str) {
    let digits = point.parameter.split(' ').next().and_then(|number| number.parse().ok());
    (&point.group, &point.series, digits.unwrap_or(u64::MAX), &point.parameter)
}

fn collect(folder: &Path, points: &mut Vec<Point>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let is_last = path.file_name().is_some_and(|name| name == "new");
        if is_last && path.join("estimates.json").is_file() {
            points.extend(point(&path)?);
        } else {
            collect(&path, points)?;
        }
    }
    Ok(())
}

fn point(folder: &Path) -> std::io::Result<Option<Point>> {
    let benchmark: Benchmark = read(&folder.join("benchmark.json"))?;
    let estimates: Estimates = read(&folder.join("estimates.json"))?;
    let Some(Throughput::Elements(elements)) = benchmark.throughput else { return Ok(None) };
    Ok(Some(Point {
        group: benchmark.group_id,
        series: benchmark.function_id.unwrap_or_default(),
        parameter: benchmark.value_str.unwrap_or_default(),
        unit: "M/s".into(),
        value: elements as f64 * 1e3 / estimates.median.point_estimate,
    }))
}

fn read<T: DeserializeOwned>(file: &Path) -> std::io::Result<T> {
    Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(folder: &Path, id: &str, throughput: &str, ns: f64) {
        let folder = folder.join(id).join("new");
        fs::create_dir_all(&folder).unwrap();
        let benchmark = format!(
            r#"{{"group_id":"accesses","function_id":"prefetching","value_str":"{id}",
                "throughput":{throughput},"full_id":"x","directory_name":"x","title":"x"}}"#
        );
        fs::write(folder.join("benchmark.json"), benchmark).unwrap();
        let estimate = format!(r#"{{"point_estimate":{ns},"standard_error":1.0}}"#);
        let estimates = format!(r#"{{"mean":{estimate},"median":{estimate},"slope":null}}"#);
        fs::write(folder.join("estimates.json"), estimates).unwrap();
    }

    #[test]
    fn what_criterion_leaves_becomes_points() {
        let dir = tempfile::tempdir().unwrap();
        left(dir.path(), "10", r#"{"Elements":4096}"#, 4096.0);
        left(dir.path(), "9 lanes", r#"{"Elements":4096}"#, 8192.0);
        left(dir.path(), "bytes", r#"{"Bytes":7}"#, 1.0);
        left(dir.path(), "none", "null", 1.0);
        let mut points = Vec::new();
        collect(dir.path(), &mut points).unwrap();
        points.sort_by(|a, b| order(a).cmp(&order(b)));
        let seen: Vec<_> = points.iter().map(|point| (&*point.parameter, point.value)).collect();
        assert_eq!(seen, [("9 lanes", 500.0), ("10", 1000.0)]);
        assert_eq!((&*points[0].group, &*points[0].unit), ("accesses", "M/s"));
    }

    #[test]
    fn a_folder_without_measurements_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = print(dir.path()).unwrap_err().to_string();
        assert!(error.contains("CRITERION_HOME"), "{error}");
    }
}
