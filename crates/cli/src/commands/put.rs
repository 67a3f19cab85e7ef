//! `loch put`.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use loch::{Conditional, Expect, Expiry, PutOptions, Table, Version};

use super::key;
use super::target::{Access, TableArgs};
use crate::duration::parse_lifetime;
use crate::outcome::{Answer, Usage, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch put colour green
  loch put photo - < photo.jpg              the value from standard input, bytes of any kind
  loch put session:17 alice --ttl 30m       expires after half an hour
  loch put lock \"$HOSTNAME\" --if-absent     exit code 1: the key has a value
  loch put colour blue --if-version 4711    exit code 1: it was changed meanwhile
  loch put visitors alice, --append         after appends of others at the same time
  loch put -- --odd-key --odd-value         arguments that begin with a dash come after --";

/// Give a key a value
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PutArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// The value, or - to read it from standard input
    #[arg(allow_negative_numbers = true)]
    value: OsString,
    /// How long the value lives: 500ms, 30s, 5m, 2h, 7d [default: for ever]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_lifetime)]
    ttl: Option<Duration>,
    /// Only if the key has no value
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Only if the key's value has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Append the value to the one that the key has, and keep its time of expiry
    #[arg(long, conflicts_with_all = ["ttl", "if_absent", "if_version"])]
    append: bool,
    /// Print the version of the new value
    #[arg(long)]
    show_version: bool,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch put`.
pub fn run(args: PutArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let cluster = args.table.connect(Access::Write)?;
    // The table is opened before standard input is read, which may take long, so that a wrong name
    // is an error at once. It is used afterwards, so that no other client waits for input that is
    // not read yet.
    let table = args.table.open(&cluster)?;
    let limit = args.table.value_bytes_max(&cluster);
    let shown = key::shown(&args.key);
    let value = match args.value.clone().into_vec() {
        dash if dash == b"-" => {
            read_value(limit.unwrap_or(u64::MAX)).with_context(|| cannot_put(&shown))?
        }
        value => value,
    };
    let done = put(&table, key, &value, &args).with_context(|| cannot_put(&shown))?;
    match done {
        Conditional::Done(version) => {
            if args.show_version {
                output::line(&version.to_string())?;
            }
            Ok(Answer::Done)
        }
        Conditional::Refused(there) => {
            let there = match there {
                Some(version) => format!("its value has version {version}"),
                None => "it has no value".into(),
            };
            tell("put", &format!("{shown} was not changed: {there}"));
            Ok(Answer::No)
        }
    }
}

fn cannot_put(shown: &str) -> String {
    format!("cannot put {shown}")
}

fn put(
    table: &Table,
    key: &[u8],
    value: &[u8],
    args: &PutArgs,
) -> Result<Conditional, loch::Error> {
    if args.append {
        return table.append(key, value).map(Conditional::Done);
    }
    let options = PutOptions { expiry: args.ttl.map_or(Expiry::Never, Expiry::In) };
    let expect = match args.if_version {
        Some(version) => Some(Expect::Version(Version::from_u64(version))),
        None => args.if_absent.then_some(Expect::Absent),
    };
    match expect {
        Some(expect) => table.put_if(key, value, expect, options),
        None => table.put_with(key, value, options).map(Conditional::Done),
    }
}

/// Reads standard input to its end, but no more bytes than a value can have, so that endless input
/// ends here.
fn read_value(bytes_max: u64) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin()
        .lock()
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut value)
        .context("cannot read the value from standard input")?;
    if value.len() as u64 > bytes_max {
        return Err(Usage(format!(
            "the value on standard input has more than the {bytes_max} bytes that the table takes: \
             declare the table with a larger value_max, or with another engine if this one takes no more"
        ))
        .into());
    }
    Ok(value)
}
