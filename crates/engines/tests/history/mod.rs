//! Histories of operations on one key, and whether they are linearizable (Wing and Gong's search,
//! with Lowe's memory of the configurations that failed).

use std::collections::HashSet;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    Get,
    Put(u64),
    PutIfAbsent(u64),
    /// A conditional PUT that must not take effect: its version is none that ever was.
    PutRefused(u64),
    Delete,
    Add(u64),
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    Value(Option<u64>),
    Done,
    Was(bool),
    Before(u64),
    /// Certainly without effect: refused, timed out, no room.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Who asked; for the reader of a failed history.
    #[allow(dead_code, reason = "it is printed")]
    pub client: usize,
    pub ask: Ask,
    pub called: u64,
    /// `None`: the client died; it may have happened, at any time since, or not at all.
    pub returned: Option<(u64, Answer)>,
}

/// What the operation makes of a state, if its answer fits.
fn apply(operation: &Operation, state: Option<u64>) -> Option<Option<u64>> {
    let (answer, after) = match operation.ask {
        Ask::Get => (Answer::Value(state), state),
        Ask::Put(v) => (Answer::Done, Some(v)),
        Ask::PutIfAbsent(v) => (Answer::Was(state.is_none()), state.or(Some(v))),
        Ask::PutRefused(_) => (Answer::Was(false), state),
        Ask::Delete => (Answer::Was(state.is_some()), None),
        Ask::Add(n) => {
            (Answer::Before(state.unwrap_or(0)), Some(state.unwrap_or(0).wrapping_add(n)))
        }
    };
    match operation.returned {
        Some((_, given)) if given != answer => None,
        _ => Some(after),
    }
}

/// Whether the operations, all on one key that had `start`, are linearizable.
pub fn is_linearizable(history: &[Operation], start: Option<u64>) -> bool {
    let history: Vec<&Operation> =
        history.iter().filter(|o| !matches!(o.returned, Some((_, Answer::Nothing)))).collect();
    assert!(history.len() <= 64, "a history has at most 64 operations");
    let must: u64 = bits(&history, |o| o.returned.is_some());
    let mut failed = HashSet::new();
    let mut stack = vec![(0u64, start)];
    while let Some((done, state)) = stack.pop() {
        if done & must == must {
            return true;
        }
        if !failed.insert((done, state)) {
            continue;
        }
        // Next may come whatever was called before the first of the others returned.
        let left = |i: usize| done >> i & 1 == 0;
        let returned = |o: &Operation| o.returned.map_or(u64::MAX, |r| r.0);
        let first = (0..history.len()).filter(|i| left(*i)).map(|i| returned(history[i])).min();
        for (i, operation) in history.iter().enumerate() {
            if left(i)
                && Some(operation.called) <= first
                && let Some(after) = apply(operation, state)
            {
                stack.push((done | 1 << i, after));
            }
        }
    }
    false
}

fn bits(history: &[&Operation], has: impl Fn(&Operation) -> bool) -> u64 {
    history.iter().enumerate().map(|(i, o)| (has(o) as u64) << i).sum()
}

#[test]
fn the_checker_knows_good_from_bad() {
    let op = |ask, called, returned, answer| Operation {
        client: 0,
        ask,
        called,
        returned: Some((returned, answer)),
    };
    let put = |v, from, to| op(Ask::Put(v), from, to, Answer::Done);
    let get = |v, from, to| op(Ask::Get, from, to, Answer::Value(v));
    assert!(is_linearizable(&[put(1, 0, 9), get(None, 1, 2), get(Some(1), 3, 4)], None));
    assert!(
        !is_linearizable(&[put(1, 0, 9), get(Some(1), 1, 2), get(None, 3, 4)], None),
        "new, then old"
    );
    assert!(!is_linearizable(&[put(1, 0, 1), get(None, 2, 3)], None), "a lost write");
    let died = Operation { client: 1, ask: Ask::Put(2), called: 0, returned: None };
    assert!(is_linearizable(&[died, get(None, 1, 2), get(Some(2), 3, 4)], None), "late, and dead");
    assert!(is_linearizable(&[died, get(None, 1, 2)], None), "never");
    assert!(!is_linearizable(&[died, get(Some(2), 1, 2), get(None, 3, 4)], None));
    let delete = |was, from, to| op(Ask::Delete, from, to, Answer::Was(was));
    assert!(
        !is_linearizable(&[put(1, 0, 1), delete(true, 2, 5), delete(true, 3, 6)], None),
        "deleted twice"
    );
}
