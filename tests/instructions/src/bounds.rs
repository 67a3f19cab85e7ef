//! The bounds, one line a path: `bounds.txt`.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::counting::Count;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bounds.txt");
const BOUNDS: &str = include_str!("../bounds.txt");
/// How far a new bound is above its count, in per cent: what the compiler does otherwise where
/// something else was changed, and what a table's layout makes of its random seed.
const ROOM: u64 = 4;

/// Prints counts and bounds. The exit code is 1 if a path is over its bound, or has none.
///
/// # Errors
/// If a bound is not a number.
pub fn check(counts: &[Count]) -> Result<ExitCode> {
    let mut kept = true;
    println!("{:36} {:>8} {:>8}", "instructions an operation", "counted", "bound");
    for count in counts {
        let bound = bound_of(BOUNDS, &count.path)?;
        let failure = failure(count.instructions, bound);
        kept &= failure.is_none();
        let (bound, failure) = (bound.unwrap_or_default(), failure.unwrap_or_default());
        println!("{:36} {:8} {bound:8}  {failure}", count.path, count.instructions);
    }
    if !kept {
        println!("A bound that has to be higher is set by `scripts/instructions.sh set`.");
    }
    Ok(ExitCode::from(u8::from(!kept)))
}

/// Writes the bounds anew.
///
/// # Errors
/// If the file cannot be written.
pub fn set(counts: &[Count]) -> Result<()> {
    let line = |Count { path, instructions }: &Count| {
        format!("{path:36} {:8}\n", instructions * (100 + ROOM) / 100)
    };
    std::fs::write(FILE, counts.iter().map(line).collect::<String>()).context(FILE)
}

/// Why a count does not keep its bound.
fn failure(count: u64, bound: Option<u64>) -> Option<&'static str> {
    match bound {
        Some(bound) => (count > bound).then_some("over its bound"),
        None => Some("has no bound"),
    }
}

/// The bound of a path: the last word of its line.
fn bound_of(bounds: &str, path: &str) -> Result<Option<u64>> {
    let mut lines = bounds.lines().filter_map(|line| line.trim_end().rsplit_once(' '));
    let line = lines.find(|(name, _)| name.trim_end() == path);
    line.map(|(_, bound)| bound.parse().with_context(|| format!("the bound of {path}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_over_its_bound_and_a_path_without_one_fail() {
        let bounds = "engine GET             100\nengine GET in lanes    90 \n";
        let failure = |path, count| failure(count, bound_of(bounds, path).unwrap());
        assert_eq!(failure("engine GET", 100), None);
        assert!(failure("engine GET", 101).is_some());
        assert!(failure("engine GET in lanes", 91).is_some());
        assert!(failure("engine", 1).is_some());
        assert!(bound_of("engine GET  many\n", "engine GET").is_err());
    }
}
