//! The verdict on a history.

use std::fmt;

use crate::history::{Ask, History, Operation};
use crate::search::{Found, search};
use crate::shrink::shrink_key;
use crate::timeline::{duration, timeline_of, worded};

/// Operations of known outcome that are shown of a search that was too long.
const NEAR_MAX: usize = 40;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Every key's operations have an order.
    Linearizable,
    /// The operations of this key have no order.
    Violation(Box<Violation>),
    /// The result is unknown: the budget was too small for this key. That is a failure, not a pass.
    Exhausted {
        /// The key.
        key: u64,
        /// The operation before which the longest attempts ended.
        blocked: Box<Operation>,
        /// The operations that were under way then, and those of unknown outcome.
        near: History,
    },
}

/// A key whose operations have no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: u64,
    /// How many operations on it there are.
    pub operations: usize,
    /// The operations that are needed to show the failure; see [`shrink`](crate::shrink).
    pub history: History,
    /// The operation that has no place among them.
    pub blocked: Operation,
}

/// Whether a history is linearizable. Looks at no more than `budget` configurations for each key;
/// a history of known outcomes needs little more than one for each operation.
pub fn check(history: &History, budget: u64) -> Verdict {
    let mut verdict = Verdict::Linearizable;
    for (key, operations) in history.by_key() {
        match search(&operations, budget) {
            Found::Order => (),
            Found::Exhausted { blocked } => {
                let blocked = Box::new(operations[blocked]);
                let near = near(&operations, &blocked);
                verdict = Verdict::Exhausted { key, blocked, near };
            }
            Found::NoOrder { blocked } => {
                let shrunk = shrink_key(&operations, budget);
                let blocked = match search(&shrunk, budget) {
                    Found::NoOrder { blocked } => shrunk[blocked],
                    _ => operations[blocked],
                };
                return Verdict::Violation(Box::new(Violation {
                    key,
                    operations: operations.len(),
                    history: shrunk.into(),
                    blocked,
                }));
            }
        }
    }
    verdict
}

/// The operations that show why an attempt ended: those under way shortly before this one
/// returned, and those of unknown outcome that may have come between.
fn near(operations: &[Operation], blocked: &Operation) -> History {
    let until = blocked.until();
    let mut known: Vec<&Operation> =
        operations.iter().filter(|o| o.is_known() && o.called <= until).collect();
    known.sort_by_key(|o| o.returned);
    let known = known.into_iter().rev().take(NEAR_MAX);
    let from = known.clone().map(|o| o.called).min().unwrap_or(0);
    let open = operations
        .iter()
        .filter(|o| !o.is_known() && o.ask != Ask::Get && o.called <= until && o.until() >= from);
    open.chain(known).copied().collect()
}

impl Verdict {
    /// Whether there is an order for each key.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        *self == Self::Linearizable
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable => f.write_str("linearizable"),
            Self::Exhausted { key, blocked, near } => {
                writeln!(
                    f,
                    "key {key}: the budget did not suffice; the longest attempts ended here:"
                )?;
                f.write_str(&timeline_of(near, Some(blocked)))
            }
            Self::Violation(violation) => violation.fmt(f),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operations, history, blocked } = self;
        let start = history.operations().iter().map(|o| o.called).min().unwrap_or(0);
        let (asked, answered) = worded(blocked);
        writeln!(
            f,
            "key {key}: not linearizable; of {operations} operations, {} are enough to see it.\n\
             {asked} by client {} at {}, with {answered}, cannot be placed:",
            history.len(),
            blocked.client,
            duration(blocked.called - start),
        )?;
        f.write_str(&timeline_of(history, Some(blocked)))
    }
}
