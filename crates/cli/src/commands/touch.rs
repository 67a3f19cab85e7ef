//! `loch touch`.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use loch::Expiry;

use super::key;
use super::target::{Access, TableArgs};
use crate::duration::parse_lifetime;
use crate::outcome::{Answer, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch touch session:17 --ttl 30m    expires half an hour from now; exit code 1: it has no value
  loch touch session:17 --persist    never expires";

/// Give the value of a key another time of expiry
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("expiry").required(true).args(["ttl", "persist"])))]
pub struct TouchArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// How long the value lives from now on: 500ms, 30s, 5m, 2h, 7d
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_lifetime)]
    ttl: Option<Duration>,
    /// Let the value live for ever
    #[arg(long)]
    persist: bool,
    /// Print the version that the value has now
    #[arg(long)]
    show_version: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch touch`.
pub fn run(args: &TouchArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let cluster = args.table.connect(Access::Write)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let expiry = args.ttl.map_or(Expiry::Never, Expiry::In);
    let touched = table.touch(key, expiry).with_context(|| format!("cannot touch {shown}"))?;
    let Some(version) = touched else {
        tell("touch", &format!("{shown} has no value"));
        return Ok(Answer::No);
    };
    if args.show_version {
        output::line(&version.to_string())?;
    }
    Ok(Answer::Done)
}
