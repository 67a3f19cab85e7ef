//! `loch filter`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;
use loch::Lambda;

use super::key;
use super::numbers::{self, Named, NumberArgs, Written, number, with_element};
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, tell};

const EXAMPLES: &str = "\
Examples:
  loch filter samples greater 100 --element i16
  loch filter weights not-equal 0 --element f32 | wc -l
  loch filter weights greater 0 --element f32 --raw | loch put positive -
  loch filter scores user:8 3                  a function that the table was declared with

The value is many numbers. The numbers that the function selects are printed, one a line, in their
order; the value does not change. Functions are equal, not-equal, less and greater. Exit code 1: the
key has no value. The table's engine has to be kv-direct.";

/// Print the numbers of a value that a function selects
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FilterArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// The condition for each number
    #[arg(value_parser = numbers::comparing)]
    function: Named,
    /// The number with which each number is compared
    #[arg(allow_negative_numbers = true)]
    operand: String,
    /// Write the numbers as bytes, as they are in the value
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    numbers: NumberArgs,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch filter`.
pub fn run(args: &FilterArgs) -> Result<Answer> {
    with_element!(args.numbers.element, T => filter::<T>(args))
}

fn filter<T: Written>(args: &FilterArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let operand: T = number(&args.operand)?;
    let cluster = args.table.connect(Access::Read)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let kept = table.filter(key, Lambda::new(args.function.0, operand));
    let Some(kept) = kept.with_context(|| format!("cannot filter {shown}"))? else {
        tell("filter", &format!("{shown} has no value"));
        return Ok(Answer::No);
    };
    numbers::write(&kept, args.raw)?;
    Ok(Answer::Done)
}
