//! `loch get`.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use loch::Expiry;

use super::key;
use super::target::{Access, TableArgs};
use crate::duration::parse_lifetime;
use crate::outcome::{Answer, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch get colour                    print the value as it is, without a newline
  loch get photo > photo.jpg         values are bytes of any kind
  loch get colour || echo unknown    exit code 1: the key has no value
  loch get colour --show-version     its version too, on standard error
  loch get session:17 --touch 30m    and let it live for half an hour from now on";

/// Print the value of a key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// Write the value's version to standard error, for `loch put --if-version`
    #[arg(long)]
    show_version: bool,
    /// Also give the value this time to live from now on: 500ms, 30s, 5m, 2h, 7d
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_lifetime)]
    touch: Option<Duration>,
    /// Also let the value live for ever
    #[arg(long, conflicts_with = "touch")]
    persist: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch get`.
pub fn run(args: &GetArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let expiry = args.touch.map(Expiry::In).or(args.persist.then_some(Expiry::Never));
    let access = if expiry.is_some() { Access::Write } else { Access::Read };
    let cluster = args.table.connect(access)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let value = match expiry {
        None => table.get(key).with_context(|| format!("cannot read {shown}"))?,
        Some(expiry) => {
            let touched = table.get_and_touch(key, expiry);
            touched.with_context(|| format!("cannot read and touch {shown}"))?
        }
    };
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
