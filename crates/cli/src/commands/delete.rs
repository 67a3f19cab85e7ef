//! `loch delete`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;

use super::key;
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, tell};

const EXAMPLES: &str = "\
Examples:
  loch delete colour                 exit code 1: the key had no value
  loch delete session:17 --table sessions";

/// Remove the value of a key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeleteArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch delete`.
pub fn run(args: &DeleteArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let cluster = args.table.connect(Access::Write)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let had_value = table.delete(key).with_context(|| format!("cannot delete {shown}"))?;
    if had_value {
        return Ok(Answer::Done);
    }
    tell("delete", &format!("{shown} has no value"));
    Ok(Answer::No)
}
