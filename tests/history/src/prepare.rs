//! What can be said about the operations on a key before the search begins.
//!
//! An operation of unknown outcome may be left out of an order, at any place, so each one
//! multiplies what there is to search. Four things keep them few; none of them changes the verdict.
//!
//! 1. **What has no effect is dropped**: GETs of unknown outcome, and whatever says so.
//! 2. **What was seen has happened.** If a value has one writer, and no update can have made it,
//!    then the writer took effect before the first that saw it returned. So it must be in the
//!    order, with that return as its own; and if a GET saw it, its version is known too.
//! 3. **Unseen values are alike.** Nothing but the presence of such a value can matter, so two
//!    blind PUTs of unseen values are interchangeable, and the one that expires first may be taken
//!    first. The same is true of DELETEs, and of each kind of conditional PUT. That does not hold
//!    where an update that does not tell of what (its outcome is unknown, or it says no more than
//!    that it was done) may have built on the value, which is why there 2 and 3 are left. They are
//!    not simply dropped: a DELETE may say that there was a value. A value that may expire is never
//!    like others, nor is one that something was appended to which was seen: whoever saw that has
//!    seen both (`live.rs`). So APPENDs are alike of which no value that was seen has a part. What
//!    is appended to a value is never another's, so 2 holds beside APPENDs.
//! 4. (In `search.rs`.) One that nobody needs is not taken: whatever comes right after it must
//!    depend on the state.

use std::collections::{HashMap, HashSet};

use crate::live::Live;
use crate::model::Step;
use crate::{Answer, Ask, Operation, Outcome};

/// An operation as the search has it.
pub(crate) struct Prepared {
    pub step: Step,
    pub called: u64,
    pub returned: u64,
    /// Optional ones of the same number are interchangeable.
    pub class: usize,
    /// Its place among the operations that were given.
    pub origin: usize,
}

/// The operations on a key.
pub(crate) struct OfKey {
    /// They took effect. By their call.
    pub must: Vec<Prepared>,
    /// They may have taken effect. By class, then by when they expire.
    pub may: Vec<Prepared>,
    /// Versions are numbers below this one.
    pub versions: usize,
}

/// What is known of one value.
#[derive(Clone, Copy, Default)]
struct Account {
    writers: u32,
    /// When the first that saw it returned.
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
    // Whether no value that was seen is this one, or was made of it; so, of what is appended.
    let is_dead = |value| live.as_ref().map_or(!appends, |live| !live.values.contains(&value));
    let is_lost = |ask| match (ask, &live) {
        (Ask::Append(piece), Some(live)) => !live.pieces.contains(&piece),
        _ => false,
    };
    // Those are told from others by what ends them.
    let expires = |operation: &Operation| match operation.ask {
        Ask::Expire(value) => Some(value),
        _ => None,
    };
    let expiring: HashSet<u64> = operations.iter().filter_map(expires).collect();
    let (mut must, mut may) = (Vec::new(), Vec::new());
    for (origin, operation) in operations.iter().enumerate() {
        let &Operation { ask, called, .. } = operation;
        let at = |answer, returned, unseen| {
            let step = Step { ask, answer, unseen };
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

/// Who wrote a value, and who saw it.
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

/// Tells those that are interchangeable from the rest.
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

/// Replaces versions by numbers from 0; how many there are.
fn number_versions<'a>(all: impl Iterator<Item = &'a mut Prepared>) -> usize {
    let mut numbers = HashMap::new();
    for Prepared { step, .. } in all {
        let mut number = |version: &mut u64| {
            let next = numbers.len() as u64;
            *version = *numbers.entry(*version).or_insert(next);
        };
        if let Ask::PutIfVersion { version, .. } = &mut step.ask {
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

/// The values that some answer tells of.
pub(crate) fn seen_values(operations: &[Operation]) -> HashSet<u64> {
    seen_in(&accounts(operations))
}

fn seen_in(accounts: &HashMap<u64, Account>) -> HashSet<u64> {
    let seen = accounts.iter().filter(|(_, account)| account.seen.is_some());
    seen.map(|(value, _)| *value).collect()
}
