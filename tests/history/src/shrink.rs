//! Reduces a failing history to the operations that show the failure.
//!
//! A correct history may fail when an operation is left out: without the PUT, the GET that saw it
//! is wrong. So no operation is left out by trial alone. Each step replaces a history by another
//! that *would have an order if the first had one*, and keeps it if it still fails:
//!
//! 1. **The end is cut off** at a moment: later calls are dropped, and the outcomes of operations
//!    under way are forgotten. If the whole history has an order, its beginning has one too.
//! 2. **The beginning is cut off** at an operation that had the key for itself and shows its state:
//!    it becomes the PUT of that state, or a DELETE, and operations that returned before it are
//!    dropped.
//! 3. **Reads are dropped.** They leave no trace in an order.
//! 4. **The outcome of a write is forgotten**: it becomes a plain PUT of the value that it left, or
//!    a DELETE, that had its effect by its return, if ever.
//! 5. At the end it is certain that the history fails whether or not the operations of unknown
//!    outcome took effect. Then those of them whose writes were not seen are dropped, except the
//!    ends of remaining values and that the store may forget: the remaining history fails too, for
//!    the same reason.

use std::collections::HashSet;

use crate::history::{Answer, Ask, History, Operation, Outcome};
use crate::prepare::seen_values;
use crate::search::{Found, search};

/// Configurations that [`shrink`] looks at to see that a history fails.
const BUDGET: u64 = 1_000_000;

/// Configurations of one trial to leave something out, and of each operation in it. A trial that
/// takes more counts as a pass, which keeps the operation in question.
const TRIAL_BUDGET: u64 = 20_000;
const TRIAL_BUDGET_EACH: u64 = 4;

/// Trials of one step, at most.
const TRIALS_MAX: usize = 2000;

/// How often the steps for reads and writes are repeated: without a write, other reads can be
/// dropped.
const ROUNDS: usize = 2;

/// Reduces a history that is not linearizable to another that is not linearizable for the same
/// reason, with operations on one key. A linearizable history is returned unchanged.
#[must_use]
pub fn shrink(history: &History) -> History {
    let fails = |operations: &[Operation]| search_fails(operations, BUDGET);
    let failing = history.by_key().into_iter().find(|(_, operations)| fails(operations));
    match failing {
        Some((_, operations)) => shrink_key(&operations, BUDGET).into(),
        None => history.clone(),
    }
}

/// The same for the operations of one key, which fail within `budget`.
pub(crate) fn shrink_key(operations: &[Operation], budget: u64) -> Vec<Operation> {
    let mut left = operations.to_vec();
    left.sort_by_key(|operation| operation.called);
    left = cut_end(&left, budget);
    left = cut_beginning(left, budget);
    for _ in 0..ROUNDS {
        left = drop_pieces(left, |piece| {
            piece.iter().filter(|operation| !operation.is_read()).copied().collect()
        });
        left = drop_pieces(left, |piece| piece.iter().map(|o| forget(*o)).collect());
    }
    let seen = seen_values(&left);
    let is_told = |operation: &Operation| {
        operation.is_known() || operation.value().is_some_and(|value| seen.contains(&value))
    };
    let told: HashSet<u64> =
        left.iter().filter(|o| is_told(o)).filter_map(|o| o.value().or(o.touch())).collect();
    // The expiry of a value stays with the value, or with what touched it.
    left.retain(|operation| match operation.ask {
        Ask::Expire(value) => told.contains(&value),
        Ask::Forget => true,
        _ => is_told(operation),
    });
    left
}

fn search_fails(operations: &[Operation], budget: u64) -> bool {
    matches!(search(operations, budget), Found::NoOrder { .. })
}

/// The shortest beginning that fails.
fn cut_end(operations: &[Operation], budget: u64) -> Vec<Operation> {
    let known = operations.iter().filter(|operation| operation.is_known());
    let mut returns: Vec<u64> = known.map(|operation| operation.returned).collect();
    returns.sort_unstable();
    returns.dedup();
    let fails = |moment: &u64| search_fails(&until(operations, *moment), budget);
    // From the first moment that fails on, all fail. This moment is often near the end of the
    // search.
    let mut failing = returns.len();
    if let Found::NoOrder { blocked } = search(operations, budget) {
        let near = returns.partition_point(|moment| *moment < operations[blocked].returned);
        if returns.get(near).is_some_and(fails) {
            failing = near;
        }
    }
    let first = returns[..failing].partition_point(|moment| !fails(moment));
    match returns.get(first) {
        Some(moment) => until(operations, *moment),
        None => operations.to_vec(),
    }
}

/// The operations that were called up to a moment, with the outcomes that are known then.
fn until(operations: &[Operation], moment: u64) -> Vec<Operation> {
    let called = operations.iter().filter(|operation| operation.called <= moment);
    let cut = called.map(|operation| match operation.outcome {
        Outcome::Known(_) if operation.returned > moment => {
            Operation { returned: u64::MAX, outcome: Outcome::Unknown, ..*operation }
        }
        _ => *operation,
    });
    cut.filter(|operation| operation.is_known() || operation.ask != Ask::Get).collect()
}

/// The shortest end that fails.
fn cut_beginning(operations: Vec<Operation>, budget: u64) -> Vec<Operation> {
    // A PUT of the state would not tell of the expiry that a TOUCH gave the value.
    if operations.iter().any(|operation| matches!(operation.ask, Ask::Touch(_))) {
        return operations;
    }
    let mut cuts = Vec::new();
    let mut latest_return = None;
    let known: Vec<&Operation> = operations.iter().filter(|o| o.is_known()).collect();
    for (n, operation) in known.iter().enumerate() {
        let alone_before = latest_return.is_none_or(|latest| latest < operation.called);
        let alone_after = known.get(n + 1).is_none_or(|next| operation.returned < next.called);
        if alone_before && alone_after && state_after(operation).is_some() {
            cuts.push(**operation);
        }
        latest_return = latest_return.max(Some(operation.returned));
    }
    let fails = |cut: &Operation| search_fails(&from(&operations, cut), budget);
    // Up to the last cut that fails, all fail.
    let fine = cuts.partition_point(fails);
    match fine.checked_sub(1) {
        Some(last) => from(&operations, &cuts[last]),
        None => operations,
    }
}

/// The value and the version of a key after an operation that no other overlapped, if its answer
/// says.
fn state_after(operation: &Operation) -> Option<Option<(u64, u64)>> {
    match (operation.outcome, operation.value()) {
        (Outcome::Known(Answer::Found(found)), _) => Some(found),
        (Outcome::Known(Answer::Deleted(_) | Answer::Refused(None)), _) => Some(None),
        (Outcome::Known(Answer::Stored(version)), Some(value)) => Some(Some((value, version))),
        _ => None,
    }
}

/// The operations after `cut`, beginning in the state that it left. Before them come writes that
/// are seen later although they were overwritten by then, so that the history shows where these
/// values come from.
fn from(operations: &[Operation], cut: &Operation) -> Vec<Operation> {
    let later = |operation: &&Operation| {
        operation.called > cut.returned || (!operation.is_known() && operation.until() > cut.called)
    };
    let later: Vec<Operation> = operations.iter().filter(later).copied().collect();
    let state = state_after(cut).expect("it was chosen because it tells");
    let seen = seen_values(&later);
    let written = later.iter().filter_map(Operation::value).chain(state.map(|(value, _)| value));
    let written: HashSet<u64> = written.collect();
    let is_missing = |value: &u64| seen.contains(value) && !written.contains(value);
    let sooner = operations.iter().filter(|operation| operation.returned < cut.called);
    let mut left: Vec<Operation> = sooner
        .filter_map(|operation| match (operation.outcome, operation.value().filter(is_missing)) {
            (Outcome::Known(Answer::Stored(_) | Answer::Done), Some(value)) => {
                Some(Operation { ask: Ask::Put(value), ..*operation })
            }
            _ => None,
        })
        .collect();
    let (ask, answer) = match state {
        Some((value, version)) => (Ask::Put(value), Answer::Stored(version)),
        None => (Ask::Delete, Answer::Deleted(!left.is_empty())),
    };
    left.push(Operation { ask, outcome: Outcome::Known(answer), ..*cut });
    left.extend(later);
    left
}

/// Drops pieces, larger pieces first, as long as the rest fails.
fn drop_pieces(
    mut left: Vec<Operation>,
    less: impl Fn(&[Operation]) -> Vec<Operation>,
) -> Vec<Operation> {
    let mut size = left.len();
    let mut trials = 0;
    while size > 0 {
        let mut at = 0;
        while at < left.len() && trials < TRIALS_MAX {
            let end = (at + size).min(left.len());
            let less = less(&left[at..end]);
            if less[..] != left[at..end] {
                let kept = less.len();
                let trial = [&left[..at], &less[..], &left[end..]].concat();
                trials += 1;
                if search_fails(&trial, TRIAL_BUDGET + TRIAL_BUDGET_EACH * trial.len() as u64) {
                    left = trial;
                    at += kept;
                    continue;
                }
            }
            at = end;
        }
        size /= 2;
    }
    left
}

fn forget(operation: Operation) -> Operation {
    let Outcome::Known(answer) = operation.outcome else {
        return operation;
    };
    let left = match (operation.ask, answer) {
        (_, Answer::NoEffect) => None,
        (ask, Answer::Before(before)) => ask.makes(Some(before)),
        _ => operation.value(),
    };
    let ask = match left {
        Some(value) => Ask::Put(value),
        None if operation.ask == Ask::Delete => Ask::Delete,
        None => return operation,
    };
    if operation.is_read() {
        return operation;
    }
    Operation { ask, outcome: Outcome::UnknownUntil(operation.returned), ..operation }
}
