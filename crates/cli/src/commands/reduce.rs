//! `loch reduce`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;
use loch::Lambda;

use super::key;
use super::numbers::{self, Named, NumberArgs, Written, number, with_element};
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, Usage, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch reduce weights add --element f32        the sum
  loch reduce samples max --element i16        the greatest number
  loch reduce scores user:7 --initial 1        a function that the table was declared with

The value is many numbers, which stay where they are: only the result is sent. Exit code 1: the key
has no value. The table's engine has to be kv-direct.";

/// Combine all numbers of a value with a function, and print the result
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReduceArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// The function of the result so far and each number: add, max, min, and, or, xor…
    #[arg(value_parser = numbers::combining)]
    function: Named,
    /// The first result [default: the number that makes no difference to the function]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    initial: Option<String>,
    #[command(flatten)]
    numbers: NumberArgs,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch reduce`.
pub fn run(args: &ReduceArgs) -> Result<Answer> {
    with_element!(args.numbers.element, T => reduce::<T>(args))
}

fn reduce<T: Written>(args: &ReduceArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let initial: T = match &args.initial {
        Some(text) => number(text)?,
        None => args.function.neutral().ok_or_else(|| {
            Usage("nobody knows with what this function begins: say it with --initial".into())
        })?,
    };
    let cluster = args.table.connect(Access::Read)?;
    let table = args.table.open(&cluster)?;
    let shown = key::shown(&args.key);
    let reduced = table.reduce(key, Lambda::new(args.function.0, initial));
    let Some(result) = reduced.with_context(|| format!("cannot reduce {shown}"))? else {
        tell("reduce", &format!("{shown} has no value"));
        return Ok(Answer::No);
    };
    output::line(&result.to_string())?;
    Ok(Answer::Done)
}
