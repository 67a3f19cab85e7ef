//! Standard output, whose reader may be gone.

use anyhow::{Context, Result};
use loch_bench::report::put_out;

/// Writes all bytes to standard output. If the reader closed its end, the rest is dropped, which is
/// no error.
pub fn write(bytes: &[u8]) -> Result<()> {
    put_out(bytes).context("cannot write to standard output")
}

/// Writes a line to standard output.
pub fn line(text: &str) -> Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Writes a value as one line of JSON to standard output.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    line(&serde_json::to_string(value).context("cannot be written as JSON")?)
}
