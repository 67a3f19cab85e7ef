//! Standard output, whose reader may be gone.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes all bytes to standard output. A reader that closed its end has what it wanted: the rest is
/// dropped, which is no error.
pub fn write(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard output.
pub fn line(text: &str) -> Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Writes a value as one line of JSON to standard output.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    line(&serde_json::to_string(value).context("cannot be written as JSON")?)
}
