//! Runs the paths under callgrind.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::OPS;

/// The instructions of an operation of a path.
pub struct Count {
    pub path: String,
    pub instructions: u64,
}

/// Counts all paths.
///
/// # Errors
/// If valgrind is missing or fails.
pub fn counts() -> Result<Vec<Count>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("count");
    const MEASURED: &str = "loch_instructions::measured";
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .args([format!("--toggle-collect={MEASURED}"), format!("--dump-after={MEASURED}")])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .arg("paths")
        .output()
        .context("valgrind does not start: scripts/deps.sh count installs it")?;
    ensure!(run.status.success(), "valgrind: {}", String::from_utf8_lossy(&run.stderr));
    let paths = String::from_utf8(run.stdout)?;
    let counts = (1..).zip(paths.lines()).map(|(number, path)| {
        let instructions = total(&out.with_extension(number.to_string()))? / OPS as u64;
        Ok(Count { path: path.into(), instructions })
    });
    counts.collect()
}

/// The total in a file of callgrind's.
fn total(file: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.with_context(|| format!("{} has no totals", file.display()))?.trim().parse()?)
}
