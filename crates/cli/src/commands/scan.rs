//! `loch scan`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use loch::{ScanCursor, ScannedKey, Table};
use serde::Serialize;

use super::key;
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, Usage, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch scan                          every key, one a line, in no order
  loch scan --prefix user: | sort -u
  loch scan --prefix user: -0 | xargs -0 -n 1 loch get
  loch scan --limit 10 --json        length, version and expiry too
  loch scan --page begin             some keys, and on standard error where the next page begins

Other clients go on meanwhile. A key that has a value from the beginning to the end is printed, and
perhaps more than once; keys that come or go meanwhile may be printed or not. Exit code 1: there was
no key, or none with the prefix.";

/// Print the keys of a table
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ScanArgs {
    /// Print only keys that begin so
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Stop after so many keys; to go on later, use --page instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print one page of keys: the first, `begin`, or the one at a place that a page has named
    #[arg(long, value_name = "PLACE", conflicts_with = "limit")]
    page: Option<String>,
    /// Print a line of JSON for each key. A key that is not UTF-8 is an array of bytes
    #[arg(long)]
    json: bool,
    /// End each key with a zero byte instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    null: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// A key, as printed in JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    key: Name<'a>,
    value_bytes: u64,
    version: u64,
    /// Milliseconds since the Unix epoch.
    expires_at_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Name<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> From<&'a ScannedKey> for Shown<'a> {
    fn from(found: &'a ScannedKey) -> Self {
        let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            key: str::from_utf8(&found.key).map_or(Name::Bytes(&found.key), Name::Text),
            value_bytes: found.value_bytes,
            version: found.version.as_u64(),
            expires_at_ms: found.expires_at.map(|at| since(at).as_millis() as u64),
        }
    }
}

/// Runs `loch scan`.
pub fn run(args: &ScanArgs) -> Result<Answer> {
    let page = args.page.as_deref().map(|text| place(text, args.table.name())).transpose()?;
    let cluster = args.table.connect(Access::Read)?;
    let table = args.table.open(&cluster)?;
    match page {
        Some(from) => print_page(args, &table, from),
        None => print_all(args, &table),
    }
}

/// The place of the first page.
const BEGIN: &str = "begin";

/// Reads a place, which ends with the name of its table: in another table the scan would begin
/// again, and nobody would notice.
fn place(text: &str, table: &str) -> Result<ScanCursor, Usage> {
    if text == BEGIN {
        return Ok(ScanCursor::default());
    }
    let wrong = |problem: &str| {
        Usage(format!("--page is {text:?}{problem}: use `begin`, or a place that a page has named"))
    };
    let (cursor, of) = text.split_once('@').ok_or_else(|| wrong(""))?;
    let cursor = cursor.parse().map_err(|_| wrong(""))?;
    if of != table {
        return Err(wrong(&format!(", a place of table {of:?}, and not of {table:?}")));
    }
    Ok(cursor)
}

/// The option that prints the page at this place, for a shell.
fn option(next: &ScanCursor, table: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    match table.chars().all(is_plain) {
        true => format!("--page {next}@{table}"),
        false => format!("--page '{next}@{}'", table.replace('\'', "'\\''")),
    }
}

/// Prints the keys of the first page that has some.
fn print_page(args: &ScanArgs, table: &Table, mut from: ScanCursor) -> Result<Answer> {
    loop {
        let page = table.scan_page(&from, args.prefix.as_bytes()).context("cannot scan")?;
        let mut lines = Vec::new();
        page.keys.iter().try_for_each(|found| print(args, found, &mut lines))?;
        output::write(&lines)?;
        match page.next {
            Some(next) if page.keys.is_empty() => from = next,
            Some(next) => {
                let option = option(&next, table.name());
                break tell("scan", &format!("the next page: {option}"));
            }
            None if page.keys.is_empty() && args.page.as_deref() == Some(BEGIN) => {
                return Ok(nothing(args, table));
            }
            None => break tell("scan", "this was the last page"),
        }
    }
    Ok(Answer::Done)
}

/// Bytes that are written at once.
const LINES_BYTES: usize = 64 << 10;

fn print_all(args: &ScanArgs, table: &Table) -> Result<Answer> {
    let limit = args.limit.unwrap_or(u64::MAX);
    let scan = table.scan().prefix(args.prefix.as_bytes());
    let (mut count, mut lines) = (0, Vec::new());
    for found in scan.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        print(args, &found.context("cannot scan")?, &mut lines)?;
        count += 1;
        if lines.len() >= LINES_BYTES {
            output::write(&lines)?;
            lines.clear();
        }
    }
    output::write(&lines)?;
    if count > 0 {
        return Ok(Answer::Done);
    }
    Ok(nothing(args, table))
}

fn nothing(args: &ScanArgs, table: &Table) -> Answer {
    tell("scan", &key::none_found(table.name(), &args.prefix));
    Answer::No
}

fn print(args: &ScanArgs, found: &ScannedKey, lines: &mut Vec<u8>) -> Result<()> {
    match args.json {
        true => serde_json::to_writer(&mut *lines, &Shown::from(found))?,
        false => lines.write_all(&found.key)?,
    }
    lines.push(if args.null { 0 } else { b'\n' });
    Ok(())
}
