//! `loch delete`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};
use clap::Args;
use loch::{ScanCursor, Table};

use super::key;
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, Usage, tell};

const EXAMPLES: &str = "\
Examples:
  loch delete colour                 exit code 1: the key had no value
  loch delete session:17 --table sessions
  loch delete --prefix session:      every key that begins so
  loch delete --all --table cache

With --prefix and --all, other clients go on meanwhile: values that they put while the command runs
may stay.";

/// Remove the value of a key, or of many
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeleteArgs {
    /// The key: 1 to 65536 bytes
    key: Option<OsString>,
    /// Remove the values of all keys that begin so
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["key", "all"])]
    prefix: Option<OsString>,
    /// Remove all values of the table
    #[arg(long, conflicts_with = "key")]
    all: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch delete`.
pub fn run(args: &DeleteArgs) -> Result<Answer> {
    if let Some(prefix) = &args.prefix
        && prefix.is_empty()
    {
        let text = "every key begins with an empty --prefix: use --all to remove all values";
        return Err(Usage(text.into()).into());
    }
    if args.key.is_none() && args.prefix.is_none() && !args.all {
        let text = "name a key, or give --prefix PREFIX or --all to remove the values of many";
        return Err(Usage(text.into()).into());
    }
    let key = args.key.as_deref().map(key::bytes).transpose()?;
    let cluster = args.table.connect(Access::Write)?;
    let table = args.table.open(&cluster)?;
    match (&args.key, key) {
        (Some(name), Some(key)) => delete_one(&table, name, key),
        _ => delete_many(&table, args.prefix.as_deref().unwrap_or_default()),
    }
}

fn delete_one(table: &Table, name: &OsStr, key: &[u8]) -> Result<Answer> {
    let shown = key::shown(name);
    let had_value = table.delete(key).with_context(|| format!("cannot delete {shown}"))?;
    if had_value {
        return Ok(Answer::Done);
    }
    tell("delete", &format!("{shown} has no value"));
    Ok(Answer::No)
}

fn delete_many(table: &Table, prefix: &OsStr) -> Result<Answer> {
    let (mut next, mut count) = (Some(ScanCursor::default()), 0);
    while let Some(from) = next {
        let so_far = || format!("after {}", removed(count));
        let page = table.scan_page(&from, prefix.as_bytes()).with_context(so_far)?;
        let keys: Vec<_> = page.keys.into_iter().map(|found| found.key).collect();
        let deleted = table.delete_many(&keys).with_context(so_far)?;
        count += deleted.into_iter().filter(|had_value| *had_value).count();
        next = page.next;
    }
    if count == 0 {
        tell("delete", &key::none_found(table.name(), prefix));
        return Ok(Answer::No);
    }
    tell("delete", &removed(count));
    Ok(Answer::Done)
}

fn removed(count: usize) -> String {
    match count {
        1 => "1 value was removed".into(),
        _ => format!("{count} values were removed"),
    }
}
