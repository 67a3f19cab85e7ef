//! Facts about the operations on a key that are known before the search begins.
//!
//! An operation of unknown outcome may be anywhere in an order, or left out, so each one multiplies
//! the number of orders. Four rules keep these operations few; none of the rules changes the
//! verdict.
//!
//! 1. **Operations without an effect are dropped**: GETs of unknown outcome, and operations whose
//!    answer says so.
//! 2. **A write that was seen has happened.** If a value has one writer, and no update can have
//!    made it, then the writer took effect before the first operation that saw the value returned.
//!    So the writer must be in the order, with that return as its own; and if a GET saw the value,
//!    its version is known too, unless the value may have been touched.
//! 3. **Unseen values are alike.** Only the presence of such a value can matter. So two blind PUTs
//!    of unseen values are interchangeable, and the one that expires first may be taken first. The
//!    same is true of DELETEs, and of each kind of conditional PUT. Rules 2 and 3 are not used
//!    where an update may have built on the value without an answer that shows it (its outcome is
//!    unknown, or its answer says only that it was done). Unseen operations are not simply dropped:
//!    a DELETE may report that there was a value. A value that may expire is never like others.
//!    Neither is a value to which a piece was appended, if the result was seen: an operation that
//!    saw the result has seen both parts (`live.rs`). So APPENDs are alike if no seen value has a
//!    part of them. An appended piece never belongs to another value, so rule 2 holds beside
//!    APPENDs.
//! 4. (In `search.rs`.) An operation that is not needed is not taken: the operation right after it
//!    must depend on the state.

use std::collections::{HashMap, HashSet};

use crate::live::Live;
use crate::model::Step;
use crate::{Answer, Ask, Operation, Outcome};

/// An operation as the search has it.
pub(crate) struct Prepared {
    pub step: Step,
    pub called: u64,
    pub returned: u64,
    /// Optional operations with the same number are interchangeable.
    pub class: usize,
    /// Its place among the operations that were given.
    pub origin: usize,
}

/// The operations on a key.
pub(crate) struct OfKey {
    /// Operations that took effect, in the order of their calls.
    pub must: Vec<Prepared>,
    /// Operations that may have taken effect, by class, then by when they expire.
    pub may: Vec<Prepared>,
    /// Versions are numbers below this one.
    pub versions: usize,
}

/// The facts about one value.
#[derive(Clone, Copy, Default)]
struct Account {
    writers: u32,
    /// When the first operation that saw it returned.
    seen: Option<u64>,
    version: Option<u64>,
}

pub(crate) fn prepare(operations: &[Operation]) -> OfKey {
    let accounts = accounts(operations);
    let open_sums = operations.iter().any(|operation| {
        let tells = matches!(
            operation.outcome,
            Outcome::Known(Answer::Before(_) | Answer::Refused(_) | Answer::NoEffect)
        );
        operation.ask.is_update() && !tells && !matches!(operation.ask, Ask::Append(_))
    });
    let appends = operations.iter().any(|operation| matches!(operation.ask, Ask::Append(_)));
    let live = appends.then(|| Live::of(operations, seen_in(&accounts))).flatten();
    // Whether no seen value is this one, or was made from it; the same for an appended piece.
    let is_dead = |value| live.as_ref().map_or(!appends, |live| !live.values.contains(&value));
    let is_lost = |ask| match (ask, &live) {
        (Ask::Append(piece), Some(live)) => !live.pieces.contains(&piece),
        _ => false,
    };
    // Values that may expire differ from others by their end.
    let expires = |operation: &Operation| match operation.ask {
        Ask::Expire(value) => Some(value),
        _ => None,
    };
    let expiring: HashSet<u64> = operations.iter().filter_map(expires).collect();
    // TOUCHes after which nothing expires are alike.
    let named = |ask| match ask {
        Ask::Touch(tag) if !expiring.contains(&tag) => Ask::Touch(0),
        ask => ask,
    };
    // A value that was touched is seen with another version than that of the PUT.
    let touches = operations.iter().any(|operation| matches!(operation.ask, Ask::Touch(_)));
    let (mut must, mut may) = (Vec::new(), Vec::new());
    for (origin, operation) in operations.iter().enumerate() {
        let &Operation { ask, called, .. } = operation;
        let at = |answer, returned, unseen| {
            let step = Step { ask: named(ask), answer, unseen };
            Prepared { step, called, returned, class: 0, origin }
        };
        match operation.outcome {
            Outcome::Known(Answer::NoEffect) => (),
            Outcome::Known(answer) => {
                must.push(at(Some(answer), operation.returned, is_lost(ask)));
            }
            Outcome::Unknown | Outcome::UnknownUntil(_) if ask == Ask::Get => (),
            Outcome::Unknown | Outcome::UnknownUntil(_) => {
                let until = operation.until();
                let account = operation.value().map(|value| accounts[&value]);
                let seen = account.and_then(|account| account.seen);
                match (account, seen) {
                    (Some(Account { writers: 1, version, .. }), Some(seen))
                        if !open_sums && seen >= called && operation.value() != Some(0) =>
                    {
                        let version = version.filter(|_| !touches);
                        must.push(at(version.map(Answer::Stored), seen.min(until), false));
                    }
                    _ => {
                        let alone =
                            operation.value().is_some_and(|value| expiring.contains(&value));
                        let is_unseen = seen.is_none() && operation.value().is_none_or(is_dead);
                        let alike = match ask {
                            Ask::Append(_) => is_lost(ask),
                            _ => !open_sums && is_unseen && !alone,
                        };
                        may.push(at(None, until, alike));
                    }
                }
            }
        }
    }
    must.sort_by_key(|prepared| prepared.called);
    classify(&mut may);
    may.sort_by_key(|prepared| (prepared.class, prepared.returned, prepared.called));
    let versions = number_versions(must.iter_mut().chain(&mut may));
    OfKey { must, may, versions }
}

/// The writers of each value, and the operations that saw it.
fn accounts(operations: &[Operation]) -> HashMap<u64, Account> {
    let mut accounts: HashMap<u64, Account> = HashMap::new();
    for operation in operations {
        let mut sees = |value: u64, version: Option<u64>| {
            let account = accounts.entry(value).or_default();
            let returned = operation.returned;
            account.seen = Some(account.seen.map_or(returned, |seen| seen.min(returned)));
            account.version = account.version.or(version);
        };
        match operation.outcome {
            Outcome::Known(Answer::Found(Some((value, version)))) => sees(value, Some(version)),
            Outcome::Known(Answer::Before(value) | Answer::Value(value)) => sees(value, None),
            _ => (),
        }
        let writes = match (operation.ask, operation.outcome) {
            (ask, Outcome::Known(Answer::Before(before))) => ask.makes(Some(before)),
            (_, Outcome::Known(Answer::Refused(_) | Answer::Held | Answer::NoEffect)) => None,
            (Ask::Append(piece), _) => Some(piece),
            _ => operation.value(),
        };
        if let Some(value) = writes {
            accounts.entry(value).or_default().writers += 1;
        }
    }
    accounts
}

/// Finds the operations that are interchangeable.
fn classify(may: &mut [Prepared]) {
    let mut classes = HashMap::new();
    for prepared in may {
        let class = match prepared.step.ask {
            Ask::Put(_) if prepared.step.unseen => Ask::Put(0),
            Ask::PutIfAbsent(_) if prepared.step.unseen => Ask::PutIfAbsent(0),
            Ask::PutIfVersion { version, .. } if prepared.step.unseen => {
                Ask::PutIfVersion { version, value: 0 }
            }
            Ask::Append(_) if prepared.step.unseen => Ask::Append(0),
            alike => alike,
        };
        let next = classes.len();
        prepared.class = *classes.entry((class, prepared.step.unseen)).or_insert(next);
    }
}

/// Replaces versions by numbers from 0; returns how many there are.
fn number_versions<'a>(all: impl Iterator<Item = &'a mut Prepared>) -> usize {
    let mut numbers = HashMap::new();
    for Prepared { step, .. } in all {
        let mut number = |version: &mut u64| {
            let next = numbers.len() as u64;
            *version = *numbers.entry(*version).or_insert(next);
        };
        if let Ask::PutIfVersion { version, .. } | Ask::DeleteIfVersion(version) = &mut step.ask {
            number(version);
        }
        if let Some(
            Answer::Found(Some((_, version)))
            | Answer::Stored(version)
            | Answer::Refused(Some(version)),
        ) = &mut step.answer
        {
            number(version);
        }
    }
    numbers.len()
}

/// The values that some answer shows.
pub(crate) fn seen_values(operations: &[Operation]) -> HashSet<u64> {
    seen_in(&accounts(operations))
}

fn seen_in(accounts: &HashMap<u64, Account>) -> HashSet<u64> {
    let seen = accounts.iter().filter(|(_, account)| account.seen.is_some());
    seen.map(|(value, _)| *value).collect()
}
