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

/// Take the value of a key away
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
    let cluster = args.table.connect(Access::Write)?;
    let table = args.table.open(&cluster)?;
    let key = key::shown(&args.key);
    let had_value =
        table.delete(key::bytes(&args.key)).with_context(|| format!("cannot delete {key}"))?;
    if had_value {
        return Ok(Answer::Done);
    }
    tell("delete", &format!("{key} has no value"));
    Ok(Answer::No)
}
