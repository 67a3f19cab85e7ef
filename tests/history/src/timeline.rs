//! A history for people: a line for each operation.

use std::fmt::Write;

use crate::history::{Answer, Ask, History, Operation, Outcome, Update};
use crate::search::{Found, search};

/// Columns of the bars.
const WIDTH: usize = 48;

/// Configurations that are visited to find the operation without a place; a picture is not worth a
/// longer search.
const BUDGET: u64 = 100_000;

/// A line for each operation, in the order of their calls: the time of the call, the client, the
/// operation, its outcome, and a bar from its call to its return. The bars show the order of
/// operations; they are not to scale. An operation with an open end may have happened at any time
/// after its call, or never. The operation that cannot be placed is marked.
#[must_use]
pub fn timeline(history: &History) -> String {
    let blocked = history.by_key().into_iter().find_map(|(_, operations)| {
        match search(&operations, BUDGET) {
            Found::NoOrder { blocked } => Some(operations[blocked]),
            Found::Order | Found::Exhausted { .. } => None,
        }
    });
    timeline_of(history, blocked.as_ref())
}

pub(crate) fn timeline_of(history: &History, blocked: Option<&Operation>) -> String {
    let mut operations: Vec<&Operation> = history.operations().iter().collect();
    operations.sort_by_key(|operation| (operation.called, operation.until()));
    let moments = moments(&operations);
    let last = moments.len().saturating_sub(1).max(1);
    let column = |moment: u64| match moments.binary_search(&moment) {
        Ok(at) | Err(at) => at.min(last) * (WIDTH - 1) / last,
    };
    let first = moments.first().copied().unwrap_or(0);
    let words: Vec<(String, String)> = operations.iter().map(|o| worded(o)).collect();
    let asked_max = words.iter().map(|(asked, _)| asked.len()).max().unwrap_or(0);
    let answered_max = words.iter().map(|(_, answered)| answered.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (operation, (asked, answered)) in operations.into_iter().zip(words) {
        let bar = bar(operation, column);
        let mark = if blocked == Some(operation) { "  <- cannot be placed" } else { "" };
        writeln!(
            text,
            "{:>14}  c{:<3} k{:<3} {asked:<asked_max$}  {answered:<answered_max$}  {bar}{mark}",
            duration(operation.called - first),
            operation.client,
            operation.key,
        )
        .expect("a string takes what is written");
    }
    text
}

/// The moments of calls and returns.
fn moments(operations: &[&Operation]) -> Vec<u64> {
    let both = operations.iter().flat_map(|operation| [operation.called, operation.until()]);
    let mut moments: Vec<u64> = both.filter(|moment| *moment != u64::MAX).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

fn bar(operation: &Operation, column: impl Fn(u64) -> usize) -> String {
    let (from, until) = (column(operation.called), operation.until());
    let open = until == u64::MAX;
    let to = if open { WIDTH - 1 } else { column(until) };
    let (body, end) = match operation.outcome {
        Outcome::Known(_) => ('-', '|'),
        _ if open => ('.', '>'),
        _ => ('.', '|'),
    };
    let glyph = |at: usize| match at {
        at if at < from || at > to => ' ',
        at if at == to => end,
        at if at == from => '|',
        _ => body,
    };
    (0..WIDTH).map(glyph).collect()
}

/// The request and the answer in words.
pub(crate) fn worded(operation: &Operation) -> (String, String) {
    let asked = match operation.ask {
        Ask::Get => "get".to_owned(),
        Ask::Put(value) => format!("put {value}"),
        Ask::PutIfAbsent(value) => format!("put {value} if absent"),
        Ask::PutIfVersion { version, value } => format!("put {value} if v{version}"),
        Ask::Delete => "delete".to_owned(),
        Ask::DeleteIfVersion(version) => format!("delete v{version}"),
        Ask::Expire(value) => format!("{value} expires"),
        Ask::Forget => "the store may forget".to_owned(),
        Ask::Add(add) => format!("add {add}"),
        Ask::Append(piece) => format!("append {piece}"),
        Ask::Touch(tag) => format!("touch {tag}"),
        Ask::Update(Update::AddSaturating(add)) => format!("add {add} at most"),
        Ask::Update(Update::Exchange(value)) => format!("exchange for {value}"),
        Ask::Update(Update::CompareSwap { expected, value }) => {
            format!("put {value} if {expected}")
        }
        Ask::Update(Update::AddIfPresent(add)) => format!("add {add} if present"),
    };
    let answered = match operation.outcome {
        Outcome::Unknown | Outcome::UnknownUntil(_) => "unknown".to_owned(),
        Outcome::Known(Answer::Found(None)) => "nothing".to_owned(),
        Outcome::Known(Answer::Found(Some((value, version)))) => format!("{value} v{version}"),
        Outcome::Known(Answer::Value(value)) => format!("{value}"),
        Outcome::Known(Answer::Present) => "present".to_owned(),
        Outcome::Known(Answer::Stored(version)) => format!("stored v{version}"),
        Outcome::Known(Answer::Done) => "done".to_owned(),
        Outcome::Known(Answer::Held) => "refused, present".to_owned(),
        Outcome::Known(Answer::Refused(None)) => "refused, absent".to_owned(),
        Outcome::Known(Answer::Refused(Some(version))) => format!("refused, v{version}"),
        Outcome::Known(Answer::Deleted(true)) => "deleted".to_owned(),
        Outcome::Known(Answer::Deleted(false)) => "was absent".to_owned(),
        Outcome::Known(Answer::Before(before)) => format!("was {before}"),
        Outcome::Known(Answer::NoEffect) => "no effect".to_owned(),
    };
    (asked, answered)
}

/// A time since the start, in the clock's units.
pub(crate) fn duration(since: u64) -> String {
    let digits = since.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    format!("+{}", groups.join("'"))
}
