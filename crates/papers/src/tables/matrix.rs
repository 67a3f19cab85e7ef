//! Numbers that have a row and a column.
//!
//! If a header has `show`, its results have a row for each variant and a column for each system,
//! under the name in the result. There is a table for each item of `show`. Points have a row for
//! each parameter and a column for each series.

use std::fmt::Write as _;

use serde::Deserialize;

use super::row::{Row, missing, rounded};
use crate::criterion::Point;

/// The numbers of its results that a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// Operations a second; for an open loop, beside the wanted ones.
    Speed,
    /// The same, and as a share of the same system's in the first row.
    SpeedOfFirstRow,
    /// The same, and how many times as many the first system does.
    SpeedOfFirstColumn,
    /// Operations a second for each processor that the servers took, and how many times as many the
    /// first system does.
    SpeedPerServerCore,
    /// Processors that the servers took.
    ServerCores,
    /// Processors that the clients took.
    ClientCores,
    /// Latencies of GETs.
    Latency,
    /// Attempts of operations that were repeated.
    Retries,
    /// The operations of each worker, and how uneven they are.
    Workers,
}

/// Cells by row and column, both in the order in which they first came.
struct Matrix<'a, T> {
    rows: Vec<&'a str>,
    columns: Vec<&'a str>,
    /// By row and column.
    cells: Vec<(usize, usize, &'a T)>,
}

impl<'a, T> Matrix<'a, T> {
    fn of(cells: impl Iterator<Item = (&'a str, &'a str, &'a T)>) -> Self {
        let mut matrix = Matrix { rows: Vec::new(), columns: Vec::new(), cells: Vec::new() };
        for (row, column, cell) in cells {
            let place = (place_of(&mut matrix.rows, row), place_of(&mut matrix.columns, column));
            matrix.cells.push((place.0, place.1, cell));
        }
        matrix
    }

    /// The last cell counts, because a run may have been repeated.
    fn at(&self, row: usize, column: usize) -> Option<&'a T> {
        let is_it = |cell: &&(usize, usize, &T)| (cell.0, cell.1) == (row, column);
        self.cells.iter().rev().find(is_it).map(|cell| cell.2)
    }

    fn print(
        &self,
        out: &mut String,
        corner: &str,
        more: Option<&str>,
        cell: impl Fn(usize, Option<usize>) -> Option<String>,
    ) {
        let columns = self.columns.len() + usize::from(more.is_some());
        let _ = write!(out, "| {corner} | {} |", self.columns.join(" | "));
        if let Some(more) = more {
            let _ = write!(out, " {more} |");
        }
        let _ = writeln!(out, "\n| --- |{}", " ---: |".repeat(columns));
        for (at, row) in self.rows.iter().enumerate() {
            let _ = write!(out, "| {row} |");
            for column in 0..columns {
                let column = Some(column).filter(|column| *column < self.columns.len());
                let _ = write!(out, " {} |", cell(at, column).unwrap_or_else(missing));
            }
            out.push('\n');
        }
        out.push('\n');
    }
}

fn place_of<'a>(names: &mut Vec<&'a str>, name: &'a str) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// A table for each thing shown.
pub fn results(out: &mut String, rows: &[Row], show: &[Show]) {
    let cells = rows.iter().map(|row| (row.variant.as_deref().unwrap_or(""), row.name(), row));
    let matrix = Matrix::of(cells);
    for show in show {
        let corner = match show {
            Show::Speed => "operations/s".into(),
            Show::SpeedOfFirstRow => "operations/s, and of the first row's".into(),
            Show::SpeedOfFirstColumn => {
                format!("operations/s, and how many times as much {} does", matrix.columns[0])
            }
            Show::SpeedPerServerCore => {
                let first = matrix.columns[0];
                format!("the same for each processor that servers take, and {first}'s multiple")
            }
            Show::ServerCores => "processors that servers take".into(),
            Show::ClientCores => "processors that clients take".into(),
            Show::Latency => "GET µs, median / 99 %".into(),
            Show::Retries => "retries, of all operations".into(),
            Show::Workers => "requests of each worker, k/s".to_string(),
        };
        matrix.print(out, &corner, None, |row, column| {
            let column = column?;
            shown(*show, matrix.at(row, column)?, matrix.at(0, column), matrix.at(row, 0))
        });
    }
}

/// The text of a cell: the result, compared with the first row or the first column.
fn shown(show: Show, row: &Row, above: Option<&Row>, first: Option<&Row>) -> Option<String> {
    let cores = |cpu_s: Option<f64>| Some(format!("{:.2}", cpu_s? / row.seconds?));
    let speed = row.speed();
    match show {
        Show::Speed => Some(match row.offered_ops_per_s {
            Some(offered) => {
                format!("{} of {} wanted", row.per_s(row.ops_per_s), row.per_s(offered))
            }
            None => speed,
        }),
        Show::SpeedOfFirstRow => {
            let share = 100.0 * row.ops_per_s / above?.ops_per_s;
            Some(format!("{speed} ({} %)", rounded(share)))
        }
        Show::SpeedOfFirstColumn => {
            let first = first?;
            let is_first = first.name() == row.name();
            let times = || format!("{speed} ({} ×)", rounded(first.ops_per_s / row.ops_per_s));
            Some(if is_first { speed.clone() } else { times() })
        }
        Show::SpeedPerServerCore => {
            let of = |row: &Row| Some(row.ops_per_s * row.seconds? / row.server_cpu_s?);
            let per_core = of(row).filter(|per_core| per_core.is_finite())?;
            let times = rounded(of(first?)? / per_core);
            Some(format!("{} ({times} ×)", row.per_s(per_core)))
        }
        Show::ServerCores => cores(row.server_cpu_s),
        Show::ClientCores => cores(row.client_cpu_s),
        Show::Latency => Some(row.latency()),
        Show::Retries => Some(format!("{} %", rounded(100.0 * row.retries? / row.ops?))),
        Show::Workers => workers(row),
    }
}

fn workers(row: &Row) -> Option<String> {
    let (all, seconds) = (row.ops_of_workers.as_ref()?, row.seconds?);
    let (least, most) = (*all.iter().min()?, *all.iter().max()?);
    let each = all.iter().map(|ops| rounded(*ops as f64 / seconds / 1e3));
    let each = each.collect::<Vec<_>>().join(", ");
    Some(format!("{each}; most / least {}", rounded(most as f64 / least as f64)))
}

/// A table for each group; for two series, with the ratio of the first to the second.
pub fn points(out: &mut String, points: &[Point]) {
    let mut groups: Vec<&str> = Vec::new();
    points.iter().for_each(|point| _ = place_of(&mut groups, &point.group));
    for group in groups {
        let of_group = points.iter().filter(|point| point.group == group);
        let matrix = Matrix::of(of_group.map(|point| (&*point.parameter, &*point.series, point)));
        let _ = writeln!(out, "{group}:\n");
        let times = match matrix.columns[..] {
            [first, second] => Some(format!("{first} / {second}")),
            _ => None,
        };
        matrix.print(out, "", times.as_deref(), |row, column| match column {
            Some(column) => {
                let Point { value, unit, .. } = matrix.at(row, column)?;
                // A small share must not be shown as zero.
                let value = match *value {
                    small if small > 0.0 && small < 0.01 => format!("{small:.1e}"),
                    value => rounded(value),
                };
                Some(format!("{value} {unit}").trim_end().into())
            }
            None => {
                let of = matrix.at(row, 0)?.value / matrix.at(row, 1)?.value;
                Some(format!("{} ×", rounded(of)))
            }
        });
    }
}
