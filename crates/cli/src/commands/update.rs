//! `loch update`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;
use loch::{Builtin, Function, Lambda, Table};

use super::key;
use super::numbers::{self, Named, NumberArgs, Written, number, with_element};
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, Usage, tell};

const EXAMPLES: &str = "\
Examples:
  loch update visits add 1                      prints the old number; no value counts as 0
  loch update peak max 21.5 --element f64
  loch update door compare-swap 0 1             1 if it was 0
  loch update scores user:7 3                   a function that the table was declared with

A value can be many numbers:
  loch update weights add 0.5 --all --element f32          to each of them
  loch update weights add 1 0 -1 --each --element f32      1 to the first one, 0 to the second…
  loch update weights add - --each --element f32 < steps   operands from standard input

Functions are add, subtract, max, min, and, or, xor, exchange, compare-swap, saturating-add and
saturating-subtract. Exit code 1: with --all or --each, the key has no value. The table's engine has
to be kv-direct.";

/// Apply a function to a number, or to many, where the value is stored
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpdateArgs {
    /// The key: 1 to 65536 bytes
    key: OsString,
    /// The function of each number and its operand
    #[arg(value_parser = numbers::combining)]
    function: Named,
    /// The operand; for compare-swap the expected number comes before it; with --each an operand
    /// for each number, or - to read them from standard input
    #[arg(required = true, allow_negative_numbers = true)]
    operand: Vec<String>,
    /// The value is many numbers: apply the function to each, with the same operand
    #[arg(long, conflicts_with = "each")]
    all: bool,
    /// The value is many numbers: apply the function to each, with an operand of its own
    #[arg(long)]
    each: bool,
    /// Print the numbers from before the update, one a line [default without --all and --each]
    #[arg(long)]
    before: bool,
    /// Numbers on standard input and output are bytes, as they are in the value
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    numbers: NumberArgs,
    #[command(flatten)]
    table: TableArgs,
}

/// Runs `loch update`.
pub fn run(args: &UpdateArgs) -> Result<Answer> {
    with_element!(args.numbers.element, T => update::<T>(args))
}

fn update<T: Written>(args: &UpdateArgs) -> Result<Answer> {
    let key = key::bytes(&args.key)?;
    let (second, operands) = args.operands()?;
    let second: T = second.map_or(Ok(T::default()), number)?;
    let are_on_stdin = args.each && operands == ["-"];
    let mut operands = match (args.each, operands) {
        (true, _) if are_on_stdin => Vec::new(),
        (_, operands) => operands.iter().map(|text| number(text)).collect::<Result<_, Usage>>()?,
    };
    let cluster = args.table.connect(Access::Write)?;
    // The table is opened before standard input is read, so that a wrong name is an error at once.
    let table = args.table.open(&cluster)?;
    if are_on_stdin {
        let limit = args.table.value_bytes_max(&cluster).unwrap_or(u64::MAX);
        operands = numbers::of_stdin(args.raw, limit)?;
    }
    let lambda = Lambda::new(args.function.0, operands.first().copied().unwrap_or_default());
    let lambda = lambda.with_second(second);
    let shown = key::shown(&args.key);
    let done = args.apply(&table, key, lambda, &operands);
    if done.with_context(|| format!("cannot update {shown}"))? {
        return Ok(Answer::Done);
    }
    tell("update", &format!("{shown} has no value"));
    Ok(Answer::No)
}

impl UpdateArgs {
    /// The second operand, if the function has one, and the operands.
    fn operands(&self) -> Result<(Option<&str>, &[String]), Usage> {
        let wrong = |what: &str| Err(Usage(what.into()));
        let has_second = self.function.0 == Function::Builtin(Builtin::CompareSwap);
        let (second, operands) = match &self.operand[..] {
            [expected, operands @ ..] if has_second => (Some(&**expected), operands),
            operands => (None, operands),
        };
        match (operands, self.each) {
            ([], _) => wrong(
                "compare-swap has two operands: what it expects, and what the number becomes then",
            ),
            ([_, _, ..], false) => {
                wrong("there are too many operands: with --each there is one for each number")
            }
            ([dash], false) if dash == "-" => {
                wrong("operands are read from standard input with --each alone")
            }
            _ => Ok((second, operands)),
        }
    }

    /// Applies the function, and prints the result if wanted; returns whether the key had a value.
    fn apply<T: Written>(
        &self,
        table: &Table,
        key: &[u8],
        lambda: Lambda<T>,
        operands: &[T],
    ) -> Result<bool> {
        let before = match (self.all, self.each, self.before) {
            (false, false, _) => Some(vec![table.update(key, lambda)?]),
            (true, _, true) => table.fetch_update_all(key, lambda)?,
            (_, true, true) => table.fetch_update_each(key, lambda, operands)?,
            (true, _, false) => return Ok(table.update_all(key, lambda)?.is_some()),
            (_, true, false) => return Ok(table.update_each(key, lambda, operands)?.is_some()),
        };
        before.map_or(Ok(false), |before| numbers::write(&before, self.raw).map(|()| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: UpdateArgs,
    }

    fn parsed(line: &str) -> UpdateArgs {
        Line::try_parse_from(["update"].into_iter().chain(line.split(' '))).unwrap().args
    }

    #[test]
    fn operands_are_as_many_as_the_function_takes() {
        let operands = |line| {
            let args = parsed(line);
            let operands = args.operands().map_err(|error| error.to_string());
            operands.map(|(second, rest)| (second.map(str::to_owned), rest.join(" ")))
        };
        assert_eq!(operands("k add -5"), Ok((None, "-5".into())));
        assert_eq!(operands("k compare-swap 0 1"), Ok((Some("0".into()), "1".into())));
        assert_eq!(operands("k add 1 -2 3 --each"), Ok((None, "1 -2 3".into())));
        assert_eq!(operands("k add - --each"), Ok((None, "-".into())));
        assert!(operands("k compare-swap 0").unwrap_err().contains("two operands"));
        assert!(operands("k add 1 2").unwrap_err().contains("--each"));
        assert!(operands("k add -").unwrap_err().contains("--each"));
    }
}
