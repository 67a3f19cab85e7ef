//! Linearizability by its definition: there is a choice of the operations of unknown outcome, and
//! an order of them and the others, which keeps the real-time order of operations, and in which
//! each answer fits. Every order is tried.

use std::collections::HashSet;

use loch_history::{Answer, Ask, Operation, Outcome, Update, appended};

/// A value, its version if it was reported, and the value to which it was appended, or the value
/// itself; after a TOUCH its tag.
type State = Option<(u64, Option<u64>, u64)>;

/// Whether operations on one key have an order.
pub fn has_order(history: &[Operation]) -> bool {
    let mut order = Vec::new();
    extend(history, &mut order)
}

fn extend(history: &[Operation], order: &mut Vec<usize>) -> bool {
    let certain =
        |o: &Operation| matches!(o.outcome, Outcome::Known(answer) if answer != Answer::NoEffect);
    if !fits(history, order) {
        return false;
    }
    if (0..history.len()).all(|n| order.contains(&n) || !certain(&history[n])) {
        return true;
    }
    for n in 0..history.len() {
        let without_effect = history[n].outcome == Outcome::Known(Answer::NoEffect);
        let used = order.contains(&n) && history[n].ask != Ask::Forget;
        if used || without_effect {
            continue;
        }
        order.push(n);
        if extend(history, order) {
            return true;
        }
        order.pop();
    }
    false
}

fn end(operation: &Operation) -> u64 {
    match operation.outcome {
        Outcome::Known(_) => operation.returned,
        Outcome::Unknown => u64::MAX,
        Outcome::UnknownUntil(moment) => moment.max(operation.called),
    }
}

/// Whether an order keeps the real-time order of operations, and each answer fits.
fn fits(history: &[Operation], order: &[usize]) -> bool {
    for (at, later) in order.iter().enumerate() {
        if order[..at].iter().any(|sooner| end(&history[*later]) < history[*sooner].called) {
            return false;
        }
    }
    // Operations that certainly happened and are not in the order yet come after all of it.
    let rest = (0..history.len()).filter(|n| !order.contains(n));
    let certain =
        |n: &usize| matches!(history[*n].outcome, Outcome::Known(a) if a != Answer::NoEffect);
    for left in rest.filter(certain) {
        if order.iter().any(|n| end(&history[left]) < history[*n].called) {
            return false;
        }
    }
    let (mut state, mut told) = (None, HashSet::new());
    order.iter().all(|n| apply(&history[*n], &mut state, &mut told))
}

/// Does one operation; returns whether its answer fits.
#[expect(clippy::too_many_lines, reason = "a table of what fits what")]
fn apply(operation: &Operation, state: &mut State, told: &mut HashSet<u64>) -> bool {
    let mut is = |state: &mut State, version: u64| match state {
        Some((_, Some(known), _)) => *known == version,
        Some((_, unknown, _)) => {
            *unknown = Some(version);
            told.insert(version)
        }
        None => false,
    };
    let answer = match operation.outcome {
        Outcome::Known(answer) => Some(answer),
        _ => None,
    };
    match (operation.ask, answer) {
        (Ask::Get, Some(Answer::Found(None))) => state.is_none(),
        (Ask::Get, Some(Answer::Found(Some((value, version))))) => {
            state.is_some_and(|(held, ..)| held == value) && is(state, version)
        }
        (Ask::Get, Some(Answer::Value(value))) => state.is_some_and(|(held, ..)| held == value),
        (Ask::Get, Some(Answer::Present)) | (Ask::PutIfAbsent(_), Some(Answer::Held)) => {
            state.is_some()
        }
        (Ask::PutIfAbsent(_), Some(Answer::Refused(Some(version)))) => is(state, version),
        (Ask::PutIfVersion { version: asked, .. }, Some(Answer::Refused(now))) => match now {
            Some(version) => asked != version && is(state, version),
            None => state.is_none(),
        },
        (Ask::Delete, Some(Answer::Deleted(had))) => state.take().is_some() == had,
        (Ask::DeleteIfVersion(asked), Some(Answer::Deleted(false))) => {
            !matches!(state, Some((_, Some(known), _)) if *known == asked)
        }
        (Ask::DeleteIfVersion(asked), Some(Answer::Deleted(true)) | None) => {
            let fits = is(state, asked);
            *state = None;
            fits
        }
        (Ask::Delete, Some(Answer::Done)) => {
            *state = None;
            true
        }
        (Ask::Update(update), Some(Answer::Before(before))) => {
            state.map_or(0, |(value, ..)| value) == before && updated(update, state)
        }
        (Ask::Update(update), Some(Answer::Done) | None) => updated(update, state),
        (Ask::Update(Update::AddIfPresent(_)), Some(Answer::Refused(None))) => state.is_none(),
        (Ask::Add(add), Some(Answer::Before(before))) => {
            let fits = state.map_or(0, |(value, ..)| value) == before;
            *state = plain(before.wrapping_add(add), None);
            fits
        }
        (Ask::Put(value), Some(Answer::Stored(version))) => {
            *state = plain(value, Some(version));
            told.insert(version)
        }
        (Ask::PutIfAbsent(value), Some(Answer::Stored(version))) => {
            let fits = state.is_none();
            *state = plain(value, Some(version));
            told.insert(version) && fits
        }
        (Ask::PutIfVersion { version: asked, value }, Some(Answer::Stored(version))) => {
            let fits = is(state, asked);
            *state = plain(value, Some(version));
            told.insert(version) && fits
        }
        (Ask::Append(piece), Some(Answer::Stored(version))) => {
            *state = behind(*state, piece, Some(version));
            told.insert(version)
        }
        (Ask::Append(piece), Some(Answer::Done) | None) => {
            *state = behind(*state, piece, None);
            true
        }
        (Ask::Touch(_), Some(Answer::Found(None) | Answer::Refused(None))) => state.is_none(),
        (Ask::Touch(tag), Some(Answer::Found(Some((value, version))))) => {
            let fits = state.is_some_and(|(held, ..)| held == value);
            touched(state, tag, Some(version)) && told.insert(version) && fits
        }
        (Ask::Touch(tag), Some(Answer::Stored(version))) => {
            touched(state, tag, Some(version)) && told.insert(version)
        }
        (Ask::Touch(tag), Some(Answer::Value(value))) => {
            state.is_some_and(|(held, ..)| held == value) && touched(state, tag, None)
        }
        (Ask::Touch(tag), Some(Answer::Done) | None) => touched(state, tag, None),
        (Ask::Get, None) => true,
        (Ask::Put(value), Some(Answer::Done) | None) => {
            *state = plain(value, None);
            true
        }
        (Ask::PutIfAbsent(value), Some(Answer::Done) | None) => {
            let fits = state.is_none();
            *state = plain(value, None);
            fits
        }
        (Ask::PutIfVersion { version: asked, value }, None) => {
            let fits = is(state, asked);
            *state = plain(value, None);
            fits
        }
        (Ask::Delete | Ask::Forget, None) => state.take().is_some(),
        (Ask::Expire(value), None) => state.take_if(|(.., root)| *root == value).is_some(),
        (Ask::Add(add), None) => {
            *state = plain(state.map_or(0, |(value, ..)| value).wrapping_add(add), None);
            true
        }
        _ => false,
    }
}

/// A value to which nothing was appended.
fn plain(value: u64, version: Option<u64>) -> State {
    Some((value, version, value))
}

/// The state with a piece behind its value.
fn behind(state: State, piece: u64, version: Option<u64>) -> State {
    match state {
        Some((value, _, root)) => Some((appended(value, piece), version, root)),
        None => plain(piece, version),
    }
}

/// Touches the value; returns whether there is one.
fn touched(state: &mut State, tag: u64, version: Option<u64>) -> bool {
    *state = state.map(|(value, ..)| (value, version, tag));
    state.is_some()
}

/// Does an update; returns whether there was a value to update.
fn updated(update: Update, state: &mut State) -> bool {
    let before = state.map(|(value, ..)| value);
    let now = match (update, before) {
        (Update::AddIfPresent(_), None) => return false,
        (Update::AddIfPresent(add), Some(before)) => before.wrapping_add(add),
        (Update::AddSaturating(add), before) => before.unwrap_or(0).saturating_add(add),
        (Update::Exchange(value), _) => value,
        (Update::CompareSwap { expected, value }, before) => {
            let before = before.unwrap_or(0);
            if before == expected { value } else { before }
        }
    };
    *state = plain(now, None);
    true
}
