//! `loch get`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;

use super::key;
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch get colour                    print the value as it is, without a newline
  loch get photo > photo.jpg         values are bytes of any kind
  loch get colour || echo unknown    exit code 1: the key has no value
  loch get colour --show-version     its version too, on standard error";

/// Print the value of a key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// Write the value's version to standard error, for `loch put --if-version`
    #[arg(long)]
    show_version: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch get`.
pub fn run(args: &GetArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let cluster = args.table.connect(Access::Read)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let value = table.get(key).with_context(|| format!("cannot read {shown}"))?;
    let Some(value) = value else {
        tell("get", &format!("{shown} has no value"));
        return Ok(Answer::No);
    };
    if args.show_version {
        tell("get", &format!("version {}", value.version()));
    }
    output::write(&value)?;
    Ok(Answer::Done)
}
