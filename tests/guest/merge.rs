//! The records of the clients of both hosts, on one clock.

use std::path::Path;

use loch_history::{Answer, History, Operation, Outcome};

use super::clock::Offset;
use crate::recorded::record::read;

/// Clients of host 1 have numbers from this one on, of host 2 from twice that.
pub const CLIENTS_OF_HOST: u32 = 1_000;

/// A round's operations.
pub struct Merged {
    pub history: History,
    /// Operations that were certainly under way while one of the other host was, on the same key.
    pub across: usize,
    /// Of those whose outcome is unknown, they that returned and said so.
    pub ambiguous: usize,
    /// Clients that were killed while an operation was under way.
    pub cut_off: usize,
}

/// All operations of the records in a folder.
pub fn records_in(dir: &Path) -> Vec<Operation> {
    let mut operations = Vec::new();
    for file in std::fs::read_dir(dir).expect("the folder of the records") {
        let path = file.expect("a record").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        let (_, client) = name.rsplit_once('-').expect("a record is named after its client");
        operations.extend(read(&path, client.parse().expect("a number"), u64::MAX));
    }
    operations
}

/// Puts the operations of both hosts together, each by the clock of its host. `looks_settle`:
/// whether who reads a key learns what became of an operation of unknown outcome ([`bounded`]).
pub fn merged(
    first: Vec<Operation>,
    second: Vec<Operation>,
    offset: Offset,
    looks_settle: bool,
) -> Merged {
    let is_open = |o: &&Operation| !matches!(o.outcome, Outcome::Known(_));
    let both = || first.iter().chain(&second);
    let ambiguous = both().filter(is_open).filter(|o| o.returned < u64::MAX).count();
    let cut_off = both().filter(is_open).filter(|o| o.returned == u64::MAX);
    let mut cut_off: Vec<u32> = cut_off.map(|o| o.client).collect();
    cut_off.sort_unstable();
    cut_off.dedup();
    let (across, cut_off) = (across(&first, &second, offset), cut_off.len());
    let bounded =
        |operations| if looks_settle { bounded(operations) } else { unbounded(operations) };
    let second = bounded(second).into_iter().map(|operation| offset.widened(operation));
    let history = bounded(first).into_iter().chain(second).collect();
    Merged { history, across, ambiguous, cut_off }
}

/// Says until when what is unknown can have had its effect.
///
/// Of a client that was killed nobody says when its last verbs are over: the card may have sent
/// them already. But who was told that an outcome is unknown learns it by reading the key: so the
/// first GET of the same client that was called afterwards, and answered, is the end.
fn bounded(operations: Vec<Operation>) -> Vec<Operation> {
    // Only a GET finds something.
    let is_look = |o: &&Operation| matches!(o.outcome, Outcome::Known(Answer::Found(_)));
    let looks: Vec<Operation> = operations.iter().filter(is_look).copied().collect();
    let end_of = |lost: &Operation| {
        let later = looks.iter().filter(|look| {
            (look.client, look.key) == (lost.client, lost.key) && look.called > lost.returned
        });
        later.map(|look| look.returned).min().map_or(Outcome::Unknown, Outcome::UnknownUntil)
    };
    let bounded = |operation: Operation| match operation.outcome {
        Outcome::Known(_) => operation,
        Outcome::Unknown | Outcome::UnknownUntil(_) => {
            Operation { outcome: end_of(&operation), ..operation }
        }
    };
    operations.into_iter().map(bounded).collect()
}

/// A request that nobody waits for any more may be executed whenever its worker finds it.
fn unbounded(operations: Vec<Operation>) -> Vec<Operation> {
    let unbounded = |operation: Operation| match operation.outcome {
        Outcome::Known(_) => operation,
        _ => Operation { outcome: Outcome::Unknown, ..operation },
    };
    operations.into_iter().map(unbounded).collect()
}

/// How many operations of the second host overlap one of the first on the same key, wherever in
/// their uncertainty the clocks are.
fn across(first: &[Operation], second: &[Operation], offset: Offset) -> usize {
    let is_known = |o: &&Operation| matches!(o.outcome, Outcome::Known(_));
    let mut first: Vec<&Operation> = first.iter().filter(is_known).collect();
    first.sort_unstable_by_key(|o| o.called);
    let overlaps = |theirs: &&Operation| {
        let (called, returned) = (offset.latest(theirs.called), offset.earliest(theirs.returned));
        let begun = first.partition_point(|own| own.called < returned);
        let mut begun = first[..begun].iter().rev();
        called < returned && begun.any(|own| own.key == theirs.key && own.returned > called)
    };
    second.iter().filter(is_known).filter(overlaps).count()
}

#[cfg(test)]
mod tests {
    use loch_history::Ask;

    use super::*;

    fn operation(client: u32, ask: Ask, called: u64, returned: u64, answer: Answer) -> Operation {
        let outcome = Outcome::Known(answer);
        Operation { client, key: 1, ask, called, returned, outcome }
    }

    fn lost(client: u32, called: u64, returned: u64) -> Operation {
        let outcome = Outcome::UnknownUntil(u64::MAX);
        Operation { outcome, ..operation(client, Ask::Put(7), called, returned, Answer::NoEffect) }
    }

    #[test]
    fn who_reads_the_key_learns_what_became_of_an_operation() {
        let get = |client, called, returned| {
            operation(client, Ask::Get, called, returned, Answer::Found(None))
        };
        let elsewhere = Operation { key: 2, ..get(1, 40, 50) };
        let refused = operation(1, Ask::Get, 40, 50, Answer::NoEffect);
        let (another, early) = (get(2, 40, 50), get(1, 25, 50));
        let all = vec![lost(1, 20, 30), early, another, elsewhere, refused, get(1, 60, 70)];
        assert_eq!(bounded(all)[0].outcome, Outcome::UnknownUntil(70));
        let nobody_looks = vec![lost(1, 20, 30), another, early];
        assert_eq!(bounded(nobody_looks)[0].outcome, Outcome::Unknown);
        let killed = vec![lost(1, 20, u64::MAX), get(1, 60, 70)];
        assert_eq!(bounded(killed)[0].outcome, Outcome::Unknown);
    }

    #[test]
    fn only_what_certainly_overlaps_is_counted() {
        let offset = Offset::of_exchange(0, 100, 10);
        let put = |client, called, returned| {
            operation(client, Ask::Put(7), called, returned, Answer::Stored(1))
        };
        let first = [put(1, 1_000, 2_000), put(1, 3_000, 3_100)];
        let count = |theirs| across(&first, &[theirs], offset);
        // Its true call is between 1,980 and 1,990, or 1,995 and 2,005.
        assert_eq!((count(put(2, 2_080, 2_400)), count(put(2, 2_095, 2_400))), (1, 0));
        assert_eq!(count(put(2, 500, 4_000)), 1);
        assert_eq!(count(Operation { key: 2, ..put(2, 500, 4_000) }), 0);
        assert_eq!(count(lost(2, 500, 4_000)), 0);
    }
}
